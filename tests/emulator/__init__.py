"""Builds the emulator's test kernels with the host compiler and calls them through ctypes."""

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
CACHE = HERE.parents[1] / ".cache" / "emulator"
COMPILER = os.environ.get("CXX", "c++")
# Hidden symbols: every library has its own machine and its own kernels, even when several are loaded at once.
FLAGS = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-DPOD_EMULATE", "-Wno-unknown-pragmas"]
STRICT, QUIET = ["-O2", "-Wall", "-Wextra", "-Werror"], ["-O2", "-w"]


def headers(csrc: Path) -> list[Path]:
    """Every file that a build may read, for the cache key."""
    return sorted(f for f in [*csrc.rglob("*"), *HERE.glob("*.h")] if f.is_file())


def build(source: Path, csrc: Path = CSRC, flags: list[str] = STRICT) -> ctypes.CDLL:
    """The shared library of one .cu file, compiled unless an identical build is in the cache."""
    command = [COMPILER, *FLAGS, *flags]
    texts = [f.read_bytes() for f in [source, *headers(csrc)]]
    key = hashlib.sha256(b"".join(texts) + " ".join(command).encode()).hexdigest()[:16]
    library = CACHE / f"{source.stem}-{key}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        command += [f"-I{csrc}", f"-I{HERE}", "-x", "c++", str(source), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:6000]}")
        fresh.replace(library)
    return ctypes.CDLL(str(library))


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """One of the test sources here; the Hopper kernel is written for another compiler's warnings."""
    return build(HERE / f"{name}.cu", flags=QUIET if name == "hybrid90" else STRICT)


def call(name: str, function: str, *args) -> str | None:
    """Run an exported function; arrays go as pointers. Returns its error text, or None."""
    run = getattr(library(name), function)
    run.restype = ctypes.c_char_p
    text = run(*[pointer(a) for a in args])
    return text.decode() if text else None


def pointer(arg):
    if isinstance(arg, np.ndarray):
        assert arg.flags.c_contiguous
        return ctypes.c_void_p(arg.ctypes.data)
    return ctypes.c_char_p(arg.encode()) if isinstance(arg, str) else arg

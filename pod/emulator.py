"""One .cu file for the CPU emulator, compiled by the host's compiler without torch: a library for ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pod import files, kernels

CSRC = Path(__file__).parents[1] / "csrc"
# Hidden symbols: every library has its own machine and its own kernels, even when several are loaded at once.
FLAGS = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-DPOD_EMULATE", "-Wno-unknown-pragmas"]


def build(source: Path, flags: Sequence[str], csrc: Path = CSRC, also: Sequence[Path] = ()) -> ctypes.CDLL:
    """The library of one .cu file, compiled unless an identical build is in the cache. `also`: folders of headers."""
    kernels.require_tools()
    command = [*kernels.compiler().split(), *FLAGS, *flags]
    headers = [f for folder in (csrc, *also) for f in sorted(folder.rglob("*")) if f.suffix in (".h", ".cuh", ".cu")]
    texts = [f.read_bytes() for f in [source, *headers]]
    key = hashlib.sha256(b"".join(texts) + " ".join(command).encode()).hexdigest()[:16]
    name = f"{source.stem}-{key}.so"
    library = files.kept(f"emulator/{name}")
    if library is None:
        library = files.folder("emulator") / name
        with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as workshop:
            made = Path(workshop) / name
            command += [*(f"-I{folder}" for folder in (csrc, *also)), "-x", "c++", str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:6000]}")
            files.keep(made, library)
    return ctypes.CDLL(str(library))


def pointer(arg):
    """An argument as ctypes takes it: arrays by address, words as bytes."""
    import numpy as np

    if isinstance(arg, np.ndarray):
        if not arg.flags.c_contiguous:
            raise ValueError(f"array: got strides {arg.strides}, allowed is a contiguous one")
        return ctypes.c_void_p(arg.ctypes.data)
    return ctypes.c_char_p(arg.encode()) if isinstance(arg, str) else arg

"""Builds the kernels of csrc, for the GPU or for the emulator, and says how kernels run on this machine.

A family of kernels is one record, a `Family`, kept by the module that calls it (sm80.py, sm90.py and so on);
`operator(family, kind, device)` builds what is asked for, once, and hands out the torch operator.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from threading import Lock

from pod import files
from pod.files import CSRC
from pod.kernels import builder

DTYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
MOST_SMS = 1024  # some six times as many as any card has
EMULATED_SMS = 4  # unless a plan is made inside `machine(sms=...)`
OLDEST_CUDA = {"90a": (12, 5)}  # by architecture: Hopper's sources ask the driver for functions by their version


@dataclass(frozen=True)
class Mode:
    """How kernels run here: name is "gpu", "emulated" or "recorded"; reason says why, in one line."""

    name: str
    reason: str


@cache
def mode() -> Mode:
    """Where kernels run here: on a GPU, in the emulator, or nowhere, so that what was recorded is shown."""
    import torch

    lack = _lack(gpu=True) if torch.cuda.is_available() else "no GPU here"
    if not lack:
        return Mode("gpu", f"kernels run on {torch.cuda.get_device_name()}")
    missing = _lack()
    if not missing:
        return Mode("emulated", f"{lack}, kernels run on the CPU emulator")
    return Mode("recorded", f"{missing}, so kernels cannot be built; recorded results are shown")


# ---------------------------------------------------------------- the tools that a build needs


class BuildError(RuntimeError):
    """The kernels cannot be built here; one line says why."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: that line alone."""
        return [f"{type(self).__name__}: {self}"]


def _lack(gpu: bool = False, arch: str | None = None) -> str:
    """What is missing to build, in words; "" when nothing is."""
    if not CSRC.is_dir():
        return "no csrc, neither in pod nor beside it"
    if gpu and nvcc() is None:
        return "no nvcc here"
    if gpu and (old := too_old(arch)):
        return old
    if shutil.which("ninja", path=_path()) is None:
        return "no ninja here"
    return "" if compiler() else "no C++20 compiler here"


def require_tools(gpu: bool = False, arch: str | None = None) -> None:
    if lack := _lack(gpu, arch):
        raise BuildError(f"{lack}, so the kernels cannot be built; python -m pod doctor says how to mend it")


def too_old(arch: str | None) -> str:
    """What is wrong with the release of nvcc for this architecture, in words; "" when nothing is."""
    oldest, release = OLDEST_CUDA.get(arch, (0, 0)), cuda()
    if release is None or release >= oldest:
        return ""
    return "nvcc: got CUDA {}.{}, allowed for sm_{} is {}.{} and later".format(*release, arch, *oldest)


def cuda() -> tuple[int, int] | None:
    """The release of CUDA that nvcc belongs to; None without one that runs."""
    try:
        text = subprocess.run([nvcc() or "nvcc", "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release (\d+)\.(\d+)", text)
    return (int(release[1]), int(release[2])) if release else None


def nvcc() -> str | None:
    """Path of nvcc, found as torch finds it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=f"{home}/bin")
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def compilers() -> list[str]:
    return [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]


def compiler() -> str | None:
    """The first C++ compiler that reads some C++20: one that is there may be too old, or a mere stub."""
    return next((name for name in compilers() if _reads_cpp20(name)), None)


def _reads_cpp20(name: str) -> bool:
    command, code = [*name.split(), "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], "#include <span>\nint main() {}\n"
    try:
        done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _path() -> str:
    """PATH and the folder of this interpreter's scripts, where pip puts ninja without telling anyone."""
    return os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])


# ---------------------------------------------------------------- the machine that plans are made for


_sms = EMULATED_SMS


@contextmanager
def machine(sms: int) -> Iterator[None]:
    """Inside, plans for the CPU are made for an emulated GPU of `sms` SMs."""
    global _sms
    if not 1 <= sms <= MOST_SMS:
        raise ValueError(f"sms: got {sms!r}, allowed are 1 to {MOST_SMS}")
    before, _sms = _sms, sms
    try:
        yield
    finally:
        _sms = before


def sm_count(device) -> int:
    import torch

    return _sms if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def gpu_of(device):
    """The card as pod.hardware knows it; an A100 stands in for cards that it does not know, and for the emulator."""
    import torch

    from pod.hardware import GPUS

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((gpu for key, gpu in GPUS.items() if key.upper() in name), GPUS["a100"])


# ---------------------------------------------------------------- families


@dataclass(frozen=True, eq=False)
class Family:
    """One CUDA source and its torch operators: torch.ops.pod.<name>_<kind>, or torch.ops.pod.<name> without kinds.

    bindings, kernels: files of csrc. Only the first may see a torch header.
    fake(kind, *arguments): results of the right shapes and types, empty; for tracing and compiling models.
    kinds: what can be asked for, each with the line that asks the bindings for it and the line that asks the kernels.
    arch: the one architecture that the source is written for, as "90a"; None for any GPU from 8.0 on.
    """

    name: str
    bindings: str
    kernels: str
    fake: Callable
    kinds: dict[str, tuple[str, str]] = field(default_factory=lambda: {"": ("", "")})
    arch: str | None = None

    def operator_name(self, kind: str) -> str:
        return f"{self.name}_{kind}" if kind else self.name


_built_ahead = ContextVar("built_ahead", default=False)


@contextmanager
def ahead() -> Iterator[None]:
    """Inside, whoever builds knows it; outside, a build is a surprise, and says how to avoid it."""
    token = _built_ahead.set(True)
    try:
        yield
    finally:
        _built_ahead.reset(token)


@cache
def operator(family: Family, kind: str, device):
    """The torch operator of this kind on this device. Built when it is first asked for."""
    import torch

    on_cpu = device.type == "cpu"
    kinds = tuple(family.kinds) if on_cpu else (kind,)  # most of the wait on a CPU is for torch's headers: once for all
    try:
        _load(family, kinds, None if on_cpu else torch.cuda.get_device_capability(device))
    except BuildError as error:
        raise error.with_traceback(None) from None  # the line, without the rooms that it came through
    return getattr(torch.ops.pod, family.operator_name(kind))


# ---------------------------------------------------------------- building; capability None means: for the emulator


_registering = Lock()  # torch wants each operator registered once, and `cache` lets two threads in


@cache
def _load(family: Family, kinds: tuple[str, ...], capability: tuple[int, int] | None) -> None:
    """Register the operators of `kinds`, from the cache or from source."""
    import torch

    if not CSRC.is_dir():
        require_tools()
    library = _built(family, kinds, capability)
    with _registering:
        torch.ops.load_library(str(library))
        for kind in kinds:
            _register_fake(family, kind)


@cache
def _register_fake(family: Family, kind: str) -> None:
    import torch

    torch.library.register_fake(f"pod::{family.operator_name(kind)}", partial(family.fake, kind))


def _built(family: Family, kinds: tuple[str, ...], capability: tuple[int, int] | None) -> Path:
    try:
        return _kept(f"kernels/{_library(family, kinds, capability)}", partial(_build, family, kinds, capability))
    except OSError as error:
        raise BuildError(f"the kernels could not be built: {error.filename}: {error.strerror}") from None


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """What the cache has under this name, made unless it is there and whole."""
    if library := files.kept(name):
        return library
    folder, file = name.split("/")
    library = files.folder(folder) / file
    _sweep_up(library.parent)
    with _locked(library):  # somebody else may be building it
        if not files.whole(library):
            make(library)
    return library


def sources(family: Family, kinds: tuple[str, ...]) -> tuple[str, str]:
    """The text of the bindings and of the kernels, each with its lines for `kinds`."""
    lines = zip(*(family.kinds[kind] for kind in kinds), strict=True)
    texts = ((CSRC / file).read_text(encoding="utf-8") for file in (family.bindings, family.kernels))
    return tuple("\n".join([text, *asked, ""]) for text, asked in zip(texts, lines, strict=True))


def flags(family: Family, capability: tuple[int, int] | None) -> dict[str, list[str]]:
    if capability is None:
        return {"extra_cflags": ["-std=c++20", "-O1", "-fvisibility=hidden", "-DPOD_EMULATE", "-Wno-unknown-pragmas"]}
    arch = family.arch or "{}{}".format(*capability)
    return {
        "extra_cflags": ["-std=c++20", "-O2"],
        "extra_cuda_cflags": ["-std=c++20", "-O3", "-DNDEBUG", f"-gencode=arch=compute_{arch},code=sm_{arch}",
                              f"-DPOD_SMEM_PER_SM={smem_per_sm(capability)}"],
    }  # fmt: skip


def smem_per_sm(capability: tuple[int, int]) -> int:
    """Bytes of shared memory of an SM, by compute capability (CUDA C++ Programming Guide, technical specifications)."""
    kilobytes = {(8, 0): 164, (8, 7): 164, (9, 0): 228, (10, 0): 228, (10, 3): 228, (11, 0): 228}
    return kilobytes.get(tuple(capability), 100) << 10


def _folders(family: Family) -> list[Path]:
    """csrc and the folders of the family's sources."""
    return sorted({CSRC, *((CSRC / file).parent for file in (family.bindings, family.kernels))})


def _library(family: Family, kinds: tuple[str, ...], capability) -> str:
    """The name of the built library: it changes with everything that it is made from."""
    import torch

    folders = [*_folders(family), CSRC / "include", *([CSRC / "emulate"] if capability is None else [])]
    headers = [p for folder in folders for p in sorted(folder.iterdir()) if p.suffix in (".h", ".cuh")]
    made_from = [torch.__version__, sys.version, repr(flags(family, capability)), *sources(family, kinds)]
    made_from += [p.read_text(encoding="utf-8") for p in headers]
    digest = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:16]
    return f"{family.name}_{'gpu' if capability else 'emulated'}_{digest}.so"


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """One at a time, threads too. The lock dies with its process, so a killed build never blocks the next."""
    import fcntl

    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def _sweep_up(folder: Path) -> None:
    """Remove what killed builds left: the folders of libraries that nobody is building."""
    for left in folder.glob("build-*"):
        with suppress(OSError), _locked(folder / left.name.removeprefix("build-"), wait=False):
            shutil.rmtree(left, ignore_errors=True)


def _build(family: Family, kinds: tuple[str, ...], capability, library: Path) -> None:
    """Compile; the library is in the cache only when all went well."""
    require_tools(capability is not None, family.arch)
    names = family.operator_name(kinds[0]) if len(kinds) == 1 else f"{family.name}_*"
    what, wait = ("GPU", "up to a minute") if capability else ("emulated", "half a minute")
    _tell(f"building the {what} kernels {names} ({wait}, once) ...", end=" ")
    started, outcome = time.perf_counter(), "failed"
    bindings, kernels = sources(family, kinds)
    cpp, cuda = ([bindings], [kernels]) if capability else ([bindings, kernels], [])
    options = {"name": library.stem, "cpp_sources": cpp, "cuda_sources": cuda, **flags(family, capability)}
    try:
        with _workshop(library) as folder:
            if said := builder.build(folder, _folders(family), {"PATH": _path(), "CXX": compiler()}, **options):
                reason = _reason(said, library.with_suffix(".log"))
                raise BuildError(f"the kernels {names} could not be built: {reason}")
            files.keep(next(folder.glob("*.so")), library)
        surprise = capability and not _built_ahead.get()
        hint = "; pod.build(...) ahead would have saved this wait" if surprise else ""
        outcome = f"done in {time.perf_counter() - started:.0f} s{hint}"
    finally:
        _tell(outcome)


def _tell(text: str, end: str = "\n") -> None:
    """Unless POD_QUIET is set: a notebook that is compared with its outputs must not depend on who builds first."""
    if not os.environ.get("POD_QUIET"):
        print(text, end=end, file=sys.stderr, flush=True)


@contextmanager
def _workshop(library: Path) -> Iterator[Path]:
    """A folder to build it in, which goes when that is over; `_sweep_up` knows it by its name."""
    folder = library.with_name(f"build-{library.stem}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reason(said: str, log: Path) -> str:
    """The first error of what the compiler said, or its last line, and where all of it is."""
    error = re.search(r"\berror: (.+)", said)
    reason = error[1] if error else (said.strip().splitlines() or ["the compiler said nothing"])[-1]
    try:
        log.write_text(said, encoding="utf-8")
    except OSError:  # a full disk, which will have been the reason
        return reason
    return f"{reason}; the compiler's words are in {log}"


# ---------------------------------------------------------------- one source for the emulator, without torch

# Hidden symbols: every library has its own machine and its own kernels, even when several are loaded at once.
PLAIN_FLAGS = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-DPOD_EMULATE", "-Wno-unknown-pragmas"]


def plain(source: Path, flags: Sequence[str], csrc: Path = CSRC, also: Sequence[Path] = ()) -> ctypes.CDLL:
    """The library of one .cu file for ctypes, compiled unless an identical build is in the cache. `also`: folders of
    headers."""
    require_tools()
    command = [*compiler().split(), *PLAIN_FLAGS, *flags]
    headers = [f for folder in (csrc, *also) for f in sorted(folder.rglob("*")) if f.suffix in (".h", ".cuh", ".cu")]
    texts = [f.read_bytes() for f in [source, *headers]]
    key = hashlib.sha256(b"".join(texts) + " ".join(command).encode()).hexdigest()[:16]
    command += [*(f"-I{folder}" for folder in (csrc, *also)), "-x", "c++", str(source)]
    return ctypes.CDLL(str(_kept(f"emulator/{source.stem}-{key}.so", partial(_build_plain, command))))


def _build_plain(command: list[str], library: Path) -> None:
    with _workshop(library) as folder:
        made = folder / library.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:6000]}")
        files.keep(made, library)


def pointer(arg):
    """An argument as ctypes takes it: arrays by address, words as bytes."""
    import numpy as np

    if isinstance(arg, np.ndarray):
        if not arg.flags.c_contiguous:
            raise ValueError(f"array: got strides {arg.strides}, allowed is a contiguous one")
        return ctypes.c_void_p(arg.ctypes.data)
    return ctypes.c_char_p(arg.encode()) if isinstance(arg, str) else arg

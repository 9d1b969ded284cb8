"""Builds the kernels of csrc as a torch inline extension, and says how kernels run on this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
CACHE = ROOT / ".cache" / "kernels"
DTYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
HEAD_DIMS = (64, 128)
TRACE_FIELDS = ("op", "id", "sm", "start", "end", "ticket", "draws", "block")
EMULATED_SMS = 4  # unless a plan is made inside `machine(sms=...)`


@dataclass(frozen=True)
class Mode:
    """How kernels run here: name is "gpu", "emulated" or "recorded"; reason says why, in one line."""

    name: str
    reason: str


@cache
def mode() -> Mode:
    import torch

    lack = _lack("nvcc") if torch.cuda.is_available() else "no GPU here"
    if not lack:
        return Mode("gpu", f"kernels run on {torch.cuda.get_device_name()}")
    missing = _lack()
    if not missing:
        return Mode("emulated", f"{lack}, kernels run on the CPU emulator")
    return Mode("recorded", f"{missing}, so kernels cannot be built; recorded results are shown")


def _lack(*also: str) -> str:
    """What is missing to build, in words; "" when nothing is."""
    from torch.utils import cpp_extension

    if "nvcc" in also and not (cpp_extension.CUDA_HOME and Path(cpp_extension.CUDA_HOME, "bin", "nvcc").exists()):
        return "no nvcc here"
    if shutil.which("ninja", path=_path()) is None:
        return "no ninja here"
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return "" if any(shutil.which(c.split()[0]) for c in compilers) else "no C++ compiler here"


def _path() -> str:
    """PATH and the folder of this interpreter's scripts, where pip puts ninja without telling anyone."""
    return os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])


# ---------------------------------------------------------------- the machine that plans are made for


_sms = EMULATED_SMS


@contextmanager
def machine(sms: int) -> Iterator[None]:
    """Inside, plans for the CPU are made for an emulated GPU of `sms` SMs."""
    global _sms
    if sms < 1:
        raise ValueError(f"sms: got {sms!r}, allowed is at least 1")
    before, _sms = _sms, sms
    try:
        yield
    finally:
        _sms = before


def sm_count(device) -> int:
    import torch

    return _sms if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


# ---------------------------------------------------------------- building


def operator(dtype: str, head_dim: int, device, trace: bool = False):
    """The torch operator for tensors of this kind on this device. Built when it is first asked for."""
    import torch

    if device.type == "cpu":
        names = [f"{d}_{h}{t}" for d in DTYPES for h in HEAD_DIMS for t in ("", "_trace")]
        _load("emulated", tuple(names), None)
    else:
        _load("gpu", (_name(dtype, head_dim, trace),), torch.cuda.get_device_capability(device))
    return getattr(torch.ops.pod, "hybrid_" + _name(dtype, head_dim, trace))


def _name(dtype: str, head_dim: int, trace: bool) -> str:
    return f"{dtype}_{head_dim}{'_trace' if trace else ''}"


@cache
def _load(kind: str, names: tuple[str, ...], capability: tuple[int, int] | None) -> None:
    """Load torch.ops.pod.hybrid_<name> for each of `names`, from the cache or from source."""
    import torch

    library = _library(kind, names, capability)
    if not library.exists():
        with _locked(library):
            if not library.exists():  # nobody else has built it meanwhile
                _build(kind, names, capability, library)
    op_name = f"hybrid_{names[0]}"
    if not hasattr(torch.ops.pod, op_name):
        torch.ops.load_library(str(library))
    for name in names:
        _register_fake(name)


def sources(kind: str, names: tuple[str, ...]) -> tuple[str, str]:
    """The text of the bindings and of the kernels, each with a line that asks for the kinds of tensor in `names`."""
    operators, kernels = [], []
    for name in names:
        dtype, head_dim, *trace = name.split("_")
        traced = "true" if trace else "false"
        operators.append(f"POD_OPERATOR({name}, {traced})")
        kernels.append(f"POD_KERNELS({name}, {DTYPES[dtype]}, {head_dim}, {traced})")
    texts = [(CSRC / "bindings.cpp").read_text(), (CSRC / "hybrid.cu").read_text()]
    return tuple("\n".join([text, *lines, ""]) for text, lines in zip(texts, (operators, kernels), strict=True))


def _flags(kind: str, capability: tuple[int, int] | None) -> dict[str, list[str]]:
    if kind == "emulated":
        return {"extra_cflags": ["-std=c++20", "-O1", "-fvisibility=hidden", "-DPOD_EMULATE", "-Wno-unknown-pragmas"]}
    major, minor = capability
    arch = f"{major}{minor}"
    return {
        "extra_cflags": ["-std=c++20", "-O2"],
        "extra_cuda_cflags": ["-std=c++20", "-O3", "-DNDEBUG", f"-gencode=arch=compute_{arch},code=sm_{arch}",
                              f"-DPOD_SMEM_PER_SM={smem_per_sm(capability)}"],
    }  # fmt: skip


def smem_per_sm(capability: tuple[int, int]) -> int:
    """Bytes of shared memory of an SM, by compute capability (CUDA C++ Programming Guide, technical specifications)."""
    kilobytes = {(8, 0): 164, (8, 7): 164, (9, 0): 228, (10, 0): 228, (10, 3): 228, (11, 0): 228}
    return kilobytes.get(tuple(capability), 100) << 10


def _library(kind: str, names: tuple[str, ...], capability) -> Path:
    """Where the built library lies: its name changes with everything that it is made from."""
    import torch

    made_from = [torch.__version__, sys.version, repr(_flags(kind, capability)), *sources(kind, names)]
    headers = [p for folder in ("include", "emulate") for p in sorted((CSRC / folder).iterdir()) if p.is_file()]
    made_from += [p.read_text() for p in headers]
    digest = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:16]
    return CACHE / f"{kind}_{names[0] if kind == 'gpu' else 'all'}_{digest}.so"


@contextmanager
def _locked(library: Path) -> Iterator[None]:
    """One build at a time. The lock dies with its process, so a killed build never blocks the next."""
    import fcntl

    CACHE.mkdir(parents=True, exist_ok=True)
    with open(library.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(kind: str, names: tuple[str, ...], capability, library: Path) -> None:
    from torch.utils import cpp_extension

    lack = _lack("nvcc") if kind == "gpu" else _lack()
    if lack:
        raise RuntimeError(f"{lack}, so the kernels cannot be built; python -m pod doctor says how to mend it")
    what, wait = ("GPU kernels", "about a minute") if kind == "gpu" else ("emulated kernels", "half a minute")
    print(f"building the {what} for {names[0]} ({wait}, once) ...", end=" ", file=sys.stderr, flush=True)
    started, path = time.perf_counter(), os.environ.get("PATH", "")
    bindings, kernels = sources(kind, names)
    on_gpu = {"cpp_sources": [bindings], "cuda_sources": [kernels]}
    texts = on_gpu if kind == "gpu" else {"cpp_sources": [bindings, kernels]}
    folder = tempfile.mkdtemp(prefix="build-", dir=CACHE)
    os.environ["PATH"] = _path()
    try:
        cpp_extension.load_inline(library.stem, **texts, **_flags(kind, capability), extra_include_paths=[str(CSRC)],
                                  build_directory=folder, is_python_module=False, no_implicit_headers=True)  # fmt: skip
        os.replace(next(Path(folder).glob("*.so")), library)
    except Exception as error:
        log = CACHE / "build.log"
        log.write_text(str(error))
        raise RuntimeError(f"the kernels could not be built; the compiler's words are in {log}") from None
    finally:
        os.environ["PATH"] = path
        shutil.rmtree(folder, ignore_errors=True)
    print(f"done in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def _register_fake(name: str) -> None:
    """Shapes and types of the results, for tracing and compiling models."""
    import torch

    @torch.library.register_fake(f"pod::hybrid_{name}")
    def _(q, k, v, table, lists, counters, partials, shape, scale, lse):
        trace_rows = shape[-1] if name.endswith("_trace") else 0
        return (
            q.new_empty(q.shape),
            q.new_empty((q.shape[0] if lse else 0, q.shape[1]), dtype=torch.float32),
            q.new_empty((trace_rows, len(TRACE_FIELDS)), dtype=torch.int64),
        )

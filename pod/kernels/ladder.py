"""The ladder: one attention kernel after the other, from a thread a row to what the production file starts from.

Each rung is a complete kernel of csrc/ladder, and differs from the one before by one idea. They take one kind of batch:
sequences that all bring as many new tokens, at the end of a context of one length, in bfloat16 with heads of 128
numbers. On a CPU they run in the emulator.
"""

import ctypes
import math
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pod.kernels import build

FOLDER = build.CSRC / "ladder"
HEAD_DIM, ROWS = 128, 128  # of a tile
FLAGS = ["-O1", "-w"]


@dataclass(frozen=True)
class Rung:
    """A file of csrc/ladder, what is new in it, and what the next one mends."""

    name: str
    file: str
    idea: str
    next: str
    hopper: bool = False
    groups: bool = True  # the query heads of a KV head share a tile
    splits: bool = False  # can cut a tile's keys into parts


RUNGS = {
    rung.name: rung
    for rung in (
        Rung("row", "1_row", "one thread a row", "every warp fetches every key for itself", groups=False),
        Rung("tile", "2_tile", "tiles in shared memory", "one multiply-add a thread and cycle", groups=False),
        Rung("mma", "3_mma", "tensor cores", "all wait while a block is fetched", groups=False),
        Rung("ahead", "4_ahead", "copies ahead", "how rows lie in shared memory", groups=False),
        Rung("swizzle", "5_swizzle", "swizzle", "decode fills one row of a tile, and has few tiles", groups=False),
        Rung("split", "6_split", "grouped heads, split keys", "all of an SM's warps wait together", splits=True),
        Rung("two", "7_two", "two CTAs an SM", "prefill or decode, never both", splits=True),
        Rung("wgmma", "h1_wgmma", "wgmma", "all threads copy", hopper=True),
        Rung("tma", "h2_tma", "TMA and a ring", "a barrier of all in each step", hopper=True),
        Rung("roles", "h3_roles", "roles", "products wait for their own softmax", hopper=True),
        Rung("early", "h4_early", "scores ahead", "both warpgroups may multiply at once", hopper=True),
        Rung("turns", "h5_turns", "turns", "prefill or decode, never both", hopper=True),
    )
}


class Call(ctypes.Structure):
    """Call of csrc/ladder/ladder.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in "q k v out parts arrived".split()),
        *((name, ctypes.c_int64) for name in "floats counters".split()),
        *((name, ctypes.c_int) for name in "sequences tokens context q_heads kv_heads splits spare".split()),
        ("scale_log2", ctypes.c_float),
    ]


class Made(NamedTuple):
    """What the compiler made of a rung; on a CPU nobody knows of registers."""

    registers: int
    spill_bytes: int
    threads: int
    smem_bytes: int
    ctas_per_sm: int


# ---------------------------------------------------------------- building


def source(name: str) -> Path:
    return FOLDER / f"{_known(name).file}.cu"


def _known(name: str) -> Rung:
    if name not in RUNGS:
        raise ValueError(f"rung: got {name!r}, allowed are {', '.join(RUNGS)}")
    return RUNGS[name]


@cache
def library(name: str, device_type: str = "cpu") -> ctypes.CDLL:
    return built(name, source(name), device_type)


def built(name: str, source: Path, device_type: str) -> ctypes.CDLL:
    """The library of a rung's file, also of a copy with something changed."""
    made = build.plain(source, FLAGS, source.parents[1]) if device_type == "cpu" else _for_gpu(name, source)
    for function in (made.run, made.describe_rung):
        function.restype = ctypes.c_char_p
    return made


def _for_gpu(name: str, source: Path) -> ctypes.CDLL:
    import torch

    arch = "90a" if RUNGS[name].hopper else "{}{}".format(*torch.cuda.get_device_capability())
    return ctypes.CDLL(str(compiled(source, arch, Path(tempfile.mkdtemp()))))


def compiled(source: Path, arch: str, folder: Path) -> Path:
    """The library of a rung for a GPU."""
    made = folder / f"{source.stem}.so"
    _nvcc(source, arch, made, "-shared", "-Xcompiler", "-fPIC")
    return made


def compiler_says(source: Path, arch: str, folder: Path) -> str:
    """What ptxas says of a rung: registers and spills."""
    return _nvcc(source, arch, folder / f"{source.stem}-{arch}.cubin", "-cubin", "-Xptxas", "-v")


def _nvcc(source: Path, arch: str, made: Path, *flags: str) -> str:
    build.require_tools(gpu=True)
    flags = ["-std=c++20", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", *flags]
    command = [build.nvcc(), *flags, f"-I{source.parents[1]}", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise build.BuildError(f"{source.name}: {done.stderr.strip()[:2000]}")
    return done.stdout + done.stderr


def build_all(names: Iterable[str] = RUNGS) -> None:
    """Side by side, for the GPU here."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: library(name, "cuda"), names))


# ---------------------------------------------------------------- calling


def attention(name: str, q, k, v, splits: int = 1, spare: int = 0, given: ctypes.CDLL | None = None):
    """q [sequences, tokens, query heads, 128], k and v [sequences, context, KV heads, 128] -> as q, by one rung.

    splits: parts of a tile's keys. spare: bytes of shared memory that a CTA asks for on top. given: another library.
    """
    import torch

    out = torch.empty_like(q)
    launch(name, q, k, v, out, splits, spare, given)()
    return out


def launch(name: str, q, k, v, out, splits: int = 1, spare: int = 0, given: ctypes.CDLL | None = None):
    """A function that runs this call again and again; its workspace is there."""
    import torch

    _check(_known(name), q, k, v, splits)
    (sequences, tokens, q_heads, _), (_, context, kv_heads, _) = q.shape, k.shape
    tiles = tiles_of(RUNGS[name], sequences, tokens, q_heads, kv_heads)
    parts = torch.empty(tiles * splits * ROWS * (HEAD_DIM + 1) if splits > 1 else 0, device=q.device)
    arrived = torch.zeros(tiles, dtype=torch.int32, device=q.device)
    tensors = {"q": q, "k": k, "v": v, "out": out, "parts": parts, "arrived": arrived}
    call = Call(
        **{key: x.data_ptr() for key, x in tensors.items()}, floats=parts.numel(), counters=tiles, sequences=sequences,
        tokens=tokens, context=context, q_heads=q_heads, kv_heads=kv_heads, splits=splits, spare=spare,
        scale_log2=HEAD_DIM**-0.5 * math.log2(math.e),
    )  # fmt: skip
    made = given or library(name, q.device.type)

    def run(_alive=tensors):
        _raise(made.run(ctypes.byref(call), _stream(q.device)), name)

    return run


def _stream(device):
    import torch

    if device.type == "cpu":
        return ctypes.c_int(0)
    return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)


def _raise(said: bytes | None, name: str) -> None:
    if said:
        raise RuntimeError(f"{RUNGS[name].file}.cu: {said.decode()}")


def _check(rung: Rung, q, k, v, splits: int) -> None:
    shapes = [tuple(x.shape) for x in (q, k, v)]
    fits = q.dim() == k.dim() == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[1] <= k.shape[1]
    if not fits or q.shape[3] != HEAD_DIM or k.shape[3] != HEAD_DIM or q.shape[2] % k.shape[2]:
        raise ValueError(f"q, k, v: got {shapes}, allowed are [n, tokens, Hq, 128] and twice [n, context, Hkv, 128]")
    if any(str(x.dtype) != "torch.bfloat16" or not x.is_contiguous() for x in (q, k, v)):
        raise ValueError(f"q, k, v: got {q.dtype}, {k.dtype}, {v.dtype}, allowed is dense bfloat16")
    if splits < 1 or splits > 1 and not rung.splits:
        raise ValueError(f"splits: got {splits} for {rung.name!r}, allowed is 1{' or more' if rung.splits else ''}")


def tiles_of(rung: Rung, sequences: int, tokens: int, q_heads: int, kv_heads: int) -> int:
    rows, heads = (tokens * q_heads // kv_heads, kv_heads) if rung.groups else (tokens, q_heads)
    return sequences * heads * -(-rows // ROWS)


def describe(name: str, device_type: str = "cuda", spare: int = 0, given: ctypes.CDLL | None = None) -> Made:
    made = (ctypes.c_int * len(Made._fields))()
    _raise((given or library(name, device_type)).describe_rung(made, spare), name)
    return Made(*made)

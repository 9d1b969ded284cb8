"""The production kernel with lines of a reader's in it: built from a changed copy of csrc, and run on the emulator.

Runs in a process of its own, so that it can be stopped: `python -m pod.learn.changed LIBRARY ARGUMENTS RESULT`.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pod import files
from pod.kernels import build
from pod.learn import faults, program

FLAGS = [*build.PLAIN_FLAGS, "-O1", "-w"]
UNUSED = ("sm90", "lean", "micro", "learn")
MOST_SECONDS = 15
SEED = 3  # of the tensors


def built(text: str, change: Callable[[Path], None]) -> Path:
    """The library of csrc/emulate/driver.cu after `change` to a copy of csrc, in which `text` stands as file "cell"."""
    place = files.folder("learn") / f"cell-{_key(text)}.kernel"
    if whole := files.kept(f"learn/{place.name}"):
        return whole
    program.sweep(place.parent)
    with tempfile.TemporaryDirectory(prefix="build-", dir=place.parent) as workshop:
        csrc, made = Path(workshop) / "csrc", Path(workshop) / "library"
        shutil.copytree(build.CSRC, csrc, ignore=shutil.ignore_patterns(*UNUSED))
        change(csrc)
        source = csrc / "emulate" / "driver.cu"
        if said := program.refusal(*FLAGS, f"-I{csrc}", "-x", "c++", str(source), "-o", str(made)):
            raise faults.complaint(said, text)
        files.keep(made, place)
    return place


def _key(text: str) -> str:
    sources = [f for f in sorted(build.CSRC.rglob("*")) if f.suffix in (".h", ".cuh", ".cu")]
    texts = [Path(__file__).read_bytes(), text.encode(), *(f.read_bytes() for f in sources)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def check(text, name: str, allowed: str) -> None:
    """A text may go into the kernel, unless it would bring something of somebody's along."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: got {text!r:.60}, allowed is a text with {allowed}")
    lines = text.strip("\n").splitlines()
    if directive := next((n for n, line in enumerate(lines, 1) if line.lstrip().startswith("#")), 0):
        raise faults.CompileError(text.strip("\n"), directive, f"got a line for the preprocessor, allowed is {allowed}")


@dataclass(frozen=True)
class Ran:
    """One launch: the output, what was printed, and what the emulator reports, "" when all went well."""

    out: np.ndarray | None
    printed: list[str]
    report: str = ""


def run(library: Path, batch, made, number: int = -1) -> Ran:
    """One launch of the schedule `made`; `number` is what the changed source calls pod_chosen."""
    with tempfile.TemporaryDirectory(prefix="pod-cell-") as folder:
        arguments, result = Path(folder) / "arguments.npz", Path(folder) / "result.npy"
        np.savez(arguments, **_arguments(batch, made, number))
        command = [sys.executable, "-m", "pod.learn.changed", str(library), str(arguments), str(result)]
        there = {**os.environ, "PYTHONPATH": str(files.ROOT)}
        try:
            said = Path(folder) / "said"
            with said.open("wb") as out:
                done = subprocess.run(command, env=there, stdout=out, stderr=subprocess.DEVNULL, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise faults.CellError(f"time: did not end within {MOST_SECONDS} s: a loop without an end?") from None
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        if done.returncode:
            reports = [line.removeprefix("emulator: ") for line in lines if line.startswith("emulator: ")]
            return Ran(None, lines, reports[0] if reports else f"crash: ended with {done.returncode}")
        return Ran(np.load(result), lines)


def _arguments(batch, made, number: int) -> dict:
    import torch

    from pod.kernels import sm80
    from pod.kernels.launch import flat

    q, k, v, table = batch.tensors(seed=SEED)
    header, lists, counters, floats = sm80.lay_out(made)
    tensors = {name: x.view(torch.int16).numpy() for name, x in zip("qkv", (q, k, v), strict=True)}
    numbers = {"header": np.array(header, np.int32), "lists": flat(lists), "counters": np.zeros(counters, np.int32)}
    sizes = [len(q), len(k), len(batch.q_lens), batch.num_q_heads, batch.num_kv_heads, number]
    partials = np.full(floats, np.nan, np.float32)
    return {**tensors, **numbers, "table": table.numpy(), "partials": partials, "sizes": np.array(sizes)}


# ---------------------------------------------------------------- in the process of its own


def main(library: str, arguments: str, result: str) -> int:
    """Prints what the emulator reports, if it does."""
    kernel, given = ctypes.CDLL(library), np.load(arguments)
    *sizes, number = given["sizes"].tolist()
    out = np.full_like(given["q"], 0x7FC0)  # NaN
    kernel.choose(number)
    kernel.run.restype = ctypes.c_char_p
    kept = {name: given[name] for name in ("q", "k", "v", "table", "header", "lists", "counters", "partials")}
    q, k, v, table, *lists = (build.pointer(x) for x in kept.values())
    if report := kernel.run(q, k, v, build.pointer(out), table, kept["table"].shape[1], *sizes, *lists):
        print(report.decode())
        return 1
    np.save(result, (out.astype(np.int32) << 16).view(np.float32))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

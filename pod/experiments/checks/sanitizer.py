"""The sm_80 family under NVIDIA's compute-sanitizer: every method, tile, head size, split and kind of cache, on small
batches. Beside it one whose block table names pages that are not there, which must stay inside the pool, and one that
must be caught: its work list begins past the queries."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import pod
from pod.batch import HybridBatch
from pod.files import ROOT
from pod.kernels import operator
from pod.kernels.sm80 import HYBRID, METHODS, kind

RECORDING = "sanitizer"
KEYS = ("tool", "batches")
UNITS = ("hybrid",)
REPEATS = 1
TIMER, L2 = "no times: errors are counted", "warm"
TOOLS = ("memcheck", "racecheck", "synccheck")
RIGHT, PAGES, BROKEN = "right", "pages that are not there", "a work list past the queries"
SPLITS = ({"prefill_splits": "none", "decode_splits": 1}, {"prefill_splits": 2, "decode_splits": 3},
          {"prefill_splits": "limited", "decode_splits": "stream-k"})  # fmt: skip
SECONDS = 300  # a tool that takes longer is stopped


def cases() -> list[dict]:
    watched = [(tool, RIGHT) for tool in TOOLS] + [("memcheck", PAGES), ("memcheck", BROKEN)]
    return [dict(zip(KEYS, case, strict=True)) for case in watched]


def measure(case: dict) -> dict:
    """How many launches a tool watched, and how many errors it found."""
    build()
    return watched(case["tool"], __name__, case["batches"])


def watched(tool: str, *module: str) -> dict:
    """Runs `python -m` with a module and its arguments under a tool."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise ValueError("compute-sanitizer: not found; it comes with the CUDA toolkit")
    command = [program, "--tool", tool, sys.executable, "-m", *module]
    # Without torch's cache every tensor is an allocation of its own, and a step beyond its end is out of bounds.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS)
    return counted(tool, done.stdout + done.stderr)


def counted(tool: str, report: str) -> dict:
    """Launches and errors, from what the batches and the tool printed."""
    summary = r"RACECHECK SUMMARY: (\d+) hazard" if tool == "racecheck" else r"ERROR SUMMARY: (\d+) error"
    errors, launches = re.search(summary, report), re.findall(r"^launches (\d+)$", report, re.MULTILINE)
    if errors is None:
        raise ValueError(f"{tool}: got no summary, but {report[-2000:]!r}")
    return {"launches": int(launches[-1]) if launches else "", "errors": int(errors[1])}


def build() -> None:
    """In this process: under a tool the compiler would be watched too, for minutes."""
    import torch

    for dtype, head_dim in {(batch.dtype, batch.head_dim) for batch, _ in runs()}:
        operator(HYBRID, kind(dtype, head_dim), torch.device("cuda", torch.cuda.current_device()))


def runs() -> Iterator[tuple[HybridBatch, dict]]:
    """Every batch with every way to run it."""
    for head_dim, page_size, dtype in ((64, 16, "bfloat16"), (128, None, "bfloat16"), (128, 32, "float16")):
        batch = HybridBatch((200, 1, 1, 70, *[1] * 6), (330, 77, 190, 70, *range(33, 273, 40)), 4, 2, head_dim,
                            page_size, dtype)  # fmt: skip
        for method, ctas, splits in product(METHODS, (2, 4), SPLITS):
            yield batch, {"method": method, "ctas_per_sm": ctas} | splits


def launch(batch: HybridBatch, choice: dict, spoiled: str = RIGHT, device: str = "cuda") -> None:
    """Run a batch once and check the result. Tensors are made on the host: the GPU runs no kernels but ours."""
    import torch

    q, k, v, table = (None if x is None else x.to(device) for x in batch.tensors())
    if spoiled == PAGES:
        table.fill_(1 << 20)
    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    how = {"page_size": batch.page_size, "dtype": q.dtype, "device": device} | choice
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, **how)
    if spoiled == BROKEN:
        plan.placed().lists[0] = 1 << 20  # the token of the first piece of work
    out = pod.hybrid_attention(q, k, v, plan, table, causal=batch.causal)
    if spoiled == RIGHT and not bool(torch.isfinite(out.cpu()).all()):
        raise AssertionError(f"not finite: {choice}, {batch}")


def main(which: str) -> None:
    todo = [run for run in runs() if which == RIGHT or run[0].page_size][: None if which != BROKEN else 1]
    for batch, choice in todo:
        launch(batch, choice, which)
    print(f"launches {len(todo)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

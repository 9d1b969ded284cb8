"""These kernels beside those of an earlier checkout, in one run: what a change that is not for speed costs.

POD_BEFORE names the earlier checkout (git worktree add ../before COMMIT).
"""

import os
from functools import cache
from pathlib import Path

from pod.experiments.hopper import hopper_peers
from pod.files import ROOT
from pod.lab.measure import timing
from pod.lab.measure.checkouts import Worker

RECORDING = "same-speed"
KEYS = ("method", *hopper_peers.KEYS)
UNITS = ("hybrid", "hopper", "lean")
ROUNDS, REPEATS = 8, 12
TIMER = "CUDA events around one call, after a 256 MB fill that empties L2; two processes in turn, round by round"
METHODS = ("hopper", "pod", "serial", "lean")
SIDES = ("before", "after")
WORKER = """
import json, sys
import pod
from pod.batch import HybridBatch
try:
    from pod.lab.measure import timing
except ImportError:  # where an earlier checkout has it
    from pod.measure import timing
call = None
for line in sys.stdin:
    case = json.loads(line)
    if case:
        call = None
        counts = [case[k] for k in ("chunk", "context", "decodes", "decode_context", "q_heads", "kv_heads")]
        batch = HybridBatch.of(*counts, page_size=16)
        q, k, v, table = batch.tensors(device="cuda")
        heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
        plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, page_size=16, method=case["method"])
        call = lambda: pod.hybrid_attention(q, k, v, plan, table)
        timing.samples(call, 3)
    print(json.dumps(timing.samples(call, REPEATS)), flush=True)
""".replace("REPEATS", str(REPEATS))


def cases() -> list[dict]:
    rows = [(method, *row) for method in METHODS for row in hopper_peers.BATCHES]
    made = [dict(zip(KEYS, row, strict=True)) for row in rows]
    return [case | ({"chunk": 0, "context": 0} if case["method"] == "lean" else {}) for case in made]


def measure(case: dict) -> dict:
    taken: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(ROUNDS + 1):
        for side in SIDES if turn % 2 else SIDES[::-1]:
            times = _worker(side).ask(case if turn == 0 else {})
            taken[side] += times if turn else []  # the first round warms up
    before, after = (timing.spread(taken[side]) for side in SIDES)
    return before.columns("before") | after.columns("after") | {"ratio": round(before.ms / after.ms, 4)}


@cache
def _worker(side: str) -> Worker:
    return Worker(ROOT if side == "after" else _before(), WORKER)


def _before() -> Path:
    folder = Path(os.environ.get("POD_BEFORE", ""))
    if not (folder / "csrc").is_dir() or folder.resolve() == ROOT:
        raise ValueError(f"POD_BEFORE: got {str(folder)!r}, allowed is the folder of an earlier checkout")
    return folder.resolve()

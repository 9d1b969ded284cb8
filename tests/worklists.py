"""The work lists of random batches as the kernels get them, one hash a way of planning: tests/golden/worklists.json.

A change that only moves code keeps them to the bit; one that decides otherwise writes them again, on purpose:
`PYTHONPATH=.:tests python tests/worklists.py`.
"""

import hashlib
import json
import random
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from pod import ampere, hopper, lean
from pod.batch import HybridBatch
from pod.hardware import GPUS
from pod.schedule.binding import POLICIES

FILE = Path(__file__).parent / "golden" / "worklists.json"
BATCHES = 500
HEADS = ((4, 4), (8, 2), (32, 4), (24, 3), (16, 1), (6, 2), (16, 4), (10, 2), (12, 1), (71, 1), (32, 8), (56, 56))
CPU = torch.device("cpu")


def batches():
    """Mixed, chunks alone and decodes alone; ragged and equally long; lengths at and beside the borders of tiles."""
    draw = random.Random(17)
    for _ in range(BATCHES):
        sides = draw.choice(("both", "both", "chunks", "decodes", "decodes"))
        count, longest = draw.choice((1, 2, 3, 8, 30)), draw.choice((300, 3000, 40_000))
        lens = [_length(draw, longest) for _ in range(count)]
        if draw.random() < 0.3:
            lens = [lens[0]] * count
        whole = {"both": lambda i: i % 3 != 0, "chunks": lambda i: False, "decodes": lambda i: True}[sides]
        q_lens = [1 if whole(i) else min(n, _length(draw, 1500)) for i, n in enumerate(lens)]
        heads, causal = draw.choice(HEADS), draw.random() < 0.75
        yield HybridBatch(q_lens, lens, *heads, draw.choice((64, 128)), causal=causal), draw


def _length(draw: random.Random, most: int) -> int:
    near = draw.choice((16, 63, 64, 65, 127, 128, 129, 512, 1024))
    return max(1, min(most, draw.choice((near, draw.randint(1, most), int(most ** draw.random())))))


# ---------------------------------------------------------------- one way of planning each


class Kept(list):
    """What a plan would place: the lists, and how many counters and floats it asks for."""

    def __call__(self, *lists, **sizes):
        self[:] = [np.concatenate([np.ravel(x) for x in lists]), *sizes.values()]
        return None, None, None


def _placed(plan, causal: bool) -> tuple:
    kept = Kept()
    with patch.object(type(plan), "place", staticmethod(kept)):
        numbers = plan.make(causal).shape
    return *kept, numbers


def sm80(batch, method, sms, gpu, **choice) -> tuple:
    with patch.object(ampere, "gpu_of", lambda device: gpu), patch.object(ampere.kernels, "sm_count", lambda _: sms):
        with patch.object(ampere.Plan, "lists"):
            plan = ampere.make_plan(batch, CPU, method, **choice)
        made = _placed(plan, batch.causal)
    return made if batch.prefill else (*made[:3], made[3][:3] + made[3][4:])


def hopper_lists(batch, sms, **choice) -> tuple:
    *made, numbers = _placed(hopper.Plan(batch, CPU, sms, **choice), batch.causal)
    return *made, numbers[:6] + (numbers[6:] if batch.prefill else []), hopper.prefill_yields(batch)


def hopper_splits(batch, sms, parts) -> tuple:
    *made, numbers = _placed(lean.HopperPlan(batch, CPU, sms, parts=parts), True)
    return *made, numbers[:6]


def lean_lists(batch, sms, **choice) -> tuple:
    *made, numbers = _placed(lean.LeanPlan(batch, CPU, sms, **choice), True)
    return *made, [numbers[i] for i in (5, 6, 9, 11, 12)]


def ways(batch: HybridBatch, draw: random.Random):
    """(name, lists) of every way to plan this batch."""
    sms, gpu = draw.choice((1, 3, 4, 108, 132)), GPUS[draw.choice(("a100", "h200"))]
    for method in ampere.METHODS:
        choice = {"policy": draw.choice(list(POLICIES)), "ctas_per_sm": draw.choice((2, 4, "auto")),
                  "prefill_splits": draw.choice(("limited", "limited", "vanilla", "none", 2, 5)),
                  "decode_splits": draw.choice(("auto", "auto", "stream-k", 1, 3, 16))}  # fmt: skip
        yield method, sm80(batch, method, sms, gpu, **choice)
    weights = None if draw.random() < 0.7 else [draw.uniform(0.2, 3.0) for _ in range(sms)]
    yield "hopper", hopper_lists(batch, sms, splits=draw.choice((None, None, 1, 3, 8)), decode_weights=weights)
    if batch.prefill:
        return
    yield "hopper splits", (*hopper_splits(batch, sms, draw.randint(1, 20)), lean._hopper_splits(batch, sms) or 0)
    yield "lean", lean_lists(batch, sms, splits=draw.choice((None, "auto", "auto", 1, 3, 20)))
    yield "lean tile", lean_lists(batch, sms, worker=draw.choice(("cta64", "cta128")), splits=draw.choice((None, 1, 3)))
    cut = {"block": draw.choice((64, 128, 512)), "alike": draw.choice((None, 1))}
    yield "lean blocks", lean_lists(batch, sms, worker="warp", **cut)


def hashes() -> dict[str, str]:
    digests = {}
    for batch, draw in batches():
        for name, (lists, *rest) in ways(batch, draw):
            digest = digests.setdefault(name, hashlib.sha256())
            digest.update(np.ascontiguousarray(lists, np.int32).tobytes())
            digest.update(repr([int(x) for x in np.hstack(rest)]).encode())
    return {name: digest.hexdigest() for name, digest in digests.items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(hashes(), indent=1) + "\n", encoding="utf-8")

"""The work lists of random batches as the kernels get them, one hash a way of planning: tests/golden/worklists.json.

A change that only moves code keeps them to the bit; one that decides otherwise writes them again, on purpose:
`PYTHONPATH=.:tests python tests/worklists.py`.
"""

import hashlib
import json
import random
from pathlib import Path

import numpy as np

from pod.batch import HybridBatch
from pod.hardware import GPUS
from pod.kernels import lean, sm80, sm90
from pod.kernels.launch import Layout, flat
from pod.schedule import choose, decide
from pod.schedule.binding import POLICIES

FILE = Path(__file__).parent / "golden" / "worklists.json"
METHODS = ("serial", "streams", "cta", "warp", "pod")  # another one would draw, too, and move what follows
BATCHES = 500
HEADS = ((4, 4), (8, 2), (32, 4), (24, 3), (16, 1), (6, 2), (16, 4), (10, 2), (12, 1), (71, 1), (32, 8), (56, 56))


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


def placed(layout: Layout, *numbers: str) -> tuple:
    """The lists as the kernel gets them, how many counters and floats it gets, and these of its numbers."""
    return flat(layout.lists), layout.counters, layout.floats, [getattr(layout.header, name) for name in numbers]


def of_sm80(batch, method, sms, gpu, **choice) -> tuple:
    made = decide.hybrid(batch, gpu, sms, method, **choice, causal=batch.causal)
    mask = ("causal",) if batch.prefill else ()
    works = ("prefill_works", "decode_works", "pieces", "deals", "prefill_groups", "decode_groups", "prefill_slots")
    return placed(sm80.lay_out(made), "method", "ctas_per_sm", "sms", *mask, *works, "decode_slots", "trace_rows")


def of_sm90(batch, sms, **choice) -> tuple:
    made = decide.hopper(batch, sms, **choice, causal=batch.causal)
    numbers = ("sms", "prefill_works", "decode_works", "pieces", "prefill_groups", "decode_groups",
               "prefill_slots", "prefill_rows", "pack_tokens", "pack_heads", "decode_rows")  # fmt: skip
    return placed(sm90.lay_out(made), *numbers)


def of_lean(batch, sms, worker="warp", **choice) -> tuple:
    layout = lean.kernel(worker).lay_out(decide.lean(batch, sms, worker=worker, **choice))
    return placed(layout, "decode_works", "pieces", "decode_groups", "decode_slots", "trace_rows")


def ways(batch: HybridBatch, draw: random.Random):
    """(name, lists) of every way to plan this batch."""
    sms, gpu = draw.choice((1, 3, 4, 108, 132)), GPUS[draw.choice(("a100", "h200"))]
    for method in METHODS:
        choice = {"policy": draw.choice(list(POLICIES)), "ctas_per_sm": draw.choice((2, 4, "auto")),
                  "prefill_splits": draw.choice(("limited", "limited", "vanilla", "none", 2, 5)),
                  "decode_splits": draw.choice(("auto", "auto", "stream-k", 1, 3, 16))}  # fmt: skip
        yield method, of_sm80(batch, method, sms, gpu, **choice)
    yield "pod by default", of_sm80(batch, "pod", sms, gpu, policy="auto")  # nothing is drawn for it
    weights = None if draw.random() < 0.7 else [draw.uniform(0.2, 3.0) for _ in range(sms)]
    made = of_sm90(batch, sms, splits=draw.choice((None, None, 1, 3, 8)), weights=weights)
    yield "hopper", made
    yield "hopper invariant", of_sm90(batch, sms, invariant=True)
    if batch.prefill:
        return
    yield "hopper splits", (*of_sm90(batch, sms, parts=draw.randint(1, 20)), choose.whole_parts(batch, sms) or 0)
    yield "lean", of_lean(batch, sms, splits=draw.choice((None, "auto", "auto", 1, 3, 20)))
    yield "lean tile", of_lean(batch, sms, worker=draw.choice(("cta64", "cta128")), splits=draw.choice((None, 1, 3)))
    cut = {"block": draw.choice((64, 128, 512)), "alike": draw.choice((None, 1))}
    yield "lean blocks", of_lean(batch, sms, worker="warp", **cut)


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

"""What each idea of the Hopper kernel's schedule is worth: a batch for which it matters, with the idea and without."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

from pod.batch import HybridBatch
from pod.measure import timing
from pod.measure.suites.hopper_mixed import BATCHES as MIXED
from pod.schedule import hopper as schedule

DOC = "the Hopper kernel with each idea of its schedule, and without it."
KEYS = ("idea",)
UNITS = ("hopper",)
ROUNDS, REPEATS = 7, 21
K = 1024
CHUNKS, CONTEXTS, DECODES, *HEADS = MIXED["three chunks, ragged 32/8"]
BALANCED = HybridBatch.of(2 * K, 8 * K, 128, 4 * K, 32, 8)
PREFILL_LONGER = HybridBatch.of(2 * K, 16 * K, 64, 16 * K, 32, 4)
LONG_PROMPT = HybridBatch((8 * K,), (8 * K,), 32, 8, 128)
LONG_CONTEXT = HybridBatch((2 * K,), (64 * K,), 32, 32, 128)
OWN_KEYS = HybridBatch.of(2 * K, 8 * K, 12, 8 * K, 32, 32)
FEW_TILES = HybridBatch((512,), (32 * K,), 16, 4, 128)
SHORT_CHUNKS = HybridBatch((*CHUNKS, *[1] * len(DECODES)), (*CONTEXTS, *DECODES), *HEADS, 128)
MANY_CHATS = HybridBatch((1,) * 128, (4 * K,) * 128, 32, 8, 128)
ONE_CHAT = HybridBatch((1,), (4 * K,), 32, 8, 128)


def _in_turn(batch: HybridBatch):
    """The batch's halves in two launches, on the same tensors."""
    from pod import hopper

    q, k, v, _ = batch.tensors(device="cuda")
    n = sum(x > 1 for x in batch.q_lens)
    tokens = sum(batch.q_lens[:n])
    sides = ((batch.prefill, (q[:tokens], k[:n], v[:n])), (batch.decode, (q[tokens:], k[n:], v[n:])))
    calls = [partial(hopper.run, hopper.make_plan(part), *tensors) for part, tensors in sides]
    return lambda: [call() for call in calls]


def _fused(batch: HybridBatch, **choices):
    from pod import hopper

    plan, (q, k, v, _) = hopper.make_plan(batch, **choices), batch.tensors(device="cuda")
    return lambda: hopper.run(plan, q, k, v)


def _patched(batch: HybridBatch, **names):
    """Planned with other parts in pod.schedule.hopper."""
    with patch.multiple(schedule, **names):
        return _fused(batch)


def _shortest_first(*arguments):
    made = _prefill_work(*arguments)
    return schedule.WorkList(made.work[::-1].copy(), made.chunks, made.slots, made.groups)


def _alone(*arguments):
    """Decode without teams of SMs that read neighbouring heads."""
    with patch.object(schedule, "gcd", lambda *_: 1):
        return _decode_work(*arguments)


_prefill_work, _decode_work = schedule.prefill_work, schedule.decode_work
UNEQUAL = [3.0 if group % 4 == 0 else 1.0 for group in range(33)]  # of 132 SMs in teams of 4, every fourth team
WITHOUT = {
    "one launch for both": (BALANCED, _in_turn),
    "yield where decode is longer": (BALANCED, partial(_fused, yields=False)),
    "keep the turn where prefill is longer": (PREFILL_LONGER, partial(_fused, yields=True)),
    "an equal share of decode for each SM": (BALANCED, partial(_fused, decode_weights=UNEQUAL)),
    "longest tile first": (LONG_PROMPT, partial(_patched, prefill_work=_shortest_first)),
    "heads in sections that L2 holds": (LONG_CONTEXT, partial(_patched, L2_SHARE=1 << 40)),
    "the same beside decode": (OWN_KEYS, partial(_patched, L2_SHARE=1 << 40)),
    "few tiles split along the keys": (FEW_TILES, partial(_fused, splits=1)),
    "heads of a group share a tile": (SHORT_CHUNKS, partial(_patched, pack_shift=lambda *_: 0)),
    "neighbouring SMs read neighbouring heads": (MANY_CHATS, partial(_patched, decode_work=_alone)),
    "pieces of at least 8 tiles": (ONE_CHAT, partial(_patched, decode_work=partial(_decode_work, least=1))),
}


def cases() -> list[dict]:
    return [{"idea": idea} for idea in WITHOUT]


def measure(case: dict) -> dict:
    batch, undo = WITHOUT[case["idea"]]
    prefill, decode = batch.prefill, batch.decode
    row = {"flops": prefill.flops if prefill else 0, "kv_bytes": decode.kv_bytes if decode else 0}
    for name, time in timing.shuffled({"ours": _fused(batch), "without": undo(batch)}, ROUNDS, 4.0).items():
        row |= time.columns(name)
    return row

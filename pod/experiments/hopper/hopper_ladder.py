"""What each idea of the Hopper kernel's schedule is worth, on a batch for which it matters."""

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import hardware, read
from pod.experiments.hopper.hopper_mixed import BATCHES as MIXED
from pod.kernels import sm90
from pod.lab.figure import Figure, short
from pod.lab.measure import timing
from pod.lab.show import style
from pod.schedule import choose, decide, decode, prefill
from pod.schedule.work import Pack

FIGURE = Figure(
    title="The Hopper kernel with each idea of its schedule, and without it",
    chapter="17",
    method="bf16, head dimension 128; medians, cold L2, shuffled rounds. % of the roofline: the larger of FLOPs over "
    "the peak rate and bytes of keys and values over the bandwidth of DRAM.",
    data=("hopper-ladder",),
)
RECORDING = "hopper-ladder"
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
    q, k, v, _ = batch.tensors(device="cuda")
    n = sum(x > 1 for x in batch.q_lens)
    tokens = sum(batch.q_lens[:n])
    sides = ((batch.prefill, (q[:tokens], k[:n], v[:n])), (batch.decode, (q[tokens:], k[n:], v[n:])))
    calls = [partial(sm90.plan(part).run, *tensors) for part, tensors in sides]
    return lambda: [call() for call in calls]


def _fused(batch: HybridBatch, **choices):
    if not batch.prefill:  # ideas for decode are tried on decode
        choices["roles"] = choose.as_decode(batch.group)
    plan, (q, k, v, _) = sm90.plan(batch, **choices), batch.tensors(device="cuda")
    return lambda: plan.run(q, k, v)


def _patched(batch: HybridBatch, module, **names):
    """Planned with other parts in a module of pod.schedule."""
    with patch.multiple(module, **names):
        return _fused(batch)


def _shortest_first(*arguments):
    made = _cut(*arguments)
    return replace(made, **{name: column[::-1] for name, column in made.columns.items()})


def _one_head(_side, rows: int) -> Pack:
    return Pack(rows, 1)


_cut, _ranges = prefill.cut, decide.hopper_ranges
UNEQUAL = [3.0 if group % 4 == 0 else 1.0 for group in range(33)]  # of 132 SMs in teams of 4, every fourth team
WITHOUT = {
    "one launch for both": (BALANCED, _in_turn),
    "yield where decode is longer": (BALANCED, partial(_fused, yields=False)),
    "keep the turn where prefill is longer": (PREFILL_LONGER, partial(_fused, yields=True)),
    "an equal share of decode for each SM": (BALANCED, partial(_fused, weights=UNEQUAL)),
    "longest tile first": (LONG_PROMPT, partial(_patched, module=prefill, cut=_shortest_first)),
    "heads in sections that L2 holds": (LONG_CONTEXT, partial(_patched, module=prefill, L2_SHARE=1 << 40)),
    "the same beside decode": (OWN_KEYS, partial(_patched, module=prefill, L2_SHARE=1 << 40)),
    "few tiles split along the keys": (FEW_TILES, partial(_fused, splits=1)),
    "heads of a group share a tile": (SHORT_CHUNKS, partial(_patched, module=choose, prefill_pack=_one_head)),
    "neighbouring SMs read neighbouring heads": (MANY_CHATS, partial(_patched, module=decode, alike_for=lambda *_: 1)),
    "pieces of at least 4 tiles": (ONE_CHAT, partial(_patched, module=decide, hopper_ranges=partial(_ranges, least=1))),
}
NAMES = {  # in the picture, which sorts them by what they gain
    "the same beside decode": "sections beside decode",
    "heads in sections that L2 holds": "sections, prefill alone",
}
CHECKS = ("an equal share of decode for each SM",)  # not in the picture, for nobody would plan what undoes it


def cases() -> list[dict]:
    return [{"idea": idea} for idea in WITHOUT]


def measure(case: dict) -> dict:
    batch, undo = WITHOUT[case["idea"]]
    prefill, decode = batch.prefill, batch.decode
    row = {"flops": prefill.flops if prefill else 0, "kv_bytes": decode.kv_bytes if decode else 0}
    for name, time in timing.shuffled({"ours": _fused(batch), "without": undo(batch)}, ROUNDS, 4.0).items():
        row |= time.columns(name)
    return row


# ---------------------------------------------------------------- what it shows


def table():
    """One row an idea: its batch, TFLOP/s and TB/s and % of the roofline with it, and what it gains, %."""
    df = read("hopper-ladder")
    gpu = hardware()
    roof = 1e3 * np.maximum(gpu.compute_time(df.flops), gpu.memory_time(df.kv_bytes))
    return pd.DataFrame({
        "idea": df.idea, "batch": [name(WITHOUT[idea][0]) for idea in df.idea], "flops": df.flops,
        "kv_bytes": df.kv_bytes, "ms": df.ours, "without": df.without, "roof_percent": 100 * roof / df.ours,
        "roof_percent_without": 100 * roof / df.without, "gain_percent": 100 * (df.without / df.ours - 1),
    })  # fmt: skip


def name(batch) -> str:
    """A batch in words: chunk @ context + decodes x context, query / KV heads."""
    parts, (prefill, decode) = [], (batch.prefill, batch.decode)
    if prefill:
        one = f"{short(prefill.q_lens[0])} @ {short(prefill.kv_lens[0])}"
        parts.append(one if len(prefill.q_lens) == 1 else f"{len(prefill.q_lens)} chunks")
    if decode:
        many = f"{len(decode.kv_lens)} x {short(decode.kv_lens[0])}"
        parts.append(many if len(set(decode.kv_lens)) == 1 else f"{len(decode.kv_lens)} ragged")
    return f"{' + '.join(parts)}, {batch.num_q_heads}/{batch.num_kv_heads}"


def roofs(row) -> str:
    """Of the roofline, without the idea and with it."""
    return f"{row.roof_percent_without:.0f} % → {row.roof_percent:.0f} %"


def draw(df):
    df = df[~df.idea.isin(CHECKS)].sort_values("gain_percent", kind="stable")
    ax = style.axes(9.5, 4.2)
    y = range(len(df))
    ax.barh(y, df.gain_percent, color=style.colour("both"), height=0.6)
    for i, row in zip(y, df.itertuples(), strict=True):
        label = f"{row.gain_percent:+.1f} %   ({roofs(row)})   {row.batch}"
        ax.text(max(row.gain_percent, 0) + 0.6, i, label, va="center", fontsize=8.5)
    ax.axvline(0, color=style.INK, linewidth=1)
    ax.set_yticks(y, df.idea.replace(NAMES), fontsize=9)
    ax.set(xlim=(min(-2, 1.2 * df.gain_percent.min()), 1.75 * df.gain_percent.max()))
    ax.set_xlabel("% longer without the idea; in parentheses: of the roofline, without it → with it", fontsize=10)
    ax.tick_params(axis="y", length=0)
    return ax.figure

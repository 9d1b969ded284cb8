"""Caches of 8 bits: half the bytes of decode, what that takes off a batch, and what it puts on the error.

Measured: decodes, drafts and hybrid batches in pages of 16, our kernel with caches of 16 and of 8 bits beside
FlashAttention-3 and FlashInfer in both. Queries have 16 bits, but for kernels that know only 8 bits throughout.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure, short
from pod.lab.measure import ragged, timing
from pod.lab.show import style

FIGURE = Figure(
    title=f"Keys and values of 8 bits on {a_card()}: time over 16 bits",
    chapter="17",
    method="Decodes, drafts and hybrid batches in pages of 16, cold L2, shuffled rounds, medians.",
    data=("hopper-fp8",),
)
RECORDING = "hopper-fp8"
KEYS = ("chunk", "context", "decodes", "decode_context", "tokens", "q_heads", "kv_heads")  # tokens: of a decode
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 3, 9
KV, PAGE = "float8_e4m3fn", 16
SCALE = 2.0**-6  # what 1 in a cache stands for: 448 of them are 7, and a power of two keeps it exact in 16 bits
K = 1024

DECODES = [
    (64, 8 * K, 1, 32, 8),
    (16, 16 * K, 1, 32, 8),
    (8, 64 * K, 1, 32, 8),
    (256, 1 * K, 1, 32, 8),
    (1, 128 * K, 1, 32, 8),
    (128, 4 * K, 1, 28, 4),
    (64, 8 * K, 1, 40, 8),
    (64, 8 * K, 1, 64, 8),
    (64, 8 * K, 1, 32, 2),
    (64, 8 * K, 4, 32, 8),
]
CHUNKS = [(512, 4 * K, 64, 8 * K, 32, 8), (2 * K, 8 * K, 128, 4 * K, 32, 8), (2 * K, 8 * K, 128, 4 * K, 28, 4)]


def cases() -> list[dict]:
    rows = [(0, 0, *row) for row in DECODES] + [(*row[:4], 1, *row[4:]) for row in CHUNKS]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def batch_of(case: dict) -> HybridBatch:
    chunk, context, decodes, decode_context, tokens, *heads = (int(case[key]) for key in KEYS)
    q_lens, kv_lens = [chunk] * bool(chunk), [context] * bool(chunk)
    return HybridBatch(q_lens + [tokens] * decodes, kv_lens + [decode_context] * decodes, *heads, 128, page_size=PAGE)


def room() -> int:
    """Elements of the largest cache of keys."""
    return max(sum(b.pages) * PAGE * b.num_kv_heads * b.head_dim for b in map(batch_of, cases()))


@dataclass
class Narrow(ragged.Ragged):
    """The same batch with caches of 8 bits, k8 and v8; k and v are what they stand for."""

    def __post_init__(self):
        import torch

        super().__post_init__()
        self.scale = SCALE
        self.k8, self.v8 = ((x / SCALE).to(getattr(torch, KV)) for x in (self.k, self.v))
        self.k, self.v = (x.to(self.q.dtype) * SCALE for x in (self.k8, self.v8))


def ours8(s: Narrow):
    import torch

    import pod

    plan = pod.plan(replace(s.batch, kv_dtype=KV), device=s.device)
    scale = torch.full((s.batch.num_kv_heads,), SCALE, device=s.device)
    return lambda: [pod.hybrid_attention(s.q, s.k8, s.v8, plan, s.table, k_scale=scale, v_scale=scale)]


def fi(s: ragged.Ragged, caches=None, **scales):
    if max(s.batch.q_lens) > 1:
        return ragged.fi_two(s, caches, **scales)
    call = ragged.fi_decodes(s, caches=caches, **scales)
    return lambda: [call()]


def fi8(s: Narrow):
    return fi(s, (s.k8, s.v8), k_scale=SCALE, v_scale=SCALE)


def fa3(s: ragged.Ragged):
    return ragged.fa3_two(s, ahead=True)


# ---------------------------------------------------------------- what rounds queries and probabilities, too
MARGIN8, LIMIT8 = 60.0, 0.5  # in place of ragged's: a step of e4m3 is 16 of bf16, and several roundings add up


def fa3_all8(s: Narrow, make=ragged.fa3_two):
    eighths = copy(s)
    eighths.q, eighths.k, eighths.v = s.q.to(s.k8.dtype), s.k8, s.v8
    return make(eighths, ahead=True)


def xqa_all8(s: Narrow):
    """FlashInfer's other decode kernel; beside a chunk after its prefill, whose queries keep their 16 bits."""
    caches, calls, border = (s.k8, s.v8), [], 0
    if max(s.batch.q_lens) > 1:
        border = ragged.first_decode(s)
        calls.append(ragged.fi_prompts(s, border, caches, k_scale=SCALE, v_scale=SCALE))
    calls.append(ragged.xqa(s, border, caches, SCALE))
    return lambda: [call() for call in calls]


WAYS, WAYS8 = {"ours": ragged.ours, "fa3": fa3, "fi": fi}, {"ours8": ours8, "fi8": fi8}
ALL8 = {"fa3_two8": fa3_all8, "fa3_one8": partial(fa3_all8, make=ragged.fa3_one), "xqa8": xqa_all8}


def measure(case: dict) -> dict:
    """Each way against torch's error on what its own cache stands for; then all in the same rounds."""
    import torch

    wide, narrow = (kind(batch_of(case), room()) for kind in (ragged.Ragged, Narrow))
    calls, holes, errors = ragged.ready(wide, WAYS)
    for found in (ragged.ready(narrow, WAYS8), ragged.ready(narrow, ALL8, MARGIN8, LIMIT8)):
        calls, holes, errors = (have | more for have, more in zip((calls, holes, errors), found, strict=True))
    times = timing.shuffled(calls, ROUNDS, 2.0, 3)
    row = {"kv_bytes": wide.batch.kv_bytes}
    for name in WAYS | WAYS8 | ALL8:
        row |= times[name].columns(name) if name in times else dict.fromkeys((name, f"{name}_p10", f"{name}_p90"), "")
        row[f"{name}_error"] = round(errors[name], 3) if name in errors else ""
    rows, want, _ = wide.truth()
    _, stored, _ = narrow.truth()
    row["rounding"] = _off(stored, want)
    for name, truth in {"ours": want, **dict.fromkeys(WAYS8 | ALL8, stored)}.items():
        row[f"{name}_off"] = _off(torch.cat(calls[name]())[rows], truth) if name in calls else ""
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}


def _off(out, truth) -> float:
    """Of rows, each by its own size: root mean square."""
    apart = (out - truth).norm(dim=-1) / truth.norm(dim=-1)
    return float(f"{float(apart.square().mean().sqrt()):.3e}")


# ---------------------------------------------------------------- what it shows

NAMES = {"fa3": "FlashAttention-3, 16 bits", "fi": "FlashInfer, 16 bits", "fi8": "FlashInfer, 8 bits",
         "all8": "the fastest that rounds queries to 8 bits, too", "ours": "ours, 16 bits",
         "ours8": "ours, 8 bits"}  # fmt: skip
MARKS = {"fa3": "^", "fi": "s", "fi8": "D", "all8": "*"}


def table():
    """One row a batch: milliseconds of each way, ours of 16 bits over ours of 8, others over ours of 8, the bytes of 8
    bits a second, and relative errors: of storing 8 bits, of kernels on them, and of our kernel in 16 bits."""
    return speedups(read("hopper-fp8"))


def speedups(df):
    """The same of any rows that `measure` has given."""
    rough = df.reindex(columns=list(ALL8)).apply(pd.to_numeric, errors="coerce")  # an older repeat has none
    df = df.assign(all8=rough.min(axis=1))
    times = df[list(NAMES)].apply(pd.to_numeric, errors="coerce")
    named = pd.DataFrame({"batch": [_name(row) for row in df.itertuples()], "chunk": df.chunk > 0})
    ways = rough.fillna(float("inf")).idxmin(axis=1).where(rough.notna().any(axis=1), "").tolist()
    off = [row[f"{way}_off"] if way else None for way, (_, row) in zip(ways, df.iterrows(), strict=True)]
    return named.join(times).assign(
        speedup=times.ours / times.ours8,
        over_fa3=times.fa3 / times.ours8,
        over_fi8=times.fi8 / times.ours8,
        over_all8=times.all8 / times.ours8,
        tb_s=df.kv_bytes / 2 / times.ours8 / 1e9,
        rounding=df.rounding,
        kernel8=df.ours8_off,
        kernel_all8=pd.to_numeric(pd.Series(off, df.index), errors="coerce"),
        kernel16=df.ours_off,
        way=ways,
    )


def _name(row) -> str:
    chunk = f"{short(row.chunk)} @ {short(row.context)} + " if row.chunk else ""
    drafts = f", {row.tokens} tokens" if row.tokens > 1 else ""
    return f"{chunk}{row.decodes} x {short(row.decode_context)}, {row.q_heads}/{row.kv_heads}{drafts}"


def draw(df):
    """A bar a batch: how far towards half its time 8 bits bring our kernel; the others are marks."""
    ax = style.axes(9.5, 0.36 * len(df) + 1.4)
    rows = range(len(df))
    ax.barh(rows, df.ours8 / df.ours, 0.6, color=style.colour("hybrid"), label=NAMES["ours8"])
    for way, mark in MARKS.items():
        ax.plot(df[way] / df.ours, rows, mark, color=style.INK, markerfacecolor="white", markersize=6, label=NAMES[way])
    for y, row in enumerate(df.itertuples()):
        ax.text(0.02, y, f"{row.speedup:.2f}x", va="center", fontsize=9, fontweight="bold")
    for at, words in ((0.5, "half the time"), (1.0, "ours, 16 bits")):
        ax.axvline(at, color=style.INK, linewidth=1.5, linestyle="--")
        ax.text(at, -0.75, words, ha="center", va="bottom", fontsize=10, fontweight="bold")
    ax.set_yticks(rows, df.batch, fontsize=8.5)
    ax.set(ylim=(len(df) - 0.4, -0.7), xlabel="time over that of our kernel with 16 bits")
    ax.tick_params(axis="y", length=0)
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=3, columnspacing=1.0)
    return ax.figure


# ---------------------------------------------------------------- what claims and chapters ask for


def gain(chunk: bool = False) -> float:
    """Of 8 bits over 16 in our kernel, geometric mean over decodes and drafts, or over hybrid batches."""
    df = table()
    return geomean(df[df.chunk == chunk].speedup)


def over_peers(find=geomean) -> float:
    """How much longer than ours the fastest other kernel takes beside a chunk on caches of 8 bits, whatever it rounds;
    the mean of the batches, or what `find` makes of them; NaN where a kind of kernel was not timed."""
    df = table()
    kinds = df[df.chunk][["over_fi8", "over_all8"]]
    return float("nan") if kinds.isna().all().any() else float(find(kinds.min(axis=1)))


least_over_peers = partial(over_peers, min)


def batches(chunk: int = 0) -> int:
    """With a chunk (1, as a claim's words can give it), or decodes and drafts alone."""
    return int((table().chunk == chunk).sum())


def least() -> float:
    """The smallest gain of decodes and drafts."""
    df = table()
    return float(df[~df.chunk].speedup.min())

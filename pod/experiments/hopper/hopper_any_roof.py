"""How far 300 measured batches are from the best rates of memory and tensor cores that any kernel reached here.

A launch that does nothing, then two loads from DRAM in turn (of the page table, then of keys), then bytes at the
fastest read or FLOPs at the fastest products that were measured, whichever takes longer. Nobody knows a kernel that
gets there: merging parts, the end of a queue and the softmax are left out.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.hopper import hopper_any, hopper_sweep
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"300 batches beside the best rates seen on {a_card()}: the shorter a batch, the further from its roof",
    chapter="17",
    method="Roof: an empty launch, two waits for DRAM, then the larger of bytes at the fastest read and FLOPs at the "
    "fastest products that were measured. Line: our best quarter of the 30 batches with the most similar roof.",
    data=("hopper-any", "gpusim-calibrate", "ladder", "memory-map", "joules-prices"),
    composed=True,
)
LOADS = 2  # that wait for each other: where a page lies, and what is in it
ALIKE, QUARTER = 30, 0.75
ALONE = hopper_any.ALONE
# ms of FlashAttention-3, at most
SIZES = {"under 20 µs": 0.02, "20 to 50 µs": 0.05, "50 to 200 µs": 0.2, "longer": np.inf}


class Ceilings(NamedTuple):
    """Milliseconds before the first key is there, and rates a millisecond."""

    start: float
    bytes: float
    flops: float


def ceilings() -> Ceilings:
    bare, rung, products = read("gpusim-calibrate"), read("ladder"), read("joules-prices")
    reads = bare[bare.probe == "read"]
    launch = reads[reads["size"] == 0].ms.min()
    rung = rung[rung.kernel == "read"].rename(columns={"kv_bytes": "bytes"})
    long = pd.concat([reads[reads["size"] > 0], rung])
    products = products[products.work == "product"]
    start = launch + LOADS * dram_wait() / 1e6
    return Ceilings(start, (long.bytes / (long.ms - launch)).max(), (products.flops / products.launch_ms).max())


def dram_wait() -> float:
    """Nanoseconds of a load from memory that L2 does not hold."""
    chased = read("memory-map")
    return chased[chased.probe == "chase"].sort_values("kib", kind="stable").ns.iloc[-1]


def roof(batch: HybridBatch, top: Ceilings) -> float:
    return top.start + max(batch.bytes / top.bytes, batch.flops / top.flops)


def table():
    """One row a batch: milliseconds of its roof, what it waits for there, and of FlashAttention-3's fastest way, the
    shares of the roof that it and ours reach, and its time over ours, over ours were it like its best neighbours, and
    over the roof."""
    return beside(hopper_any.table(), ceilings())


def beside(df, top: Ceilings):
    batches = [hopper_any.drawn()[i].batch for i in df.batch]
    fa3, roofs = df[["two", "one"]].min(axis=1), np.array([roof(batch, top) for batch in batches])
    waits = ["bytes" if b.bytes / top.bytes > b.flops / top.flops else "FLOPs" for b in batches]
    named = df[["batch", "kind", "head_dim", "words", "gain"]].assign(fa3=fa3, roof=roofs, waits=waits)
    ours = (roofs / df.ours).fillna(0)  # refused
    like = np.maximum(ours, best_quarter(np.log(roofs), ours.to_numpy()))
    return named.assign(fa3_share=roofs / fa3, share=ours, like=fa3 / roofs * like, limit=fa3 / roofs)


def best_quarter(place: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Of each batch, the share that a quarter of those nearest to it reach."""
    nearest = np.abs(place[:, None] - place).argsort(axis=1, kind="stable")[:, :ALIKE]
    return np.quantile(shares[nearest], QUARTER, axis=1)


def of_sweep(df):
    """The shares of the roof that ours and FlashAttention-3's best way reach on batches of the paper's sweep. Their
    caches have no pages, so the roof waits for one load too many, a third of a microsecond of hundreds."""
    top = ceilings()
    roofs = np.array(
        [roof(hopper_sweep.batch_of(case), top) for case in df[list(hopper_sweep.KEYS)].to_dict("records")]
    )
    return pd.DataFrame({"share": roofs / df.ours, "fa3_share": roofs / df.best_peer})


BARS = {"all": 1.40, "head_dim 128": 1.30, "1st percentile": 0.98}
COLUMNS = {"gain": "today", "like": "as its best quarter", "limit": "at the roof"}


def bars(df):
    """One row a bar: the geometric means, or the percentile, today and as they could be."""
    rows = {}
    for column, name in COLUMNS.items():
        gains = df[column].fillna(0)
        means = geomean(gains[gains > 0]), geomean(gains[(gains > 0) & (df.head_dim == 128)])
        rows[name] = dict(zip(BARS, (*means, np.percentile(gains, 1)), strict=True))
    return pd.DataFrame({"bar": BARS} | rows).round(3)


def sizes(df):
    """The same by what is in a batch and how long it takes, with the shares of the roof that both kernels reach."""
    alone, rows = df.kind.isin(ALONE), {}
    for words, kinds in (("decodes or drafts alone", alone), ("with prompts", ~alone)):
        last = 0.0
        for size, most in SIZES.items():
            part = df[kinds & (df.fa3 > last) & (df.fa3 <= most)]
            last = most
            if len(part):
                shares = {
                    "FA3 of the roof": geomean(part.fa3_share),
                    "ours of the roof": geomean(part.share[part.share > 0]),
                }
                means = {name: geomean(part[column].dropna()) for column, name in COLUMNS.items()}
                rows[words, size] = {"batches": len(part)} | means | shares
    return pd.DataFrame(rows).T.round(2).astype({"batches": int})


PREFILL, DECODE = style.colour("prefill"), style.colour("decode")


def draw(df):
    df = df.sort_values("roof", kind="stable")
    ax = style.axes(9.5, 4.2)
    ax.plot(1e3 * df.roof, df.fa3_share, "o", color=style.FRAME, markersize=4, label="FlashAttention-3, fastest way")
    alone = df.kind.isin(ALONE)
    for words, part, tone in (("with prompts", df[~alone], PREFILL), ("decodes or drafts alone", df[alone], DECODE)):
        ax.plot(1e3 * part.roof, part.share, "o", color=tone, markersize=4, label=f"ours, {words}")
    lost = hopper_any.from_worst(df).head(hopper_any.WORST)
    ax.plot(1e3 * lost.roof, lost.share, "o", color=style.INK, fillstyle="none", markersize=9,
            label=f"the {len(lost)} of ours that do worst\nbeside FlashAttention-3")  # fmt: skip
    line = best_quarter(np.log(df.roof.to_numpy()), df.share.to_numpy())
    ax.plot(1e3 * df.roof, line, color=style.INK, linewidth=1.5, label="our best quarter nearby")
    ax.set(xscale="log", ylim=(0, 1), xlabel="roof of a batch, µs", ylabel="share of the roof")
    ticks = [t for t in (5, 10, 20, 50, 100, 200, 500, 1000, 2000) if t < 1.2e3 * df.roof.max()]
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.minorticks_off()
    style.legend(ax, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax.figure

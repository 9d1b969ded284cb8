"""When one side runs dry: does the other go on at its full speed, and what could its idle warps still bring?

Measured: fused and each half alone while one side grows, and when each side of every SM ended (32/8 heads, bf16).
"""

from statistics import median

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import read
from pod.hardware import GPU
from pod.kernels import sm90
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.schedule import decide
from pod.schedule.work import Schedule

FIGURE = Figure(
    title="When one side of the fused kernel runs dry, the other goes on at the speed that it has alone",
    chapter="17",
    method="32/8 heads, bf16, context 8K, decodes of 4K; medians, cold L2. Who works when: time stamps of each SM.",
    data=("hopper-dry",),
)
RECORDING = "hopper-dry"
KEYS = ("grows", "chunk", "decodes")
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
K = 1024
CONTEXT, DECODE_CONTEXT, Q_HEADS, KV_HEADS = 8 * K, 4 * K, 32, 8
MORE_DECODES = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)  # beside 2K @ 8K
LONGER_CHUNKS = (512, 1 * K, 1536, 2 * K, 2560, 3 * K, 4 * K, 5 * K, 6 * K, 7 * K, 8 * K)  # beside 96 decodes
LAUNCHES = 5  # with a trace


def cases() -> list[dict]:
    rows = [("decode", 2 * K, n) for n in MORE_DECODES] + [("prefill", chunk, 96) for chunk in LONGER_CHUNKS]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def parts_of(case: dict) -> dict[str, HybridBatch]:
    batch = HybridBatch.of(case["chunk"], CONTEXT, case["decodes"], DECODE_CONTEXT, Q_HEADS, KV_HEADS)
    return {"ours": batch, "prefill": batch.prefill, "decode": batch.decode}


def measure(case: dict) -> dict:
    parts = parts_of(case)
    batch, calls = parts["ours"], {name: _call(part) for name, part in parts.items()}
    times = timing.shuffled(calls, ROUNDS)
    row = {"flops": batch.prefill.flops, "kv_bytes": batch.decode.kv_bytes}
    row["yields"] = sm90.plan(batch).schedule().yields
    row |= {name: round(time.ms, 5) for name, time in times.items()}
    return row | _ends(calls["ours"])


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    return [decide.hopper(part, gpu.sms) for part in parts_of(case).values()]


def _call(batch: HybridBatch):
    plan, tensors = sm90.plan(batch), batch.tensors(device="cuda")
    return lambda **options: plan.run(*tensors, **options)


def _ends(call) -> dict:
    """Microseconds from the first stamp to the end of each side: the first SM, the mean of the SMs, the last; and how
    long an SM waits on average with both sides done. Medians over some launches with a cold L2."""
    launches = []
    for _ in range(LAUNCHES):
        timing.samples(lambda: None, 1)  # empties L2
        _, stamps = call(trace=True)
        stamps = stamps.double().cpu() / 1e3
        ends = stamps[:, :, 1] - stamps[stamps > 0].min()
        sides = {"prefill": ends[:, 2:4].amax(1), "decode": ends[:, 4]}
        row = {f"{side}_{name}_us": float(f(x)) for side, x in sides.items()
               for name, f in (("first", min), ("mean", lambda x: x.mean()), ("last", max))}  # fmt: skip
        done = ends[:, 2:].amax(1)
        launches.append(row | {"idle_us": float((done.max() - done).mean())})
    return {name: round(median(row[name] for row in launches), 2) for name in launches[0]}


# ---------------------------------------------------------------- what it shows

SIDES = ("prefill", "decode")
WORK = {"prefill": "flops", "decode": "kv_bytes"}
PANELS = {  # what grows: the column, in words
    "decode": ("decodes", "decodes of 4K beside a chunk of 2K"),
    "prefill": ("chunk", "tokens of the chunk, beside 96 decodes"),
}


def table():
    """One row a batch: times in ms; the mean share of the time in which an SM works on both sides, on one, on none."""
    df = read("hopper-dry")
    end = df[["prefill_last_us", "decode_last_us"]].max(axis=1)
    first, last = (f(df.prefill_mean_us, df.decode_mean_us) for f in (np.minimum, np.maximum))
    shares = {"both": first / end, "one": (last - first) / end, "none": df.idle_us / end}
    return df.assign(**shares, left=np.where(df.decode_mean_us > df.prefill_mean_us, "decode", "prefill"))


def draw(df):
    axes = style.axes(9.5, 5.4, columns=2, rows=2, sharex="col", height_ratios=(3, 2))
    for (upper, lower), (side, (x, words)) in zip(axes.T, PANELS.items(), strict=True):
        part = df[df.grows == side].sort_values(x, kind="stable")
        _times(upper, part, x)
        _shares(lower, part, x)
        lower.set(xlabel=words, xlim=(part[x].min(), part[x].max()))
        if x == "chunk":
            lower.set_xticks(range(1024, 8193, 1024), [f"{i}K" for i in range(1, 9)])
    axes[0, 0].set_ylabel("ms")
    axes[1, 0].set_ylabel("% of the time,\nmean of the SMs")
    style.legend(axes[0, 0], loc="upper left")
    return style.legend_outside(axes[1, 0], "lower", 4)


def _times(ax, df, x: str) -> None:
    ax.plot(df[x], df.prefill + df.decode, ":", color=style.INK, label="one after the other")
    for side in SIDES:
        ax.plot(df[x], df[side], "--", color=style.colour(side), label=f"{side} alone")
    ax.plot(df[x], df.ours, "o-", color=style.colour("both"), markersize=4, label="fused")
    ax.set_ylim(0, None)


def _shares(ax, df, x: str) -> None:
    """Stacked: both sides at work, then the one that is left, then none."""
    only = {side: df.one.where(df.left == side, 0) for side in SIDES}
    layers = [("both sides at work", df.both, style.colour("both")), ("none", df.none, style.INK)]
    layers[1:1] = [(f"only {side}", only[side], style.colour(side)) for side in SIDES]
    lower = 0 * df.both
    for name, share, tone in layers:
        ax.fill_between(df[x], 100 * lower, 100 * (lower + share), color=tone, linewidth=0, label=name)
        lower = lower + share
    ax.set_ylim(0, 100)


# ---------------------------------------------------------------- what chapters and claims ask for

LEFT = 0.9  # both sides at work for less than this share of the time: then one side is left for long enough to say so


def added(df) -> pd.Series:
    """By how much the fused kernel is longer than its longer side alone, % of the time in which both sides run."""
    together = df.both * df[["prefill_last_us", "decode_last_us"]].max(axis=1)
    return 1e5 * (df.ours - df[list(SIDES)].max(axis=1)) / together


def added_by_side() -> pd.DataFrame:
    """The same, from least to most: where one side is left for over a tenth of the time, where neither is, and all."""
    df = table()
    long = df.both < LEFT
    sorts = {f"{side} left for over a tenth": long & (df.left == side) for side in SIDES[::-1]} | {"neither": ~long}
    sorts["all"] = long | ~long
    rows = {}
    for name, some in sorts.items():
        share, yields = added(df[some]), df.yields[some]
        rows[name] = [int(some.sum()), f"{share.min():.0f} to {share.max():.0f} %", f"{yields.sum()} of {some.sum()}"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=["batches", "added while both run", "prefill yields"])


def tail(df, side: str):
    """The batches where every SM is through with the other side before the first one is through with this one."""
    other = SIDES[side == "prefill"]
    return df[(df.grows == side) & (df[f"{side}_first_us"] > df[f"{other}_last_us"])]


def rates(side: str) -> tuple[float, float]:
    """Work a second of `side`, TFLOP/s or TB/s: alone, and in the fused kernel after the other side has ended."""
    part = tail(table(), side)
    work = part[WORK[side]] / 1e9  # TFLOP or TB a millisecond
    return tuple(1 / np.polyfit(work, part[name], 1)[0] for name in (side, "ours"))


def tail_over_alone(side: str) -> float:
    alone, fused = rates(side)
    return float(fused / alone)


def idle_most() -> float:
    """The largest share of the time, %, that equal ends on all SMs could win."""
    return 100 * float(table().none.max())

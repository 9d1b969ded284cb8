"""Eleven hybrid batches on an H200: this kernel beside FlashAttention-3 and FlashInfer in eight ways, and the energy.

Measured: eleven hybrid batches, ours and its variants beside every peer, with the energy that a batch takes.
"""

from functools import partial

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, hardware, read
from pod.experiments.hopper.hopper_sweep import ALONE, geomean, parts
from pod.hardware import GPU
from pod.lab.figure import Figure, short
from pod.lab.measure import peers, timing
from pod.lab.show import style
from pod.schedule.work import Schedule

FIGURE = Figure(
    title=f"Eleven hybrid batches in nine ways on {a_card()}, and what a batch costs in energy",
    chapter="17",
    method="Left: medians, cold L2, shuffled rounds. Right: back to back for 1.5 s, the GPU's energy counter. bf16.",
    data=("hopper-peers",),
)
RECORDING = "hopper-peers"
KEYS = ("q_heads", "kv_heads", "chunk", "context", "decodes", "decode_context")
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
K = 1024
BATCHES = [
    (16, 4, 1 * K, 12 * K, 80, 12 * K), (16, 4, 12 * K, 12 * K, 220, 12 * K), (16, 4, 16 * K, 16 * K, 250, 12 * K),
    (32, 4, 512, 16 * K, 66, 16 * K), (32, 4, 512, 16 * K, 67, 16 * K), (32, 4, 2 * K, 16 * K, 64, 16 * K),
    (32, 8, 2 * K, 8 * K, 128, 4 * K), (32, 8, 4 * K, 8 * K, 64, 8 * K), (32, 8, 2 * K, 32 * K, 64, 32 * K),
    (16, 16, 1 * K, 8 * K, 32, 8 * K), (32, 8, 1 * K, 4 * K, 200, 2 * K),
]  # fmt: skip


def cases() -> list[dict]:
    return [dict(zip(KEYS, row, strict=True)) for row in BATCHES]


def batch_of(row: dict, **rest) -> HybridBatch:
    """The batch that a row of these columns names, here and on every page that has them."""
    sizes = ("chunk", "context", "decodes", "decode_context", "q_heads", "kv_heads")
    return HybridBatch.of(*(row[name] for name in sizes), **rest)


OURS = {"ours": peers.ours, "ours_serial": peers.ours_serial,
        "ours_never_yields": partial(peers.ours, yields=False),
        "ours_always_yields": partial(peers.ours, yields=True)}  # fmt: skip


def measure(case: dict) -> dict:
    setting = peers.Setting(batch_of(case))
    row = peers.table_row(setting, ALONE | peers.PEERS | OURS, ROUNDS, ms=6.0)
    for name, make in (("fa3_serial", peers.fa3_serial), ("ours_serial", peers.ours_serial), ("ours", peers.ours)):
        spent = timing.energy(make(setting))
        row |= {f"{name}_steady_ms": round(spent.ms, 5), f"{name}_mj": round(spent.millijoules, 2),
                f"{name}_watts": round(spent.watts, 1), f"{name}_mhz": spent.sm_clock_mhz}  # fmt: skip
    return row


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    return peers.planned(batch_of(case), OURS, gpu)


# ---------------------------------------------------------------- what it shows

PEERS = {
    "fa3_serial": "FA3, two calls",
    "fa3_streams": "FA3, two streams",
    "fa3_varlen": "FA3, one call",
    "fi_fa3_serial": "FlashInfer fa3, then decode",
    "fi_fa2_serial": "FlashInfer fa2, then decode",
    "fi_batched": "FlashInfer, one call",
    "fi_pod": "FlashInfer's POD",
    "fi_persistent": "FlashInfer persistent",
}
METERED = {"fa3_serial": "FA3, two calls", "ours_serial": "this kernel, halves in turn", "ours": "this kernel"}


def table():
    """One row a batch: milliseconds of all ways, the longer part alone, the best peer and our speed-up over it; for
    three ways the millijoules, watts, clock and milliseconds when repeated back to back; `holes` says why a peer has
    no time."""
    df = read("hopper-peers")
    alone = parts(df)
    peers = df[list(PEERS)].apply(pd.to_numeric, errors="coerce")
    out = pd.DataFrame({"batch": [batch_name(row) for row in df.itertuples()]}).join(alone).join(peers)
    variants = [c for c in df.columns if c.startswith("ours") and not c.endswith(("_p10", "_p90"))]
    metered = [c for c in df.columns if c.startswith("fa3_serial_") and not c.endswith(("_p10", "_p90"))]
    return out.join(df[variants + metered]).assign(
        larger=alone.max(axis=1),
        best_peer=peers.idxmin(axis=1).map(PEERS),
        over_best_peer=peers.min(axis=1) / df.ours,
        over_fa3=df.fa3_serial / df.ours,
        holes=df.holes.fillna(""),
    )  # fmt: skip


def batch_name(row) -> str:
    heads = f"{row.q_heads}/{row.kv_heads}"
    return f"{short(row.chunk)} @ {short(row.context)} + {row.decodes} x {short(row.decode_context)}, {heads}"


# ---------------------------------------------------------------- the picture


def draw(df):
    """The least prefill for its decode on top."""
    df = df.assign(ratio=df.prefill / df.decode).sort_values("ratio", kind="stable")
    axes = style.axes(9.5, 5.4, columns=2, sharey=True, width_ratios=(3, 2))
    _times(axes[0], df)
    _energies(axes[1], df)
    axes[0].set(yticks=range(len(df)), ylim=(len(df) - 0.4, -0.6))
    axes[0].set_yticklabels([f"{row.batch}  ({row.ratio:.1f})" for row in df.itertuples()], fontsize=8.5)
    axes[0].set_title("batch (prefill / decode)  ", fontsize=8.5, loc="right", x=0)
    return axes[0].figure


def _times(ax, df) -> None:
    y = range(len(df))
    ax.hlines(y, 1, (df.prefill + df.decode) / df.larger, color=style.IDLE, linewidth=13, zorder=0)
    ax.axvline(1, color=style.INK, linewidth=1.2)
    tones = *style.WORKERS[1:], style.colour("linear")
    for (column, name), marker, tone in zip(PEERS.items(), "os^DvP*X", tones, strict=True):
        theirs = {"color": style.INK, "markersize": 8, "zorder": 5} if column == "fi_pod" else {
            "color": tone, "markersize": 5, "markerfacecolor": "white"}  # fmt: skip
        ax.plot(df[column] / df.larger, y, marker, label=name, **theirs)
    ax.plot(df.ours / df.larger, y, "o", color=style.colour("hybrid"), markersize=10, label="this kernel", zorder=4)
    for i, row in zip(y, df.itertuples(), strict=True):
        ax.text(1.01, i, f"{row.over_best_peer:.2f}×", transform=ax.get_yaxis_transform(), va="center", fontsize=9,
                fontweight="bold")  # fmt: skip
    ax.set(xscale="log", xlabel="time / the longer part alone (grey: up to the sum)", xlim=(0.75, 9))
    style.ticks(ax, (1, 1.5, 2, 3, 4, 6, 8))
    ax.set_title("Single calls: time", fontsize=10.5, loc="left")
    ax.set_title("best peer\nover ours", fontsize=8.5, loc="center", x=1.05)
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, columnspacing=1.0, handletextpad=0.3)


def _energies(ax, df) -> None:
    base = df.fa3_serial_mj
    tones = ("#9aa7b4", style.colour("load"), style.colour("hybrid"))
    bars = zip(METERED.items(), tones, (-0.35, -0.14, 0.2), (0.2, 0.2, 0.45), strict=True)
    for (way, name), tone, shift, height in bars:
        ax.barh([i + shift for i in range(len(df))], 100 * df[f"{way}_mj"] / base, height, color=tone, label=name)
    for i, row in enumerate(df.itertuples()):
        ax.text(2, i + 0.2, f"{row.ours_mj:,.0f} mJ, {row.ours_watts:.0f} W", fontsize=8.5, va="center",
                color=style.letters_on(tones[-1]))  # fmt: skip
    ax.axvline(100, color=style.INK, linewidth=0.8)
    ax.set(xlabel="% of the energy of two FA3 calls")
    ax.set_title("Back to back: energy", fontsize=10.5, loc="left")
    ax.tick_params(axis="y", length=0)
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=1)


# ---------------------------------------------------------------- what we state


def over_best_peer() -> float:
    """Geometric mean over the batches of the best peer's time over ours."""
    return geomean(table().over_best_peer)


def energy_saved() -> float:
    """Energy of the two FlashAttention-3 calls over that of this kernel, geometric mean."""
    df = table()
    return geomean(df.fa3_serial_mj / df.ours_mj)


def one_call_over_ours() -> pd.Series:
    """FlashInfer's one call over ours, geometric mean, by how many query heads share a KV head."""
    df, group = table(), [case["q_heads"] // case["kv_heads"] for case in cases()]
    return (df.fi_batched / df.ours).groupby(group).agg(geomean)


def one_call_in_words() -> str:
    many = [f"{ratio:.1f}x at {group}" for group, ratio in one_call_over_ours().items()]
    return f"{PEERS['fi_batched']} over ours, by query heads for a KV head: {', '.join(many)}"


def failed() -> list[str]:
    """Which peer has no time on which batch."""
    some = [(row.batch, *row.holes.split(": ")[:2]) for row in table().query("holes != ''").itertuples()]
    return [f"{PEERS[name]} fails on {batch} ({kind})" for batch, name, kind in some]


def batches() -> int:
    return len(table())


# ---------------------------------------------------------------- better halves x fusing

EVEN = (0.5, 2)  # prefill's time alone over decode's: neither part takes twice as long as the other
WAYS = {"cold": "", "steady": "_steady_ms", "energy": "_mj"}  # endings of a metered way's columns


def is_even(ratio: pd.Series) -> pd.Series:
    return ratio.between(*EVEN, inclusive="neither")


def _over(one: str, other: str, how: str = "cold", even: bool | None = None) -> float:
    """even: of the batches alone of which neither side takes twice as long as the other, or of the others."""
    df = table()
    if even is not None:
        df = df[is_even(df.prefill / df.decode) == even]
    return geomean(df[f"{one}{WAYS[how]}"] / df[f"{other}{WAYS[how]}"])


halves = partial(_over, "fa3_serial", "ours_serial")  # two FlashAttention-3 calls over ours in turn
fusing = partial(_over, "ours_serial", "ours")  # ours in turn over ours at once


def over_fa3() -> float:
    return geomean(table().over_fa3)


def watts() -> float:
    """Of the metered ways on all batches, the median power when repeated back to back."""
    df = table()
    return float(np.median(df[[f"{way}_watts" for way in METERED]]))


def fusing_by_the_clock() -> pd.DataFrame:
    """What fusing gains back to back: in cycles of the SMs, the clock fused over that in turn, and their product."""
    df = table()
    even, rows = is_even(df.prefill / df.decode), {}
    for words, some in (("all eleven", df), ("even batches", df[even]), ("the other five", df[~even])):
        clock = geomean(some.ours_mhz / some.ours_serial_mhz)
        gain = geomean(some.ours_serial_steady_ms / some.ours_steady_ms)
        rows[words] = {"in cycles": gain / clock, "clock, fused over in turn": clock, "in time": gain}
    return pd.DataFrame(rows).T


def energy(df):
    """One row a batch and metered way: millijoules, watts, clock, and the milliseconds that the energy alone would take
    at the power limit."""
    rows = [
        (row.batch, name, getattr(row, f"{way}_mj"), getattr(row, f"{way}_watts"), getattr(row, f"{way}_mhz"),
         getattr(row, f"{way}_steady_ms"), getattr(row, f"{way}_mj") / hardware().power_w)
        for row in df.itertuples() for way, name in METERED.items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["batch", "way", "millijoules", "watts", "mhz", "steady_ms", "roof_ms"])

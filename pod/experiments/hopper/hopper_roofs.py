"""What share of each limit the fused kernel uses, called once and repeated without a rest: which roof is reached?

Counted: tensor cores, DRAM, L2 to SMs and shared memory, from the plan's lists; times, clocks and watts are recorded.
"""

import numpy as np
import pandas as pd

from pod.data import a_card, hardware
from pod.experiments.hopper import hopper_any_roof, hopper_dry, hopper_peers, hopper_sweep
from pod.experiments.joules import joules_prices
from pod.hardware import H200, KIB
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule import decide
from pod.simulate import joules

FIGURE = Figure(
    title=f"The fused kernel on {a_card()}: no roof is reached by a single call, and power by repeated ones",
    chapter="17",
    method="Work counted from the plan, over recorded times. Of what kernels get that do nothing else: the fastest "
    "products and 128 bytes of shared memory a cycle, at the clock of the batch; the fastest read of DRAM; the fastest "
    "copies from L2 at the full clock (filled) and slowed as the clock is (hollow). Single calls: 1,980 MHz assumed.",
    data=("hopper-peers", "joules-prices", "gpusim-calibrate", "ladder"),
)
FULL_MHZ = 1980  # of single calls: the median that the driver reports while they are timed, in coarse samples
SMEM_BYTES_A_CYCLE = 128  # plain reads of the price list get them
# Bytes of shared memory for a block of 128 x 128 scores: TMA writes K and V; two warpgroups read Q, K and V each.
PREFILL_BLOCK = (2 * 32 + 2 * (16 + 32 + 32)) * KIB
STATES = {"single": "a single call", "steady": "back to back"}
LIMITS = {"tensor": "tensor cores", "dram": "DRAM", "l2": "L2 to SMs", "l2_slowed": "L2, if it slows down",
          "smem": "shared memory", "power": "power"}  # fmt: skip


def table():
    """One row a batch and state: % of each limit, TB/s from L2 and bytes of shared memory a cycle. A limit is the most
    that any kernel gets there which does nothing else, at the clock at which the batch ran. How much L2 gives at a
    lower clock was not measured: `l2` holds if it stays as fast, `l2_slowed` if it slows down as much."""
    seen = hopper_peers.table()
    work = [_work(case) for case in hopper_peers.cases()]
    rows = []
    for (count, smem), row in zip(work, seen.itertuples(), strict=True):
        rows.append(_row(row, "single", row.ours, FULL_MHZ, count, smem, np.nan))
        rows.append(_row(row, "steady", row.ours_steady_ms, row.ours_mhz, count, smem, row.ours_watts))
    return pd.DataFrame(rows)


def _work(case: dict) -> tuple[joules.Work, float]:
    """What the plan of a batch makes the kernel do, and bytes of shared memory read and written."""
    plan = decide.hopper(hopper_peers.batch_of(case), H200.sms)
    blocks = int(plan.prefill.blocks(plan.shape.prefill_keys).sum())
    keys = int(plan.decode.blocks(plan.shape.decode_keys).sum()) * plan.shape.decode_keys
    return joules.of_schedule(plan), blocks * PREFILL_BLOCK + 2 * keys * 2 * plan.batch.head_dim * 2


def _row(row, state: str, ms: float, mhz: float, work: joules.Work, smem: float, watts: float) -> dict:
    seconds, card = ms / 1e3, hardware()
    flops = (work.wide + work.wide_registers + work.narrow + work.narrow_16) * 1e12
    from_l2, a_cycle = work.into_sms / seconds, smem / (seconds * mhz * 1e6 * card.sms)
    l2 = from_l2 / fastest_from_l2()
    limits = {
        "tensor": flops / seconds / (flops_a_cycle() * mhz * 1e6),
        "dram": work.dram * 1e12 / seconds / fastest_read(),
        "l2": l2,
        "l2_slowed": l2 * FULL_MHZ / mhz,
        "smem": a_cycle / SMEM_BYTES_A_CYCLE,
        "power": watts / card.power_w,
    }
    shares = {name: 100 * share for name, share in limits.items()}
    return {"batch": row.batch, "ratio": row.prefill / row.decode, "state": state, "ms": ms, "mhz": mhz, **shares,
            "l2_tb_per_s": from_l2, "smem_bytes_a_cycle": a_cycle}  # fmt: skip


def fastest_from_l2() -> float:
    """TB/s of copies into all SMs that do nothing else, the fastest of the price list."""
    df = joules_prices.table()
    return float(df[(df.work == "copy") & df.how.str.startswith("l2") & (df.how != "l2, pairs")].rate.max())


def flops_a_cycle() -> float:
    """Of all SMs, by products that do nothing else, the most of the price list. (The fastest in a second are others: of
    zeros, which draw less power and so keep more of the clock.)"""
    df = joules_prices.table()
    products = df[df.work == "product"]
    return float((1e3 * products.rate / products.ghz).max())


def fastest_read() -> float:
    """Bytes/s of the fastest plain read of DRAM, of which roofs are made, too."""
    return 1e3 * float(hopper_any_roof.ceilings().bytes)


def draw(df):
    axes = style.axes(9.5, 4.9, columns=2, sharey=True)
    titles = (
        "A single call: even batches (grey)\nreach no roof",
        "Back to back: power is the roof,\nand the clock falls",
    )
    for ax, state, title in zip(axes, STATES, titles, strict=True):
        mine = df[df.state == state].sort_values("ratio", kind="stable")
        _shares(ax, mine)
        ax.set_title(title, fontsize=10.5, loc="left")
        ax.set(xlim=(0, 112), xlabel=f"{STATES[state]}: % of each limit")
    names = [f"{row.batch}  ({row.ratio:.1f})" for row in mine.itertuples()]
    axes[0].set_yticks(range(len(names)), names, fontsize=8.5)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    axes[0].set_title("batch (prefill / decode)  ", fontsize=8.5, loc="right", x=0)
    for i, words in ((-1, "clock"), *enumerate(f"{mhz / 1000:.2f} GHz" for mhz in mine.mhz)):
        axes[1].text(1.01, i, words, transform=axes[1].get_yaxis_transform(), va="center", fontsize=8.5)
    even = _even(mine)
    sides = axes[0].get_yaxis_transform()
    axes[0].plot((1.01, 1.03, 1.03, 1.01), np.repeat((even[0] - 0.4, even[-1] + 0.4), 2), color=style.INK, linewidth=1,
                 transform=sides, clip_on=False)  # fmt: skip
    axes[0].text(1.045, np.mean(even), "even", transform=sides, rotation=90, va="center", fontsize=9)
    return style.legend_outside(axes[1], "lower", len(LIMITS))


MARKS = {"tensor": ("s", style.WORKERS[1]), "dram": ("D", style.WORKERS[3]), "l2": ("o", style.INK),
         "l2_slowed": ("o", style.INK), "smem": ("^", style.WORKERS[4]), "power": ("*", style.WORKERS[2])}  # fmt: skip


def _even(df) -> list[int]:
    """Which rows are even batches; they follow each other where rows are sorted by ratio."""
    return np.flatnonzero(hopper_peers.is_even(df.ratio)).tolist()


def _shares(ax, df) -> None:
    ax.axvline(100, color=style.INK, linewidth=1)
    even = _even(df)
    ax.axhspan(even[0] - 0.5, even[-1] + 0.5, color=style.IDLE, zorder=0)
    for name, (marker, tone) in MARKS.items():
        if df[name].notna().any() and not (name == "l2_slowed" and (df.mhz == FULL_MHZ).all()):
            ax.plot(df[name], range(len(df)), marker, color=tone, markersize=6.5 if marker != "*" else 9,
                    fillstyle="none" if name == "l2_slowed" else "full", label=LIMITS[name])  # fmt: skip


# ---------------------------------------------------------------- what a chapter asks for


def even_batches() -> pd.DataFrame:
    """From least to most, the share of each limit that the even batches use, in words."""
    rows = {f"even batches, {words}": [spread(state, name) for name in LIMITS] for state, words in STATES.items()}
    said = pd.DataFrame.from_dict(rows, orient="index", columns=list(LIMITS.values()))
    return said.map(lambda span: "not metered" if np.isnan(span[0]) else f"{span[0]:.0f} to {span[1]:.0f} %")


def spread(state: str, column: str) -> tuple[float, float]:
    """Least and most over the even batches."""
    df = table().query("state == @state")
    some = df[hopper_peers.is_even(df.ratio)]
    return float(some[column].min()), float(some[column].max())


# ---------------------------------------------------------------- a bound for all kernels


def bound(df) -> pd.Series:
    """Milliseconds below which no kernel comes: all bytes of a batch at the best rate at which decode was seen to read,
    alone or left alone, or all FLOPs at the best rate of prefill, whichever takes longer. One row a batch."""
    rates = {side: 1e9 * max(hopper_dry.rates(side)) for side in ("prefill", "decode")}
    batches = [hopper_sweep.batch_of(case) for case in df[list(hopper_sweep.KEYS)].to_dict("records")]
    least = [max(b.flops / rates["prefill"], b.bytes / rates["decode"]) for b in batches]
    return pd.Series(least, df.index)


def near_bound(df, way: str) -> float:
    """Share of the batches whose `way` ends within 10 % of that bound, %."""
    margin = 1 + paper.value("pod.f11.near_peak_margin") / 100
    return 100 * float((df[way] <= margin * bound(df)).mean())

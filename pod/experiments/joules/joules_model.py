"""Where the joules of a hybrid batch go, by the price list, and what time they take at the power limit."""

from functools import cache

import numpy as np
import pandas as pd

from pod.data import a_card, hardware, read
from pod.experiments.hopper.hopper_peers import batch_of
from pod.experiments.joules import joules as batches
from pod.experiments.joules import joules_prices
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate import joules
from pod.simulate.joules import Prices, Spent, Work

FIGURE = Figure(
    title=f"Back to back on {a_card()}, the joules of a batch set its time, and nearly half of them move bytes",
    chapter="18",
    method="Counted work times its price, at the clock that was seen; an exponent of the clock and two factors are "
    "learnt from every other batch. Seen: milliseconds of a batch back to back. bf16.",
    data=("joules-prices", "joules"),
    fitted=True,
)
WAYS = {"ours": "fused", "ours_serial": "halves in turn"}
HIGHEST = 1.975  # GHz: the clock cannot rise further, and the power limit does not set the time
LEARNT = slice(0, None, 2)  # of the batches; the others are foretold
KINDS = {  # what the kinds of work are in a batch: words, and a shade of the side that causes them
    "dram": ("DRAM to L2", style.DECODE),
    "into_sms": ("L2 to the SMs", "#f8b878"),
    "narrow": ("decode's products", "#fbdcb8"),
    "scores": ("exponentials", "#b7cbe0"),
    "products": ("prefill's products", style.PREFILL),
    "awake": ("being awake", "#9aa7b4"),
}


def work(row, way: str) -> Work:
    """What a batch of the recording has the GPU do."""
    batch = batch_of(row._asdict())
    parts = [batch] if way == "ours" else [batch.prefill, batch.decode]
    return Work(*np.sum([joules.of_batch(part, hardware().sms) for part in parts], axis=0))


@cache
def seen() -> dict[str, list[Spent]]:
    """Way -> what each batch took, back to back."""
    df = read("joules")
    return {way: [Spent(work(row, way), ms / 1e3, mj / 1e3, mhz) for row, ms, mj, mhz in
                  zip(df.itertuples(), *(df[f"{way}_steady_{unit}"] for unit in ("ms", "mj", "mhz")), strict=True)]
            for way in WAYS}  # fmt: skip


@cache
def prices() -> Prices:
    return joules.adjusted(joules_prices.listed(), [one for way in WAYS for one in seen()[way][LEARNT]])


def _joules(one: Spent) -> float:
    """Foretold, in the time that it took."""
    return prices().joules(one.work, one.mhz, one.seconds)


def table():
    """One row a way and batch: millijoules of each kind of work, seen and foretold milliseconds and how far off these
    are, the same of the energy that the time seen takes, and whether the model had learnt from it."""
    limit, names = batches.watts(), batches.table().batch.unique()
    rows = []
    for way in WAYS:
        for i, one in enumerate(seen()[way]):
            parts = prices().parts(one.work, one.mhz)
            foretold = prices().least_seconds(one.work, one.mhz, limit)
            mj = {"products": parts.wide + parts.wide_registers, "awake": prices().watts * foretold}
            mj |= {name: getattr(parts, name) for name in KINDS if name in Work._fields}
            rows.append({"way": way, "batch": names[i], "learnt": i in range(len(names))[LEARNT], "ghz": one.mhz / 1e3}
                        | {name: 1e3 * mj[name] for name in KINDS}
                        | {"seen_ms": 1e3 * one.seconds, "foretold_ms": 1e3 * foretold,
                           "energy_off": 100 * (_joules(one) / one.joules - 1)})  # fmt: skip
    df = pd.DataFrame(rows)
    return df.assign(off=100 * (df.foretold_ms / df.seen_ms - 1))


def draw(df):
    axes = style.axes(9.5, 4.8, columns=2, width_ratios=(3, 2))
    _shares(axes[0], batches.by_ratio(df[df.way == "ours"]))
    _errors(axes[1], df)
    axes[0].set_title("By the model, nearly half of the joules move bytes", fontsize=10.5, loc="left")
    words = "Counting foretells the time, but for\ntwo that stay below the power limit"
    axes[1].set_title(words, fontsize=10.5, loc="left")
    return axes[0].figure


def _shares(ax, df) -> None:
    """Of the fused kernel's joules, batch by batch, the least prefill for its decode on top."""
    whole, left = df[list(KINDS)].sum(axis=1), 0
    for name, (words, tone) in KINDS.items():
        share = 100 * df[name] / whole
        ax.barh(range(len(df)), share, 0.7, left, color=tone, label=words)
        left = left + share
    batches.name_rows(ax, df)
    ax.set(xlim=(0, 100), xlabel="% of the joules of the fused kernel")
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=3, columnspacing=1.0, handletextpad=0.4)


def _errors(ax, df) -> None:
    ax.axhspan(-5, 5, color=style.IDLE)
    ax.axhline(0, color=style.INK, linewidth=1)
    for (way, words), tone in zip(WAYS.items(), (style.colour("both"), style.INK), strict=True):
        for learnt, face, word in ((True, "white", "learnt from"), (False, tone, "foretold")):
            part = df[(df.way == way) & (df.learnt == learnt)]
            ax.plot(part.seen_ms, part.off, "o", color=tone, markerfacecolor=face, label=f"{words}, {word}")
    for row in df[df.off.abs() > 5].itertuples():
        words, at = f"{row.ghz:.2f} GHz", (row.seen_ms, row.off)
        ax.annotate(words, at, (7, 0), textcoords="offset points", fontsize=8.5, va="center")
    far = 1.2 * max(5, df.off.abs().max())
    ax.set(xscale="log", ylim=(-far, far), xlabel="ms, back to back", ylabel="foretold, % off (grey: 5 %)")
    style.ticks(ax, (0.5, 1, 2, 3))
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.45, -0.12), ncols=2, columnspacing=1.0, handletextpad=0.2)


# ---------------------------------------------------------------- what claims ask for


def worst(way: str = "", learnt: bool = False, of: str = "off") -> float:
    """The largest error of the time, %, of the batches from which nothing was learnt."""
    df = table()
    return float(df[(df.learnt == learnt) & df.way.isin([way] if way else WAYS)][of].abs().max())


def worst_energy(way: str = "") -> float:
    """The same of the energy, the time being given."""
    return worst(way, of="energy_off")


def at_the_limit() -> float:
    """The largest error of the time, %, of those among them whose clock the power limit had lowered."""
    df = table()
    return float(df[~df.learnt & (df.ghz < HIGHEST)].off.abs().max())


def moving() -> float:
    """% of the fused kernel's joules, over all batches, that bring bytes from DRAM and L2 to the SMs."""
    df = table()
    of = df[df.way == "ours"][list(KINDS)].sum()
    return 100 * float((of.dram + of.into_sms) / of.sum())


def moving_of_each() -> np.ndarray:
    """The same of each batch, the least prefill for its decode first."""
    df = table()
    of = batches.by_ratio(df[df.way == "ours"])[list(KINDS)]
    return (100 * (of.dram + of.into_sms) / of.sum(axis=1)).to_numpy()


def saved_by_slower() -> float:
    """Of the joules that fusing saves, % that the same work saves at a lower clock; the others are less time awake."""
    df = table()
    whole = df[list(KINDS)].groupby(df.way).sum()
    saved = whole.loc["ours_serial"] - whole.loc["ours"]
    return 100 * float(1 - saved.awake / saved.sum())


def left_at_full_clock() -> float:
    """Of the joules that fusing saves back to back, % that the model has left with both ways at the full clock: the
    work is the same then, and being awake is paid by the second."""
    return 100 * prices().watts * batches.saved("rested", "ms") / batches.saved("steady")


def gone_at_full_clock() -> float:
    """The same by the meter: of the joules that fusing saves, % that are gone with both ways at the full clock."""
    return 100 - metered_at_full_clock()


def metered_at_full_clock() -> float:
    """By the meter: of the joules that fusing saves, % that it saves with both ways at the full clock, too."""
    return batches.left_at_full_clock()


def off_at_full_clock(way: str) -> np.ndarray:
    """How far off the model's energy of a batch is where a way rests and keeps the full clock, its time being given, %.
    It has learnt from none of these."""
    df = read("joules")
    seen_so = zip(seen()[way], *(df[f"{way}_rested_{unit}"] for unit in ("ms", "mj", "mhz")), strict=True)
    return np.array([1e5 * prices().joules(one.work, mhz, ms / 1e3) / mj - 100 for one, ms, mj, mhz in seen_so])


def learnt_from() -> int:
    """Batches, in both ways."""
    return len(seen()["ours"][LEARNT])


def foretold() -> int:
    return len(seen()["ours"]) - learnt_from()

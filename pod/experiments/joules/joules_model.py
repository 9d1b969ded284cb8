"""Where the joules of a hybrid batch go, by the price list, and what time they take at the power limit."""

from dataclasses import replace
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
    title=f"Back to back on {a_card()}, the joules of a batch set its time; by a model with 120 W awake nearly half "
    "move bytes",
    chapter="18",
    method="Counted work times its price, at the clock that was seen; an exponent of the clock and two factors are "
    "learnt from every other batch. With more watts awake the same fit has bytes take less (joules_model.by_watts). "
    "Seen: milliseconds of a batch back to back. bf16.",
    data=("joules-prices", "joules"),
    fitted=True,
)
WAYS = {"ours": "fused", "ours_serial": "halves in turn"}
HIGHEST = 1.975  # GHz: the clock cannot rise further, and the power limit does not set the time
LEARNT = slice(0, None, 2)  # of the batches; the others are foretold
AWAKE = (200, 250, 330)  # W, other than the list's, with which the fit is tried again
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
def prices(awake: float | None = None) -> Prices:
    """Learnt. awake: other watts than the list's for a GPU that is awake."""
    return joules.adjusted(_listed(awake), [one for way in WAYS for one in seen()[way][LEARNT]])


def _listed(awake: float | None) -> Prices:
    listed = joules_prices.listed()
    return listed if awake is None else replace(listed, watts=awake)


def _off(prices: Prices, one: Spent) -> float:
    """How far off the energy is, the time being given, %."""
    return 100 * (prices.joules(one.work, one.mhz, one.seconds) / one.joules - 1)


def table(awake: float | None = None):
    """One row a way and batch: millijoules of each kind of work, seen and foretold milliseconds and how far off these
    are, the same of the energy that the time seen takes, by the model and by the median watts alone, and whether the
    model had learnt from it."""
    of, limit, names = prices(awake), batches.watts(), batches.table().batch.unique()
    rows = []
    for way in WAYS:
        for i, one in enumerate(seen()[way]):
            parts = of.parts(one.work, one.mhz)
            foretold = of.least_seconds(one.work, one.mhz, limit)
            mj = {"products": parts.wide + parts.wide_registers, "awake": of.watts * foretold}
            mj |= {name: getattr(parts, name) for name in KINDS if name in Work._fields}
            rows.append({"way": way, "batch": names[i], "learnt": i in range(len(names))[LEARNT], "ghz": one.mhz / 1e3}
                        | {name: 1e3 * mj[name] for name in KINDS}
                        | {"seen_ms": 1e3 * one.seconds, "foretold_ms": 1e3 * foretold,
                           "energy_off": _off(of, one),
                           "watts_off": 100 * (limit * one.seconds / one.joules - 1)})  # fmt: skip
    df = pd.DataFrame(rows)
    return df.assign(off=100 * (df.foretold_ms / df.seen_ms - 1))


def draw(df):
    axes = style.axes(9.5, 4.8, columns=2, width_ratios=(3, 2))
    _shares(axes[0], batches.by_ratio(df[df.way == "ours"]))
    _errors(axes[1], df)
    axes[0].set_title("By a model with 120 W awake, nearly half move bytes", fontsize=10.5, loc="left")
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


def worst_by_watts() -> float:
    """The same where the model is the median watts times the time, and nothing else."""
    return worst(of="watts_off")


def mean_energy(of: str = "energy_off") -> float:
    """The mean error of the energy, %, likewise. of: watts_off, where the median watts alone are the model."""
    df = table()
    return float(df[~df.learnt][of].abs().mean())


def at_the_limit(awake: float | None = None) -> float:
    """The largest error of the time, %, of those among them whose clock the power limit had lowered."""
    df = table(awake)
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


def left_at_full_clock(awake: float | None = None) -> float:
    """Of the joules that fusing saves back to back, % that the model has left with both ways at the full clock: the
    work is the same then, and being awake is paid by the second."""
    return 100 * prices(awake).watts * batches.saved("rested", "ms") / batches.saved("steady")


def gone_at_full_clock() -> float:
    """The same by the meter: of the joules that fusing saves, % that are gone with both ways at the full clock."""
    return 100 - metered_at_full_clock()


def metered_at_full_clock() -> float:
    """By the meter: of the joules that fusing saves, % that it saves with both ways at the full clock, too."""
    return batches.left_at_full_clock()


def off_at_full_clock(way: str, awake: float | None = None) -> pd.Series:
    """How far off the model's energy of a batch is where a way rests and keeps the full clock, its time being given, %.
    It has learnt from none of these."""
    df = read("joules")
    seen_so = zip(seen()[way], *(df[f"{way}_rested_{unit}"] for unit in ("ms", "mj", "mhz")), strict=True)
    return pd.Series([_off(prices(awake), Spent(one.work, ms / 1e3, mj / 1e3, mhz)) for one, ms, mj, mhz in seen_so])


def off_in_the_other_way(awake: float | None = None) -> pd.Series:
    """How far off the energy of the fused kernel is, %, where all was learnt from the halves in turn."""
    learnt = joules.adjusted(_listed(awake), seen()["ours_serial"])
    return pd.Series([_off(learnt, one) for one in seen()["ours"]])


def by_watts() -> pd.DataFrame:
    """A column for each price of being awake, the list's first, with which the same fit was made: what it foretells,
    whose joules they are (fused, all batches), what it says of the full clock, and what it pays for work."""
    listed, columns = joules_prices.listed(), {}
    for awake in (listed.watts, *AWAKE):
        fit, df = prices(awake), table(awake)
        of = df[df.way == "ours"][list(KINDS)].sum()
        share = 100 * of / of.sum()
        columns[f"{awake:.0f} W"] = {
            "learnt: energy off, root mean square, %": (df[df.learnt].energy_off ** 2).mean() ** 0.5,
            "foretold: time off at the limit, at most, %": at_the_limit(awake),
            "bytes, % of the joules": share.dram + share.into_sms,
            "products, %": share.products + share.narrow,
            "being awake, %": share.awake,
            "left at the full clock, %": left_at_full_clock(awake),
            "fused at the full clock: energy off, median, %": off_at_full_clock("ours", awake).median(),
            "fused, learnt from in turn: energy off, median, %": off_in_the_other_way(awake).median(),
            "exponent of the clock": fit.exponent,
            "prefill's products, times the list's price": fit.each.wide / listed.each.wide,
            "a byte, DRAM to L2, pJ": fit.each.dram,
        }
    return pd.DataFrame(columns)


def learnt_from() -> int:
    """Batches, in both ways."""
    return len(seen()["ours"][LEARNT])


def foretold() -> int:
    return len(seen()["ours"]) - learnt_from()

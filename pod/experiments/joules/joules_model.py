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
    title=f"Back to back on {a_card()}, the joules of a batch set its time; what they are spent on depends on "
    "the watts for being awake",
    chapter="18",
    method="Counted work times its price, at the clock that was seen; an exponent of the clock and two factors are "
    "learnt from every other batch, once for each of four prices of being awake. Seen: milliseconds of a batch back "
    "to back. bf16.",
    data=("joules-prices", "joules"),
    fitted=True,
)
WAYS = {"ours": "fused", "ours_serial": "halves in turn"}
HIGHEST = 1.975  # GHz: the clock cannot rise further, and the power limit does not set the time
LEARNT = slice(0, None, 2)  # of the batches; the others are foretold
AWAKE = (200, 250, 330)  # W, other than the list's, with which the fit is tried again
FIRST = [  # the rows of by_watts that a reader sees first
    "bytes, % of the joules",
    "products, %",
    "being awake, %",
    "foretold: time off at the limit, at most, %",
]
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


def fit(awake: float | None = None) -> pd.DataFrame:
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


def fits() -> dict[str, Prices]:
    """What was learnt with each of four prices of being awake, the list's first."""
    listed = joules_prices.listed().watts
    return {f"{listed:.0f} W": prices()} | {f"{awake} W": prices(awake) for awake in AWAKE}


def table() -> pd.DataFrame:
    """The rows of all four fits, with the watts for being awake in words."""
    return pd.concat([fit(awake).assign(awake_at=name) for name, awake in zip(fits(), (None, *AWAKE), strict=True)])


def draw(df):
    """A row a fit: what the joules of the fused kernel are spent on, and how far off the times are."""
    axes = style.axes(9.5, 3.4, columns=2, sharey=True, width_ratios=(3, 2))
    rows = [part for _, part in df.groupby("awake_at", sort=False)]
    _shares(axes[0], pd.DataFrame([part[part.way == "ours"][list(KINDS)].sum() for part in rows]))
    _errors(axes[1], [part[~part.learnt] for part in rows])
    axes[0].set_yticks(range(len(rows)), [f"{part.awake_at.iloc[0]} awake" for part in rows])
    axes[0].set(ylim=(len(rows) - 0.5, -0.5))
    axes[0].set_title("Four fits disagree on what the joules are for ...", fontsize=10.5, loc="left")
    axes[1].set_title("... and foretell time about as well", fontsize=10.5, loc="left")
    return axes[0].figure


def _shares(ax, df) -> None:
    """Of the fused kernel's joules, all batches together, in %."""
    whole, left = df.sum(axis=1), 0
    for name, (words, tone) in KINDS.items():
        share = (100 * df[name] / whole).to_numpy()
        ax.barh(range(len(df)), share, 0.62, left, color=tone, label=words)
        for y, (at, wide) in enumerate(zip(left + share / 2, share, strict=True)):
            if wide > 6:
                ax.text(at, y, f"{wide:.0f}", ha="center", va="center", fontsize=9, color=style.letters_on(tone))
        left = left + share
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, 100), xlabel="% of the joules of the fused kernel, eleven batches")
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=3, columnspacing=1.0, handletextpad=0.4)


def _errors(ax, rows) -> None:
    """The batches from which nothing was learnt; hollow where the clock cannot rise further."""
    ax.axvspan(-5, 5, color=style.IDLE)
    ax.axvline(0, color=style.INK, linewidth=1)
    for y, part in enumerate(rows):
        for (way, words), tone, shift in zip(
            WAYS.items(), (style.colour("both"), style.INK), (-0.12, 0.12), strict=True
        ):
            for free, face in ((False, tone), (True, "white")):
                some = part[(part.way == way) & ((part.ghz >= HIGHEST) == free)]
                if len(some):
                    label = f"{words}, at the highest clock" if free else words
                    ax.plot(some.off, [y + shift] * len(some), "o", color=tone, markerfacecolor=face, label=label)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(-10.5, 6.5), xlabel="foretold time, % off (grey: 5 %)")
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2, columnspacing=1.0, handletextpad=0.2)


# ---------------------------------------------------------------- what claims ask for


def worst(way: str = "", learnt: bool = False, of: str = "off") -> float:
    """The largest error of the time, %, of the batches from which nothing was learnt."""
    df = fit()
    return float(df[(df.learnt == learnt) & df.way.isin([way] if way else WAYS)][of].abs().max())


def worst_energy(way: str = "") -> float:
    """The same of the energy, the time being given."""
    return worst(way, of="energy_off")


def worst_by_watts() -> float:
    """The same where the model is the median watts times the time, and nothing else."""
    return worst(of="watts_off")


def mean_energy(of: str = "energy_off") -> float:
    """The mean error of the energy, %, likewise. of: watts_off, where the median watts alone are the model."""
    df = fit()
    return float(df[~df.learnt][of].abs().mean())


def at_the_limit(awake: float | None = None) -> float:
    """The largest error of the time, %, of those among them whose clock the power limit had lowered."""
    df = fit(awake)
    return float(df[~df.learnt & (df.ghz < HIGHEST)].off.abs().max())


def moving() -> float:
    """% of the fused kernel's joules, over all batches, that bring bytes from DRAM and L2 to the SMs."""
    df = fit()
    of = df[df.way == "ours"][list(KINDS)].sum()
    return 100 * float((of.dram + of.into_sms) / of.sum())


def saved_by_slower() -> float:
    """Of the joules that fusing saves, % that the same work saves at a lower clock; the others are less time awake."""
    df = fit()
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
        learnt, df = prices(awake), fit(awake)
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
            "exponent of the clock": learnt.exponent,
            "prefill's products, times the list's price": learnt.each.wide / listed.each.wide,
            "a byte, DRAM to L2, pJ": learnt.each.dram,
        }
    return pd.DataFrame(columns)


def learnt_from() -> int:
    """Batches, in both ways."""
    return len(seen()["ours"][LEARNT])


def foretold() -> int:
    return len(seen()["ours"]) - learnt_from()

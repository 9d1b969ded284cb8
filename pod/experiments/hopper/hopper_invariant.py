"""What it costs that a sequence's bits do not depend on its company: all keys cut at fixed lengths.

Measured: 60 of the ragged batches, ours as it likes and invariant, beside FlashAttention-3 that never cuts keys.
"""

from functools import partial

import pandas as pd

from pod.data import a_card, read
from pod.experiments.hopper import hopper_any
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import ragged
from pod.lab.show import style
from pod.simulate.mixes import KINDS

FIGURE = Figure(
    title=f"What equal bits in any company cost on {a_card()}",
    says="Equal bits cost short batches most, long ones some percent, but for one",
    chapter="17",
    method="60 of the 300 batches of hopper-any, bf16, pages of 16, cold L2, shuffled rounds, medians.",
    data=("hopper-invariant",),
)
RECORDING = "hopper-invariant"
KEYS = hopper_any.KEYS
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
EVERY = 5  # of the 300 batches: ten of each of the six kinds
LONG = 0.1  # ms, above which a launch is little
# Engines that promise the same bits have FlashAttention-3 leave all keys in one part.
UNCUT = {"fa3_two": partial(ragged.fa3_two, num_splits=1), "fa3_one": partial(ragged.fa3_one, num_splits=1),
         "fa3_one_ahead": partial(ragged.fa3_one, num_splits=1, ahead=True)}  # fmt: skip
WAYS = {"ours": ragged.ours, "invariant": partial(ragged.ours, invariant=True)} | UNCUT


def cases() -> list[dict]:
    return hopper_any.cases()[::EVERY]


def measure(case: dict) -> dict:
    mix = hopper_any.drawn()[int(case["batch"])]
    row = {"head_dim": mix.batch.head_dim, "words": mix.words}
    return row | ragged.table_row(ragged.Ragged(mix.batch, hopper_any.room()), WAYS, ROUNDS)


# ---------------------------------------------------------------- what it shows


def table():
    """One row a batch: milliseconds of ours free and invariant, what that costs, and over both FlashAttention-3 with
    all keys in one part, in the fastest of three ways; `holes` says what has no time."""
    return costs(read("hopper-invariant"))


def costs(df):
    """The same of any rows that `measure` has given."""
    times = df[list(WAYS)].apply(pd.to_numeric, errors="coerce")
    whole = times[list(UNCUT)].min(axis=1)
    named = df[["batch", "kind", "model", "tp", "head_dim", "words"]].join(times[["ours", "invariant"]])
    return named.assign(cost=times.invariant / times.ours, whole=whole, gain=whole / times.invariant,
                        holes=df.holes.fillna(""))  # fmt: skip


def summary(df):
    """One row a kind, for long ones and for all: batches, what the promise costs on average and at most, and
    FlashAttention-3's time with the same promise over ours."""
    sets = {kind: df[df.kind == kind] for kind in KINDS} | {"over 100 µs": df[df.ours > LONG], "all": df}
    return pd.DataFrame({name: _line(part) for name, part in sets.items() if len(part)}).T.round(3)


def _line(df) -> dict[str, float]:
    taken = df.dropna(subset="cost")
    return {"batches": len(df), "cost": geomean(taken.cost), "most": taken.cost.max(),
            "FA3 unsplit / ours": geomean(df.gain.dropna())}  # fmt: skip


def draw(df):
    ax = style.axes(9.5, 3.6)
    ax.axhline(1, color=style.INK, linewidth=1)
    for kind, part in df.groupby("kind"):
        ax.plot(1e3 * part.ours, part.cost, "o", color=hopper_any.COLOURS[kind], markersize=5, label=kind)
    ax.axhline(geomean(df.cost.dropna()), color=style.colour("hybrid"), linewidth=2, label="geometric mean")
    ax.set(xscale="log", xlabel="µs of the plan that may cut as it likes", ylabel="time of the invariant plan over it")
    ticks = [t for t in (10, 20, 50, 100, 200, 500, 1000, 2000) if 0.8e3 * df.ours.min() < t < 1.2e3 * df.ours.max()]
    style.ticks(ax, ticks, [f"{t:,}" for t in ticks])
    style.legend(ax, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def cost() -> float:
    """Percent, as a geometric mean over all batches."""
    return 100 * (geomean(table().cost.dropna()) - 1)


def cost_of_long() -> float:
    """The same of those that take 100 µs or more."""
    df = table()
    return 100 * (geomean(df[df.ours > LONG].cost.dropna()) - 1)


def behind() -> int:
    """Batches on which FlashAttention-3 with all keys in one part is faster than the invariant plan."""
    return int((table().gain < 1).sum())

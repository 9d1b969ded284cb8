"""Any batch beside more peers: FlashInfer's POD, FlashInfer's decodes, SMs of their own for each call, cut keys.

Measured: 24 of the ragged batches, ours beside all that a user could try with FlashAttention-3 and FlashInfer.
"""

from functools import partial

import pandas as pd

from pod.data import a_card, read
from pod.experiments.hopper import hopper_any
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import ragged
from pod.lab.show import style

FIGURE = Figure(
    title=f"24 batches of a serving engine on {a_card()}, beside other kernels and ways to call them",
    says="Ours is ahead of FlashAttention-3 and FlashInfer on all but two of 24 batches",
    chapter="17",
    method="Time over this kernel's, bf16, pages of 16, cold L2, shuffled rounds; of each family the fastest. Recorded "
    "before FlashAttention-3 had ways with whole keys: hopper-any has all its ways on these batches, too.",
    data=("hopper-any-peers",),
)
RECORDING = "hopper-any-peers"
KEYS = hopper_any.KEYS
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
# Of head_dim 128, with groups of 4, 5, 7, 8 and 16: the first of each kind, most of those with prompts and decodes.
BATCHES = (3, 4, 6, 17, 23, 27, 28, 29, 30, 32, 34, 35, 38, 41, 44, 47, 71, 77, 88, 98, 118, 124, 142, 154)
SMS = (16, 32, 48, 56, 64, 72, 88, 104, 120)  # for the prompts
SPLITS = (2, 4, 8, 16, 32)  # parts of the keys


def _ahead(maker, **choice) -> dict:
    """The same with what can be made beforehand made beforehand."""
    name = "_".join(str(value) for value in choice.values())
    return {name: partial(maker, **choice), f"{name}_ahead": partial(maker, **choice, ahead=True)}


WAYS = {  # of each family the fastest counts
    "fa3": ragged.FA3,
    "splits": {k: v for n in SPLITS for k, v in _ahead(ragged.fa3_one, num_splits=n).items()},
    "green": {k: v for n in SMS for k, v in _ahead(ragged.fa3_green, sms=n).items()},
    "fi_pod": {"": ragged.fi_pod},
    "fa3_fi": {"": ragged.fa3_then_fi},
    "fa3_xqa": {"": ragged.fa3_then_xqa},
    "ours": {"": ragged.ours},
}


def cases() -> list[dict]:
    every = hopper_any.cases()
    return [every[i] for i in BATCHES]


def measure(case: dict) -> dict:
    mix = hopper_any.drawn()[int(case["batch"])]
    makers = {f"{family} {way}": maker for family, ways in WAYS.items() for way, maker in ways.items()}
    calls, holes, _ = ragged.ready(ragged.Ragged(mix.batch, hopper_any.room()), makers)
    times = ragged.timing.shuffled(calls, ROUNDS, 2.0, 3)
    row = {"head_dim": mix.batch.head_dim, "words": mix.words}
    for family, ways in WAYS.items():
        mine = {way: times[f"{family} {way}"] for way in ways if f"{family} {way}" in times}
        row |= _fastest(family, mine)
    why = {family: holes[f"{family} {next(iter(ways))}"] for family, ways in WAYS.items() if row[family] == ""}
    return row | {"holes": "; ".join(f"{family}: {reason}" for family, reason in why.items())}


def _fastest(family: str, times: dict) -> dict:
    if not times:
        return dict.fromkeys((family, f"{family}_p10", f"{family}_p90", f"{family}_how"), "")
    how = min(times, key=lambda way: times[way].ms)
    return times[how].columns(family) | {f"{family}_how": how}


# ---------------------------------------------------------------- what it shows

NAMES = {
    "fa3": "FA3, fastest way",
    "splits": "FA3, one call, keys in 2 to 32 parts",
    "green": "FA3, two calls on SMs of their own",
    "fi_pod": "FlashInfer's POD",
    "fa3_fi": "FA3, then FlashInfer's decode",
    "fa3_xqa": "FA3, then FlashInfer's XQA",
}


def table():
    """One row a batch: milliseconds of ours and of each peer in its fastest way, the best of them over ours; `holes`
    says why a peer has no time."""
    return gains(read("hopper-any-peers"))


def gains(df):
    """The same of any rows that `measure` has given."""
    times = df[[*NAMES, "ours"]].apply(pd.to_numeric, errors="coerce")
    peers = times[list(NAMES)]
    named = df[["batch", "kind", "model", "tp", "words"]].join(times)
    best = [NAMES[row.idxmin()] if row.notna().any() else "" for _, row in peers.iterrows()]
    return named.assign(best=best, gain=peers.min(axis=1) / times.ours, holes=df.holes.fillna(""))


def summary(df):
    """One row a peer: batches that it took, and the geometric mean and the least of its time over ours."""
    rows = {}
    for column, name in NAMES.items():
        ratio = (df[column] / df.ours).dropna()
        rows[name] = {"batches": len(ratio), "over ours": geomean(ratio), "least": ratio.min()}
    rows["the best of all"] = {"batches": len(df), "over ours": geomean(df.gain), "least": df.gain.min()}
    return pd.DataFrame(rows).T.round(3)


def draw(df):
    df = df.sort_values("gain", kind="stable").reset_index(drop=True)
    ax = style.axes(9.5, 8)
    tones = style.WORKERS[1:7]
    for (column, name), marker, tone in zip(NAMES.items(), "os^DvP", tones, strict=True):
        ax.plot(df[column] / df.ours, df.index, marker, color=tone, markersize=5, markerfacecolor="white", label=name)
    ax.axvline(1, color=style.colour("hybrid"), linewidth=2.5, label="this kernel")
    ax.set_yticks(df.index, [f"{row.kind}\n{row.words}" for row in df.itertuples()], fontsize=8)
    ax.set(xscale="log", ylim=(len(df) - 0.4, -0.6), xlabel="time over this kernel's")
    ticks = (0.7, 1, 1.5, 2, 3, 5)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.1, -0.08), ncols=3)
    return ax.figure

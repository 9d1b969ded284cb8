"""Any batch: 300 iterations as a serving engine makes them, ours beside FlashAttention-3 in one call and in two.

Measured: ragged batches of prompts, chunks, drafts and decodes in pages of 16, ours beside FlashAttention-3.
"""

from functools import cache

import numpy as np
import pandas as pd

from pod.data import a_card, kept, read, repeated
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import ragged
from pod.lab.show import style
from pod.simulate.mixes import KINDS, PAGE, Mix, mixes

FIGURE = Figure(
    title=f"Any batch a serving engine makes, on {a_card()}: time of FlashAttention-3 over ours",
    chapter="17",
    method="300 drawn iterations (pod/simulate/mixes.py) in pages of 16, bf16, cold L2, shuffled rounds, medians; "
    "FlashAttention-3 in the fastest of nine ways: one call, or two with a border at 1 or at 16 tokens, each with its "
    "schedule made in the call, ahead, or ahead with the keys of prompts (in one call: all keys) in one part.",
    data=("hopper-any",),
)
RECORDING = "hopper-any"
KEYS = ("batch", "kind", "model", "tp", "tokens", "kv_tokens")  # the lengths with it: a new draw is another row
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
WAYS = ragged.FA3 | {"ours_serial": ragged.ours_serial, "ours": ragged.ours}


@cache
def drawn() -> list[Mix]:
    return mixes()


def cases() -> list[dict]:
    """Any first part of them is a fair sample: kinds take turns, all else is drawn."""
    rows = [(i, m.kind, m.model, m.tp, sum(m.batch.q_lens), sum(m.batch.kv_lens)) for i, m in enumerate(drawn())]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def room() -> int:
    """Elements of the largest cache of keys."""
    return max(sum(b.pages) * PAGE * b.num_kv_heads * b.head_dim for b in (m.batch for m in drawn()))


def measure(case: dict) -> dict:
    mix = drawn()[int(case["batch"])]
    b = mix.batch
    row = {"q_heads": b.num_q_heads, "kv_heads": b.num_kv_heads, "head_dim": b.head_dim, "words": mix.words}
    row |= {"flops": b.flops, "kv_bytes": b.kv_bytes}
    return row | ragged.table_row(ragged.Ragged(b, room()), WAYS, ROUNDS)


# ---------------------------------------------------------------- what it shows

ALONE = ("decode", "spec")  # kinds with nothing to overlap
LOST = 0.98  # a gain below this is a batch that ours loses
TWO, ONE = ([way for way in ragged.FA3 if way.startswith("fa3_one") == one] for one in (False, True))
COLOURS = dict(zip(KINDS, (style.DECODE, *style.WORKERS[1:6]), strict=True))


@kept(RECORDING)  # its claims and another page ask for it eight times
def table():
    """One row a batch: milliseconds of ours at once and in turn and of FlashAttention-3's best way in two calls and in
    one, its fastest, and that over ours; NaN where ours refused, with the reason in `holes`. What is of one kind has
    no turns: the gain is all of its better half."""
    return gains(read("hopper-any"))


def gains(df):
    """The same of any rows that `measure` has given."""
    times = df.reindex(columns=list(WAYS)).apply(pd.to_numeric, errors="coerce")  # older repeats have no turns
    fa3 = times[list(ragged.FA3)]
    named = df[["batch", "kind", "model", "tp", "q_heads", "kv_heads", "head_dim", "words", "error"]]
    return named.assign(
        group=df.q_heads // df.kv_heads,
        ours=times.ours,
        turns=times.ours_serial.where(~df.holes.fillna("").str.contains("ours_serial: the same"), times.ours),
        two=fa3[TWO].min(axis=1),
        one=fa3[ONE].min(axis=1),
        way=fa3.fillna(float("inf")).idxmin(axis=1).where(fa3.notna().any(axis=1), ""),
        gain=fa3.min(axis=1) / times.ours,
        holes=df.holes.fillna(""),
    )


def summary(df):
    """One row a kind and for all: batches, refused ones, the geometric mean of the gains, the least, how many lose more
    than 2 %, what of the gain is better halves and what is fusing, the least of fusing, and the gain over each of
    FlashAttention-3's two habits."""
    sets = {kind: df[df.kind == kind] for kind in KINDS} | {"head_dim 128": df[df.head_dim == 128], "all": df}
    return pd.DataFrame({name: _line(part) for name, part in sets.items() if len(part)}).T.round(4)


def _line(df) -> dict[str, float]:
    return {
        "batches": len(df),
        "refused": df.ours.isna().sum(),
        "gain": geomean(df.gain),
        "1st percentile": _percentile(df),
        "least": df.gain.min(),
        f"below {LOST}": (df.gain < LOST).sum(),
        "better halves": geomean(df.gain * df.ours / df.turns),
        "fusing": geomean(df.turns / df.ours),
        "fusing, least": (df.turns / df.ours).min(),
        "over two calls": geomean(df.two / df.ours),
        "over one": geomean(df.one / df.ours),
    }


WORST = 10  # batches that are listed


def worst(df, count: int = WORST):
    """The batches where ours does worst."""
    columns = ["batch", "kind", "model", "tp", "gain", "ours", "two", "one", "way", "words"]
    return from_worst(df)[columns].head(count)


def from_worst(df):
    """By gain, those that ours refused before all."""
    return df.sort_values("gain", na_position="first", kind="stable")


def _percentile(df) -> float:
    """The first percentile of the gains; a refused batch gains nothing."""
    return float(np.percentile(df.gain.fillna(0), 1))


def lost_in_words(df) -> list[str]:
    """A line for each batch that ours loses by 2 % or more, and how often it is slower at all, here and in repeats."""
    lost = from_worst(df[df.gain < LOST])
    lines = [f"lost: {row.kind}, {row.model}, {row.words}: {1e3 * row.ours:.0f} µs, {100 / row.gain - 100:.0f} % longer"
             for row in lost.itertuples()]  # fmt: skip
    lines.append(f"slower at all: {(df.gain < 1).sum()} of {len(df)}")
    for again in in_repeats():
        there = again[again.gain < LOST]
        same, most = there.batch.isin(lost.batch).sum(), 100 / there.gain.min() - 100
        words = f"{same} of them the same, by {most:.0f} % at most; slower at all: {(again.gain < 1).sum()}"
        lines.append(f"on another card: {len(there)} lost, {words}")
    return lines


def in_repeats() -> list[pd.DataFrame]:
    """The same table of each repeat of the recording."""
    return [gains(df) for df in repeated(RECORDING)]


def where_fusing_loses(df) -> list[str]:
    """On how many batches ours takes longer than its halves in turn, and by how much, here and in repeats."""
    lines = []
    for words, some in (("here", df), *(("on another card", again) for again in in_repeats())):
        loses = (some.turns / some.ours)[some.turns < some.ours]
        longer = 100 / loses - 100
        lines.append(f"fusing loses {words}: {len(loses)} batches, by {longer.min():.0f} to {longer.max():.0f} %")
    return lines


def draw(df):
    """A dot a batch, a row a kind: those with prompts blue, those without orange, those that ours loses dark red. On
    the right the mean, and how many are lost."""
    kinds = [kind for kind in KINDS if (df.kind == kind).any()]
    ax = style.axes(9.5, 0.6 + 0.55 * len(kinds))
    ax.axvline(1, color=style.INK, linewidth=1)
    for row, kind in enumerate(kinds):
        part, side = df[df.kind == kind].sort_values("gain", kind="stable"), "decode" if kind in ALONE else "prefill"
        _strip(ax, row, part, style.colour(side))
    low, high = df.gain.min() / 1.03, df.gain.max() * 1.03
    ax.set(xscale="log", xlim=(low, high), ylim=(len(kinds) - 0.5, -0.65), xlabel="FlashAttention-3's time / ours")
    style.ticks(ax, [t for t in (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 8) if low <= t <= high])
    ax.set_yticks(range(len(kinds)), kinds)
    ax.tick_params(axis="y", length=0)
    ax.text(1.01, -0.65, "mean", transform=ax.get_yaxis_transform(), fontsize=9)
    return ax.figure


def _strip(ax, row: int, part, tone: str) -> None:
    """In three lanes, so that dots of about the same gain lie side by side; the mark is the mean."""
    taken = part.dropna(subset="gain")
    lost = taken.gain < LOST
    places = row + 0.16 * (np.arange(len(taken)) % 3 - 1)
    ax.scatter(taken.gain, places, s=16, c=np.where(lost, style.ALARM, tone), linewidths=0)
    mean = geomean(taken.gain)
    ax.plot([mean, mean], [row - 0.33, row + 0.33], color=style.INK, linewidth=2.5)
    counts = {"lost": lost.sum(), "refused": part.gain.isna().sum()}
    words = ", ".join([f"{mean:.2f}", *(f"{count} {what}" for what, count in counts.items() if count)])
    ax.text(1.01, row, words, transform=ax.get_yaxis_transform(), va="center", fontsize=9, fontweight="bold")


# ---------------------------------------------------------------- what claims ask for


def batches() -> int:
    return len(table())


def over_fa3(*kinds: str) -> float:
    """Geometric mean of FlashAttention-3's fastest way over ours, of these kinds of batches or of all."""
    df = table()
    return geomean(df[df.kind.isin(kinds or KINDS)].gain)


def halves(*kinds: str) -> float:
    """What of that is there when ours, too, computes one half after the other."""
    return over_fa3(*kinds) / fusing(*kinds)


def fusing(*kinds: str) -> float:
    """Geometric mean of our halves in turn over ours at once."""
    df = table()
    df = df[df.kind.isin(kinds or KINDS)]
    return geomean(df.turns / df.ours)


def fusing_least() -> float:
    df = table()
    return float((df.turns / df.ours).min())


PLAIN = ("fa3_two", "fa3_one")


def over_plain() -> tuple[float, float, float]:
    """Over the faster of two calls and one as anybody would write them, plans made in the call: the geometric mean of
    all, that of head_dim 128, and the first percentile."""
    df = read("hopper-any")
    times = df[[*PLAIN, "ours"]].apply(pd.to_numeric, errors="coerce")
    df = df.assign(gain=times[list(PLAIN)].min(axis=1) / times.ours)
    return geomean(df.gain), geomean(df.gain[df.head_dim == 128]), _percentile(df)


def first_percentile() -> float:
    return _percentile(table())


def least() -> float:
    return float(table().gain.fillna(0).min())


def refused() -> int:
    return int(table().ours.isna().sum())

"""What eleven hybrid batches cost an H200 in energy, back to back at the power limit and rested at the full clock.

Measured: two calls of FlashAttention-3, this kernel's halves in turn and both at once, by the energy counter.
"""

import numpy as np
import pandas as pd

from pod.data import a_card, read, repeated
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import meter, peers
from pod.lab.show import style

FIGURE = Figure(
    title=f"What {a_card()} takes for eleven hybrid batches: energy back to back, and what is left at the full "
    "clock of what fusing saves",
    chapter="18",
    method="The energy counter around calls back to back, and around calls that rest three times their length, less "
    "what the rest takes; ways in shuffled rounds. bf16.",
    data=("joules",),  # what claims are judged by; only the order of the rows is that of hopper-peers
)
RECORDING = "joules"
KEYS = hopper_peers.KEYS
UNITS = ("hopper",)
ROUNDS = REPEATS = 2
TIMER = f"{meter.TIMER}; cold: {peers.timing.TIMER}"
WAYS = {"fa3_serial": peers.fa3_serial, "ours_serial": peers.ours_serial, "ours": peers.ours}
REST = 3.0  # times the call: so the power limit is far away
CYCLES_A_MS = 1.98e6  # at the highest clock


def cases() -> list[dict]:
    return hopper_peers.cases()


def measure(case: dict) -> dict:
    """Of every way: milliseconds with a cold L2; back to back; and rested, less what the rest takes."""
    batch = hopper_peers.batch_of(case)
    calls, holes = peers.ready(peers.Setting(batch), WAYS)
    cold = peers.timing.shuffled(calls, 3, 4.0)
    cycles = int(REST * max(time.ms for time in cold.values()) * CYCLES_A_MS)
    trains = {f"{name}_rested": meter.rested(call, cycles) for name, call in calls.items()}
    found = meter.metered(calls, ROUNDS, seconds=1.0, warm=0.7)  # the power limit acts within half a second
    slept = meter.metered(trains | {"rest": meter.rested(None, cycles)}, 1, seconds=0.35, warm=0.15)
    row = {"flops": batch.prefill.flops, "kv_bytes": batch.decode.kv_bytes} | found.columns()
    for name, time in cold.items():
        row |= time.columns(name) | found.ways[name].columns(f"{name}_steady")
        row |= _less(slept.ways[f"{name}_rested"], slept.ways["rest"], f"{name}_rested")
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}


def _less(train: meter.Energy, rest: meter.Energy, name: str) -> dict[str, float]:
    """What one call of a train takes over the rest alone, and the clock and power of the train."""
    ms, millijoules = train.ms - rest.ms, train.millijoules - rest.millijoules
    seen = {"ms": ms, "mj": millijoules, "rest_watts": rest.watts, "mhz": train.sm_clock_mhz}
    return {f"{name}_{column}": round(value, 5) for column, value in seen.items()}


# ---------------------------------------------------------------- what it shows

NAMES = hopper_peers.METERED | {"ours": "this kernel, fused"}
CLOCKS = {"steady": "back to back", "rested": "at the full clock"}


def table():
    """One row a batch and way: ms of one call with a cold L2; back to back (steady) ms, mJ, the lowest and highest mJ,
    W and MHz; and ms, mJ and MHz of a rested call."""
    df = read("joules")
    steady = ("ms", "mj", "mj_p10", "mj_p90", "watts", "mhz")
    columns = [*(f"steady_{name}" for name in steady), *(f"rested_{name}" for name in ("ms", "mj", "mhz"))]
    rows = [
        {"batch": hopper_peers.batch_name(row), "way": words, "cold_ms": getattr(row, way)}
        | {column: getattr(row, f"{way}_{column}") for column in columns}
        for row in df.itertuples() for way, words in NAMES.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def by_ratio(df):
    """The rows by the ratio of their batch, prefill's time alone over decode's (hopper-peers), as on 17d's pictures."""
    seen = hopper_peers.table().set_index("batch")
    ratio = df.batch.map(seen.prefill / seen.decode)
    return df.assign(ratio=ratio).sort_values("ratio", kind="stable")


def name_rows(ax, df) -> None:
    """Rows downwards, each with the name of its batch and its ratio."""
    rows = df.drop_duplicates("batch")
    ax.set_yticks(range(len(rows)), [f"{row.batch}  ({row.ratio:.1f})" for row in rows.itertuples()], fontsize=8.5)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_title("batch (prefill / decode)  ", fontsize=8.5, loc="right", x=0)
    ax.tick_params(axis="y", length=0)


def draw(df, models: tuple[float, ...] = ()):
    """The least prefill for its decode on top. models: what models say is left at the full clock, %."""
    df = by_ratio(df)
    axes = style.axes(9.5, 7.6, columns=2, sharey=True, width_ratios=(3, 2))
    _energies(axes[0], df)
    _left_by_batch(axes[1], df, models)
    words = "Fused, a batch takes the fewest joules,\nat a lower clock than its halves in turn"
    axes[0].set_title(words, fontsize=10.5, loc="left")
    left = left_of_each(df)
    words = f"of a batch {left.min():.0f} to {left.max():.0f} %"
    words = f"Left at the full clock of what fusing\nsaves: {left_at_full_clock():.0f} %, {words}"
    axes[1].set_title(words, fontsize=10.5, loc="left")
    return axes[0].figure


def _energies(ax, df) -> None:
    """Of each way back to back, with its clock in words."""
    tones = ("#9aa7b4", style.colour("load"), style.colour("hybrid"))
    base = _of(df, "fa3_serial", "steady_mj")
    for words, tone, shift in zip(NAMES.values(), tones, (-0.27, 0, 0.27), strict=True):
        mine = df[df.way == words]
        y = np.arange(len(mine)) + shift
        ax.barh(y, 100 * mine.steady_mj.to_numpy() / base, 0.25, color=tone, label=words)
        for at, row in zip(y, mine.itertuples(), strict=True):
            ax.text(2, at, f"{row.steady_mj:,.0f} mJ, {row.steady_mhz / 1e3:.2f} GHz", va="center", fontsize=8.5,
                    color=style.letters_on(tone))  # fmt: skip
    name_rows(ax, df)
    ax.set_xlabel("% of the energy of two FA3 calls, back to back")
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.4, -0.11), ncols=3, columnspacing=1.0)


def _left_by_batch(ax, df, models: tuple[float, ...]) -> None:
    """A bar a batch: of the joules that fusing saves back to back, what it saves at the full clock, too. The solid line
    is all batches together."""
    left = left_of_each(df)
    ax.barh(range(len(left)), left, 0.6, color=style.colour("hybrid"))
    for y, mj in enumerate(zip(*(_saved_of_each(df, how) for how in ("rested", "steady")), strict=True)):
        ax.text(139, y, "{:.0f} of {:.0f} mJ".format(*mj), ha="right", va="center", fontsize=8.5)
    ax.axvline(left_at_full_clock(), color=style.INK, linewidth=1.5, label="all together")
    for model in models:
        ax.axvline(model, color=style.ALARM, linewidth=1.2, linestyle="--", label="by a fit")
    ax.set(xlim=(0, 140), xticks=range(0, 101, 25), xlabel="left, % of what fusing saves")
    ax.tick_params(axis="y", length=0)
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=2, columnspacing=1.0)


def _of(df, way: str, column: str) -> np.ndarray:
    return df[df.way == NAMES[way]][column].to_numpy()


# ---------------------------------------------------------------- what claims and chapters ask for


def over(way: str, how: str = "steady", unit: str = "mj") -> float:
    """Energy, or time, of another way over that of the fused kernel, geometric mean."""
    df = table()
    return geomean(_of(df, way, f"{how}_{unit}") / _of(df, "ours", f"{how}_{unit}"))


def halves(how: str = "steady", unit: str = "mj") -> float:
    """What the better halves alone bring: two calls of FlashAttention-3 over ours in turn, geometric mean."""
    return over("fa3_serial", how, unit) / over("ours_serial", how, unit)


def factors() -> pd.DataFrame:
    """What is gained over two calls of FlashAttention-3, and its two factors: of time and energy, at either clock."""
    rows = {f"{word}, {words}": (over("fa3_serial", how, unit), halves(how, unit), over("ours_serial", how, unit))
            for how, words in CLOCKS.items() for word, unit in (("time", "ms"), ("energy", "mj"))}  # fmt: skip
    columns = ["two FA3 calls over ours", "better halves", "fusing"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def saved(how: str = "steady", unit: str = "mj") -> float:
    """What fusing saves, all batches together: mJ, or ms."""
    return float(sum(_saved_of_each(table(), how, unit)))


def _saved_of_each(df, how: str, unit: str = "mj") -> np.ndarray:
    return _of(df, "ours_serial", f"{how}_{unit}") - _of(df, "ours", f"{how}_{unit}")


def percent_saved(df, how: str) -> np.ndarray:
    """What fusing saves of each batch's energy over our halves in turn, %."""
    turn, both = (_of(df, way, f"{how}_mj") for way in ("ours_serial", "ours"))
    return 100 * (1 - both / turn)


def left_at_full_clock() -> float:
    """Of the joules that fusing saves back to back, % that it saves where both ways run at the full clock, too."""
    return _left(read("joules"))


def _left(df) -> float:
    steady, rested = _saved_in(df)
    return float(100 * rested.sum() / steady.sum())


def _saved_in(df) -> list[pd.Series]:
    """Of a recording as it was read, what fusing saves of each batch at each clock, mJ."""
    return [df[f"ours_serial_{how}_mj"] - df[f"ours_{how}_mj"] for how in CLOCKS]


def left_of_each(df=None) -> np.ndarray:
    """The same of each batch: the longest have most of the sum."""
    df = table() if df is None else df
    return 100 * _saved_of_each(df, "rested") / _saved_of_each(df, "steady")


def left_by_sort() -> pd.DataFrame:
    """The same, from least to most, in the even batches and where decode takes more than twice as long as prefill; a
    column a recording, the first of which is the one that this page draws."""
    seen = hopper_peers.table()
    even = hopper_peers.is_even(seen.prefill / seen.decode).to_numpy()
    found = {}
    for name, df in zip(("this H200", "another H200", "a third"), [read("joules"), *repeated("joules")], strict=False):
        steady, rested = _saved_in(df)
        left = (100 * rested / steady).to_numpy()
        found[name] = [f"{some.min():.0f} to {some.max():.0f}" for some in (left[~even], left[even])]
    return pd.DataFrame(found, index=["decode dominates", "even batches"])


def left_in_repeats() -> list[float]:
    """The same of each repeat of the recording."""
    return [_left(df) for df in repeated("joules")]


def more_in_repeats() -> tuple[float, float]:
    """How much more energy the same calls take back to back in the repeats, %: least and most of ways and batches."""
    mj = [f"{way}_steady_mj" for way in WAYS]
    df = read("joules").set_index(list(KEYS))[mj]
    repeats = [again.set_index(list(KEYS))[mj] for again in repeated("joules")]
    more = pd.concat([100 * (again / df - 1) for again in repeats] or [df * np.nan])
    return float(more.min(axis=None)), float(more.max(axis=None))


def less_when_rested() -> np.ndarray:
    """Of the halves in turn that keep the full clock back to back, within 1 %: what they take less when rested, %."""
    df = table()
    df = df[(df.way == NAMES["ours_serial"]) & (df.steady_mhz > 0.99 * df.rested_mhz)]
    return 100 * (1 - df.rested_mj / df.steady_mj).to_numpy()


def full_watts_in_repeats() -> list[list[float]]:
    """Of each repeat, the median watts of each way at the full clock."""
    return [[float((df[f"{way}_rested_mj"] / df[f"{way}_rested_ms"]).median()) for way in WAYS]
            for df in repeated("joules")]  # fmt: skip


def watts() -> float:
    """Median power of all ways, back to back."""
    return float(table().steady_watts.median())


def spread() -> float:
    """The widest spread of the energy of a way over its rounds, %."""
    df = table()
    return 100 * float(((df.steady_mj_p90 - df.steady_mj_p10) / df.steady_mj).max())

"""The GPU model against the clock: five methods on hybrid batches to none of which it was fitted."""

from itertools import combinations

import pandas as pd

from pod.batch import TABLE1
from pod.data import read
from pod.experiments.gpu.shared import Case, milliseconds
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_sweep import KEYS, batch_of, filtered
from pod.experiments.methods.shared import METHODS as WORDS
from pod.experiments.methods.shared import TONES
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule.decide import METHODS
from pod.simulate.gpusim import seconds

FIGURE = Figure(
    title="A model of a GPU, calibrated on microbenchmarks, against five methods on batches that it has never seen",
    chapter="10",
    method="pod/simulate/gpusim.py, fitted to h200/gpusim-calibrate.csv only; "
    "measured: medians, cold L2, shuffled rounds.",
    data=("methods-sweep", "gpusim", "gpusim-calibrate"),
    fitted=True,
)
CLEAR = 1.05  # methods whose times differ by less are not told apart
SIZES = {"below 20": -100, "20 to 30": 20, "30 to 40": 30, "40 or more": 40}  # of a gain, %, and where it begins
MOST = 400  # batches: the sweep is recorded in random order, and five predictions a batch take a tenth of a second


def table():
    """One row a method and batch, of the first MOST of the filtered sweep: milliseconds measured, by the model, by
    FLOPs / peak, and by the roofline: of both parts in turn for serial, and else of the whole batch."""
    df = read("methods-sweep")
    alone = df[["prefill", "decode"]]
    df = filtered(df.assign(share=alone.min(axis=1) / alone.sum(axis=1))).head(MOST).reset_index(drop=True)
    batches = [batch_of(case) for case in df.to_dict("records")]
    naive = [1e3 * H200.compute_time(batch.flops) for batch in batches]
    in_turn = [1e3 * sum(batch.times(H200)) for batch in batches]
    at_once = [1e3 * H200.roofline_time(batch.flops, batch.bytes) for batch in batches]
    parts = []
    for method in METHODS:
        model = milliseconds(Case(batch, "h200", method) for batch in batches)
        roofline = in_turn if method == "serial" else at_once
        said = {"model": model, "naive": naive, "roofline": roofline}
        times = df[list(KEYS)].assign(method=method, measured=df[method], **said)
        parts.append(times.rename_axis("batch").reset_index())
    return pd.concat(parts, ignore_index=True)


def error(df, column: str = "model"):
    """How far off a prediction is, in percent."""
    return 100 * (df[column] / df.measured - 1).abs()


def draw(df):
    axes = style.axes(9.5, 4.4, columns=2)
    low, high = df.measured.min() / 1.3, df.measured.max() * 1.3
    for ax, column, title in zip(axes, ("roofline", "model"), ("roofline", "this model"), strict=True):
        ends = [low, high]
        ax.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color=style.LIT, label="within 10 %")
        for method in METHODS:
            mine = df[df.method == method]
            ax.plot(mine.measured, mine[column], ".", color=TONES[method], markersize=4, label=WORDS[method])
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low / 2, high), xlabel="measured, ms")
        ax.set_title(f"{title}: median error {error(df, column).median():.0f} %", fontsize=10)
        for axis, ticks in ((ax.xaxis, (0.5, 1, 2)), (ax.yaxis, (0.1, 0.2, 0.5, 1, 2))):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ticks([], minor=True)
    axes[0].set_ylabel("predicted, ms")
    style.legend(axes[1], loc="lower right", markerscale=2.5)
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def median_error() -> float:
    return float(error(table()).median())


def naive_ratio(column: str = "naive") -> float:
    """Median error of FLOPs / peak, or of the `roofline`, over that of the model."""
    df = table()
    return float(error(df, column).median()) / float(error(df).median())


def ranked(df, clear: float = CLEAR):
    """For each batch, whether all pairs of methods that differ by more than `clear` are in the right order."""
    times = {column: df.pivot(index="batch", columns="method", values=column) for column in ("measured", "model")}
    right = True
    for a, b in combinations(METHODS, 2):
        really, said = (times[column][a] / times[column][b] for column in ("measured", "model"))
        right &= really.between(1 / clear, clear) | ((really > 1) == (said > 1))
    return right


def ranking(clear: float = CLEAR) -> float:
    """Share of the batches that are ranked rightly, %; with `clear` 1 every pair of methods counts."""
    return 100 * float(ranked(table(), clear).mean())


def fastest() -> float:
    """Share of the batches of which the model names the fastest method, %."""
    df = table()
    first = [df.pivot(index="batch", columns="method", values=c).idxmin(axis=1) for c in ("measured", "model")]
    return 100 * float((first[0] == first[1]).mean())


def by_method():
    """Median error and bias of each method, in percent."""
    df, rows = table(), []
    for method in METHODS:
        mine = df[df.method == method]
        ratio, off = mine.model / mine.measured, error(mine)
        rows.append((WORDS[method], len(mine), off.median(), off.quantile(0.9), 100 * (ratio.median() - 1)))
    columns = ["method", "batches", "median error", "90 % of them within", "bias"]
    return pd.DataFrame(rows, columns=columns).set_index("method").round(1)


def gains():
    """What each method gains over serial, in %, batch by batch: measured, by the model, and how far off that is."""
    df = table()
    times = {column: df.pivot(index="batch", columns="method", values=column) for column in ("measured", "model")}
    parts = []
    for method in METHODS[1:]:
        mine = {column: 100 * (t.serial / t[method] - 1) for column, t in times.items()}
        parts.append(pd.DataFrame(mine).assign(method=method, off=mine["model"] - mine["measured"]))
    return pd.concat(parts)


def gain_error(method: str = "pod") -> float:
    """Within so many points lie nine of ten gains that the model foretells."""
    return float(gains().set_index("method").off.abs()[method].quantile(0.9))


def gain_error_by_size(method: str = "pod") -> pd.DataFrame:
    """How many points a gain is off, by its measured size: too high in the mean, and the mean and largest distance."""
    df = gains().query("method == @method")
    sizes = pd.cut(df.measured, [*SIZES.values(), float("inf")], right=False, labels=list(SIZES))
    groups = df.assign(points=df.off.abs()).groupby(sizes.rename("gain measured, %"), observed=True)
    columns = {"batches": ("off", "size"), "too high by": ("off", "mean")}
    return groups.agg(**columns, **{"mean error": ("points", "mean"), "largest error": ("points", "max")})


def paper_table1() -> pd.DataFrame:
    """What POD gains over serial on the batches of the paper's Table 1, measured and by the model, %."""
    ran, rows = read("methods-peers"), {}
    for i, name in enumerate(TABLE1):
        serial, ours = (seconds(TABLE1[name], H200, method) for method in ("serial", "pod"))
        rows[name] = [100 * (ran.serial[i] / ran["pod"][i] - 1), 100 * (serial / ours - 1)]
    return pd.DataFrame(rows, index=["gain measured, %", "by the model, %"]).T


def hopper():
    """The Hopper kernel on the eleven batches of chapter 17: milliseconds, measured and by the model."""
    df = read("hopper-peers")
    batches = [hopper_peers.batch_of(row) for row in df.to_dict("records")]
    names = [f"{b.q_lens[0]} @ {b.kv_lens[0]} + {len(b.q_lens) - 1} x {b.kv_lens[1]}" for b in batches]
    model = milliseconds(Case(b, "h200", "hopper") for b in batches)
    table = pd.DataFrame({"batch": names, "measured": df.ours, "model": model, "MHz": df.ours_mhz})
    return table.assign(error=100 * (table.model / table.measured - 1)).set_index("batch")

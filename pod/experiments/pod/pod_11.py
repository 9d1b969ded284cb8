"""POD-Attention, Figure 11: how much each way of running a hybrid batch gains, over the paper's batches.

Measured: the paper's hybrid batches (Figure 11), our five methods, POD's configurations and the peers side by side.
"""

from random import Random

import pandas as pd
from matplotlib import pyplot as plt

from pod.data import a_card, read
from pod.experiments.hopper import hopper_sweep
from pod.experiments.hopper.hopper_sweep import filtered, geomean
from pod.experiments.methods.shared import CONFIGURATIONS, METHODS, PEERS, TONES, gain, recorded, with_parts
from pod.hardware import H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style, violins

FIGURE = Figure(
    title=f"Distribution of speed-ups over the paper's hybrid batches, on {a_card()}",
    chapter="09",
    method="Speed-up over our serial kernels, mean in bold. bf16, cold L2, shuffled rounds. Medians; of FA3 the p10, "
    "as some of its samples hold its launch. The best of POD's three configurations is what an oracle would choose.",
    data=("methods-sweep",),
)
RECORDING = "methods-sweep"
KEYS = hopper_sweep.KEYS
UNITS = ("hybrid",)
ROUNDS, LEAST, REPEATS = 3, 2, 6
EVEN = 300  # the first rows: a fair sample of the whole sweep, for the view without a filter
PREFILL_RATE, DECODE_RATE = 0.35, 0.85  # of the peaks, roughly; they decide the order of rows and nothing else
LEAST_SHARE = 0.15  # below the paper's 20 %, so that no batch near its filter is lost

WAYS = peers.HALVES | peers.FAMILY | peers.CONFIGURATIONS
WAYS |= {name: peers.TORCH_PEERS[name] for name in ("fa2_serial", "fa2_streams")}
WAYS |= {name: peers.PEERS[name] for name in ("fa3_serial", "fi_fa2_serial", "fi_fa2_batched", "fi_pod")}
WAYS["hopper"] = peers.ours


def cases() -> list[dict]:
    """The rows of hopper-sweep in an order that serves whoever stops early: a fair sample (`even`), then in random
    order the batches that may pass the paper's filter, then the rest."""
    rows = hopper_sweep.cases()
    rows = [case | {"even": int(i < EVEN)} for i, case in enumerate(Random(0).sample(rows, len(rows)))]
    return rows[:EVEN] + sorted(rows[EVEN:], key=lambda case: not _is_balanced(case))


def _is_balanced(case: dict) -> bool:
    prefill, decode = hopper_sweep.batch_of(case).times(H200)
    prefill, decode = prefill / PREFILL_RATE, decode / DECODE_RATE
    return min(prefill, decode) >= LEAST_SHARE * (prefill + decode)


measure, planned = peers.on_batches(hopper_sweep.batch_of, WAYS, ROUNDS, ms=1.0, least=LEAST)

# ---------------------------------------------------------------- what it shows

BEST = "best"
NAMES = {
    "streams": "two\nstreams",
    "cta": "CTAs by\nindex",
    "warp": "halves\nof a CTA",
    "pod": "POD,\nas it\nchooses",
    BEST: "best\nconfigu-\nration",
    "fa2_serial": "FA2\nserial",
    "fi_fa2_serial": "Flash-\nInfer\nserial",
    "fi_fa2_batched": "Flash-\nInfer\none call",
    "fi_pod": "Flash-\nInfer's\nPOD",
    "fa3_serial": "FA3\nserial",
    "hopper": "our\nHopper\nkernel",
}
OURS = 5  # of WAYS: those made of the kernels that run in the serial base
BATCH = ["model", "tp", "chunk", "context", "decodes", "seen"]


def table():
    """One row a batch: milliseconds of all ways and of both parts alone, their ratio, the smaller's share, the larger,
    and POD's best configuration; `even` marks the fair sample."""
    df = with_parts(recorded("methods-sweep"))
    df["fa3_serial"] = df.fa3_serial_p10  # the first sample of a visit holds its launch, some 0.1 ms for short prefills
    times = [*METHODS, *CONFIGURATIONS[1:], *(way for way in PEERS if way in df)]
    best = df[list(CONFIGURATIONS)].min(axis=1)
    parts = ["prefill", "decode", "ratio", "share", "larger"]
    return df[[*BATCH, "even", "flops", "kv_bytes", *parts, *times]].assign(best=best)


def even(df):
    """The fair sample of the whole sweep: no batch is left out for what it is."""
    return df[df.even == 1]


def with_one_call(df):
    """With the milliseconds of FlashAttention-3's one call that the Hopper kernel's recording has of the same batches:
    as it cuts keys, and in `fa3_one` with whole keys where that is faster. Its two calls are in both recordings, equal
    on average and from 0.84 to 1.06 of each other by batch."""
    sweep = hopper_sweep.table()
    one = sweep[[*BATCH, "fa3_varlen"]].assign(fa3_one=sweep[["fa3_varlen", "fa3_whole"]].min(axis=1))
    return df.merge(one, on=BATCH)


def near_peak(df, way: str = "pod") -> float:
    """Share of the batches within 10 % of the longer part alone, %."""
    margin = 1 + paper.value("pod.f11.near_peak_margin") / 100
    return 100 * float((df[way] <= margin * df.larger).mean())


def time_saved(df, way: str = "pod") -> float:
    """Of the time that a perfect overlap would save over serial on all these batches together, what a way saves, %."""
    return 100 * float((df.serial - df[way]).sum() / (df.serial - df.larger).sum())


def summary(df):
    """One row a way: of how many batches, mean, median, largest and smallest gain over serial, share near the peak."""
    rows = {}
    for way, name in NAMES.items():
        part = df.dropna(subset=way)
        gains = gain(part.serial, part[way])
        name = name.replace("-\n", "").replace("\n", " ")
        rows[name] = len(part), gains.mean(), gains.median(), gains.max(), gains.min(), near_peak(part, way)
    columns = ["batches", "mean %", "median %", "max %", "min %", "near the peak, %"]
    return pd.DataFrame(rows, index=columns).T.round(1).astype({"batches": int}).rename_axis("over serial")


def summaries(df):
    """The summary of the batches that pass the filter; at its right, mean and smallest gain on the fair sample. The
    peak is our longer part alone, so only of what is made of our parts it says how near to it they come."""
    fair = summary(even(df))[["mean %", "min %"]]
    some = summary(filtered(df))
    near = some["near the peak, %"].astype(object)
    near.iloc[OURS:] = ""
    return some.assign(**{"near the peak, %": near}).join(fair.rename(columns="{}, no filter".format))


# ---------------------------------------------------------------- the picture


def draw(df):
    figure, axes = plt.subplots(2, 1, figsize=(9.5, 6.6), dpi=100, layout="constrained", sharex=True)
    some, fair = filtered(df), even(df)
    _panel(axes[0], some, f"{len(some)} batches in which each part takes 20 % or more: the paper's filter")
    _stated(axes[0])
    _panel(axes[1], fair, f"a fair sample of {len(fair)} batches, nothing left out")
    return figure


def _panel(ax, df, title: str) -> None:
    gains = {name: (df.serial / df[way]).dropna() for way, name in NAMES.items()}
    gains["perfect\noverlap of\nour parts"] = df.serial / df.larger
    tones = [*(TONES[way] for way in NAMES), style.FRAME]
    violins(style.tidy(ax), gains, tones, lambda values: values.mean(), 9)
    for border in (OURS + 0.5, len(NAMES) + 0.5):
        ax.axvline(border, color=style.FRAME, linewidth=1)
    ax.set(ylabel="speed-up over our serial", ylim=(0, max(values.max() for values in gains.values()) + 0.25))
    ax.set_title(title, fontsize=10)


STATED = {"warp": ("pod.f11.hfuse_median", "pod.f11.hfuse_worst"), "pod": ("pod.f11.pod_mean", "pod.f11.pod_max")}


def _stated(ax) -> None:
    """What the paper says of the same method over its own serial: median and worst, or for POD mean and best."""
    for way, names in STATED.items():
        x = 1 + list(NAMES).index(way)
        for name in names:
            ax.hlines(1 + paper.value(name) / 100, x - 0.3, x + 0.3, color=style.ALARM, linewidth=2, zorder=4,
                      label="the paper, A100: halves of a CTA, median and worst; POD, mean and best")  # fmt: skip
    style.legend(ax, loc="upper left")
    ax.get_legend().set(frame_on=True)
    ax.get_legend().get_frame().set(edgecolor="none", alpha=1)  # over the line behind our five


# ---------------------------------------------------------------- what stands beside a number


def kept() -> int:
    """Batches that pass the paper's filter."""
    return len(filtered(table()))


def timed() -> int:
    """Batches that were timed with all methods."""
    return len(table())


def swept() -> int:
    """Batches of the whole sweep."""
    return len(read("hopper-sweep"))


def fair() -> int:
    return len(even(table()))


def fair_mean() -> float:
    """Mean gain of POD on the fair sample, %."""
    df = even(table())
    return float(gain(df.serial, df["pod"]).mean())


def hidden() -> float:
    """How much of the shorter part disappears behind the longer, of the time of all batches that pass the filter."""
    df = filtered(table())
    return float((df.serial - df["pod"]).sum() / df[["prefill", "decode"]].min(axis=1).sum())


def long_prefill() -> int:
    """Batches whose prefill takes more than twice as long as their decode."""
    return int((table().ratio > 2).sum())


def flashinfer_ahead() -> float:
    """Share of the recorded batches on which FlashInfer's POD is the faster one, %."""
    df = table()
    return 100 * float((df.fi_pod < df["pod"]).mean())


# ---------------------------------------------------------------- what the paper states


def gains(way: str):
    """Over serial, of the batches that pass the paper's filter."""
    df = filtered(table()).dropna(subset=way)
    return gain(df.serial, df[way])


def gains_of_all():
    """POD's, of all batches."""
    df = table()
    return gain(df.serial, df["pod"])


def pod_near_peak() -> float:
    return near_peak(filtered(table()))


def warp_over_next() -> float:
    """Median gain of halves of a CTA less that of the better of the two other baselines, percentage points."""
    return float(gains("warp").median() - max(gains(way).median() for way in ("streams", "cta")))


def batched():
    """Gains of one call for the whole batch."""
    df = filtered(table())
    return gain(df.fa2_serial, df.fi_fa2_batched)


LOW = 8192  # tokens; the paper does not say which contexts are low


def _low():
    df = filtered(table())
    return df[df.context <= LOW].dropna(subset="fi_fa2_batched")


def batched_low() -> float:
    df = _low()
    return float(gain(df.fa2_serial, df.fi_fa2_batched).median())


def low_contexts() -> int:
    return len(_low())


def streams_lose() -> float:
    """Share of the batches, %."""
    return 100 * float((gains("streams") < 0).mean())


def fa2_over_flashinfer() -> float:
    df = filtered(table())
    return float((df.fa2_serial / df.fi_fa2_serial).median())


# ---------------------------------------------------------------- what we state


def chosen_over_best() -> float:
    df = filtered(table())
    return float((df["pod"] / df.best).mean())


def over_fa2() -> float:
    df = filtered(table())
    return geomean((df.fa2_serial / df["pod"]).dropna())


def under_fa3_when_prefill_is_long() -> float:
    df = table()
    long = df[df.ratio > 2]
    return geomean((long["pod"] / long.fa3_serial).dropna())


def least_over_flashinfer() -> float:
    df = table()
    return float((df.fi_pod / df["pod"]).min())


def under_hopper() -> float:
    df = filtered(table())
    return geomean((df["pod"] / df.hopper).dropna())

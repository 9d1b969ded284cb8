"""POD-Attention, Figure 14: prefill and decode by turns, or in proportion: to their CTAs (the paper) or their work.

Measured: POD with each policy, at two and four CTAs an SM; a whole prompt of 8K, Yi-6B and Llama-3-8B on one GPU.
"""

from functools import partial

import pandas as pd

from pod.batch import MODELS, HybridBatch
from pod.data import a_card
from pod.experiments.methods.shared import gain, recorded
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style
from pod.schedule.binding import POLICIES

FIGURE = Figure(
    title=f"50:50 against proportional scheduling, on {a_card()}",
    chapter="09",
    method="A whole prompt of 8K beside decodes of 8K, one GPU, bf16; the policy alone differs. Medians, cold L2. "
    "Integer ratio is the paper's proportional, by numbers of CTAs; proportional is ours, by work. "
    "Over the bars: gain over 50:50, %.",
    data=("methods-policy",),
)
RECORDING = "methods-policy"
KEYS = ("model", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 5, 15
CONTEXT, DECODES, MODEL_KEYS = 8192, (32, 64, 96, 128, 192), ("yi-6b", "llama-3-8b")
WAYS = peers.HALVES | {"serial": peers.FAMILY["serial"]}
SIZES = {"": "auto", "_2": 2, "_4": 4}  # CTAs an SM, by the ending of a column's name
WAYS |= {policy + ending: partial(peers.family, method="pod", policy=policy, ctas_per_sm=size)
         for policy in POLICIES for ending, size in SIZES.items()}  # fmt: skip


def cases() -> list[dict]:
    return [{"model": model, "decodes": batch} for model in MODEL_KEYS for batch in DECODES]


def batch_of(case: dict) -> HybridBatch:
    heads = MODELS[case["model"]].heads(1)
    return HybridBatch.of(CONTEXT, CONTEXT, case["decodes"], CONTEXT, **heads)


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS, ms=1.0)

# ---------------------------------------------------------------- what it shows

TURNS, PROPORTIONAL, INTEGER = "50:50", "proportional", "integer ratio"
TONES = {TURNS: style.WORKERS[6], INTEGER: style.SMS[0], PROPORTIONAL: style.WORKERS[0]}  # all three are POD
ENDINGS = ("", "_2", "_4")  # as POD chooses its CTAs an SM, two, four


def table():
    """One row a model and batch: milliseconds of each policy (two or four CTAs an SM: `_2`, `_4`), of both parts alone
    and of serial, and the gains over 50:50 in %: of integer ratio, the paper's policy, and of proportional, ours."""
    df = recorded("methods-policy")
    policies = [policy + ending for policy in TONES for ending in ENDINGS]
    gains = {"gain": gain(df[TURNS], df[INTEGER]), "own_gain": gain(df[TURNS], df[PROPORTIONAL])}
    return df[["model", "decodes", "prefill", "decode", "serial", *policies]].assign(**gains)


def draw(df):
    axes = style.axes(9.5, 3.7, columns=2, sharey=True)
    for ax, (model, part) in zip(axes, df.groupby("model", sort=False), strict=True):
        _bars(ax, part)
        ax.set_title(f"{MODELS[model].name}; paper: up to {paper.value('pod.f14.proportional_gain_max'):.0f} %",
                     fontsize=10)  # fmt: skip
        ax.set(xlabel="decodes beside the prompt", ylim=(0, 1.18 * df[list(TONES)].max().max()))
    axes[0].set_ylabel("attention of one layer, ms")
    style.legend(axes[0], loc="upper left")
    return axes[0].figure


def _bars(ax, df) -> None:
    at = range(len(df))
    for shift, (policy, tone) in zip((-0.27, 0, 0.27), TONES.items(), strict=True):
        ax.bar([x + shift for x in at], df[policy], 0.25, color=tone, label=policy)
    ends = df[["prefill", "decode"]].max(axis=1)
    ax.hlines(ends, [x - 0.42 for x in at], [x + 0.42 for x in at], color=style.INK, linewidth=1.2,
              label="the longer part alone")  # fmt: skip
    for shift, policy, column in ((0, INTEGER, "gain"), (0.27, PROPORTIONAL, "own_gain")):
        for x, time, more in zip(at, df[policy], df[column], strict=True):
            ax.text(x + shift, time + 0.02 * df[TURNS].max(), f"{round(more):+d}", ha="center", fontsize=8.5,
                    fontweight="bold")  # fmt: skip
    ax.set_xticks(at, df.decodes)


# ---------------------------------------------------------------- what claims ask for


def by_ctas(df):
    """Gain of either proportion over 50:50 in %, by model and batch, for two and for four CTAs on an SM."""
    gains = {f"{n} CTAs an SM, {policy}": gain(df[f"{TURNS}_{n}"], df[f"{policy}_{n}"])
             for n in (2, 4) for policy in (INTEGER, PROPORTIONAL)}  # fmt: skip
    return pd.DataFrame(gains).set_index([df.model.map(lambda key: MODELS[key].name), df.decodes]).T.round(1)


def own_gain_max() -> float:
    """Of our proportional policy, which weighs a CTA by its work."""
    return float(table().own_gain.max())


def integer_gains(ending: str = ""):
    """Of the paper's policy, an integer ratio of the numbers of CTAs; "_4": with four CTAs an SM."""
    df = table()
    return gain(df[TURNS + ending], df[INTEGER + ending])


def batches() -> int:
    return len(table())


def default_costs() -> float:
    """How much longer POD takes with its default policy, proportional, than with turns, at worst, %."""
    df = table()
    return 100 * float((df[PROPORTIONAL] / df[TURNS]).max() - 1)


def default_slower() -> int:
    """Batches on which turns are faster than the default."""
    df = table()
    return int((df[TURNS] < df[PROPORTIONAL]).sum())


def trend(column: str = "gain") -> float:
    """Rank correlation of gain and batch size, mean of both models. "own_gain": of our policy."""
    ranks = table().groupby("model")[["decodes", column]].rank()
    return float(ranks.groupby(table().model).apply(lambda part: part.decodes.corr(part[column])).mean())

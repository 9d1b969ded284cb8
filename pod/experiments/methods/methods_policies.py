"""Figure 14 widened: the three policies of POD beside chunks and whole prompts, short and long contexts.

Measured: POD with each policy, at two and four CTAs an SM, and as it chooses; Yi-6B and Llama-3-8B on one GPU.
"""

from functools import partial
from itertools import product

import pandas as pd

from pod.batch import MODELS, HybridBatch
from pod.data import a_card, read
from pod.experiments.methods.shared import gain, with_parts
from pod.experiments.pod.pod_14 import INTEGER, PROPORTIONAL, TONES, TURNS
from pod.hardware import GPUS
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style
from pod.schedule import choose, decide
from pod.schedule.binding import POLICIES

FIGURE = Figure(
    title=f"The policies of POD on chunks and whole prompts, on {a_card()}",
    says="No policy is best on every batch, with two CTAs an SM or with four",
    chapter="09",
    method="Yi-6B and Llama-3-8B on one GPU, bf16; prompts of 2K, 8K and 16K, whole or their last 512 or 2K tokens, "
    "beside decodes as long. Gain over 50:50; medians, cold L2, shuffled rounds.",
    data=("methods-policies",),
)
RECORDING = "methods-policies"
KEYS = ("model", "context", "chunk", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 5, 15
K = 1024
CONTEXTS, CHUNKS, DECODES = (2 * K, 8 * K, 16 * K), (512, 2 * K, None), (16, 64, 192)
MODEL_KEYS = ("yi-6b", "llama-3-8b")
SIZES = (2, 4)  # CTAs an SM
WAYS = peers.HALVES | {"serial": peers.FAMILY["serial"], "pod": peers.FAMILY["pod"]}
WAYS |= {f"{policy}_{size}": partial(peers.family, method="pod", policy=policy, ctas_per_sm=size)
         for policy, size in product(POLICIES, SIZES)}  # fmt: skip


def cases() -> list[dict]:
    rows = [(model, context, chunk or context, decodes)
            for model, context, chunk, decodes in product(MODEL_KEYS, CONTEXTS, CHUNKS, DECODES)]  # fmt: skip
    return [dict(zip(KEYS, row, strict=True)) for row in dict.fromkeys(rows)]


def batch_of(case: dict) -> HybridBatch:
    heads, context = MODELS[case["model"]].heads(1), case["context"]
    return HybridBatch.of(case["chunk"], context, case["decodes"], context, **heads)


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS, ms=1.0)

# ---------------------------------------------------------------- what it shows


def table():
    """One row a batch: milliseconds of each policy with two and four CTAs an SM, of what POD chooses, of both parts
    alone and of serial, and the smaller part's share."""
    return with_parts(read("methods-policies"))


def draw(df):
    """Each batch as a dot: what either other policy gains over 50:50, by the smaller part's share of the two."""
    axes = style.axes(9.5, 3.6, columns=2, sharey=True)
    for ax, size in zip(axes, SIZES, strict=True):
        for policy in (INTEGER, PROPORTIONAL):
            ax.plot(100 * df.share, gain(df[f"{TURNS}_{size}"], df[f"{policy}_{size}"]), "o", color=TONES[policy],
                    markersize=4, label=policy)  # fmt: skip
        ax.axhline(0, color=style.INK, linewidth=1)
        ax.set(xlabel="the shorter part, % of both")
        ax.set_title(f"{size} CTAs an SM", fontsize=10)
    axes[0].set_ylabel("gain over 50:50, %")
    style.legend(axes[0], loc="best")
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def batches() -> int:
    return len(table())


def _gain(policy: str, size: int):
    df = table()
    return gain(df[f"{TURNS}_{size}"], df[f"{policy}_{size}"])


def gains(policy: str = INTEGER):
    """Over turns, each with the better of two and four CTAs an SM."""
    df = table()
    best = {name: df[[f"{name}_{size}" for size in SIZES]].min(axis=1) for name in (TURNS, policy)}
    return gain(best[TURNS], best[policy])


def gain_max(policy: str = INTEGER) -> float:
    return float(gains(policy).max())


def gain_max_of(policy: str, size: int) -> float:
    return float(_gain(policy, size).max())


def _chosen(average: str) -> float:
    """How much longer POD takes as it chooses, by the present plan, than with the best policy and CTAs an SM, %."""
    df = table()
    times = df[[f"{policy}_{size}" for policy, size in product(POLICIES, SIZES)]]
    mine = [row[choice(batch_of(case))] for case, (_, row) in zip(cases(), times.iterrows(), strict=True)]
    return 100 * float((pd.Series(mine) / times.min(axis=1)).agg(average) - 1)


chosen_costs, chosen_mean = partial(_chosen, "max"), partial(_chosen, "mean")


def choice(batch: HybridBatch) -> str:
    """The column of what POD takes of its own accord on the card that was measured."""
    made = decide.hybrid(batch, GPUS["h200"], GPUS["h200"].sms)
    return f"{choose.policy(made.ctas_per_sm, len(made.prefill), made.sms)}_{made.ctas_per_sm}"

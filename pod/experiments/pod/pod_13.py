"""POD-Attention, Figure 13: two or four CTAs on an SM, over batch and context.

Measured: POD with two and with four CTAs an SM, and as it chooses; whole prompts, Llama-3-8B on one GPU.
"""

from functools import partial

from pod.batch import MODELS, HybridBatch
from pod.data import Missing, a_card
from pod.experiments.methods.shared import heat, recorded, with_parts
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title=f"Two or four CTAs per SM, over batch and context, on {a_card()}",
    chapter="09",
    method="Llama-3-8B on one GPU, whole prompts, bf16. Time over the better of the two; medians, cold L2.",
    data=("methods-ctas",),
)
RECORDING = "methods-ctas"
KEYS = ("context", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 5, 15
CONTEXTS, DECODES = (1024, 2048, 4096, 8192, 16384), (8, 16, 32, 64, 128)
WAYS = peers.HALVES | {name: peers.FAMILY[name] for name in ("serial", "pod")} | peers.CONFIGURATIONS
WAYS |= {"pod_8": partial(peers.family, method="pod", ctas_per_sm=8)}


def cases() -> list[dict]:
    return [{"context": n, "decodes": batch} for n in CONTEXTS for batch in DECODES]


def batch_of(case: dict) -> HybridBatch:
    context = case["context"]
    return HybridBatch.of(context, context, case["decodes"], context, **MODELS["llama-3-8b"].heads(1))


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS, ms=1.0)


LONG, SHORT = 16384, 1024


def table():
    """One row a context and batch: milliseconds with two and four CTAs an SM and as POD chooses, and each over the
    better of the two."""
    df = with_parts(recorded("methods-ctas"))
    better = df[["pod_2", "pod_4"]].min(axis=1)
    columns = ["context", "decodes", "ratio", "serial", "pod_2", "pod_4", "pod"]
    return df[columns].assign(two=df.pod_2 / better, four=df.pod_4 / better, chosen=df["pod"] / better)


def draw(df):
    axes = style.axes(9.5, 3.6, columns=3, sharey=True)
    titles = {"two": "two CTAs an SM", "four": "four CTAs an SM", "chosen": "as POD chooses"}
    for ax, (column, title) in zip(axes, titles.items(), strict=True):
        cells = df.pivot(index="decodes", columns="context", values=column)
        ink = lambda y, x, at=cells.iloc: "white" if at[y, x] > 1.22 else style.INK  # noqa: E731
        heat(ax, cells, ink=ink, cmap="Purples", vmin=1, vmax=1.35)
        ax.set_xlabel("context, tokens")
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("decodes beside the prompt")
    return axes[0].figure


def _mean_ratio(context: int, numerator: str, denominator: str) -> float:
    df = table()
    df = df[df.context == context]
    return float((df[numerator] / df[denominator]).mean())


four_over_two_long = partial(_mean_ratio, LONG, "pod_4", "pod_2")
two_over_four_short = partial(_mean_ratio, SHORT, "pod_2", "pod_4")


def _eight():
    """Time with eight CTAs an SM over the better of two and four; recorded since it was built."""
    df = recorded("methods-ctas")
    if "pod_8" not in df:
        raise Missing("methods-ctas: has no eight CTAs an SM; `python -m pod measure methods-ctas` makes it")
    return df.pod_8.astype(float) / df[["pod_2", "pod_4"]].min(axis=1)


def eight_worse() -> float:
    """Share of the batches, %."""
    return 100 * float((_eight() > 1).mean())


def eight_best() -> float:
    return float(_eight().min())

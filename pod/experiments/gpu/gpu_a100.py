"""What the model, fitted on an H200, says of the paper's A100, beside the numbers that the paper states."""

from statistics import mean, median

import pandas as pd

from pod.batch import MODELS, HybridBatch
from pod.data import read
from pod.experiments.gpu.sample import HALVES
from pod.experiments.gpu.shared import Case, batch_of, milliseconds
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="The paper's A100, predicted from microbenchmarks of an H200, beside what the paper measured",
    chapter="10",
    method="Serial, streams and halves of a CTA with FlashAttention-2's tiles; POD with ours, as it chooses.",
    state="simulated",
    data=("gpusim", "gpusim-sample", "methods-chunks"),
    fitted=True,
)
FLASH2 = "flash2"  # the paper's copy of it, see pod/simulate/gpusim.py
BASELINES = ("serial", "streams", "warp")
EVEN, ODD = (int(paper.value(f"pod.f06.decodes_{which}")) for which in ("even", "odd"))
SAMPLE = 60  # of the sweep of Figure 11
PARTS = (2, 4)  # of each prefill tile, in place of our kernel's own rule, which was tuned on an H200


def chunks(model: str, decodes: int, numbers) -> list[HybridBatch]:
    """Hybrid batches of the chunks of a prompt of 16K, beside decodes of 16K."""
    size, context = int(paper.value("pod.f06.chunk")), int(paper.value("pod.f06.prompt"))
    return [HybridBatch.of(size, size * (i + 1), decodes, context, **MODELS[model].heads()) for i in numbers]


def gain(slow: float, fast: float) -> float:
    return 100 * (slow / fast - 1)


def a100(batches, method: str, kernel: str = FLASH2, **choice) -> list[float]:
    return milliseconds(Case(b, "a100", method, kernel, tuple(choice.items())) for b in batches)


def recut(batches, gpu: str, method: str = "pod") -> list[tuple[float, ...]]:
    """Milliseconds of our kernels: with our own rule for cutting tiles of prefill, then with each of PARTS."""
    choices = ((), *((("prefill_splits", parts),) for parts in PARTS))
    batches = list(batches)
    return list(zip(*(milliseconds(Case(b, gpu, method, choice=c) for b in batches) for c in choices), strict=True))


# ---------------------------------------------------------------- Figure 6


def figure6(decodes: int) -> dict[str, list[float]]:
    """Milliseconds of every chunk of the prompt, by method."""
    batches = chunks("yi-6b", decodes, range(int(paper.value("pod.f06.chunks"))))
    return {method: a100(batches, method) for method in BASELINES} | {"pod": a100(batches, "pod", "ours")}


def streams_gain() -> float:
    times = figure6(ODD)
    return max(gain(*pair) for pair in zip(times["serial"], times["streams"], strict=True))


def decode_step() -> float:
    even, odd = a100([chunks("yi-6b", n, [0])[0].decode for n in (EVEN, ODD)], "serial")
    return gain(odd, even)


def total_step() -> float:
    return max(gain(*pair) for pair in zip(figure6(ODD)["serial"], figure6(EVEN)["serial"], strict=True))


def over_next_best() -> float:
    gains = []
    for times in (figure6(EVEN), figure6(ODD)):
        for *others, ours in zip(*(times[m] for m in (*BASELINES, "pod")), strict=True):
            gains.append(gain(min(others), ours))
    return max(gains)


def over_next_best_recut(decodes: int) -> float:
    """The same beside so many decodes, were POD's tiles cut as is best."""
    times, batches = figure6(decodes), chunks("yi-6b", decodes, range(int(paper.value("pod.f06.chunks"))))
    others = zip(*(times[m] for m in BASELINES), strict=True)
    return max(gain(min(slow), min(fast)) for slow, fast in zip(others, recut(batches, "a100"), strict=True))


def step_here():
    """The same step where we could measure it: torch's FlashAttention-2 on an H200, ms alone, 54 to 67 decodes."""
    chunks_ = read("methods-chunks")
    rows = []
    for decodes, mine in chunks_.groupby("decodes"):
        alone = chunks("yi-6b", int(decodes), [0])[0].decode
        for kernel, column in (("flash2 torch", "fa2_decode"), ("ours", "decode")):
            (model,) = milliseconds([Case(alone, "h200", "serial", kernel)])
            rows.append((kernel, int(decodes), mine[column].median(), model))
    return pd.DataFrame(rows, columns=["kernel", "decodes", "measured", "model"]).sort_values(["kernel", "decodes"])


# ---------------------------------------------------------------- Table 7


def table7(rule: str | int, chunk: int = 31) -> float:
    """Time of POD over serial; `rule` for splitting prefill."""
    batches = chunks("llama-3-8b", int(paper.value("pod.t7.decodes")), [chunk])
    (ours,), (serial,) = a100(batches, "pod", "ours", prefill_splits=rule), a100(batches, "serial")
    return ours / serial


def table7_limited() -> float:
    return table7("limited")


# ---------------------------------------------------------------- Figure 11


def sample() -> list[HybridBatch]:
    """Batches of the paper's sweep of which both parts take at least a fifth of serial time on an A100."""
    df, least = read("gpusim-sample"), paper.value("pod.f11.share_min") / 100
    halves = df[list(HALVES)]
    return [batch_of(words) for words in df.batch[halves.min(axis=1) >= least * halves.sum(axis=1)][:SAMPLE]]


def gains(gpu: str, method: str, kernel: str, base: str) -> list[float]:
    """Of a method over serial execution with the tiles of `base`, in percent, batch by batch."""
    slow = milliseconds(Case(b, gpu, "serial", base) for b in sample())
    fast = milliseconds(Case(b, gpu, method, kernel) for b in sample())
    return [gain(*pair) for pair in zip(slow, fast, strict=True)]


def mean_gain() -> float:
    return mean(gains("a100", "pod", "ours", FLASH2))


def mean_gain_recut() -> float:
    """The same, were POD's tiles cut as is best."""
    slow = milliseconds(Case(b, "a100", "serial", FLASH2) for b in sample())
    return mean(gain(base, min(fast)) for base, fast in zip(slow, recut(sample(), "a100"), strict=True))


def hfuse_median() -> float:
    return median(gains("a100", "warp", FLASH2, FLASH2))


def gains_more() -> float:
    """Mean gain of POD over the same kernels in turn: on an A100, less that on an H200."""
    there, here = (mean(gains(gpu, "pod", "ours", "ours")) for gpu in ("a100", "h200"))
    return there - here


def gains_more_recut() -> float:
    """The same, were the tiles of both, and of the kernels in turn, cut as is best."""
    there, here = (
        mean(gain(min(slow), min(fast)) for slow, fast in
             zip(recut(sample(), gpu, "serial"), recut(sample(), gpu), strict=True))
        for gpu in ("a100", "h200")
    )  # fmt: skip
    return there - here


# ---------------------------------------------------------------- the table

ROWS = (
    ("Figure 6: streams over serial, at best", "pod.f06.streams_gain_max", streams_gain),
    ("Figure 6: decode alone, 54 to 55 requests", "pod.f06.decode_step", decode_step),
    ("Figure 6: both parts, 54 to 55 requests, at most", "pod.f06.total_step_max", total_step),
    ("Figure 6: POD over the next best, at best", "pod.f06.pod_over_next_max", over_next_best),
    ("Table 7: POD with FlashDecoding's splits saves", "pod.t7.31.vanilla_ratio", lambda: table7("vanilla")),
    ("Table 7: POD with limited splits saves", "pod.t7.31.limited_ratio", table7_limited),
    ("Figure 11: POD over serial, on average", "pod.f11.pod_mean", mean_gain),
    ("Figure 11: halves of a CTA over serial, median", "pod.f11.hfuse_median", hfuse_median),
)


def table():
    """One row a number of the paper, in percent: stated, and predicted."""
    rows = []
    for words, number, predict in ROWS:
        stated, ours = paper.value(number), predict()
        if "saves" in words:  # a ratio of times
            stated, ours = 100 * (1 - stated), 100 * (1 - ours)
        rows.append((words, stated, ours))
    return pd.DataFrame(rows, columns=["quantity", "paper", "predicted"])


def draw(df):
    ax = style.axes(9, 4.2)
    places = range(len(df))[::-1]
    ax.hlines(places, df.paper / 1.5, df.paper * 1.5, color=style.LIT, linewidth=9, label="the claim's band")
    ax.plot(df.paper, places, "X", color="black", markersize=9, label="the paper, A100")
    ax.plot(df.predicted, places, "o", color=style.colour("hybrid"), markersize=8, label="this model, A100")
    ax.axvline(0, color=style.FRAME, linewidth=1)
    for y, row in zip(places, df.itertuples(), strict=True):
        ax.text(1.02, y, f"{row.paper:.0f} and {row.predicted:.0f}", transform=ax.get_yaxis_transform(), va="center")
    ax.set_title("paper and model  ", loc="right", x=1.18, fontsize=10)
    ax.set(yticks=list(places), yticklabels=df.quantity, xlabel="%")
    style.legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    return ax.figure

"""SARATHI post, Figure 3: prompt tokens saturate a layer soon, decodes need hundreds of requests for it."""

import pandas as pd

from pod.hardware import gpu
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import shape
from pod.simulate.cost import AnalyticalCost, Work

FIGURE = Figure(
    title="Throughput of one LLaMA-13B layer against tokens",
    chapter="13",
    method="analytical cost of one layer on three GPUs; prompts from their start, decodes at 1,024 tokens of context",
    state="simulated",
)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
GPUS = ("a6000", "a100", "h200")
CONTEXT = 1024


def table():
    rows = []
    for key in GPUS:
        cost = AnalyticalCost(shape("llama-13b"), gpu(key), kernels="fa2")
        for n in TOKENS:
            works = {"prefill": Work(((n, 0),), 0, 0), "decode": Work((), n, n * CONTEXT)}
            for phase, work in works.items():
                rows.append((key, phase, n, n / (cost.linear(n) + cost.attention(work))))
    df = pd.DataFrame(rows, columns=["gpu", "phase", "tokens", "tokens_per_second"])
    peak = df.groupby(["gpu", "phase"]).tokens_per_second.transform("max")
    return df.assign(percent_of_peak=100 * df.tokens_per_second / peak)


def draw(df):
    axes = style.axes(9.5, 3.0, 2, sharey=True)
    for ax, phase in zip(axes, ("prefill", "decode"), strict=True):
        for key, marker in zip(GPUS, "os^", strict=True):
            mine = df[(df.gpu == key) & (df.phase == phase)]
            ax.plot(mine.tokens, mine.percent_of_peak, marker=marker, markersize=5, label=key.upper(),
                    color=style.WORKERS[GPUS.index(key)])  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set(xticks=TOKENS, xticklabels=TOKENS, ylim=(0, 105),
               xlabel="prompt tokens" if phase == "prefill" else "decodes in the batch")  # fmt: skip
        ax.set_title(f"{phase}, one token each" if phase == "decode" else "prefill, one prompt", fontsize=10)
        stated = "peak_tokens" if phase == "prefill" else "decode_saturation"
        saturates = paper.value(f"sarathi.f03.{stated}")
        ax.axvline(saturates, color=style.INK, linestyle="--", linewidth=1)
        ax.text(1.06 * saturates, 4, "post: A6000\nsaturates", fontsize=9, color=style.INK)
    axes[0].set_ylabel("% of the best throughput shown")
    style.legend(axes[0], loc="upper left")
    return axes[0].figure


def of_peak(tokens: int) -> float:
    """Prefill throughput on the A6000 at so many tokens, over the best."""
    return float(table().set_index(["gpu", "phase", "tokens"]).percent_of_peak["a6000", "prefill", tokens]) / 100

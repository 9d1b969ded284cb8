"""POD-Attention's Figure 6 on the paper's A100, as the model of a GPU predicts it."""

import pandas as pd

from pod.experiments.gpu.gpu_a100 import EVEN, ODD, figure6
from pod.experiments.methods.shared import METHODS, TONES
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Figure 6 as the model predicts it for the paper's A100: a prompt of 16K beside 54 and 55 decodes",
    chapter="10",
    method="Yi-6B, chunks of 512, decodes of 16K. Baselines with FlashAttention-2's tiles, POD with ours.",
    data=("gpusim",),
    fitted=True,
)
NAMES = {way: METHODS[way] for way in ("serial", "streams", "warp", "pod")}


def table():
    """One row a batch and method: milliseconds."""
    rows = [(decodes, chunk, NAMES[way], ms) for decodes in (EVEN, ODD)
            for way, times in figure6(decodes).items() for chunk, ms in enumerate(times)]  # fmt: skip
    return pd.DataFrame(rows, columns=["decodes", "chunk", "method", "ms"])


def draw(df):
    axes = style.axes(9.5, 3.6, columns=2, sharey=True)
    tones = {name: TONES[way] for way, name in NAMES.items()}
    for ax, (decodes, part) in zip(axes, df.groupby("decodes"), strict=True):
        for name, line in part.groupby("method", sort=False):
            ax.plot(line.chunk, line.ms, color=tones[name], linewidth=2.8 if name == "POD" else 1.5, label=name)
        ax.set(xlabel="chunk of the prompt", ylim=(0, 1.05 * df.ms.max()))
        ax.set_title(f"{decodes} decodes: {4 * decodes} CTAs on {2 * 108} slots", fontsize=10)
    axes[0].set_ylabel("attention of one layer, ms")
    style.legend(axes[0], loc="lower right")
    return axes[0].figure

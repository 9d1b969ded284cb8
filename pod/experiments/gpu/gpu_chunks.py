"""POD-Attention's Figure 6 on the paper's A100, as the model of a GPU predicts it."""

import pandas as pd

from pod.experiments.gpu.gpu_a100 import EVEN, ODD, figure6
from pod.experiments.methods.shared import METHODS, TONES
from pod.lab import paper
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


def stated(df) -> list[tuple]:
    """Where three ratios that the paper states would put a line, each at the chunk where the model's own is largest:
    method, chunk, ms, %. Serial over its time beside 54 chats; streams under serial; POD under the next best; all
    beside 55."""
    wide = {n: part.pivot(index="chunk", columns="method", values="ms") for n, part in df.groupby("decodes")}
    even, odd, found = wide[EVEN], wide[ODD], []
    serial, streams, pod = NAMES["serial"], NAMES["streams"], NAMES["pod"]
    at_least = odd.drop(columns=pod).min(axis=1)
    ratios = (
        (serial, "total_step_max", odd[serial], even[serial]),
        (streams, "streams_gain_max", odd[serial], odd[streams]),
        (pod, "pod_over_next_max", at_least, odd[pod]),
    )
    for method, name, slow, fast in ratios:
        percent, chunk = paper.value(f"pod.f06.{name}"), int((slow / fast).idxmax())
        times = 1 + percent / 100
        found.append((method, chunk, fast[chunk] * times if method == serial else slow[chunk] / times, percent))
    return found


def draw(df):
    axes = style.axes(9.5, 3.6, columns=2, sharey=True)
    tones = {name: TONES[way] for way, name in NAMES.items()}
    for ax, (decodes, part) in zip(axes, df.groupby("decodes"), strict=True):
        for name, line in part.groupby("method", sort=False):
            ax.plot(line.chunk, line.ms, color=tones[name], linewidth=2.8 if name == "POD" else 1.5, label=name)
        ax.set(xlabel="chunk of the prompt", ylim=(0, 1.05 * df.ms.max()))
        ax.set_title(f"{decodes} decodes: {4 * decodes} CTAs on {2 * 108} slots", fontsize=10)
    for method, chunk, ms, percent in stated(df):
        axes[1].plot(chunk, ms, "X", color=tones[method], markeredgecolor="black", markersize=9)
        axes[1].annotate(f"{percent:.0f} %", (chunk, ms), (0, 8), textcoords="offset points",
                         ha="center", fontsize=9)  # fmt: skip
    axes[0].plot([], [], "X", color="white", markeredgecolor="black", markersize=9, label="by the paper's ratio")
    axes[0].set_ylabel("attention of one layer, ms")
    style.legend(axes[0], loc="lower right")
    return axes[0].figure

"""POD-Attention, Figure 4: the longer the context, the more of an iteration is attention."""

import pandas as pd

from pod.experiments.engine import engine_timeline
from pod.hardware import H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import shape
from pod.simulate.cost import MeasuredCost

FIGURE = Figure(
    title="Where the time of a hybrid iteration goes as the context grows",
    chapter="15",
    method="Llama-3-8B on one H200: the sum of its operators, timed one by one; attention by FlashAttention-3",
    data=("operators",),
    composed=True,
)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
PARTS = {"linear layers": "linear", "prefill attention": "prefill", "decode attention": "decode", "output head": "load"}


def table():
    """Milliseconds of each part in the iteration with the last chunk of a prompt, and the share of attention."""
    chunk, batch = int(paper.value("pod.f04.chunk")), int(paper.value("pod.f04.batch"))
    llama, rows = shape("llama-3-8b"), []
    cost = MeasuredCost(llama, H200, host="none")
    for context in CONTEXTS:
        parts = {
            "linear layers": llama.layers * cost.linear(chunk + batch),
            "prefill attention": llama.layers * cost.prefill([(chunk, context - chunk)]),
            "decode attention": llama.layers * cost.decode(batch, batch * context),
            "output head": cost.head(batch + 1),
        }
        total = sum(parts.values())
        share = 100 * (parts["prefill attention"] + parts["decode attention"]) / total
        rows.append((context, *(1e3 * seconds for seconds in parts.values()), share))
    return pd.DataFrame(rows, columns=["context", *parts, "attention_percent"])


def draw(df):
    ax = style.axes(7.5, 3.4)
    below = 0
    for part, kind in PARTS.items():
        share = 100 * df[part] / df[list(PARTS)].sum(axis=1)
        bars = ax.bar(range(len(df)), share, bottom=below, color=style.colour(kind), width=0.7, label=part)
        if part != "output head":
            labels = [f"{ms:.1f} ms" if s > 7 else "" for ms, s in zip(df[part], share, strict=True)]
            ax.bar_label(bars, labels, label_type="center", fontsize=8.5)
        below = below + share
    ax.set(xticks=range(len(df)), xticklabels=[f"{c // 1024}K" for c in df.context], xlabel="context, tokens",
           ylabel="share of the iteration, %", ylim=(0, 100))  # fmt: skip
    ax.legend(frameon=False, fontsize=9, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax.figure


def timeline_share() -> float:
    """Share of attention by FlashAttention-3 in the time that the GPU works, in the recorded hybrid iteration of the
    engine, %."""
    df = engine_timeline.table()
    mine = df[(df.run == engine_timeline.NAMES["fa3"]) & (df.gpu_end_ms > 0)]
    taken = mine.gpu_end_ms - mine.gpu_start_ms
    return 100 * float(taken[mine.piece == "attention"].sum() / (mine.gpu_end_ms.max() - mine.gpu_start_ms.min()))


def attention_share() -> float:
    """Share of attention at 16K, percent."""
    return float(table().set_index("context").attention_percent[int(paper.value("pod.f04.context"))])

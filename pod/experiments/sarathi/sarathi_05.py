"""SARATHI post, Figure 5: attention is a small part of a token's time, so reading keys again costs chunks little."""

import pandas as pd

from pod.hardware import gpu
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import shape
from pod.simulate.cost import AnalyticalCost, Work

FIGURE = Figure(
    title="Time per token by operation and batch size",
    chapter="13",
    method="analytical cost, LLaMA-13B on an A6000, prompts of 1,024 tokens and decodes at 1,024",
    state="simulated",
)
BATCHES, CONTEXT, CHUNKS = (1, 2, 4, 8, 18), 1024, (128, 256, 512, 1024)
PARTS = ["linear_ms", "attention_ms", "other_ms"]


def _cost():
    return AnalyticalCost(shape("llama-13b"), gpu("a6000"), host="none", kernels="fa2")


def table():
    """Milliseconds per token of each part, by phase and batch; and of one prompt cut into chunks."""
    cost, rows = _cost(), []
    for batch in BATCHES:
        works = {"prefill": (Work(((CONTEXT, 0),) * batch, 0, 0), batch * CONTEXT),
                 "decode": (Work((), batch, batch * CONTEXT), batch)}  # fmt: skip
        rows += [(phase, batch, *_parts(cost, [work], count)) for phase, (work, count) in works.items()]
    for chunk in CHUNKS:
        works = [Work(((chunk, before),), 0, 0) for before in range(0, CONTEXT, chunk)]
        rows.append(("chunked", chunk, *_parts(cost, works, CONTEXT)))
    return pd.DataFrame(rows, columns=["phase", "batch_or_chunk", *PARTS])


def _parts(cost, works, tokens: int) -> list[float]:
    parts = [cost.parts(work) for work in works]
    linear, attention = (sum(p[k] for p in parts) for k in ("linear", "attention"))
    other = sum(sum(p.values()) for p in parts) - linear - attention
    return [1000 * seconds / tokens for seconds in (linear, attention, other)]


def draw(df):
    """A token's time and attention's part of it, all on one logarithmic axis: equal heights are equal
    ratios. The grey line is a prompt's token."""
    axes = style.axes(9.5, 3.0, 3, sharey=True)
    titles = {"prefill": "prefill, prompts in the batch", "decode": "decode, requests in the batch",
              "chunked": "one prompt of 1,024, by chunk"}  # fmt: skip
    prompt = df.query("phase == 'prefill'")[PARTS].sum(axis=1).iloc[0]
    for ax, (phase, title) in zip(axes, titles.items(), strict=True):
        mine = df[df.phase == phase]
        all_of_it = mine[PARTS].sum(axis=1)
        ax.axhline(prompt, color=style.FRAME, linewidth=1, zorder=0)
        lines = (("all", all_of_it, style.INK), ("attention", mine.attention_ms, style.colour("merge")))
        for words, values, colour in lines:
            ax.plot(range(len(mine)), values, "o-", color=colour, markersize=5)
            for i, value in enumerate(values):
                number = f"{value:.2g}" if value > 0.1 else f"{value:.2f}"
                ax.annotate(number, (i, value), (0, 6), textcoords="offset points", ha="center", fontsize=8.5)
            if phase == "prefill":
                ax.annotate(words, (0, values.iloc[0]), (0, 19), textcoords="offset points", color=colour, fontsize=9)
        ax.set(yscale="log", ylim=(0.004, 110), xlim=(-0.4, len(mine) - 0.6))
        ax.set_xticks(range(len(mine)), mine.batch_or_chunk)
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("ms a token")
    style.ticks(axes[0], (0.01, 0.1, 1, 10, 100), axis="y")
    return axes[0].figure


def overhead(df=None) -> float:
    """Time of a 1,024-token prompt with its attention in chunks of 256, over all of it at once; linear layers whole."""
    df = table() if df is None else df
    mine = df[df.phase == "chunked"].set_index("batch_or_chunk")
    whole = mine.linear_ms[CONTEXT]
    return float((whole + mine.attention_ms[256]) / (whole + mine.attention_ms[CONTEXT]))

"""An offline run by our engine and by transformers' own continuous batching, on an H200 with the same weights."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="engine-stock",
    source="This repository",
    title="The engine beside transformers' generate_batch",
    chapter="13",
    method="Llama-3-8B's shape, random weights shared by both; 96 prompts of 1K to 3K tokens, 128 tokens each; theirs "
    "with FlashAttention-3 and CUDA graphs, the second of two runs, on prompts that are new to it",
    state="recorded",
    data=("engine-stock",),
)


def table():
    """A row a run: seconds in all, answer tokens a second, gaps between tokens in ms, and how many of the first tokens
    are those of our own run with the smaller budget."""
    df = read("engine-stock")
    budget = df.budget.map(lambda n: f"{n:,} tokens an iteration" if n else "its own budget")
    return df.assign(name=df.system + ", " + budget, tokens_per_second=df.tokens / df.seconds).sort_values(
        ["system", "budget"], ignore_index=True
    )


def draw(df):
    from pod.show import style

    axes = style.axes(9.5, 0.9 + 0.42 * len(df), 2)
    colours = df.system.map({"ours": style.colour("hybrid"), "transformers": style.FRAME})
    for ax, column, label in zip(axes, ("seconds", "tbt_p99_ms"), ("seconds for all", "P99 gap between tokens, ms"),
                                 strict=True):  # fmt: skip
        ax.barh(df.name, df[column], color=colours)
        for i, value in enumerate(df[column]):
            ax.text(value, i, f" {value:.1f}" if value < 100 else f" {value:.0f}", va="center", fontsize=9)
        ax.set(xlabel=label, xlim=(0, 1.15 * df[column].max()))
        ax.invert_yaxis()
    axes[1].set_yticks([])
    return axes[0].figure


def times() -> float:
    """How many times as long transformers takes, each system with the better of its budgets."""
    best = table().groupby("system").seconds.min()
    return float(best["transformers"] / best["ours"])

"""LeanAttention, Figure 2: where the time of an answer goes, Phi-3 Medium, one request."""

import pandas as pd

from pod.data import a_card
from pod.experiments.lean import phi3
from pod.experiments.lean.shared import in_k
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Shares of prefill, decode attention and linear layers, Phi-3 Medium, one request, P:D 8",
    chapter="11",
    method=f"Operations of one layer measured on {a_card()} with random weights, summed over 40 layers and all steps.",
    data=("lean-layers",),
    composed=True,
    says="Decode takes nearly all of the time, and its attention nearly half at 128K",
)
WAY = "rule_256"  # attention of decode as FlashDecoding 2.5.6 would cut it


def table():
    """One row a prompt: seconds and shares of each part."""
    rows = []
    for prompt in phi3.PROMPTS:
        parts = phi3.phases(prompt, WAY)
        total = sum(parts.values())
        rows.append({"prompt": prompt, "seconds": total / 1e3, **{k: 100 * v / total for k, v in parts.items()}})
    return pd.DataFrame(rows)


def draw(df):
    ax = style.axes(8.5, 3.6)
    colours = {"prefill": style.PREFILL, "decode attention": style.DECODE, "decode QKV and output": "#9aa7b4",
               "decode FFN": "#c9d1d9"}  # fmt: skip
    bottom = 0 * df.seconds
    for name, colour in colours.items():
        ax.bar(range(len(df)), df[name], 0.72, bottom=bottom, color=colour, label=name)
        for i, (low, share) in enumerate(zip(bottom, df[name], strict=True)):
            if share > 4:
                ink = "white" if name == "prefill" else style.INK
                ax.text(i, low + share / 2, f"{share:.0f}", ha="center", va="center", fontsize=8.5, color=ink)
        bottom = bottom + df[name]
    words = [f"{in_k(r.prompt)}\n{r.seconds:.1f} s" for r in df.itertuples()]
    ax.set_xticks(range(len(df)), words)
    ax.set(xlabel="prompt tokens, and seconds of the whole answer", ylabel="share of the time, %", ylim=(0, 100))
    style.legend(ax, loc="upper center", ncols=4, bbox_to_anchor=(0.5, 1.15))
    return ax.figure


def prefill_shares():
    """Of prefill, by prompt, %."""
    return table().prefill


def decode_shares():
    return 100 - prefill_shares()


def attention_shares():
    """Of attention in the decode phase, by prompt, %."""
    return 100 * table()["decode attention"] / decode_shares()


def prompts() -> int:
    return len(table())

"""LeanAttention, Figure 11: head dimension 128, three model shapes, one request."""

from pod.data import read
from pod.experiments.lean import shared
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    id="lean-11",
    title="Head dimension 128, one request: stream-K for three model shapes",
    chapter="11",
    method="Our decode, bf16, against the same code cut by FlashDecoding's rules and uncut, and against two peers.",
    data=("lean-sweep",),
    says="One request: no split costs most, and the best split is a little ahead",
)
MODELS = {(32, 32): "Llama-2-like, 32/32 heads", (32, 8): "Mistral-like, 32/8", (40, 10): "Phi-3-like, 40/10"}
OTHERS = {"no split": "single", "the rule of 2.5.6": "rule_256", "today's rule": "rule_now",
          "best fixed split": "best_split", "FlashAttention-3": "fa3", "FlashInfer": "flashinfer"}  # fmt: skip


def table():
    """One row a model and context: the time of each other way over that of stream-K."""
    df = read("lean-sweep")
    df = df[df.panel == "11"].reset_index(drop=True)
    out = df[["q_heads", "kv_heads", "context", "lean"]]
    return out.assign(**{name: df[column] / df.lean for name, column in OTHERS.items()})


def draw(df):
    axes = style.axes(9.5, 3.6, columns=3, sharey=True)
    colours = (style.WORKERS[2], style.WORKERS[3], style.INK, *style.WORKERS[:2], style.WORKERS[4])
    for ax, (heads, words) in zip(axes, MODELS.items(), strict=True):
        part = df[(df.q_heads == heads[0]) & (df.kv_heads == heads[1])]
        for name, colour in zip(OTHERS, colours, strict=True):
            dash = "--" if name in ("FlashAttention-3", "FlashInfer") else "-"
            ax.plot(part.context, part[name], dash, color=colour, marker="o", markersize=3.5, label=name)
        ax.axhline(1, color=style.FRAME, zorder=0)
        ax.set(xscale="log", xlabel="context", title=words, ylim=(0.8, 2))
        ax.set_xticks(part.context, [shared.in_k(n) for n in part.context], fontsize=8)
        ax.minorticks_off()
        ax.title.set_fontsize(10)
        ax.text(0.97, 0.95, f"no split: up to {part['no split'].max():.1f}", transform=ax.transAxes, ha="right",
                va="top", fontsize=8.5, color=style.WORKERS[2])  # fmt: skip
    axes[0].set_ylabel("time over stream-K's")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False, fontsize=9)
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def gain(kilotokens: int) -> float:
    df = table()
    return float(df[df.context == kilotokens << 10]["the rule of 2.5.6"].max())


def flashinfer():
    return table().FlashInfer


def flashinfer_long() -> float:
    """Least over FlashInfer beyond 16K, 32 heads that share no keys."""
    df = table()
    return float(df[(df.kv_heads == 32) & (df.context > 16 << 10)].FlashInfer.min())

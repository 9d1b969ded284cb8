"""LeanAttention, Figure 12: end to end, Phi-3 Medium, one request."""

from __future__ import annotations

from pod.data import a_card
from pod.figures import Figure, _phi3

FIGURE = Figure(
    id="lean-12",
    source="LeanAttention, Figure 12",
    title="End-to-end speed-up of stream-K decode attention, Phi-3 Medium, one request, P:D 8",
    chapter="10",
    method=f"Operations of one layer measured on {a_card()}, summed over 40 layers and all steps; no host time.",
    state="recorded",
    data=("lean-layers",),
    composed=True,
)
BASES = {"FlashDecoding 2.5.6's split": "rule_256", "FlashAttention-3": "fa3", "no split (FlashAttention-2)": "single"}


def table():
    """One row a prompt and base: the whole answer's time with that attention over the time with stream-K."""
    import pandas as pd

    rows = []
    for prompt in _phi3.PROMPTS:
        ours = sum(_phi3.phases(prompt, "lean").values())
        for name, way in BASES.items():
            rows.append((prompt, prompt // _phi3.RATIO, name, sum(_phi3.phases(prompt, way).values()) / ours))
    return pd.DataFrame(rows, columns=["prompt", "outputs", "base", "speedup"])


def _at(outputs: int) -> float:
    df = table()
    return float(df[(df.base == "FlashDecoding 2.5.6's split") & (df.outputs == outputs)].speedup.iloc[0])


def first_1k() -> float:
    return _at(1024)


def beyond_16k() -> float:
    """At 16K outputs, the longest that was measured."""
    return _at(16 << 10)


def draw(df):
    from pod import paper
    from pod.figures._lean import in_k
    from pod.show import style

    ax = style.axes(8.5, 3.4)
    for (name, part), colour in zip(df.groupby("base", sort=False), (style.DECODE, "#b279a2", "#e45756"), strict=True):
        ax.plot(range(len(part)), part.speedup, "o-", color=colour, markersize=4, label=f"over {name}")
        above = 3 if name.startswith("FlashDecoding") else -9 if name.startswith("FlashAttention-3") else -3
        ax.annotate(f"{part.speedup.iloc[-1]:.2f}", (len(part) - 1, part.speedup.iloc[-1]), (8, above),
                    textcoords="offset points", fontsize=9, color=colour)  # fmt: skip
    outputs = df.outputs.unique()
    stated = {1024: "lean.f12.first_1k", 16 << 10: "lean.f12.beyond_16k"}
    x = [list(outputs).index(n) for n in stated]
    ax.plot(x, [paper.value(i) for i in stated.values()], "*", color=style.INK, markersize=11,
            label="the paper, ONNX Runtime")  # fmt: skip
    ax.axhline(1, color=style.FRAME, zorder=0)
    ax.set_xticks(range(len(outputs)), [f"{n}\n({in_k(8 * n)})" for n in outputs])
    ax.set(xlabel="output tokens (prompt)", ylabel="end-to-end speed-up", yscale="log", ylim=(0.9, 7))
    ax.set_yticks([1, 1.5, 2, 3, 5], ["1", "1.5", "2", "3", "5"])
    ax.minorticks_off()
    style.legend(ax, loc="upper left")
    return ax.figure

"""The fused kernel in fp16 and at head dimension 64: its speed-up over FlashAttention-3 on the same eleven batches."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure
from pod.figures.hopper_sweep import BALANCED, PEERS, geomean, parts

FIGURE = Figure(
    id="hopper-dtypes",
    source="This repository",
    title="The fused kernel in bf16 and fp16, at head dimensions 128 and 64",
    chapter="16",
    method="Eleven hybrid batches; two calls of FlashAttention-3 over ours. Medians, cold L2, shuffled rounds.",
    state="recorded",
    data=("hopper-dtypes", "hopper-peers"),
)


def table():
    """One row a kind of tensor and a batch: speed-up over two calls and over the best of FlashAttention-3's three ways,
    and the ratio of its two parts."""
    import pandas as pd

    bf16 = read("hopper-peers").assign(head_dim=128, dtype="bfloat16")
    df = pd.concat([bf16, read("hopper-dtypes")], ignore_index=True)
    return pd.DataFrame({
        "kind": df.dtype.map({"bfloat16": "bf16", "float16": "fp16"}) + ", " + df.head_dim.astype(str),
        "ratio": parts(df).prefill / parts(df).decode,
        "over_serial": df.fa3_serial / df.ours,
        "over_best": df[list(PEERS.values())].min(axis=1) / df.ours,
    })  # fmt: skip


def summary(df):
    """One row a kind: geometric mean and least speed-up over two calls, the mean where both parts are about equally
    long, and the mean over the best of the three ways."""
    import pandas as pd

    rows = {}
    for kind, part in df.groupby("kind", sort=False):
        even = part[part.ratio.between(*BALANCED)]
        rows[kind] = [geomean(part.over_serial), part.over_serial.min(), geomean(even.over_serial),
                      geomean(part.over_best)]  # fmt: skip
    columns = ["over serial", "least", "{} to {}".format(*BALANCED), "over best way"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).round(2)


def least() -> float:
    return float(table().over_serial.min())


def draw(df):
    from pod.show import style

    ax = style.axes(9.5, 2.8)
    for y, (_, part) in enumerate(df.groupby("kind", sort=False)):
        ax.plot(part.over_serial, [y] * len(part), "o", color=style.colour("hybrid"), markersize=6, alpha=0.7)
        mean = geomean(part.over_serial)
        ax.plot(mean, y, "|", color=style.INK, markersize=18, markeredgewidth=2)
        ax.text(mean, y - 0.3, f"{mean:.2f}", ha="center", va="bottom", fontsize=9, fontweight="bold")
    ax.axvline(1, color=style.INK, linewidth=1)
    ax.set_yticks(range(df.kind.nunique()), df.kind.unique())
    ax.set(ylim=(df.kind.nunique() - 0.5, -0.7), xlabel="speed-up over two calls of FlashAttention-3")
    return ax.figure

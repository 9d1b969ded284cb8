"""The fused kernel in fp16 and at head dimension 64: its speed-up over FlashAttention-3 on the same eleven batches.

Measured: the eleven hybrid batches in fp16 and at head dimension 64, ours beside FlashAttention-3.
"""

import pandas as pd

from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_sweep import BALANCED, PEERS, WAYS, geomean, parts
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title="The fused kernel in bf16 and fp16, at head dimensions 128 and 64",
    says="The lead holds in either format, and is largest at head dimension 64",
    chapter="17",
    method="Eleven hybrid batches; two calls of FlashAttention-3 over ours. Medians, cold L2, shuffled rounds.",
    data=("hopper-dtypes", "hopper-peers"),
)
RECORDING = "hopper-dtypes"
KEYS = ("head_dim", "dtype", *hopper_peers.KEYS)
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
VARIANTS = ((128, "float16"), (64, "bfloat16"), (64, "float16"))


def cases() -> list[dict]:
    variants = [{"head_dim": head_dim, "dtype": dtype} for head_dim, dtype in VARIANTS]
    return [variant | case for variant in variants for case in hopper_peers.cases()]


def batch_of(case: dict) -> HybridBatch:
    return hopper_peers.batch_of(case, head_dim=case["head_dim"], dtype=case["dtype"])


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS)


def table():
    """One row a kind of tensor and a batch: speed-up over two calls and over the best of FlashAttention-3's three ways,
    and the ratio of its two parts."""
    bf16 = read("hopper-peers").assign(head_dim=128, dtype="bfloat16")
    df = pd.concat([bf16, read("hopper-dtypes")], ignore_index=True)
    return pd.DataFrame({
        "kind": df.dtype.map({"bfloat16": "bf16", "float16": "fp16"}) + ", " + df.head_dim.astype(str),
        "ratio": parts(df).prefill / parts(df).decode,
        "over_serial": df.fa3_serial / df.ours,
        "over_best": df.reindex(columns=list(PEERS.values())).min(axis=1) / df.ours,  # some have fewer ways
    })  # fmt: skip


def draw(df):
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


def summary(df):
    """One row a kind: geometric mean and least speed-up over two calls, the mean where both parts are about equally
    long, and the mean over the best of the three ways."""
    rows = {}
    for kind, part in df.groupby("kind", sort=False):
        even = part[part.ratio.between(*BALANCED)]
        rows[kind] = [geomean(part.over_serial), part.over_serial.min(), geomean(even.over_serial),
                      geomean(part.over_best)]  # fmt: skip
    columns = ["over serial", "least", "{} to {}".format(*BALANCED), "over best way"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).round(2)


def least() -> float:
    return float(table().over_serial.min())

"""Who wins where: the fastest way over chunk, decode load and context.

Measured: every way over chunk, decodes and context, from few decodes to many; Llama-3-8B on one GPU.
"""

from functools import partial

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from pod.batch import MODELS, HybridBatch
from pod.data import a_card
from pod.experiments.methods.shared import METHODS, PEERS, TONES, heat, recorded, with_parts
from pod.experiments.pod import pod_11
from pod.lab.figure import Figure, short
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title=f"Who wins where: the fastest way over chunk, decode load and context, on {a_card()}",
    chapter="09",
    method="Llama-3-8B on one GPU, a chunk at the end of its context. Top: our five methods. Bottom: with peers and "
    "our Hopper kernel. In a cell: how much faster than our serial.",
    data=("methods-grid",),
)
RECORDING = "methods-grid"
KEYS = ("context", "chunk", "decodes")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 3, 9
CONTEXTS, CHUNKS, DECODES = (4096, 8192, 16384), (256, 512, 1024, 2048, 4096), (4, 16, 32, 64, 128)
WAYS = {name: make for name, make in pod_11.WAYS.items() if name not in (*peers.CONFIGURATIONS, "fa2_streams")}
WAYS["ranges"] = partial(peers.family, method="pod", decode_splits="stream-k")  # decode in equal ranges, beside prefill


def cases() -> list[dict]:
    return [{"context": n, "chunk": chunk, "decodes": d} for n in CONTEXTS for chunk in CHUNKS for d in DECODES]


def batch_of(case: dict) -> HybridBatch:
    context = case["context"]
    return HybridBatch.of(case["chunk"], context, case["decodes"], context, **MODELS["llama-3-8b"].heads(1))


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS, ms=1.0)


FIELDS = {
    "our five methods": list(METHODS),
    "all ways": [*METHODS, "fa2_serial", "fa3_serial", "fi_fa2_serial", "fi_fa2_batched", "fi_pod", "hopper"],
}
NAMES = METHODS | PEERS


def table():
    """One row a batch and field: prefill over decode, the fastest way, its speed-up over our serial, and by how much it
    beats the next way, %."""
    df, parts = with_parts(recorded("methods-grid")), []
    for field, ways in FIELDS.items():
        times = df[ways]
        best, second = (times.apply(lambda row, n=n: row.nsmallest(n).iloc[-1], axis=1) for n in (1, 2))
        found = {"winner": times.idxmin(axis=1), "speedup": df.serial / best, "margin": 100 * (second / best - 1)}
        parts.append(df[["context", "chunk", "decodes", "ratio"]].assign(field=field, **found))
    return pd.concat(parts, ignore_index=True)


def draw(df):
    contexts = sorted(df.context.unique())
    figure, axes = plt.subplots(2, len(contexts), figsize=(9.5, 5.4), dpi=100, layout="constrained", sharex=True,
                                sharey=True)  # fmt: skip
    for row, field in zip(axes, FIELDS, strict=True):
        for ax, context in zip(row, contexts, strict=True):
            _cells(ax, df[(df.field == field) & (df.context == context)])
        row[0].set_ylabel(f"{field}\n\ndecodes")
    for top, bottom, context in zip(*axes, contexts, strict=True):
        top.set_title(f"context {short(context)}", fontsize=10)
        bottom.set_xlabel("chunk, tokens")
    winners = [way for way in NAMES if way in set(df.winner)]
    handles = [Patch(color=TONES[way], label=NAMES[way]) for way in winners]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _cells(ax, df) -> None:
    winners = df.pivot(index="decodes", columns="chunk", values="winner")
    speedups = df.pivot(index="decodes", columns="chunk", values="speedup")
    image = [[to_rgb(TONES[way]) for way in row] for row in winners.to_numpy()]
    heat(ax, speedups, image, lambda y, x: style.letters_on(TONES[winners.iloc[y, x]]), "bold")


def counts(df):
    """How often each way is the fastest, in each field."""
    return pd.crosstab(df.winner.map(NAMES), df.field).sort_values(list(FIELDS)[-1], ascending=False, kind="stable")

"""Who wins where: the fastest way for each batch, over chunk, decode load and context."""

from __future__ import annotations

from pod.figures import Figure, pod_11
from pod.figures._methods import METHODS, PEERS, TONES, short

FIGURE = Figure(
    id="methods-wins",
    source="This repository",
    title="Who wins where: the fastest way for each batch over chunk, decode load and context, on an H200",
    chapter="08",
    method="Top: our five methods, POD as it chooses. Bottom: with two calls of FlashAttention-2 and -3, FlashInfer's "
    "ways and our Hopper kernel. A dot is a batch of the sweep, larger the more it wins by.",
    state="recorded",
    data=("h200/methods-sweep.csv",),
)
FIELDS = {
    "our five methods": list(METHODS),
    "all ways": [*METHODS, "fa2_serial", "fa3_serial", "fi_fa2_serial", "fi_batched", "fi_pod", "hopper"],
}
NAMES = METHODS | PEERS


def table():
    """One row a batch and field: chunk, gigabytes of K and V that decode reads, the fastest way, and by how much it
    beats the next one, %."""
    import pandas as pd

    df, parts = pod_11.table(), []
    for field, ways in FIELDS.items():
        times = df[ways]
        best = times.min(axis=1)
        second = times.apply(lambda row: row.nsmallest(2).iloc[-1], axis=1)
        parts.append(
            df[["model", "tp", "chunk", "context", "decodes", "seen", "ratio"]].assign(
                field=field, gigabytes=df.kv_bytes / 1e9, winner=times.idxmin(axis=1), margin=100 * (second / best - 1)
            )
        )
    return pd.concat(parts, ignore_index=True)


def counts(df):
    """How often each way is the fastest, in each field."""
    import pandas as pd

    return pd.crosstab(df.winner.map(NAMES), df.field).sort_values(list(FIELDS)[-1], ascending=False)


def draw(df):
    from matplotlib import pyplot as plt

    from pod.show import style

    contexts = sorted(df.context.unique())
    figure, axes = plt.subplots(2, len(contexts), figsize=(11, 6), dpi=style.DPI, layout="constrained", sharex=True,
                                sharey=True)  # fmt: skip
    for row, field in zip(axes, FIELDS, strict=True):
        for ax, context in zip(row, contexts, strict=True):
            _dots(style.tidy(ax), df[(df.field == field) & (df.context == context)])
            if row is axes[0]:
                ax.set_title(f"context {short(context)}", fontsize=10)
        row[0].set_ylabel(f"{field}\n\ndecode's K and V, GB")
    for ax in axes[1]:
        ax.set_xlabel("chunk, tokens")
    handles = {name: handle for ax in axes.flat for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _dots(ax, df) -> None:
    """Within a chunk size, later chunks of the prompt are further to the right."""
    chunks = (512, 1024, 2048)
    x = df.chunk.map(chunks.index) + 0.7 * (df.seen / df.context - 0.5)
    for winner, part in df.groupby("winner"):
        ax.scatter(x[part.index], part.gigabytes, s=6 + 2.5 * part.margin.clip(upper=30), color=TONES[winner],
                   alpha=0.8, linewidths=0, label=NAMES[winner])  # fmt: skip
    ax.set_xticks(range(len(chunks)), [short(n) for n in chunks])
    ax.set(xlim=(-0.5, 2.5), yscale="log")

"""The model of pod/gpusim.py against the clock: five methods on hybrid batches to none of which it was fitted."""

from __future__ import annotations

from pod import paper
from pod.figures import Figure

FIGURE = Figure(
    id="gpu-model",
    source="This repository",
    title="A model of a GPU, calibrated on microbenchmarks, against five methods on batches that it has never seen",
    chapter="09",
    method="pod/gpusim.py, fitted to h200/gpusim-calibrate.csv only; measured: medians, cold L2, shuffled rounds.",
    state="recorded",
    data=("h200/methods-sweep.csv", "h200/gpusim-calibrate.csv"),
)
METHODS = ("serial", "streams", "cta", "warp", "pod")
CLEAR = 1.05  # methods whose times differ by less are no ranking


def table():
    """One row a batch of the filtered sweep and method: milliseconds measured, predicted, and by the naive rule."""
    import pandas as pd

    from pod import gpusim
    from pod.hardware import H200
    from pod.measure.provenance import RECORDED
    from pod.measure.suites.hopper_sweep import KEYS, batch_of

    df = filtered(pd.read_csv(RECORDED / FIGURE.data[0]))
    rows = []
    for case in df.to_dict("records"):
        batch = batch_of(case)
        naive = 1e3 * H200.compute_time(batch.flops)
        for method in METHODS:
            model = 1e3 * gpusim.seconds(batch, H200, method)
            rows.append({k: case[k] for k in KEYS} | {"method": method, "measured": case[method], "model": model,
                                                      "naive": naive})  # fmt: skip
    return pd.DataFrame(rows)


def filtered(df):
    """The paper's filter: both parts take at least a fifth of serial time."""
    share = df[["prefill", "decode"]].min(axis=1) / df[["prefill", "decode"]].sum(axis=1)
    return df[share >= paper.value("pod.f11.share_min") / 100]


def draw(df):
    from pod.show import style

    axes = style.axes(9.5, 4.2, columns=2)
    low, high = df.measured.min() / 1.3, df.measured.max() * 1.3
    for ax, column, title in zip(axes, ("naive", "model"), ("FLOPs / peak rate", "the model"), strict=True):
        ax.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color=style.DIM, label="within 10 %")
        for method, colour in zip(METHODS, style.WORKERS, strict=False):
            mine = df[df.method == method]
            ax.plot(mine.measured, mine[column], ".", color=colour, markersize=3, label=method)
        ax.set(xscale="log", yscale="log", xlim=(low, high), xlabel="measured, ms", title=title)
        ax.set_ylim(low / 3, high)
        ax.set_ylabel("predicted, ms")
    style.legend(axes[1], loc="lower right", markerscale=3)
    return axes[0].figure

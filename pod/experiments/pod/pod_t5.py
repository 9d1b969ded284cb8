"""POD-Attention, Table 5: what users of an arXiv-like load feel, near capacity."""

import pandas as pd
from matplotlib.ticker import LogLocator

from pod.experiments.pod.shared import of
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import LISTED

FIGURE = Figure(
    title="Online latency, arXiv workload",
    says="Table 5: P99 gaps lie within a fifth of the paper's, most waits do not",
    chapter="15",
    method="analytical A100, the artifact's definitions; its own requests, and fitted lengths that arrive like them, "
    "these also with iterations 5 % longer",
    data=("online",),
)
WORKLOAD, CHUNK, LOADS, TABLE = "arxiv", 1024, ("0.85", "0.95"), "t5"
SLOWDOWNS = (1.0, 1.05)  # near capacity a few percent of service time decide the queue
METRICS = ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99", "latency_p50", "latency_p99", "stalls_200ms", "stalls_500ms")
SYSTEMS = {"vLLM": "vllm", "Sarathi": "sarathi", "Sarathi+POD": "pod"}
TITLES = {"ttft_p50": "TTFT P50, s", "ttft_p99": "TTFT P99, s", "tbt_p50": "TBT P50, s", "tbt_p99": "TBT P99, s",
          "latency_p50": "latency P50, s", "latency_p99": "latency P99, s"}  # fmt: skip


def table():
    df = rows(WORKLOAD, CHUNK, LOADS, TABLE)
    listed = [of(LISTED, row.qps, CHUNK, row.system)[row.metric] for row in df.itertuples()]
    return df.assign(ours_listed=listed)


def rows(workload: str, chunk: int, loads, table_key: str):
    """One row a load, system and metric: the paper's value, ours, and ours with slower iterations."""
    out = [(float(load), system, metric, paper.value(f"pod.{table_key}.{load}.{SYSTEMS[system]}.{metric}"),
            *(of(workload, float(load), chunk, system, slowdown=slow)[metric] for slow in SLOWDOWNS))
           for load in loads for system in SYSTEMS for metric in METRICS]  # fmt: skip
    return pd.DataFrame(out, columns=["qps", "system", "metric", "paper", "ours", "ours_slower_5_percent"])


def draw(df):
    return panels(df)


def plain_ticks(axis):
    """Numbers on a logarithmic axis as one says them, as many as fit."""
    low, high = axis.get_view_interval()
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(LogLocator(subs=(2, 5) if high > 10 * low else (2, 3, 5, 7)))
    axis.set_minor_formatter("{x:g}")


def panels(df):
    """Each metric on its own axis: the paper's value as a cross, ours as a bar from nominal to 5 % slower. No
    colour is a scheduler's, as these are in the chapter's other pictures."""
    loads = list(dict.fromkeys(df.qps))
    axes = style.axes(9.5, 4.6, columns=3, rows=2)
    places = {key: i for i, key in enumerate((q, s) for q in loads for s in SYSTEMS)}
    for ax, (metric, title) in zip(axes.T.flat, TITLES.items(), strict=True):
        for row in df[df.metric == metric].itertuples():
            y = places[row.qps, row.system]
            ax.plot([row.ours, row.ours_slower_5_percent], [y, y], color=style.WORKERS[4], linewidth=6,
                    solid_capstyle="butt", label="simulated, up to 5 % slower")  # fmt: skip
            ax.plot(row.ours, y, "o", color=style.WORKERS[3], markersize=6, label="simulated")
            if "ours_listed" in df.columns:
                ax.plot(row.ours_listed, y, "D", color=style.WORKERS[2], markersize=5,
                        label="simulated, the artifact's requests")  # fmt: skip
            ax.plot(row.paper, y, "X", color="black", markersize=7, label="paper")
        ax.set_xscale("log")
        ax.set(yticks=list(places.values()), ylim=(len(places) - 0.5, -0.5))
        ax.set_title(title, fontsize=10)
        ax.set_yticklabels([f"{system}, {qps:g}" if ax in axes[:, 0] else "" for qps, system in places])
        plain_ticks(ax.xaxis)
        ax.tick_params(which="both", labelsize=8.5)
    return style.legend_outside(axes[0, 0], "lower", 4)

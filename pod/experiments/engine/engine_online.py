"""POD's Tables 4 and 5 once more, on one H200 with measured operators, at the paper's fraction of capacity."""

import pandas as pd

from pod.data import read
from pod.experiments.engine import capacity
from pod.experiments.pod import pod_t4, pod_t5
from pod.experiments.pod.pod_t5 import METRICS, SYSTEMS, TITLES, plain_ticks
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import POD, SARATHI, a100_blocks, online_h200, slower

FIGURE = Figure(
    title="Online latency on one H200, at the paper's fraction of capacity",
    says="Simulated, POD is ahead of Sarathi in every number; in the paper it is never behind",
    chapter="15",
    method="operators measured on one H200, calibrated by a real run; 1,024 requests at the same share "
    "of Sarathi's capacity; +-1 %",
    data=("engine-online", "engine-capacity"),
    fitted=True,
)
COMPUTED = "engine-online"
KEYS, READS = ("load", "pool", "system", "slowdown"), ("operators", "engine-runs", "engine-capacity")
REQUESTS = 1024
BAND = (0.99, 1.0, 1.01)  # near capacity a percent of service time is a large part of the queue
CASES = {f"{name} {load}": (t.WORKLOAD, float(load), t.CHUNK, f"pod.{key}.{load}")
         for t, key, name in ((pod_t4, "t4", "internal"), (pod_t5, "t5", "arXiv")) for load in t.LOADS}  # fmt: skip

POOLS = ITS_OWN, AN_A100S = "its own pool", "an A100's"


def rate(case: str, pool: str = ITS_OWN) -> float:
    """Requests per second at which Sarathi is as busy as the paper's."""
    lengths, qps, chunk, _ = CASES[case]
    return qps * capacity.faster(lengths, chunk, blocks(pool) or capacity.OWN)


def blocks(pool: str) -> int | None:
    return a100_blocks() if pool == AN_A100S else None


def cases() -> list[dict]:
    own = [(case, ITS_OWN, system, slow) for case in CASES for system in SYSTEMS for slow in BAND]
    capped = [(case, AN_A100S, system, 1.0) for case in CASES for system in SYSTEMS]
    return [dict(zip(KEYS, row, strict=True)) for row in own + capped]


def measure(case: dict) -> dict[str, float]:
    lengths, _, chunk, _ = CASES[case["load"]]
    runs = online_h200(lengths, rate(case["load"], case["pool"]), chunk, REQUESTS, blocks(case["pool"]))
    return slower(runs[case["system"]], case["slowdown"]).metrics()


# ---------------------------------------------------------------- what it shows


def table():
    """A row a load, system and metric: the paper's value on two A100s, ours on an H200, and ours with iterations 1 %
    shorter and 1 % longer."""
    done = read("engine-online").set_index(list(KEYS))
    rows = [(case, rate(case), system, metric, paper.value(f"{CASES[case][3]}.{SYSTEMS[system]}.{metric}"),
             *(done[metric][case, ITS_OWN, system, slow] for slow in BAND))
            for case in CASES for system in SYSTEMS for metric in METRICS]  # fmt: skip
    return pd.DataFrame(rows, columns=["load", "qps", "system", "metric", "paper", "faster", "ours", "slower"])


def draw(df):
    """Each metric relative to Sarathi's on the same GPU: ours a dot with its 1 % band, the paper's a cross."""
    axes = style.axes(9.5, 5.0, columns=3, rows=2, sharey=True)
    base = df[df.system == "Sarathi"].set_index(["load", "metric"])
    colours = {"vLLM": style.colour("linear"), "Sarathi+POD": style.WORKERS[0]}
    for ax, (metric, title) in zip(axes.T.flat, TITLES.items(), strict=True):
        ax.axvline(1, color=style.WORKERS[1], linewidth=1.5, label="Sarathi")
        for row in df[(df.metric == metric) & df.system.isin(colours)].itertuples():
            y = list(CASES).index(row.load) + (0.18 if row.system == "vLLM" else -0.18)
            colour, sarathi = colours[row.system], base.loc[row.load, metric]
            bands = [row.faster / sarathi.faster, row.slower / sarathi.slower]
            ax.plot(bands, [y, y], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
            ax.plot(row.ours / sarathi.ours, y, "o", color=colour, markersize=6, label=f"{row.system}, H200")
            ax.plot(row.paper / sarathi.paper, y, "x", color=colour, markersize=7, label=f"{row.system}, paper")
        ax.set(xscale="log", yticks=range(len(CASES)), yticklabels=CASES, ylim=(len(CASES) - 0.5, -0.5))
        ax.set_title(title.removesuffix(", s"), fontsize=10)
        plain_ticks(ax.xaxis)
        ax.tick_params(which="both", labelsize=8.5)
    axes[0, 0].figure.supxlabel("relative to Sarathi on the same GPU; all of the H200 is simulated", fontsize=9.5)
    return style.legend_outside(axes[0, 0], "upper", 5)


def capped(metrics=("ttft_p50", "ttft_p99", "tbt_p99")):
    """Sarathi's value over Sarathi+POD's, for the H200's own pool of pages and for one as small as one A100's, each at
    the same share of its own capacity."""
    done = read("engine-online").set_index(list(KEYS))
    rows = {(case, pool): {m: done[m][case, pool, SARATHI, 1.0] / done[m][case, pool, POD, 1.0] for m in metrics}
            for case in CASES for pool in POOLS}  # fmt: skip
    return pd.DataFrame(rows).T


def ratio(metric: str, load: str, system: str = "Sarathi") -> float:
    """A system's value over that of Sarathi+POD."""
    ours = table().set_index(["load", "system", "metric"]).ours
    return float(ours[load, system, metric] / ours[load, "Sarathi+POD", metric])

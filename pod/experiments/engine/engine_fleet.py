"""How many requests a second a GPU serves under a promise: alone, and behind two routers; and if it were slower."""

import pandas as pd

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.capacity import at, search
from pod.simulate.run import Run, Setup
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Requests a second and GPU under a promise, one server and four behind a router",
    chapter="15",
    method="analytical H100, Llama-3-8B, Sarathi with chunks of 512, Azure's chats by Poisson arrivals, 1,200 a "
    "server, and for one alone 150, too; P99 TTFT up to 1 s and P99 TBT up to 50 ms; three seeds",
    data=("engine-fleet",),
)
COMPUTED = "engine-fleet"
KEYS, READS = ("replicas", "router", "each", "slowdown", "seed"), ()
PROMISE = {"ttft_p99": 1.0, "tbt_p99": 0.05}
SEEDS, SLOWDOWNS = (1, 2, 3), (1.0, 1.1)
SHORT, LONG = 150, 1200  # requests a server: a trial that ends before a queue has grown, and one that does not
SYSTEMS = {
    "one server alone, 150 requests": (1, "round-robin", SHORT),
    "one server alone, 1,200 requests": (1, "round-robin", LONG),
    "four, round-robin, 1,200 each": (4, "round-robin", LONG),
    "four, shortest-queue, 1,200 each": (4, "shortest-queue", LONG),
}


def cases() -> list[dict]:
    return [dict(zip(KEYS, (*system, slowdown, seed), strict=True))
            for system in SYSTEMS.values() for slowdown in SLOWDOWNS for seed in SEEDS]  # fmt: skip


def measure(case: dict) -> dict[str, float]:
    """The highest rate that keeps the promise, and what is felt at it."""
    replicas = case["replicas"]
    setup = Setup(gpu="h100", chunk=512, replicas=replicas, router=case["router"], slowdown=case["slowdown"])
    run = Run(setup, Workload("azure-conv", case["each"] * replicas, seed=case["seed"]))
    rate, felt = search(lambda qps: at(run, qps).metrics(), PROMISE)
    return {"qps": rate, "ttft_p99": felt["ttft_p99"], "tbt_p99": felt["tbt_p99"]}


def table() -> pd.DataFrame:
    """A row a system, slowdown and seed: the highest rate of a GPU, and the P99 gap at it."""
    runs = read("engine-fleet")
    names = {system: name for name, system in SYSTEMS.items()}
    system = [names[row.replicas, row.router, row.each] for row in runs.itertuples()]
    return pd.DataFrame({"system": system, "slowdown": runs.slowdown, "seed": runs.seed,
                         "each": runs.qps / runs.replicas, "gap_ms": 1e3 * runs.tbt_p99})  # fmt: skip


def draw(df):
    ax, systems = style.axes(7.5, 3.4), list(SYSTEMS)
    for _, pair in df.groupby(["system", "seed"], sort=False):
        y = systems.index(pair.system.iloc[0])
        ax.plot(pair.sort_values("slowdown", kind="stable").each, [y - 0.15, y + 0.15], color=style.FRAME, linewidth=1)
    for slowdown, colour, words in ((1.0, style.WORKERS[0], "as the model says"),
                                    (1.1, style.WORKERS[2], "iterations 10 % longer")):  # fmt: skip
        mine = df[df.slowdown == slowdown]
        y = mine.system.map(systems.index) + 0.15 * (1 if slowdown > 1 else -1)
        ax.plot(mine.each, y, "o", color=colour, markersize=6, label=words)
    ax.set(yticks=range(len(systems)), ylim=(len(systems) - 0.5, -0.5), xlim=(0, None),
           xlabel="requests a second and GPU, simulated\n(a line joins runs of the same requests)")  # fmt: skip
    ax.set_yticklabels(systems)
    style.legend(ax, loc="lower left")
    return ax.figure


def means() -> pd.DataFrame:
    """Over the seeds: requests a second and GPU, what ten percent cost, and the longest of the P99 gaps."""
    groups = table().groupby(["system", "slowdown"], sort=False)
    wide, longest = groups.each.mean().unstack(), groups.gap_ms.max().unstack()[1.0]
    return wide.assign(less_percent=100 * (1 - wide[1.1] / wide[1.0]), longest_gap_ms=longest)

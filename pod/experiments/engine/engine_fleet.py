"""How many requests a second a GPU serves under a promise: alone, and behind two routers; and if it were slower."""

import pandas as pd

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.capacity import at, search
from pod.simulate.run import Run, Setup
from pod.simulate.workload import Workload

FIGURE = Figure(
    id="engine-fleet",
    title="Requests a second and GPU under a promise, one server and four behind a router",
    chapter="15",
    method="analytical H100, Llama-3-8B, Sarathi with chunks of 512, Azure's chats by Poisson arrivals, 150 a server; "
    "P99 TTFT up to 1 s and P99 TBT up to 50 ms; three seeds",
    data=("engine-fleet",),
)
COMPUTED = "engine-fleet"
KEYS, READS = ("replicas", "router", "slowdown", "seed"), ()
PROMISE = {"ttft_p99": 1.0, "tbt_p99": 0.05}
SEEDS, SLOWDOWNS, EACH, SERVERS = (1, 2, 3), (1.0, 1.1), 150, 4
ALONE = "one server alone"
ROUTERS = ("round-robin", "shortest-queue")
SYSTEMS = {ALONE: (1, ROUTERS[0])} | {f"four, {router}": (SERVERS, router) for router in ROUTERS}


def cases() -> list[dict]:
    return [dict(zip(KEYS, (*system, slowdown, seed), strict=True))
            for system in SYSTEMS.values() for slowdown in SLOWDOWNS for seed in SEEDS]  # fmt: skip


def measure(case: dict) -> dict[str, float]:
    replicas = case["replicas"]
    setup = Setup(gpu="h100", chunk=512, replicas=replicas, router=case["router"], slowdown=case["slowdown"])
    run = Run(setup, Workload("azure-conv", EACH * replicas, seed=case["seed"]))
    rate, felt = search(lambda qps: at(run, qps).metrics(), PROMISE)
    return {"qps": rate, "ttft_p99": felt["ttft_p99"], "tbt_p99": felt["tbt_p99"]}


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a system, slowdown and seed: the highest rate of a GPU."""
    runs = read("engine-fleet")
    names = {system: name for name, system in SYSTEMS.items()}
    system = [names[row.replicas, row.router] for row in runs.itertuples()]
    return pd.DataFrame({"system": system, "slowdown": runs.slowdown, "seed": runs.seed,
                         "each": runs.qps / runs.replicas})  # fmt: skip


def draw(df):
    ax = style.axes(7.5, 2.9)
    for _, pair in df.groupby(["system", "seed"], sort=False):
        y = list(SYSTEMS).index(pair.system.iloc[0])
        ax.plot(pair.sort_values("slowdown", kind="stable").each, [y - 0.15, y + 0.15], color=style.FRAME, linewidth=1)
    for slowdown, colour, words in ((1.0, style.WORKERS[0], "as the cost says"),
                                    (1.1, style.WORKERS[2], "iterations 10 % longer")):  # fmt: skip
        for i, system in enumerate(SYSTEMS):
            mine = df[(df.system == system) & (df.slowdown == slowdown)]
            y = i + 0.15 * (1 if slowdown > 1 else -1)
            ax.plot(mine.each, [y] * len(mine), "o", color=colour, markersize=6, label=words if not i else None)
    ax.set(yticks=range(len(SYSTEMS)), ylim=(len(SYSTEMS) - 0.5, -0.5), xlim=(0, None),
           xlabel="requests a second and GPU; a line joins runs of the same requests")  # fmt: skip
    ax.set_yticklabels(SYSTEMS)
    style.legend(ax, loc="lower left")
    return ax.figure


def means() -> pd.DataFrame:
    """Over the seeds, and what ten percent cost."""
    wide = table().groupby(["system", "slowdown"], sort=False).each.mean().unstack()
    return wide.assign(less_percent=100 * (1 - wide[1.1] / wide[1.0]))

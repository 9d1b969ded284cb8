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
    method="analytical H100, Llama-3-8B, Sarathi with chunks of 512, Azure's chats by Poisson arrivals, 150 a server, "
    "and 1,200 for one alone; P99 TTFT up to 1 s and P99 TBT up to 50 ms; three seeds",
    data=("engine-fleet", "engine-trials"),
)
COMPUTED = "engine-fleet"
KEYS, READS = ("replicas", "router", "slowdown", "seed"), ()
PROMISE = {"ttft_p99": 1.0, "tbt_p99": 0.05}
SEEDS, SLOWDOWNS, EACH, SERVERS = (1, 2, 3), (1.0, 1.1), 150, 4
ROUTERS = ("round-robin", "shortest-queue")
ONE = (1, ROUTERS[0])
SYSTEMS = {"one server alone": ONE} | {f"four, {router}": (SERVERS, router) for router in ROUTERS}


def cases() -> list[dict]:
    return [dict(zip(KEYS, (*system, slowdown, seed), strict=True))
            for system in SYSTEMS.values() for slowdown in SLOWDOWNS for seed in SEEDS]  # fmt: skip


def measure(case: dict) -> dict[str, float]:
    return searched((case["replicas"], case["router"]), case["slowdown"], case["seed"], EACH)


def searched(system: tuple[int, str], slowdown: float, seed: int, each: int) -> dict[str, float]:
    """The highest rate that keeps the promise in a trial of `each` requests a server, and what is felt at it."""
    replicas, router = system
    setup = Setup(gpu="h100", chunk=512, replicas=replicas, router=router, slowdown=slowdown)
    run = Run(setup, Workload("azure-conv", each * replicas, seed=seed))
    rate, felt = search(lambda qps: at(run, qps).metrics(), PROMISE)
    return {"qps": rate, "ttft_p99": felt["ttft_p99"], "tbt_p99": felt["tbt_p99"]}


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a system and length of trial, slowdown and seed: the highest rate of a GPU, and the P99 gap at it."""
    runs = pd.concat([read("engine-fleet").assign(requests=EACH),
                      read("engine-trials").assign(replicas=1, router=ONE[1])])  # fmt: skip
    names = {system: name for name, system in SYSTEMS.items()}
    system = [f"{names[row.replicas, row.router]}, {row.requests:,} requests" + " each" * (row.replicas > 1)
              for row in runs.itertuples()]  # fmt: skip
    df = pd.DataFrame({"system": system, "replicas": runs.replicas, "slowdown": runs.slowdown, "seed": runs.seed,
                       "each": runs.qps / runs.replicas, "gap_ms": 1e3 * runs.tbt_p99})  # fmt: skip
    return df.sort_values("replicas", kind="stable", ignore_index=True)


def draw(df):
    ax, systems = style.axes(7.5, 3.4), list(dict.fromkeys(df.system))
    for _, pair in df.groupby(["system", "seed"], sort=False):
        y = systems.index(pair.system.iloc[0])
        ax.plot(pair.sort_values("slowdown", kind="stable").each, [y - 0.15, y + 0.15], color=style.FRAME, linewidth=1)
    for slowdown, colour, words in ((1.0, style.WORKERS[0], "as the model says"),
                                    (1.1, style.WORKERS[2], "iterations 10 % longer")):  # fmt: skip
        mine = df[df.slowdown == slowdown]
        y = mine.system.map(systems.index) + 0.15 * (1 if slowdown > 1 else -1)
        ax.plot(mine.each, y, "o", color=colour, markersize=6, label=words)
    ax.set(yticks=range(len(systems)), ylim=(len(systems) - 0.5, -0.5), xlim=(0, None),
           xlabel="requests a second and GPU; a line joins runs of the same requests")  # fmt: skip
    ax.set_yticklabels(systems)
    style.legend(ax, loc="lower left")
    return ax.figure


def means() -> pd.DataFrame:
    """Over the seeds: requests a second and GPU, what ten percent cost, and the longest of the P99 gaps."""
    groups = table().groupby(["system", "slowdown"], sort=False)
    wide, longest = groups.each.mean().unstack(), groups.gap_ms.max().unstack()[1.0]
    return wide.assign(less_percent=100 * (1 - wide[1.1] / wide[1.0]), longest_gap_ms=longest)

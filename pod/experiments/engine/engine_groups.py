"""What the bursts of the recorded code service cost groups of 8, 16 and 32 GPUs: a GPU's rate in each.

The clock of the recording runs faster until the rate is met, so a burst has as many requests for every group. All
groups get the same 6,000 requests, four stretches of the recording in one trial; and as many of the recorded lengths
at random moments. Single stretches are tried as well: of these a large group has too few requests to grow a queue.
"""

from dataclasses import replace

import pandas as pd

from pod.data import DATA, read
from pod.experiments.engine.chosen import RATES, STRETCH, TRACES, decisive, edge, felt_in, following, knobs
from pod.experiments.engine.engine_disaggregated import GPUS, ONCE, setup
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.run import Run
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Requests of code a second that an H200 serves in groups of 8, 16 and 32, with recorded bursts",
    chapter="15",
    method="as engine-replayed with chunks at once and 50 ms, one router a group; a recorded burst has as many "
    "requests for every group; lines: 6,000 requests, four recorded stretches in one trial, and three draws of as many "
    "at random moments; pale dots: each stretch of 1,500 requests by itself; rates are tried in engine-replayed's "
    "steps, times the size of the group",
    data=("engine-groups",),
    fitted=True,
)
COMPUTED = "engine-groups"
KEYS, READS = ("gpus", "arrivals", "draw", "qps"), ("operators", "engine-runs", "engine-chosen")
CODE, PROMISE = "azure-code", 50
SIZES = (8, 16, 32)
WHOLE, STRETCHED, RANDOM = "recorded, all", "recorded, one stretch", "at random"
SEEDS = (1, 2, 3)
STEPS = (*RATES[CODE], *range(130, 301, 10))  # requests a second of eight GPUs; a larger group takes multiples


def cases() -> list[dict]:
    kinds = {WHOLE: (0,), STRETCHED: following(CODE), RANDOM: SEEDS}
    return [{"gpus": gpus, "arrivals": arrivals, "draw": draw}
            for gpus in SIZES for arrivals, draws in kinds.items() for draw in draws]  # fmt: skip


def measure(case: dict) -> list[dict]:
    """The rates that decide whether the promise is kept."""
    times = case["gpus"] // GPUS
    on = replace(setup(ONCE, knobs()[CODE, ONCE][PROMISE]), replicas=case["gpus"])
    return decisive(CODE, [PROMISE], lambda qps: felt_in(Run(on, _work(case, qps))), [times * each for each in STEPS])


def _work(case: dict, qps: float) -> Workload:
    """Of one stretch `draw` is its number, at random it is a seed. The stretch that chose the chunk is left out."""
    trace, each, every = str(DATA / "public" / TRACES[CODE]), STRETCH[CODE], following(CODE)
    if case["arrivals"] == STRETCHED:
        return Workload(trace, each, qps, skip=case["draw"] * each)
    if case["arrivals"] == WHOLE:
        return Workload(trace, len(every) * each, qps, skip=every[0] * each)
    return Workload(trace, len(every) * each, qps, seed=case["draw"], arrivals="poisson")


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a size of the group, kind of arrivals and draw: the highest rate that is kept, the group's and a GPU's."""
    runs = read("engine-groups").groupby(["gpus", "arrivals", "draw"], sort=False)
    rows = [(*which, edge(mine, CODE, PROMISE)) for which, mine in runs]
    df = pd.DataFrame(rows, columns=["gpus", "arrivals", "draw", "qps"])
    return df.assign(each=df.qps / df.gpus)


def kept() -> pd.DataFrame:
    """By size of the group: its rate with the recorded arrivals, at random, and what share of that the bursts leave."""
    rates = table().groupby(["gpus", "arrivals"]).qps.mean().unstack()[[WHOLE, RANDOM]]
    return rates.assign(kept_percent=100 * rates[WHOLE] / rates[RANDOM])


def draw(df):
    """A GPU's rate in groups of each size, steady arrivals over recorded ones; at the points the rate of the group."""
    ax, places = style.axes(7.5, 3.3), range(len(SIZES))
    looks = {RANDOM: (style.INK, "--", "6,000 requests at random moments"),
             WHOLE: (style.WORKERS[0], "-", "6,000 requests as recorded")}  # fmt: skip
    for arrivals, (colour, line, words) in looks.items():
        mine = df[df.arrivals == arrivals].groupby("gpus")
        group, each = mine.qps.mean(), mine.each.mean()
        ax.plot(places, each, line, marker="o", color=colour, linewidth=2, markersize=7, label=words)
        for x, whole, one in zip(places, group, each, strict=True):
            ax.annotate(
                f"the group: {whole:.0f}", (x, one), (-6, 8), ha="right", textcoords="offset points", fontsize=9
            )
    some = df[df.arrivals == STRETCHED]
    ax.plot(some.gpus.map(SIZES.index) + 0.08, some.each, ".", color=style.WORKERS[0], alpha=0.5, markersize=7,
            label="one stretch alone, 1,500")  # fmt: skip
    ax.set(xticks=places, xticklabels=SIZES, xlim=(-0.5, len(SIZES) - 0.7), ylim=(0, None), xlabel="GPUs in the group",
           ylabel="requests a second and GPU,\nsimulated")  # fmt: skip
    return style.legend_outside(ax, "lower", 3)

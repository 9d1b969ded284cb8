"""Continuous batching post, Figure 2: a slot that is free is refilled in the next iteration."""

from pod.experiments.orca.orca_01 import cells, grid
from pod.lab.figure import Figure
from pod.simulate.metrics import metrics

FIGURE = Figure(
    title="Iteration-level scheduling: slots refilled at once",
    says="Whoever ends makes room at once: an eighth is wasted, all of it at the end",
    chapter="12",
    method="the same dozen requests through the Orca scheduler; prompts run whole, unlike in the post's picture",
)
SYSTEM = "iteration-level scheduling"


def table():
    """One row a cell in use: slot, iteration, request and what it did there."""
    return cells(SYSTEM)


def draw(df):
    return grid(df, SYSTEM)


def spent(log) -> dict[str, float]:
    """What a run gave, where its minutes went, and which share of the slots that were taken did nothing."""
    idle = sum(len(e.idle) for e in log.iterations)
    taken = idle + sum(len(e.prefills) + len(e.decodes) for e in log.iterations)
    whole, prompts = metrics(log)["minutes"], sum(e.seconds for e in log.iterations if e.prefills) / 60
    return {"requests a minute": len(log.requests) / whole, "minutes": whole, "with prompts": prompts,
            "decodes alone": whole - prompts, "% of taken slots idle": 100 * idle / taken}  # fmt: skip

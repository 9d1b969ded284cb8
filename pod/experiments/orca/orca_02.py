"""Continuous batching post, Figure 2: a slot that is free is refilled in the next iteration."""

from pod.experiments.orca.orca_01 import cells, grid
from pod.lab.figure import Figure

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

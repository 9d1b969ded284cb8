"""Continuous batching post, Figure 1: the slots of a static batch wait for its longest member."""

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show.serving import slot_grid, slot_table, wasted
from pod.simulate.scenarios import SLOTS, slots

FIGURE = Figure(
    title="Static batching: slots that wait for the longest request",
    says="A batch that waits for its slowest member wastes two slots in five",
    chapter="12",
    method="a dozen requests through the static scheduler, four slots, one tick an iteration",
)
SYSTEM = "static batching"


def table():
    """One row a cell in use: slot, iteration, request and what it did there."""
    return cells(SYSTEM)


def cells(system: str):
    return pd.DataFrame(slot_table(slots()[system], SLOTS), columns=["slot", "iteration", "request", "what"])


def draw(df):
    return grid(df, SYSTEM)


def grid(df, system: str):
    log = slots()[system]
    share = 1 - (df.what != "idle").sum() / (SLOTS * len(log.iterations))
    title = f"{system}: {len(log.iterations)} iterations, {100 * share:.0f} % of the slots wasted"
    ticks = max(len(other.iterations) for other in slots().values())
    return slot_grid(log, SLOTS, title, ticks).figure


def idle_percent() -> float:
    """Share of the slots of all iterations in which nothing useful ran."""
    return 100 * wasted(slots()[SYSTEM], SLOTS)

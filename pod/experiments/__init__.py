"""One module a figure or table. Each has FIGURE, table() -> pandas.DataFrame and draw(df) -> matplotlib Figure.

The module of figure "pod-06" is pod/experiments/pod/pod_06.py; adding the file is all it takes to register it. Modules import
pandas and matplotlib inside their functions, so that listing the figures stays instant.
"""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("done", "simulated", "recorded")


@dataclass(frozen=True)
class Figure:
    """What a figure module says about itself.

    state: "done" (computed here, exact), "simulated" (a model's output) or "recorded" (measured on a GPU).
    data: the tables that it reads (pod/data.py): recordings, and those of simulations that it shows.
    composed: only parts were recorded, and the whole was put together: a sum of operators, a sample scaled up.
    fitted: it holds recordings against a model that was fitted to one card, so no other card can be shown by it.
    """

    id: str
    source: str
    title: str
    chapter: str
    method: str
    state: str = "done"
    data: tuple[str, ...] = ()
    composed: bool = False
    fitted: bool = False

    @property
    def evidence(self) -> str:
        """What a value of it is: a recording is measured only as a whole."""
        if self.composed:
            return "simulated"
        return {"done": "exact", "recorded": "measured"}.get(self.state, self.state)

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state of {self.id} is {self.state!r}; allowed: {', '.join(STATES)}")
        if self.state == "recorded" and not self.data:
            raise ValueError(f"{self.id}: a recorded figure names the recordings that it shows")

"""One module a figure or table. Each has FIGURE, table() -> pandas.DataFrame and draw(df) -> matplotlib Figure.

The module of figure "pod-06" is pod/figures/pod_06.py; adding the file is all it takes to register it. Modules import
pandas and matplotlib inside their functions, so that listing the figures stays instant.
"""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("done", "simulated", "recorded")


@dataclass(frozen=True)
class Figure:
    """What a figure module says about itself.

    state: "done" (computed here, exact), "simulated" (a model's output) or "recorded" (measured on a GPU).
    data: the recordings it reads, as paths below data/recorded/, e.g. "h200/lean.csv".
    composed: only parts were recorded, and the whole was put together: a sum of operators, a sample scaled up.
    """

    id: str
    source: str
    title: str
    chapter: str
    method: str
    state: str = "done"
    data: tuple[str, ...] = ()
    composed: bool = False

    @property
    def evidence(self) -> str:
        """What a value of it is: a recording is measured only as a whole."""
        if self.composed:
            return "simulated"
        return {"done": "exact", "recorded": "measured"}.get(self.state, self.state)

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state of {self.id} is {self.state!r}; allowed: {', '.join(STATES)}")
        if (self.state == "recorded") != bool(self.data):
            raise ValueError(f"{self.id}: a recorded figure names its data files, and only a recorded one does")


def recording(name: str):
    """What the suite `name` measured on an H200, data/recorded/h200/<name>.csv."""
    import pandas as pd

    from pod.measure import provenance

    return pd.read_csv(provenance.RECORDED / "h200" / f"{name}.csv")

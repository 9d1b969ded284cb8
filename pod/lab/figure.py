"""A figure or table, as its page declares it."""

from dataclasses import dataclass

from pod.data import COMPUTED, a_card, card, path_of

OURS = "This repository"
FITTED = "H200"  # the card to which the models are fitted
SOURCES = {
    "pod": "POD-Attention",
    "lean": "LeanAttention",
    "sarathi": "SARATHI post",
    "orca": "Continuous batching post",
    "vllm": "PagedAttention post",
    "plus34": "+34 % post",
}
STATES = ("done", "simulated", "recorded")


@dataclass(frozen=True)
class Figure:
    """A figure or table of a source, or of our own.

    state: "done" (computed here, exact), "simulated" (a model's output) or "recorded" (measured on a GPU); the tables
    say it when left out.
    data: the tables that it reads (pod/data.py): recordings, and those of simulations that it shows.
    composed: only parts were recorded, and the whole was put together: a sum of operators, a sample scaled up.
    fitted: it holds recordings against a model that was fitted to one card, so no other card can be shown by it.
    says: the takeaway over its picture, where no chapter puts one there (pod/lab/takeaway.py).
    id: the name of its page, which the registry fills in. "t" before the number means a table. Posts number nothing:
    figures count from their top, and for PagedAttention, whose post draws nothing, each mechanism gets one.
    """

    title: str
    chapter: str
    method: str
    state: str = ""
    data: tuple[str, ...] = ()
    composed: bool = False
    fitted: bool = False
    says: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        computed = all((COMPUTED / f"{name}.csv").is_file() for name in self.data)
        follows = "done" if not self.data else "simulated" if computed else "recorded"
        object.__setattr__(self, "state", self.state or follows)
        if self.state not in STATES:
            raise ValueError(f"state of {self.title!r} is {self.state!r}; allowed: {', '.join(STATES)}")
        if self.state == "recorded" and not self.data:
            raise ValueError(f"{self.title!r}: a recorded figure names the recordings that it shows")

    @property
    def source(self) -> str:
        """pod-06 is "POD-Attention, Figure 6"; ids of no source are this repository's own."""
        prefix, _, number = self.id.partition("-")
        if prefix not in SOURCES or not number.lstrip("t").isdigit():
            return OURS
        kind = "Table" if number.startswith("t") else "Figure"
        return f"{SOURCES[prefix]}, {kind} {int(number.lstrip('t'))}"

    @property
    def evidence(self) -> str:
        """What a value of it is: a recording is measured only as a whole."""
        if self.composed:
            return "simulated"
        return {"done": "exact", "recorded": "measured"}.get(self.state, self.state)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Its tables that are not here. Of a model that was fitted to another card, none is."""
        if self.fitted and card() != FITTED:
            return self.data
        return tuple(name for name in self.data if not path_of(name).is_file())

    @property
    def gpu(self) -> str:
        """The GPU whose recordings it shows, e.g. "H200"."""
        return card() if self.state == "recorded" else ""

    @property
    def badge(self) -> str:
        """The state as the gallery colours and counts it: what was put together is no recording."""
        return "missing" if self.lacks else "simulated" if self.composed else self.state

    @property
    def how(self) -> str:
        return "composed from" if self.composed else "recorded on"

    @property
    def state_text(self) -> str:
        if self.lacks:
            return f"lacks {', '.join(self.lacks)} of {a_card()}"
        return f"{self.how} {self.gpu}" if self.gpu else self.state

    @property
    def line(self) -> str:
        return f"{self.id:<14} {self.state_text:<29} {self.source}: {self.title}"


def short(tokens: int) -> str:
    """16384 -> 16K."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)

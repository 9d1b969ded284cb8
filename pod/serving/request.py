"""A request as the schedulers see it: lengths and progress, no text."""

from dataclasses import dataclass, field
from operator import index


@dataclass(slots=True, eq=False)
class Request:
    """`prompt` tokens in, `output` tokens out.

    The iteration that computes the last prompt token emits the first output token; each further token costs one
    decode, which feeds the newest token back. So a request with `generated` tokens out holds the keys and values of
    all tokens but the newest: computed = prompt + generated - 1.
    """

    id: int
    prompt: int
    output: int
    arrival: float = 0.0
    prefix: tuple = ()  # names of its prompt's blocks, where beginnings may be shared
    computed: int = field(default=0, init=False)  # tokens whose keys and values are in the cache
    generated: int = field(default=0, init=False)
    prefill: int = field(default=0, init=False)  # tokens to compute before the next one comes out

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            value = getattr(self, name)
            try:
                setattr(self, name, index(value))
            except TypeError:
                value = None
            if value is None or value < 1:
                raise ValueError(f"{name} of request {self.id}: got {getattr(self, name)!r}, allowed are integers >= 1")
        if not 0 <= self.arrival < float("inf"):
            raise ValueError(f"arrival of request {self.id}: got {self.arrival!r}, allowed are finite seconds >= 0")
        self.prefill = self.prompt

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prefill

    @property
    def finished(self) -> bool:
        return self.generated >= self.output

    def advance(self, tokens: int) -> None:
        """`tokens` more are in the cache; a token comes out unless part of the prompt is still missing."""
        self.computed += tokens
        if self.computed >= self.prefill:
            self.generated += 1

    def restart(self) -> None:
        """The cache is gone: prompt and output so far become one prompt. What was emitted stays emitted."""
        self.computed = 0
        self.prefill = self.prompt + self.generated


def age(request: Request) -> tuple[float, int]:
    """Sorts the oldest first."""
    return request.arrival, request.id

"""Your turn in chapter "profiling an engine": a loop made into batched calls, and bytes under way."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import torch
from torch.overrides import TorchFunctionMode

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint, Outcome

# ---------------------------------------------------------------- draw together

DRAW = '''
def draw(probabilities, u):
    """The token of each row [rows]: the first up to which the row's probabilities add up to more than its number in
    u. As a tensor, without a loop over rows, and without a wait for the GPU."""
    ...
'''
CALLS, SHOWN = 20, 8  # of torch, where the loop makes five a row; tokens that are told
WAITS = ("item", "tolist", "cpu", "numpy", "__array__", "__dlpack__", "__int__", "__float__", "__bool__", "__index__",
         "__contains__", "equal", "allclose", "is_nonzero", "nonzero", "argwhere", "masked_select", "unique",
         "bincount", "untyped_storage", "storage", "data_ptr")  # fmt: skip


@dataclass(frozen=True)
class Rows:
    rows: int
    vocab: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.vocab} probabilities"

    @cached_property
    def given(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiples of 1/1024, whose sums are exact; some numbers are such a sum."""
        random = torch.Generator().manual_seed(self.rows)
        cuts = torch.randint(0, 1025, (self.rows, self.vocab - 1), generator=random).sort(-1).values
        ends = torch.cat([cuts, torch.full((self.rows, 1), 1024)], -1)
        probabilities = torch.diff(ends, prepend=torch.zeros(self.rows, 1, dtype=ends.dtype)) / 1024
        return probabilities, torch.randint(0, 1024, (self.rows,), generator=random) / 1024

    def tokens(self, rule: Callable) -> list[int]:
        """What a rule makes of each row and its number."""
        return [int(rule(row, x)) for row, x in zip(*self.given, strict=True)]


class Calls(TorchFunctionMode):
    """Counts what Python asks of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.waits = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[func.__name__] += 1
        self.waits += func.__name__ in WAITS or _leaves_the_gpu(func.__name__, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _leaves_the_gpu(name: str, args: tuple, kwargs: dict) -> bool:
    """The other ways to make the host wait: a copy, places of what is true, and a mask for an index."""
    index = args[1] if len(args) > 1 and isinstance(args[1], tuple) else args[1:2]
    masked = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in index)
    places = name == "where" and len(args) + len(kwargs) == 1
    return (
        name == "to" and "cpu" in map(str, (*args[1:], *kwargs.values())) or places or name == "__getitem__" and masked
    )


def first_above(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (row.cumsum(0) <= x).sum()


def run(function: Callable, case: Rows) -> Outcome:
    wanted, tried = case.tokens(first_above), f"{function.__name__} of {case}"
    with Calls() as calls:
        answer = function(*(x.clone() for x in case.given))
    if answer is None:
        return Outcome(tried, wanted)
    got = torch.as_tensor(answer).tolist()
    made, waits = calls.seen.total(), calls.waits
    known = {"case": case, "values": (wanted, got, made, waits, calls.seen)}
    if got != wanted:
        first = _first_other(got, wanted)
        return Outcome(tried, _few(wanted, first), _few(got, first), **known)
    right = made <= CALLS and not waits and isinstance(answer, torch.Tensor)
    said = f"the right tokens, with {made} calls of torch and {waits} waits"
    return Outcome(tried, f"at most {CALLS} calls and no wait, as a tensor", said, right=right, **known)


def _first_other(got, wanted: list[int]) -> int:
    """Where to look: at the first row whose token is another; from the beginning, if it is among the first."""
    pairs = enumerate(zip(got, wanted, strict=False)) if isinstance(got, list) else ()
    first = next((row for row, (mine, right) in pairs if mine != right), 0)
    return first if first >= SHOWN else 0


def _few(tokens, first: int) -> str:
    if not isinstance(tokens, list):
        return f"tokens {tokens}"
    rest = tokens[first:]
    return f"tokens {f'from row {first} on ' if first else ''}{rest[:SHOWN]}{' ...' if len(rest) > SHOWN else ''}"


def _tokens(rule: Callable) -> Callable[[Outcome], bool]:
    return lambda o: o.values[1] == o.case.tokens(rule)


def _one_number(o: Outcome) -> bool:
    x = o.case.given[1][0]
    return o.values[1] == o.case.tokens(lambda row, _: first_above(row, x))


def _down_the_columns(o: Outcome) -> bool:
    probabilities, u = o.case.given
    sums = probabilities.cumsum(0)
    return o.values[1] in ((sums <= u[:, None]).sum(-1).tolist(), (sums > u[:, None]).int().argmax(-1).tolist())


draw = Exercise(
    DRAW,
    [Rows(64, 50), Rows(3, 7), Rows(1, 9)],
    run,
    {
        "greedy": Hint(
            "That is the most probable token of each row, whatever its number is. Then every chat gets the same answer "
            "to the same question.",
            _tokens(lambda row, x: row.argmax()),
        ),
        "down the columns": Hint(
            "The probabilities were added up over the rows, so a chat has its neighbours' in its sum. Along the last "
            "dimension.",
            _down_the_columns,
        ),
        "one number for all": Hint(
            "All rows were compared with the first number. u has one for each: u[:, None].", _one_number
        ),
        "not added up": Hint(
            "Single probabilities were compared with the number. It is their sum up to a token that must be more.",
            _tokens(lambda row, x: (row > x).int().argmax()),
        ),
        "its own dice": Hint(
            "torch.multinomial draws with random numbers of its own. Here they are given, in u, so that a chat can be "
            "repeated.",
            lambda o: o.values[4]["multinomial"] > 0,
        ),
        "a column": Hint(
            "The right tokens, as a column. One number a row is asked for: shape [rows].",
            lambda o: o.values[1] == [[token] for token in o.values[0]],
        ),
        "at the border": Hint(
            "A token was drawn at which the sum just equals the number. It must be more, or a token of probability 0 "
            "is drawn with the number 0.",
            _tokens(lambda row, x: (row.cumsum(0) < x).sum()),
        ),
        "one too far": Hint(
            "One token too far, or one too early: as many sums as are not above the number lie before the token, and "
            "tokens count from 0.",
            lambda o: any(_tokens(lambda row, x, by=by: first_above(row, x) + by)(o) for by in (1, -1)),
        ),
        "a loop": Hint(
            "Right, one row after the other. On a GPU that is a handful of launches for each chat; every operation "
            "here takes all rows at once.",
            lambda o: o.values[1] == o.values[0] and o.values[2] > o.case.rows,
        ),
        "a wait": Hint(
            "Right, but the host asks for a value (.item(), .tolist(), nonzero, ...) and waits until the GPU has it. "
            "Leave the tokens where they are.",
            lambda o: o.values[1] == o.values[0],
        ),
    },
    "With random numbers for u this is a sampler: torch.multinomial does no more.",
    lambda random: Rows(random.randint(2, 40), random.randint(2, 40)),
)

# ---------------------------------------------------------------- bytes under way

LOADS = '''
def loads_under_way(rate, latency, sms, ctas):
    """How many loads of 8 bytes each thread must have under way, at least, so that DRAM with `rate` bytes a second
    and `latency` seconds is never idle. There are `ctas` CTAs of 128 threads on each of `sms` SMs."""
    ...
'''


def _needed(rate: float, latency: float, sms: int, ctas: int) -> Call:
    said = f"rate={rate:g}, latency={latency:g}, sms={sms}, ctas={ctas}"
    return Call(said, (rate, latency, sms, ctas), ceil(rate * latency / (sms * ctas * 128 * 8)))


def _draw_gpu(random) -> Call:
    """Far from whole numbers, so that it does not matter in which order somebody multiplies."""
    sms, ctas, loads = random.randint(50, 160), random.randint(1, 10), random.randint(1, 40) - random.uniform(0.1, 0.9)
    latency = random.randint(300, 900) * 1e-9
    return _needed(loads * sms * ctas * 128 * 8 / latency, latency, sms, ctas)


GPUS = ((2.039e12, 500e-9, 108, 5), (2.039e12, 500e-9, 108, 10), (4.8e12, 500e-9, 132, 5), (4.8e12, 800e-9, 132, 1),
        (2.0**41, 2.0**-21, 128, 4))  # fmt: skip

loads_under_way = Exercise(
    LOADS,
    [_needed(*gpu) for gpu in GPUS],
    call,
    {
        "rounded down": Hint(
            "Half a load more than that would do, but there are no half loads: with so many DRAM is idle at times. "
            "Round up.",
            gives(lambda r, l, s, c: r * l // (s * c * 128 * 8)),
        ),
        "one too many": Hint(
            "2 loads a thread are exactly enough there, and you ask for 3: round up only what is no whole number.",
            gives(lambda r, l, s, c: r * l // (s * c * 128 * 8) + 1),
        ),
        "a warp's loads": Hint(
            "A CTA was taken for four threads, or for one warp. It has 128 threads, which are four warps.",
            gives(lambda r, l, s, c: ceil(r * l / (s * c * 4 * 8)), lambda r, l, s, c: ceil(r * l / (s * c * 32 * 8))),
        ),
        "half a load": Hint(
            "A thread has a load under way or not.",
            gives(lambda r, l, s, c: r * l / (s * c * 128 * 8)),
        ),
        "bytes": Hint(
            "These are bytes a thread. A load brings 8 of them.",
            gives(lambda r, l, s, c: ceil(r * l / (s * c * 128))),
        ),
        "a CTA's loads": Hint(
            "That is for a CTA as a whole. Its 128 threads share it.",
            gives(lambda r, l, s, c: ceil(r * l / (s * c * 8))),
        ),
        "one SM": Hint(
            "All SMs together must have so much under way. They share one DRAM.",
            gives(lambda r, l, s, c: ceil(r * l / (c * 128 * 8))),
        ),
        "one CTA": Hint(
            "All CTAs of an SM help.",
            gives(lambda r, l, s, c: ceil(r * l / (s * 128 * 8))),
        ),
    },
    "Twice the bandwidth at the same latency asks for twice the loads: new GPUs make old kernels slow.",
    _draw_gpu,
)  # fmt: skip

"""Your turn in chapter "SM aware scheduling": the policy behind the tickets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from pod.learn.exercises.functions import fewer, listed, shorter
from pod.learn.judge import Exercise, Hint, Outcome

DEAL = '''
def deal(prefill, decode):
    """What tickets 0, 1, 2 ... ask for, "prefill" or "decode". The lists hold what each CTA costs, as handed out."""
    ...
'''
OPS = ("prefill", "decode")


@dataclass(frozen=True)
class Work:
    said: str
    prefill: tuple[float, ...]
    decode: tuple[float, ...]

    def __str__(self) -> str:
        return self.said

    @property
    def both(self) -> dict[str, tuple[float, ...]]:
        return dict(zip(OPS, (self.prefill, self.decode), strict=True))

    @property
    def step(self) -> float:
        """The largest share of its side that one CTA has: no deal can keep the two closer at all times."""
        return max(max(costs) / sum(costs) for costs in self.both.values() if costs)


def gap(answer: Sequence[str], work: Work) -> tuple[float, int]:
    """How far apart the two sides' shares of work come at most, and after which ticket."""
    dealt = []
    for op, costs in work.both.items():
        share = [0.0, *accumulate(cost / sum(costs) for cost in costs)]
        dealt.append([share[n] for n in accumulate(kind == op for kind in answer)] if costs else None)
    if None in dealt:
        return 0.0, 0
    apart = [abs(p - d) for p, d in zip(*dealt, strict=True)]
    return max(apart), apart.index(max(apart))


def run(function: Callable, work: Work) -> Outcome:
    answer = function(list(work.prefill), list(work.decode))
    tried = f"{function.__name__} with {work.said}"
    if answer is None:
        return Outcome(tried, "an order")
    answer = listed(answer)
    known = {"case": work, "values": (work, answer)}
    if other := [kind for kind in answer if kind not in OPS]:
        return Outcome(tried, " or ".join(OPS), repr(other[0]), **known)
    wanted = {op: len(costs) for op, costs in work.both.items()}
    if (there := {op: answer.count(op) for op in OPS}) != wanted or len(answer) != sum(wanted.values()):
        return Outcome(tried, str(wanted), f"{there}, {len(answer)} tickets in all", **known)
    apart, ticket = gap(answer, work)
    digits = next((n for n in (0, 2, 4, 6) if round(100 * apart, n) != round(100 * work.step, n)), 8)  # tell them apart
    said = f"{100 * apart:.{digits}f} % apart after ticket {ticket}"
    limit = f"shares of work at most {100 * work.step:.{digits}f} % apart"
    return Outcome(tried, limit, said, right=apart <= work.step + 1e-9, **known)


def _ratio(work: Work) -> tuple[str, str, int, int]:
    """Of which there are fewer CTAs, of which more, how many for one, and how many are left over."""
    few, many = sorted(OPS, key=lambda op: len(work.both[op]))
    return few, many, *divmod(len(work.both[many]), len(work.both[few]))


def _dealt_as(o: Outcome, ratio: int) -> bool:
    """Whether so many of one side go with each of the other, as long as both are there."""
    few, many, *_ = _ratio(o.case)
    pairs = len(o.case.both[few])
    return o.values[1][: pairs * (ratio + 1)].count(many) == ratio * pairs


def _turns(o: Outcome) -> bool:
    return _ratio(o.case)[2] > 1 and _dealt_as(o, 1)


def _rounded(o: Outcome) -> bool:
    *_, ratio, left = _ratio(o.case)
    return left > 0 and _dealt_as(o, ratio)


def _by_counts(o: Outcome) -> bool:
    """Whether the shares of the counts are close, where these are not those of the work."""
    if all(len(set(costs)) < 2 for costs in o.case.both.values()):
        return False
    counted = Work("", *((1.0,) * len(costs) for costs in o.case.both.values()))
    return gap(o.values[1], counted)[0] <= 2 * counted.step


_by_counts.everywhere = True


def _rounded_up(o: Outcome) -> bool:
    few, many, ratio, left = _ratio(o.case)
    pairs = len(o.case.both[many]) // (ratio + 1)
    return left > 0 and o.values[1][: pairs * (ratio + 2)].count(many) == pairs * (ratio + 1)


def _by_work(least: Callable[[tuple, int], float]) -> Callable[[Outcome], bool]:
    """Whether the side of which this is less goes next, each time; of work, not of its share."""

    def is_it(o: Outcome) -> bool:
        return any(o.values[1] == _least_first(o.case, least, first) for first in (OPS, OPS[::-1]))

    is_it.everywhere = True  # where all costs are 1 it is what taking turns gives
    return is_it


def _least_first(work: Work, least: Callable[[tuple, int], float], order: Sequence[str]) -> list[str]:
    """`order`: who goes first of two that are equal."""
    dealt, given = dict.fromkeys(OPS, 0), []
    while there := [op for op in order if dealt[op] < len(work.both[op])]:
        given.append(min(there, key=lambda op: least(work.both[op], dealt[op])))
        dealt[given[-1]] += 1
    return given


def _draw(random) -> Work:
    costs = [tuple(float(random.randint(1, 99)) for _ in range(random.randint(0, 20))) for _ in OPS]
    said = f"{len(costs[0])} prefills and {len(costs[1])} decodes of many costs"
    return Work(said, *costs) if any(costs) else _draw(random)


def _smaller(work: Work) -> Iterator[Work]:
    costs = shorter(0, fewer(1.0))
    pairs = [*((p, work.decode) for p in costs(work.prefill)), *((work.prefill, d) for d in costs(work.decode))]
    return (Work(f"prefills that cost {_said(p)}, and decodes that cost {_said(d)}", p, d) for p, d in pairs if p or d)


def _said(costs: tuple[float, ...]) -> str:
    runs = [(cost, len(list(run))) for cost, run in groupby(costs)]
    return ", ".join(f"{n} x {cost:g}" if n > 3 else ", ".join([f"{cost:g}"] * n) for cost, n in runs) or "nothing"


LONG_FIRST = tuple(float(keys) for keys in range(2560, 0, -128))

deal = Exercise(
    DEAL,
    [
        Work("8 prefills and 24 decodes, all of cost 1", (1.0,) * 8, (1.0,) * 24),
        Work("40 prefills and 76 decodes, all of cost 1", (1.0,) * 40, (1.0,) * 76),
        Work("30 prefills and 7 decodes, all of cost 1", (1.0,) * 30, (1.0,) * 7),
        Work("20 prefills that cost 2560 down to 128, and 60 decodes of cost 100", LONG_FIRST, (100.0,) * 60),
        Work("no prefill and 5 decodes", (), (1.0,) * 5),
        Work("3 prefills and no decode", (3.0, 2.0, 1.0), ()),
    ],
    run,
    {
        "other words": Hint(
            'Each ticket asks for "prefill" or for "decode", by these words.', lambda o: " or " in o.expected
        ),
        "not all dealt": Hint(
            "The kernel has a CTA for each piece and each draws one ticket: ask for every prefill and every decode "
            "once.",
            lambda o: "tickets in all" in str(o.got),
        ),
        "one side first": Hint(
            "First all of one side, then all of the other: that is CTAs by index, with tickets.",
            lambda o: sum(a != b for a, b in zip(o.values[1], o.values[1][1:], strict=False)) == 1,
        ),
        "work, not its share": Hint(
            "The side with less work dealt goes next, and one side has more of it than the other in all. Divide by "
            "each side's whole work.",
            _by_work(lambda costs, dealt: sum(costs[:dealt])),
        ),
        "what is left": Hint(
            "The side with more work left goes next, so the larger side comes first, until both have as much. Divide "
            "by each side's whole work.",
            _by_work(lambda costs, dealt: -sum(costs[dealt:])),
        ),
        "in turns": Hint("50:50: they take turns until one side is used up, and the other goes on alone.", _turns),
        "a rounded ratio": Hint(
            "So many of one for each of the other, as a whole number: 76 / 40 is neither 1 nor 2, 30 / 7 neither 4 nor "
            "5, and the rest is left to the end. Do not fix a ratio: ask before every ticket who is less far along.",
            lambda o: _rounded(o) or _rounded_up(o),
        ),
        "counts, not work": Hint(
            "CTAs advance evenly, work does not: a prompt's first CTAs see many keys and cost twenty times the last. "
            "Add up costs instead of CTAs.",
            _by_counts,
        ),
        "an empty side": Hint(
            "One of the lists may be empty, and its sum is 0.",
            lambda o: o.error is not None and not all(o.case.both.values()),
        ),
    },
    "Let prefill run ahead by a fifth, deal a round of CTAs at a time, and it is `proportional` of "
    "pod/schedule/binding.py.",
    _draw,
    _smaller,
)

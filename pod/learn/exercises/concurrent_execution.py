"""Your turn in chapter "concurrent execution": two of the ways to fuse, each on a machine of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pod.learn.exercises.functions import fewer, listed, smaller
from pod.learn.judge import Exercise, Hint, Outcome
from pod.simulate.gpusim import Chip, Cta, InOrder, Kind, Piece, simulate

# ---------------------------------------------------------------- CTAs in an order

GRID = '''
def grid(tiles, sms):
    """The CTAs of one launch in their order, "c" (compute) or "m" (memory), `tiles` of each, for SMs of two slots."""
    ...
'''
SLOTS, ENOUGH = 2, 1.05  # of an SM; times the oracle
# One compute CTA keeps an SM busy. One memory CTA an SM keeps DRAM busy, and a lone one reads twice as fast.
KINDS = (Kind("c", 1, 1.0, 1.0, 1e-9, 0.0, 1.0), Kind("m", 1, 0.01, 0.5, 1.0, 1.0, 2e-6))


@dataclass(frozen=True)
class Shape:
    tiles: int
    sms: int


def launched(kinds: Sequence[str], sms: int) -> float:
    """When the last CTA ends; a tile of either kind is a second's work of one SM, or of its share of DRAM."""
    chip = Chip(sms, dram=float(sms), l2=1e9, miss=1e-6, hit=1e-6)
    ctas = [Cta(i, [Piece("cm".index(kind), 1.0)]) for i, kind in enumerate(kinds)]
    return max(ran.end for ran in simulate(chip, KINDS, InOrder(ctas), SLOTS, 1, 1e-6))


def launch(function: Callable, shape: Shape) -> Outcome:
    answer = function(shape.tiles, shape.sms)
    tried, wanted = f"{function.__name__}(tiles={shape.tiles}, sms={shape.sms})", {"c": shape.tiles, "m": shape.tiles}
    if answer is None:
        return Outcome(tried, "an order")
    known = {"case": shape, "values": (None, answer := listed(answer))}
    if (there := {kind: answer.count(kind) for kind in wanted}) != wanted or len(answer) != 2 * shape.tiles:
        return Outcome(tried, f"CTAs {wanted}", f"{there}, {len(answer)} in all", **known)
    time = launched(answer, shape.sms) * shape.sms / shape.tiles
    first = ", ".join(answer[: 2 * shape.sms : shape.sms])
    said = f"{time:.2f} x the oracle; SM 0 begins with {first}"
    return Outcome(tried, f"at most {ENOUGH} x the oracle", said, right=time <= ENOUGH, **known)


def _draw_shape(random) -> Shape:
    """Full rounds of each kind."""
    sms = random.randint(2, 6)
    return Shape(sms * random.randint(1, 4), sms)


def _answer(o: Outcome) -> list:
    return o.values[1]


def _first_pairs(o: Outcome) -> list[tuple]:
    """What the two slots of each SM begin with."""
    sms = o.case.sms
    return list(zip(_answer(o)[:sms], _answer(o)[sms : 2 * sms], strict=True))


grid = Exercise(
    GRID,
    [Shape(16, 4), Shape(24, 3), Shape(10, 5), Shape(132, 132)],
    launch,
    {
        "not all there": Hint(
            "Every tile needs a CTA: as many of one kind as of the other, `tiles` each, and nothing else.",
            lambda o: isinstance(o.expected, str) and o.expected.startswith("CTAs"),
        ),
        "by index": Hint(
            "All of one kind come first, so they fill both slots of every SM, and when one ends the next of its kind "
            "takes its place.",
            lambda o: len(set(_answer(o)[: o.case.tiles])) == 1,
        ),
        "two rounds of a kind": Hint(
            "The GPU goes round all SMs once, then a second time. Here both rounds bring the same kind: the kind must "
            "change after `sms` CTAs.",
            lambda o: len(set(_answer(o)[: 2 * o.case.sms])) == 1,
        ),
        "alternating": Hint(
            "Neighbours in the grid are neighbours on the GPU: CTA 0 goes to SM 0, CTA 1 to SM 1. The partner of CTA 0 "
            "is not CTA 1 but the one that comes when every SM has one.",
            lambda o: len(set(_answer(o)[:2])) == 2 and _answer(o)[0] == _answer(o)[o.case.sms],
        ),
        "mixed rounds": Hint(
            "Every SM begins with one of each. But all CTAs of a kind end together, and the next ones go to whichever "
            "SM is free first. So they must all be of that kind: a round of `sms` of one, then one of the other.",
            lambda o: all(len(set(pair)) == 2 for pair in _first_pairs(o)),
        ),
        "the second round": Hint(
            "Look at the slots of one SM: they get the CTAs `sms` apart. On some SM these two are of one kind.",
            lambda o: o.got is not None,
        ),
    },
    "It works because all tiles take equally long. Make every third memory tile half again as long, and the rounds "
    "drift apart, to 1.2 x: a grid's order is fixed before anybody knows.",
    _draw_shape,
)

# ---------------------------------------------------------------- steps of one thread

INTERLEAVE = '''
def interleave(multiplications, loads):
    """The steps of one thread: `loads` times "ask" and, later, "use", and so many times "multiply", in a good order."""
    ...
'''
WAIT = 4  # multiplications long, from "ask" until the data are there


@dataclass(frozen=True)
class Loops:
    multiplications: int
    loads: int


class Wrong(Exception):
    """Steps that no thread can make."""


def ran(steps: Sequence[str]) -> int:
    """How long one thread takes. It has room for the data of one load."""
    now, arrives = 0, None
    for step in steps:
        if step == "multiply":
            now += 1
        elif step == "ask" and arrives is None:
            arrives = now + WAIT
        elif step == "use" and arrives is not None:
            now, arrives = max(now, arrives), None
        else:
            there = {"ask": "the data of another load are under way", "use": "nothing was asked for"}
            raise Wrong(f"{step!r}, but {there[step]}")
    return now


def run(function: Callable, loops: Loops) -> Outcome:
    steps = function(loops.multiplications, loops.loads)
    tried = f"{function.__name__}(multiplications={loops.multiplications}, loads={loops.loads})"
    if steps is None:
        return Outcome(tried, "steps")
    known = {"case": loops, "values": (None, steps := listed(steps))}
    wanted = {"multiply": loops.multiplications, "ask": loops.loads, "use": loops.loads}
    if strange := [step for step in steps if step not in wanted]:
        return Outcome(tried, f"steps of {', '.join(wanted)}", f"{strange[0]!r}, but there is no such step", **known)
    if (there := {step: steps.count(step) for step in wanted}) != wanted:
        return Outcome(tried, str(wanted), str(there), **known)
    best = max(loops.multiplications, WAIT * loops.loads)
    try:
        time = ran(steps)
    except Wrong as wrong:
        return Outcome(tried, f"{best} cycles", str(wrong), **known)
    return Outcome(tried, f"{best} cycles", f"{time} cycles", right=time == best, **known)


def _runs(o: Outcome) -> list[int]:
    """How many multiplications stand between each ask and the next use."""
    return [part.partition("use")[0].count("multiply") for part in " ".join(o.values[1]).split("ask")[1:]]


interleave = Exercise(
    INTERLEAVE,
    [Loops(8, 2), Loops(13, 3), Loops(5, 4), Loops(6, 0), Loops(0, 3), Loops(40, 3)],
    run,
    {
        "no loads": Hint(
            "Here are no loads, so there is nothing to share the multiplications among: they remain, all of them.",
            lambda o: o.case.loads == 0,
        ),
        "other words": Hint(
            'There are three steps, "ask", "use" and "multiply", and nothing else.',
            lambda o: "no such step" in str(o.got),
        ),
        "some are missing": Hint(
            "The numbers of steps are off. If the multiplications cannot be shared out evenly, somebody gets one more: "
            "the rest must not be lost.",
            lambda o: "{" in o.expected,
        ),
        "all asked first": Hint(
            "There is room for one load under way, as in the kernel of section 1: use it before you ask for the next.",
            lambda o: "under way" in o.got,
        ),
        "used before asked": Hint(
            "Data must be asked for before they are used.", lambda o: "nothing was asked for" in o.got
        ),
        "in turn": Hint(
            "Nothing is multiplied between an ask and its use, so every wait is waited in full. That is one loop after "
            "the other.",
            lambda o: not any(_runs(o)),
        ),
        "a few at a time": Hint(
            "Some waits are not filled, and some multiplications come when nothing is under way. Share them out: each "
            "load hides its part of all multiplications.",
            lambda o: any(_runs(o)),
        ),
    },
    "So a thread alone overlaps, without a second warp; the price is that somebody must know both loops beforehand.",
    lambda random: Loops(random.randint(0, 30), random.randint(1, 8)),
    smaller(Loops, fewer(0), fewer(0)),
)

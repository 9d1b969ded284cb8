"""Your turn in chapter "attention results": a bound."""

from pod.learn.exercises.functions import Call, call, gives, same
from pod.learn.judge import Exercise, Hint

BOUND = '''
def bound(prefill, decode, flops, rate):
    """Seconds that no kernel can beat for both parts, each (FLOPs, bytes). The GPU: FLOPs and bytes per second."""
    ...
'''

Part = tuple[float, float]


def _alone(part: Part, flops: float, rate: float) -> float:
    return max(part[0] / flops, part[1] / rate)


def _bound(prefill: Part, decode: Part, flops: float, rate: float) -> float:
    return _alone((prefill[0] + decode[0], prefill[1] + decode[1]), flops, rate)


def _case(p: Part, d: Part, flops: float, rate: float) -> Call:
    return Call(
        f"prefill={p}, decode={d}, flops={flops:g}, rate={rate:g}", (p, d, flops, rate), _bound(p, d, flops, rate)
    )


def _draw(random) -> Call:
    parts = ((10 ** random.uniform(9, 12), 10 ** random.uniform(7, 10)) for _ in range(2))
    return _case(*parts, random.uniform(1e14, 2e15), random.uniform(1e12, 8e12))


CASES = (
    ((1e9, 3e9), (1e9, 2e9)),  # both wait for memory
    ((4e11, 3e8), (4e9, 2e9)),  # one for each
    ((9e11, 4e8), (1e9, 1e9)),
    ((4e11, 1e8), (5e11, 2e8)),  # both wait for arithmetic
    ((0.0, 0.0), (2e9, 1e9)),
)
H200 = (989e12, 4.8e12)

bound = Exercise(
    BOUND,
    [_case(p, d, *H200) for p, d in CASES],
    call,
    {
        "one after the other": Hint(
            "This is the time of both parts in turn, the upper edge of the band. A kernel may do them at once.",
            gives(lambda p, d, f, r: _alone(p, f, r) + _alone(d, f, r)),
        ),
        "the longer part": Hint(
            "No kernel beats this, but a higher time can be promised: prefill's bytes come through the same DRAM as "
            "decode's, and decode's FLOPs through the same tensor cores. Add what they share before you take the "
            "longer.",
            gives(lambda p, d, f, r: max(_alone(p, f, r), _alone(d, f, r))),
        ),
        "one resource each": Hint(
            "Prefill's FLOPs beside decode's bytes: most of the work, but each part needs both, and here both may wait "
            "for the same.",
            gives(lambda prefill, decode, flops, rate: max(prefill[0] / flops, decode[1] / rate)),
        ),
        "FLOPs, then bytes": Hint(
            "Arithmetic and memory are different machines and can work at the same time, also within a part: it is the "
            "longer of the two, not the sum.",
            gives(lambda p, d, f, r: (p[0] + d[0]) / f + (p[1] + d[1]) / r),
        ),
        "bytes forgotten": Hint(
            "Right where arithmetic is the limit. Both parts also have bytes to move, and here that takes longer.",
            gives(lambda p, d, f, r: (p[0] + d[0]) / f),
        ),
        "FLOPs forgotten": Hint(
            "Right where memory is the limit. Both parts also have FLOPs, and here these take longer.",
            gives(lambda p, d, f, r: (p[1] + d[1]) / r),
        ),
        "the shorter time": Hint(
            "Both machines must be done: the kernel is no faster than the one that takes longer, and this is the "
            "other one's time.",
            gives(lambda p, d, f, r: min((p[0] + d[0]) / f, (p[1] + d[1]) / r)),
        ),
        "the other's limit": Hint(
            "FLOPs were divided by bytes per second, and bytes by FLOPs per second. A part is (FLOPs, bytes).",
            gives(lambda p, d, f, r: max((p[0] + d[0]) / r, (p[1] + d[1]) / f)),
        ),
        "both times": Hint(
            "The times of both machines. One number is asked for: they work at the same time, so which of them counts?",
            lambda o: same(o.values[1], tuple((p + d) / most for p, d, most in zip(*o.case.arguments[:2],
                                                                                  o.case.arguments[2:], strict=True))),
        ),
        "milliseconds": Hint(
            "Right, but not in seconds.",
            gives(*(lambda *case, x=x: x * _bound(*case) for x in (1e3, 1e6))),
        ),
    },
    "A bound says how much is left to win before anybody has built anything.",
    _draw,
)  # fmt: skip

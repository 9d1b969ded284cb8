"""Your turn in chapter "POD on Hopper": how finely tiles are cut, where each part has a price."""

from collections.abc import Callable, Iterable, Sequence

from pod.learn.exercises.functions import Call, gives
from pod.learn.judge import Exercise, Hint, Outcome
from pod.schedule.waves import makespan

PART_LENGTH = '''
def part_length(tiles, sms, price):
    """A whole number of blocks, as the length for `cut` with which the last SM ends soonest. `tiles` are lengths in
    blocks. SMs draw parts longest first: makespan(parts, sms) is when the last one ends, for parts in that order."""
    ...
'''


def _cut(tile: int, length: int, price: float) -> list[float]:
    parts = -(-tile // length)
    return [tile] if parts == 1 else [tile / parts + price] * parts


def _work(tiles: Sequence[int], length: int, price: float) -> list[float]:
    return sorted((part for tile in tiles for part in _cut(tile, length, price)), reverse=True)


def ends(tiles: Sequence[int], sms: int, price: float, length: int) -> float:
    return makespan(_work(tiles, length, price), sms)


def best(tiles: Sequence[int], sms: int, price: float) -> float:
    return min(ends(tiles, sms, price, length) for length in _lengths(tiles))


def _lengths(tiles: Sequence[int]) -> Iterable[int]:
    return range(1, max(tiles) + 1)


def _least(cost: Callable) -> Callable[[Sequence[int], int, float], int]:
    """A rule: the length at which cost(tiles, sms, price, length) is least, the longest of equals."""
    return lambda tiles, sms, price: min(reversed(_lengths(tiles)), key=lambda n: cost(tiles, sms, price, n))


def _short_of_equals(cost: Callable) -> Callable[[Sequence[int], int, float], int]:
    return lambda tiles, sms, price: min(_lengths(tiles), key=lambda n: cost(tiles, sms, price, n))


def _either(cost: Callable) -> tuple[Callable, Callable]:
    return _least(cost), _short_of_equals(cost)


def _floor(tiles, sms, price, length):
    """No schedule is shorter: the mean of all SMs, and the longest part."""
    work = _work(tiles, length, price)
    return max(sum(work) / sms, work[0])


def _try(function: Callable, case: Call) -> Outcome:
    """What counts is when the last SM ends."""
    tiles, sms, price = case.arguments
    got = function(list(tiles), sms, price)
    tried = f"{getattr(function, '__name__', 'your function')}({case.said})"
    expected = f"a length with which the last SM ends after {case.wanted:g} blocks"
    if got is None or not _is_length(got):
        told = repr(got) if isinstance(got, str) else got
        return Outcome(tried, expected, told, case=case, values=(case.wanted, got))
    end = ends(tiles, sms, price, int(got))
    return Outcome(tried, expected, f"{int(got)}, and it ends after {end:g}", right=end <= case.wanted * (1 + 1e-9),
                   case=case, values=(case.wanted, int(got)))  # fmt: skip


def _is_length(got) -> bool:
    try:
        return int(got) == got and got >= 1
    except (TypeError, ValueError, OverflowError):
        return False


def _case(tiles: Sequence[int], sms: int, price: float) -> Call:
    return Call(f"{list(tiles)}, sms={sms}, price={price:g}", (tuple(tiles), sms, price), best(tiles, sms, price))


def _draw(random) -> Call:
    sms = random.randint(3, 12)
    tiles = [random.randint(6, 60) for _ in range(random.randint(1, 2 * sms))]
    return _case(tiles, sms, random.choice((0.5, 1, 2, 3)))


CASES = (
    ([40, 40, 40, 40, 40], 4, 3), ([64], 8, 2), ([12, 9, 7, 5, 3], 4, 1), ([30, 30], 12, 4), ([8] * 8, 8, 2),
    ([50, 34, 21, 20, 8, 8], 6, 0.5),
)  # fmt: skip

part_length = Exercise(
    PART_LENGTH,
    [_case(*case) for case in CASES],
    _try,
    {
        "the end itself": Hint(
            "That is when the last SM ends. The length of a part is asked for, with which it does.", gives(best)
        ),
        "a broken block": Hint(
            "A block of keys is not cut: the length is a whole number, and at least 1.",
            lambda o: _is_no_length(o) and isinstance(o.values[1], (int, float)),
        ),
        "never cut": Hint(
            "So no tile is cut, and nothing is paid for parts. But where one tile is longer than an SM's share, the "
            "others wait for it.",
            gives(lambda tiles, sms, price: max(tiles)),
        ),
        "as fine as can be": Hint(
            "So all SMs end together, but each of these parts has its price, and together they take longer than the "
            "waiting did.",
            gives(lambda tiles, sms, price: 1),
        ),
        "cutting for nothing": Hint(
            "That would be best if a part cost nothing. Each one costs `price` more, and the shorter the parts, the "
            "more of them there are.",
            gives(*_either(lambda tiles, sms, price, length: ends(tiles, sms, 0, length))),
        ),
        "an even share": Hint(
            "An SM's even share of all blocks is where to begin looking. The price is not in it, nor how well parts "
            "of that length go into whole tiles.",
            gives(lambda tiles, sms, price: -(-sum(tiles) // sms)),
        ),
        "the floor": Hint(
            "No plan ends before its longest part, nor before the mean of all SMs, and here that floor is as low as it "
            "gets. But parts are drawn whole: how long it really takes is what makespan says.",
            gives(*_either(_floor)),
        ),
        "shortest first": Hint(
            "Parts were drawn shortest first, so a long one is left for the end. Sort them before makespan draws them.",
            gives(*_either(lambda t, s, p, n: makespan(_work(t, n, p)[::-1], s))),
        ),
        "as they come": Hint(
            "Parts were drawn in the order of the tiles. A long one that is drawn last leaves the others waiting: sort "
            "them, longest first.",
            gives(*_either(lambda t, s, p, n: makespan([part for tile in t for part in _cut(tile, n, p)], s))),
        ),
    },
    "Our planner tries sixteen lengths and a simpler count than makespan, since it has microseconds for it; and equal "
    "ranges of all tiles, where nothing decodes.",
    _draw,
)


def _is_no_length(o: Outcome) -> bool:
    return o.error is None and not _is_length(o.values[1])

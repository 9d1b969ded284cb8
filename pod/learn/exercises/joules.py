"""Your turn in chapter "joules": the energy of a batch, and the time that it takes at a power limit."""

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

MILLIJOULES = '''
def millijoules(work, prices, awake, limit, least_ms):
    """Milliseconds and millijoules of a batch that is repeated without a rest, as a pair.

    work: by kind, in 10^9. prices: by kind, pJ each. awake, limit: watts, in any case and at most.
    least_ms: the time below which arithmetic and memory do not get, whatever the power."""
    ...
'''


def _parts(work: dict, prices: dict) -> list[float]:
    return [amount * prices[kind] for kind, amount in work.items()]


def _foretold(work, prices, awake, limit, least_ms):
    """10^9 times a pJ is a mJ, and so is a watt times a millisecond."""
    spent = sum(_parts(work, prices))
    ms = max(least_ms, spent / (limit - awake))
    return ms, spent + awake * ms


def _asleep(work, prices, awake, limit, least_ms):
    spent = sum(_parts(work, prices))
    return max(least_ms, spent / limit), spent


def _no_limit(work, prices, awake, limit, least_ms):
    return least_ms, sum(_parts(work, prices)) + awake * least_ms


def _joules(work, prices, awake, limit, least_ms):
    ms, spent = _foretold(work, prices, awake, limit, least_ms)
    return ms, spent / 1000


def _all_for_work(work, prices, awake, limit, least_ms):
    spent = sum(_parts(work, prices))
    ms = max(least_ms, spent / limit)
    return ms, spent + awake * ms


def _longest(work, prices, awake, limit, least_ms):
    ms = max(least_ms, max(_parts(work, prices)) / (limit - awake))
    return ms, sum(_parts(work, prices)) + awake * ms


def _always_at_the_limit(work, prices, awake, limit, least_ms):
    ms = sum(_parts(work, prices)) / (limit - awake)
    return ms, limit * ms


def _at_the_limit_for_longer(work, prices, awake, limit, least_ms):
    ms = max(least_ms, sum(_parts(work, prices)) / (limit - awake))
    return ms, limit * ms


def _after_each_other(work, prices, awake, limit, least_ms):
    spent = sum(_parts(work, prices))
    ms = least_ms + spent / (limit - awake)
    return ms, spent + awake * ms


def _swapped(work, prices, awake, limit, least_ms):
    return _foretold(work, prices, awake, limit, least_ms)[::-1]


def _power_alone(work, prices, awake, limit, least_ms):
    spent = sum(_parts(work, prices))
    return spent / (limit - awake), spent


def _work_alone(work, prices, awake, limit, least_ms):
    return _foretold(work, prices, awake, limit, least_ms)[0], sum(_parts(work, prices))


def _case(work, prices, awake, limit, least_ms) -> Call:
    case = work, prices, awake, limit, least_ms
    return Call(f"{work}, prices, {awake:g}, {limit:g}, {least_ms}", case, _foretold(*case))


def _draw(random) -> Call:
    work = {kind: random.randint(1, 90) / 10 for kind in PRICES if random.random() < 0.7}
    prices = {kind: random.randint(1, 900) / 10 for kind in PRICES}
    return _case(work or {"wide": 100.0}, prices, random.randint(50, 150), random.randint(300, 900), random.random())


PRICES = {"dram": 77.0, "into_sms": 31.0, "wide": 0.8, "narrow": 1.65}
CASES = (
    ({"dram": 2.0, "into_sms": 4.0, "wide": 240.0, "narrow": 16.0}, PRICES, 120.0, 700.0, 0.5),
    ({"dram": 2.0, "into_sms": 2.0, "narrow": 16.0}, PRICES, 120.0, 700.0, 0.625),
    ({"wide": 1000.0}, PRICES, 120.0, 700.0, 1.0),
    ({"dram": 0.5, "wide": 100.0}, PRICES, 75.0, 300.0, 0.25),
    ({"dram": 1.0}, {"dram": 50.0}, 100.0, 1000.0, 2.0),
)

millijoules = Exercise(
    MILLIJOULES,
    [_case(*case) for case in CASES],
    call,
    {
        "asleep": Hint(
            "Only the work was paid for. A GPU that is awake takes its watts all the time, whatever it does.",
            gives(_asleep),
        ),
        "no limit": Hint(
            "Right if power had no limit. In the least time this batch would draw more watts than it may, so it takes "
            "longer.",
            gives(_no_limit),
        ),
        "other units": Hint(
            "10^9 times a pJ is a mJ already, and so is a watt times a millisecond.",
            gives(_joules, lambda *case: (1000 * _foretold(*case)[0], _foretold(*case)[1])),
        ),
        "all for work": Hint(
            "Being awake was paid for, but after the time was found. Of the limit, only what being awake leaves over "
            "is there for work, so the time is longer.",
            gives(_all_for_work),
        ),
        "the longest part": Hint(
            "Time was taken from the dearest kind of work alone, as on a roofline, where the longer part hides the "
            "shorter. Joules hide nothing: all kinds are paid for out of one limit.",
            gives(_longest),
        ),
        "always at the limit": Hint(
            "Here power would allow less time than arithmetic and memory need. They set the time then.",
            gives(_always_at_the_limit),
        ),
        "at the limit for longer": Hint(
            "The time is right. But where arithmetic or memory sets it, the GPU draws less than the limit: add up what "
            "is spent instead.",
            gives(_at_the_limit_for_longer),
        ),
        "after each other": Hint(
            "The batch does not wait for its energy after it has been computed. Both times run together, and the "
            "longer one counts.",
            gives(_after_each_other),
        ),
        "awake for nothing": Hint(
            "The watts of being awake are drawn all the time that the batch takes, and they are joules as well.",
            gives(_work_alone, _power_alone),
        ),
        "a price without work": Hint(
            "A batch need not have work of every kind: go through `work`, not through `prices`.",
            lambda o: isinstance(o.error, KeyError),
        ),
        "swapped": Hint("Both numbers are right, in the other order: first milliseconds.", gives(_swapped)),
    },
    "`Prices` in pod/simulate/joules.py does this with prices that depend on the clock.",
    _draw,
)

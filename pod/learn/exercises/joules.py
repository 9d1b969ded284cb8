"""Your turn in chapter "joules": the energy of a batch, and the time that it takes at a power limit."""

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint
from pod.learn.questions import Question

CHAPTER = "joules"
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
    "millijoules",
    CHAPTER,
    MILLIJOULES.strip("\n"),
    [_case(*case) for case in CASES],
    call,
    [
        Hint(
            "asleep",
            "Only the work was paid for. A GPU that is awake takes its watts all the time, whatever it does.",
            gives(_asleep),
        ),
        Hint(
            "no limit",
            "Right if power had no limit. In the least time this batch would draw more watts than it may, so it takes "
            "longer.",
            gives(_no_limit),
        ),
        Hint(
            "other units",
            "10^9 times a pJ is a mJ already, and so is a watt times a millisecond.",
            gives(_joules, lambda *case: (1000 * _foretold(*case)[0], _foretold(*case)[1])),
        ),
        Hint(
            "all for work",
            "Being awake was paid for, but after the time was found. Of the limit, only what being awake leaves over "
            "is there for work, so the time is longer.",
            gives(_all_for_work),
        ),
        Hint(
            "the longest part",
            "Time was taken from the dearest kind of work alone, as on a roofline, where the longer part hides the "
            "shorter. Joules hide nothing: all kinds are paid for out of one limit.",
            gives(_longest),
        ),
        Hint(
            "always at the limit",
            "Here power would allow less time than arithmetic and memory need. They set the time then.",
            gives(_always_at_the_limit),
        ),
        Hint(
            "at the limit for longer",
            "The time is right. But where arithmetic or memory sets it, the GPU draws less than the limit: add up what "
            "is spent instead.",
            gives(_at_the_limit_for_longer),
        ),
        Hint(
            "after each other",
            "The batch does not wait for its energy after it has been computed. Both times run together, and the "
            "longer one counts.",
            gives(_after_each_other),
        ),
        Hint(
            "awake for nothing",
            "The watts of being awake are drawn all the time that the batch takes, and they are joules as well.",
            gives(_work_alone, _power_alone),
        ),
        Hint(
            "a price without work",
            "A batch need not have work of every kind: go through `work`, not through `prices`.",
            lambda o: isinstance(o.error, KeyError),
        ),
        Hint("swapped", "Both numbers are right, in the other order: first milliseconds.", gives(_swapped)),
    ],
    "`Prices` in pod/simulate/joules.py does this with prices that depend on the clock.",
    _draw,
)

EXERCISES = (millijoules,)

QUESTIONS = {
    "a-byte-from-dram": Question(
        CHAPTER,
        "A TMA copy brings a byte into shared memory. How many times does it cost from DRAM what it costs from L2?",
        {
            "as much": "Both end in the same shared memory, but DRAM's bytes pass through L2 on their way, and more.",
            "about 3 times": "The way from L2 to the SM is in both prices; memory's chips and their wires come on top.",
            "about 30 times": "That would hold if the way from L2 into an SM were nearly free.",
        },
        "about 3 times",
    ),
    "which-numbers": Question(
        CHAPTER,
        "A product of 64 x 128 x 16 is one instruction. Does it matter to its energy *which* numbers it multiplies?",
        {
            "no": "It is the same instruction, and it takes the same cycles. But energy is spent where a wire changes.",
            "by some percent": "Most of the energy is not for issuing it, but for what switches in the multipliers.",
            "several times": "Zeros change no wire, so hardly anything is spent in the multipliers.",
        },
        "several times",
    ),
    "for-products": Question(
        CHAPTER,
        "Of the energy that the fused kernel takes for this batch, what part is for products?",
        {
            "about a third": "Bytes take more: from DRAM once, and from L2 for every tile that reads them.",
            "about a half": "They are what the kernel is for, but bytes cost more here.",
            "nearly all": "There are 260 billion flops. But most cost under a picojoule, and a byte from DRAM a "
            "hundred times that.",
        },
        "about a third",
    ),
    "at-a-lower-clock": Question(
        CHAPTER,
        "The halves in turn run at 1.77 GHz, the fused kernel at 1.40. What does the same work cost at the lower clock "
        "by the model, being awake left out?",
        {
            "more": "It takes longer, but being awake is left out, and nothing else is paid by the second.",
            "as much": "The same wires change as often. But each change costs less, since the voltage is lower.",
            "about a fifth less": "A lower clock needs a lower voltage, and each change of a wire costs less.",
        },
        "about a fifth less",
    ),
    "left-at-the-full-clock": Question(
        CHAPTER,
        "The model says that 83 % of what fusing saves is the lower clock. When both ways run at the full clock, how "
        "much of these joules, of all eleven batches together, does fusing still save?",
        {
            "about a sixth": "So it would be if the model were right about the reason.",
            "more than a half": "So in sum the lower clock is not the main reason, whatever the model says.",
            "all of it": "Then the clock would have nothing to do with it. A repeat on another card is near to that, "
            "with 99 %. Here 59 % are left.",
        },
        "more than a half",
    ),
    "where-joules-cut": Question(
        CHAPTER,
        "Where does the power limit take the most of what the other two roofs allow?",
        {
            "where bytes are the limit": "The tensor cores have little to do there, and DRAM alone does not reach the "
            "limit.",
            "where the two roofs meet": "There both sides are fully at work, and both must be paid for.",
            "where FLOPs are the limit": "It takes much there, too. But DRAM has little to do.",
        },
        "where the two roofs meet",
    ),
    "promotion-in-the-kernel": Question(
        CHAPTER,
        "By the list, a byte of decode's keys and values costs 15 % less with promotion to 128 bytes. What does a "
        "whole batch cost with it, by the meter?",
        {
            "some percent less": "So the list proposes. But it knows one small kernel, which asks for its bytes in "
            "another way.",
            "as much": "DRAM's bytes are a third of the bill, so a change of their price is seen.",
            "some percent more": "The price was found in another kernel. Here two of four batches take 3 and 8 % more.",
        },
        "some percent more",
    ),
    "half-the-bytes": Question(
        CHAPTER,
        "Decode waits for bytes from DRAM, and of 8 bits there are half as many. How much sooner do 64 decodes at 8K "
        "end?",
        {
            "twice as soon": "That is what the bytes say, and the dashed line. But widening takes cycles, and a piece "
            "of work still begins, merges and ends as it did.",
            "most of the way to twice": "Half the bytes come in about half the time. Presumably widening, and the "
            "ends of a piece, take some of it back.",
            "hardly at all": "That would be so if widening were the longer part. Presumably it runs beside the copies, "
            "and they are still longer.",
        },
        "most of the way to twice",
    ),
}

"""Your turn in chapter "serving engine": a step as integers, and the time in which the GPU has nothing to do."""

from collections.abc import Callable, Iterable

from pod.learn.exercises.functions import Call, call, gives, listed
from pod.learn.judge import Exercise, Hint, Outcome

# ---------------------------------------------------------------- one iteration as integers

STEP = '''
def step(parts, tables, block):
    """Two lists: the slots of all new tokens in the cache, and the rows that predict. A part of the batch is (name,
    tokens in the cache before, new tokens, whether one comes out); tables[name] are its blocks of `block` slots."""
    ...
'''


def _step(parts: list, tables: dict, block: int) -> tuple:
    slots, rows = [], []
    for name, before, new, speaks in parts:
        slots += [tables[name][p // block] * block + p % block for p in range(before, before + new)]
        rows += [len(slots) - 1] if speaks else []
    return slots, rows


def _from_start(parts: list, tables: dict, block: int) -> list:
    """The published bug: chunks are written to the start of their request's blocks, decodes where they belong."""
    began = [(name, before if new == 1 else 0, new, speaks) for name, before, new, speaks in parts]
    return _step(began, tables, block)[0]


def _no_table(parts: list, tables: dict, block: int) -> list:
    return [p for _, before, new, _ in parts for p in range(before, before + new)]


BATCHES = (
    ([("A", 0, 4, False), ("B", 0, 3, True), ("C", 5, 1, True)], {"A": [0, 1], "B": [2], "C": [3, 4]}, 4),
    ([("A", 4, 5, False), ("C", 6, 1, True)], {"A": [7, 2, 5], "C": [3, 4]}, 4),
    ([("D", 6, 2, True), ("A", 2, 3, False), ("B", 7, 1, True), ("C", 3, 1, True)],
     {"A": [9, 1, 6], "B": [2, 0, 4, 8], "C": [3, 11], "D": [12, 10, 5, 7]}, 2),
    ([("B", 15, 1, True), ("C", 16, 1, True)], {"B": [3], "C": [1, 0]}, 16),
)  # fmt: skip


def _draw_batch(random) -> Call:
    block, parts, tables, free = random.randint(2, 5), [], {}, random.sample(range(60), 60)
    for name in "ABCDE"[: random.randint(1, 5)]:
        before, new = random.choice(((random.randint(1, 9), 1), (random.randint(0, 9), random.randint(2, 6))))
        parts.append((name, before, new, new == 1 or random.random() < 0.5))
        tables[name] = [free.pop() for _ in range(-(-(before + new) // block))]
    return _batch(parts, tables, block)


def _batch(*batch) -> Call:
    return Call(_said(*batch), batch, _step(*batch))


def _said(parts: list, tables: dict, block: int) -> str:
    return f"{parts}, tables={tables}, block={block}"


def run(function: Callable, case: Call) -> Outcome:
    return call(function, case, _two_lists)


def _two_lists(answer):
    """The answer as lists, unless it is something else."""
    parts = listed(answer) if isinstance(answer, (tuple, list)) else []
    lists = len(parts) == 2 and all(isinstance(x, Iterable) and not isinstance(x, (str, dict)) for x in parts)
    return tuple(listed(x) for x in parts) if lists else answer


def _is_nested(o: Outcome) -> bool:
    """Whether the slots are right, but stand in a list for each part."""
    slots, _ = o.values[1]
    return len(slots) == len(o.case.arguments[0]) and [slot for part in slots for slot in part] == o.values[0][0]


def _moved(by: int) -> Callable:
    """The slots of as many tokens, which begin later by so many."""
    return lambda parts, *rest: _step([(who, before + by, *more) for who, before, *more in parts], *rest)[0]


def _slots(rule: Callable) -> Callable[[Outcome], bool]:
    """Whether the slots are this rule's, which are wrong."""
    return lambda o: o.values[1][0] == rule(*o.case.arguments) != o.values[0][0]


def _rows(rule: Callable) -> Callable[[Outcome], bool]:
    return lambda o: o.values[1][1] == rule(*o.case.arguments) != o.values[0][1]


def _ends(parts: list, *_) -> list:
    """The last row of every part."""
    return [sum(part[2] for part in parts[: i + 1]) - 1 for i in range(len(parts))]


step = Exercise(
    STEP,
    [_batch(*batch) for batch in BATCHES],
    run,
    {
        "no two lists": Hint(
            "Two lists are asked for, as a pair: the slots, and the rows.",
            lambda o: o.error is None and not (isinstance(o.values[1], tuple) and len(o.values[1]) == 2
                                               and all(isinstance(x, list) for x in o.values[1])),
        ),
        "the start of the cache": Hint(
            "New keys were written to the start of the request's blocks, over the old ones. This bug was published, "
            "too: a part begins behind the tokens that are in the cache already.",
            _slots(_from_start),
        ),
        "the whole text": Hint(
            "Slots of all tokens, also of those that are in the cache already. Their keys and values lie there; only "
            "new ones are written.",
            _slots(lambda parts, *rest: _step([(n, 0, b + new, x) for n, b, new, x in parts], *rest)[0]),
        ),
        "no table": Hint(
            "These are positions in the request's own text. Position p is in its block number p // block, and the "
            "table says where that one lies.",
            _slots(_no_table),
        ),
        "numbers of blocks": Hint(
            "These are block numbers plus an offset. A block has `block` slots, so number b begins at slot b * block.",
            _slots(lambda parts, tables, block: [
                tables[name][p // block] + p % block for name, b, n, _ in parts for p in range(b, b + n)
            ]),
        ),
        "a list for each part": Hint(
            "These are the right slots, in a list for each part. All new tokens stand in one list.",
            _is_nested,
        ),
        "a token late": Hint(
            "Off by one token. `before` tokens are in the cache, numbers 0 to before - 1: the first new one is number "
            "`before`.",
            _slots(_moved(1)),
        ),
        "pairs": Hint(
            "A slot is one number: the block's times `block`, plus the offset in it.",
            lambda o: isinstance(o.values[1][0][0], (tuple, list)),
        ),
        "swapped": Hint(
            "Slots first, then rows: here they come the other way round.",
            lambda o: o.values[1] == o.values[0][::-1],
        ),
        "everybody predicts": Hint(
            "A prompt that is not complete predicts nothing yet, so its rows are not needed.",
            _rows(_ends),
        ),
        "the first row": Hint(
            "The row that predicts is the last of its part: only that token has seen all others.",
            _rows(lambda parts, *_: [end - part[2] + 1 for part, end in zip(parts, _ends(parts), strict=True)
                                     if part[3]]),
        ),
        "all of its rows": Hint(
            "These are all rows of the parts that predict. Only the last row of such a part does.",
            _rows(lambda parts, *_: [row for part, end in zip(parts, _ends(parts), strict=True) if part[3]
                                     for row in range(end - part[2] + 1, end + 1)]),
        ),
        "a row of its part": Hint(
            "Rows are counted in the one list of all new tokens, not in each part anew.",
            _rows(lambda parts, *_: [part[2] - 1 for part in parts if part[3]]),
        ),
        "rows from 1 on": Hint(
            "Rows count from 0, so the last of n rows is n - 1.",
            _rows(lambda parts, tables, block: [row + 1 for row in _step(parts, tables, block)[1]]),
        ),
        "places in the text": Hint(
            "These are positions in each request's own text. A row is a place in the list of all new tokens.",
            _rows(lambda parts, *_: [before + new - 1 for _, before, new, speaks in parts if speaks]),
        ),
        "decodes alone": Hint(
            "A prompt that is complete predicts, too: its first token comes out of this iteration.",
            _rows(lambda parts, *_: [end for part, end in zip(parts, _ends(parts), strict=True) if part[2] == 1]),
        ),
        "numbers of parts": Hint(
            "These are places in the list of parts. A part has as many rows as new tokens.",
            _rows(lambda parts, *_: [i for i, part in enumerate(parts) if part[3]]),
        ),
    },
    "With the tokens, their positions and lengths it is all that a model needs to know. `pack` does the same in one "
    "array.",
    _draw_batch,
)  # fmt: skip

# ---------------------------------------------------------------- the host runs ahead

IDLE = '''
def idle(launched, lengths):
    """How long the GPU has nothing to do, from time 0 until its last kernel ends. Kernel i takes lengths[i] and may
    begin from launched[i] on, when the host has launched it; one runs at a time, in order."""
    ...
'''


def _gaps(launched: list, lengths: list) -> list[float]:
    """How long the GPU waits for each kernel."""
    now, gaps = 0.0, []
    for begin, length in zip(launched, lengths, strict=True):
        gaps.append(max(0, begin - now))
        now = max(now, begin) + length
    return gaps


def _idle(launched: list, lengths: list) -> float:
    return sum(_gaps(launched, lengths))


def _queued(launched: list, lengths: list) -> float:
    """How long kernels wait for the GPU, all of them together."""
    now = waited = 0.0
    for begin, length in zip(launched, lengths, strict=True):
        waited += max(0, now - begin)
        now = max(now, begin) + length
    return waited


def _at_launch(launched: list, lengths: list) -> float:
    """Each kernel begins when it is launched, whether the GPU is free or not."""
    ends = [0, *(begin + length for begin, length in zip(launched, lengths, strict=True))]
    return sum(max(0, begin - end) for begin, end in zip(launched, ends, strict=False))


def _signed(launched: list, lengths: list) -> float:
    """Gaps that a kernel leaves when it must wait count as negative ones."""
    ends = [0, *(begin + length for begin, length in zip(launched, lengths, strict=True))]
    return sum(begin - end for begin, end in zip(launched, ends, strict=False))


def _last_end(launched: list, lengths: list) -> float:
    return _idle(launched, lengths) + sum(lengths)


def _host(launched: list, lengths: list) -> Call:
    return Call(f"launched={launched}, lengths={lengths}", (launched, lengths), _idle(launched, lengths))


def _draw_host(random) -> Call:
    count = random.randint(1, 8)
    return _host(sorted(random.randint(0, 40) for _ in range(count)), [random.randint(1, 12) for _ in range(count)])


HOSTS = (
    ([5, 10, 15], [20, 20, 20]),
    ([5, 10, 15, 20], [2, 2, 2, 2]),
    ([4, 6, 8, 30], [10, 10, 1, 5]),
    ([0, 1, 2, 3], [1, 8, 1, 1]),
    ([3, 12, 14, 50, 51], [4, 12, 12, 1, 9]),
)

idle = Exercise(
    IDLE,
    [_host(*host) for host in HOSTS],
    call,
    {
        "host's time": Hint(
            "This is how long the host launches. While the GPU is busy with an earlier kernel, launching costs "
            "nothing.",
            gives(lambda launched, lengths: launched[-1]),
        ),
        "the first launch only": Hint(
            "The GPU waits for the first launch. It may wait again, whenever it is through before the host has "
            "launched the next.",
            gives(lambda launched, lengths: launched[0]),
        ),
        "from the first launch on": Hint(
            "The time before the first launch counts, too: the GPU has nothing to do.",
            gives(lambda launched, lengths: _idle(launched, lengths) - launched[0]),
        ),
        "late by nothing": Hint(
            "Here each kernel begins when it is launched. It may have to wait for the one before, so the GPU is busy "
            "for longer than you say.",
            gives(_at_launch),
        ),
        "between launches": Hint(
            "That is how long the host takes from one launch to the next. The GPU computes meanwhile.",
            gives(lambda launched, lengths: launched[-1] - launched[0]),
        ),
        "waits paid back": Hint(
            "A kernel that was launched early fills no gap of another time: count only the gaps, none of them below 0.",
            gives(_signed, lambda launched, lengths: launched[-1] - sum(lengths[:-1])),
        ),
        "not the waits": Hint(
            "That is when the last kernel ends, or how long the GPU is busy. Asked for is what lies between kernels.",
            gives(_last_end, lambda launched, lengths: sum(lengths)),
        ),
        "the kernels' waits": Hint(
            "That is how long kernels wait for the GPU. Asked for is how long the GPU waits for kernels.",
            gives(_queued),
        ),
        "one gap": Hint(
            "That is the longest gap. There may be several: add them up.",
            gives(lambda launched, lengths: max(_gaps(launched, lengths))),
        ),
        "a share": Hint(
            "That is idle time as a part of all time. Asked for is the time.",
            gives(*(lambda launched, lengths, x=x: x * _idle(launched, lengths) / _last_end(launched, lengths)
                    for x in (1, 100))),
        ),
    },
    "Long kernels hide the host, short ones do not. That is why decodes alone get a CUDA graph.",
    _draw_host,
)  # fmt: skip

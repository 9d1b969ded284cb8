"""Your turn in chapter "continuous batching": who runs in the next iteration, and who gives way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pod.learn.exercises.functions import Call, call, counted, fewer, gives, listed, same, shorter, smaller
from pod.learn.judge import Exercise, Hint, Outcome

# ---------------------------------------------------------------- who runs

SCHEDULE = '''
def schedule(running, waiting, slots, memory):
    """The list of requests in the next iteration. Both lists are oldest first and without those who have ended; each
    request has its .need, the most tokens that it may ever hold. Together they may hold `memory` tokens."""
    ...
'''


@dataclass(frozen=True)
class Request:
    name: str
    need: int

    def __repr__(self) -> str:
        return f"{self.name} (need {self.need})"


@dataclass(frozen=True)
class Day:
    """Requests as (when they come, their need, how many iterations they take), in the order of their coming."""

    requests: tuple[tuple[int, int, int], ...]
    slots: int
    memory: int

    def __str__(self) -> str:
        requests, slots = counted(len(self.requests), "request"), counted(self.slots, "slot")
        return f"{requests}, {slots}, {counted(self.memory, 'token')} of memory"


def broken(answer: Sequence[Request], running: list, waiting: list, day: Day) -> str:
    """The first promise that a batch does not keep; "" when it keeps all."""
    known = [*running, *waiting]
    if not all(r in known for r in answer) or len(set(answer)) < len(answer):
        return "each request once, of those that run or wait"
    joined = [r for r in waiting if r in answer]
    room = day.memory - sum(r.need for r in answer)
    if not set(running) <= set(answer):
        return "who runs goes on"
    if len(answer) > day.slots:
        return f"at most {counted(day.slots, 'request')}"
    if room < 0:
        return f"needs of at most {day.memory} tokens in all"
    if joined != waiting[: len(joined)]:
        return "nobody overtakes the queue"
    left = waiting[len(joined) :]
    if left and len(answer) < day.slots and left[0].need <= room:
        return f"{left[0]} joins: there is a slot, and memory"
    return ""


def serve(function: Callable, day: Day) -> Outcome:
    """One tick an iteration, until all are answered."""
    coming = [(at, Request("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i], need)) for i, (at, need, _) in enumerate(day.requests)]
    left = {r: count for (_, r), (*_, count) in zip(coming, day.requests, strict=True)}
    running, waiting, tick = [], [], 0
    while any(left.values()):
        waiting += [r for at, r in coming if at == tick]
        answer = function(list(running), list(waiting), day.slots, day.memory)
        if answer is None:
            return Outcome(str(day), "a list of requests")
        answer = listed(answer)
        if promise := broken(answer, running, waiting, day):
            tried = f"{day}; iteration {tick}: {running} run, {waiting} wait"
            return Outcome(tried, promise, answer, case=day, values=(running, answer, waiting))
        waiting = [r for r in waiting if r not in answer]
        left |= {r: left[r] - 1 for r in answer}
        running = [r for _, r in coming if r in answer and left[r]]
        tick += 1
    return Outcome(str(day), "all are answered", f"all are answered, in {tick} iterations", right=True, case=day)


def _promised(words: str) -> Callable[[Outcome], bool]:
    return lambda o: words in o.expected


def _draw_day(random) -> Day:
    some = sorted(
        (random.randint(0, 8), random.randint(1, 40), random.randint(1, 6)) for _ in range(random.randint(1, 20))
    )
    return Day(tuple(some), random.randint(1, 6), random.randint(40, 120))


def _simpler_request(request: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    at, need, count = request
    yield from ((at, n, count) for n in fewer(1)(need))
    yield from ((at, need, n) for n in fewer(1)(count))


def _full(o: Outcome) -> bool:
    """Whether who was left out would have filled memory to the last token."""
    left = next(f"{r}" for r in o.values[2] if r not in o.values[1])
    need = next(r.need for r in o.values[2] if f"{r}" == left)
    return "joins" in o.expected and sum(r.need for r in o.values[1]) + need == o.case.memory


_full.everywhere = True


def _slot_left(o: Outcome) -> bool:
    return "joins" in o.expected and len(o.values[1]) == o.case.slots - 1


_slot_left.everywhere = True
DOZEN = (4, 9, 2, 6, 5, 3, 7, 2, 6, 8, 3, 4)

schedule = Exercise(
    SCHEDULE,
    [
        Day(tuple((0, 16, n) for n in DOZEN), 4, 64),
        Day(((0, 30, 3), (0, 30, 2), (1, 50, 2), (1, 10, 4), (5, 10, 1)), 4, 80),
        Day(((0, 5, 1), (3, 5, 2), (3, 5, 1)), 2, 10),
        Day(((0, 40, 4), (0, 70, 2), (0, 10, 2), (0, 10, 2), (0, 10, 3)), 3, 100),
    ],
    serve,
    {
        "somebody is dropped": Hint(
            "Who runs has its keys and values in memory and a user who reads. It stays in the batch until it has "
            "ended; only then is its slot free.",
            _promised("who runs goes on"),
        ),
        "memory forgotten": Hint(
            "A free slot is not enough. Memory for all that a request may ever hold is set aside when it is admitted, "
            "and those who run keep theirs: add up the needs of the whole batch.",
            _promised("needs of"),
        ),
        "too many": Hint("There are only so many slots, and those who run already have theirs.", _promised("at most")),
        "overtaken": Hint(
            "Somebody was taken before the head of the queue. Who came first joins first, and when that one does not "
            "fit, nobody behind it does, or a large request may wait for ever: stop at the first that does not fit.",
            _promised("overtakes"),
        ),
        "the batch stays together": Hint(
            "Nobody joins while anybody runs. That is static batching: the slots of those who ended stay empty until "
            "the longest is done.",
            lambda o: "joins" in o.expected and o.values[0] and set(o.values[0]) == set(o.values[1]),
        ),
        "nobody joins": Hint(
            "Nobody runs, somebody waits, and nobody was taken. So it will be for ever.",
            lambda o: "joins" in o.expected and not o.values[1],
        ),
        "full is not too full": Hint(
            "With that request memory would be full to the last token, and that is allowed.", _full
        ),
        "a slot left": Hint("One slot stays empty, every time: as many as `slots` may run.", _slot_left),
        "strangers": Hint(
            "One list is wanted, of the requests themselves: those that run on, and those that join, each once.",
            _promised("each request once"),
        ),
        "one at a time": Hint(
            "Somebody joined, and there is still a slot and memory for the next. Ask again until the head of the queue "
            "does not fit.",
            _promised("joins"),
        ),
    },
    "These are the promises of Orca. Its scheduler in pod/serving/schedulers/orca.py is four lines.",
    _draw_day,
    smaller(Day, shorter(1, _simpler_request), fewer(1)),  # with less memory somebody might never fit
)

# ---------------------------------------------------------------- who gives way

GIVE_WAY = '''
def give_way(held, wants, free):
    """Who gives way, in that order, as places in the lists. Requests stand oldest first: blocks that each holds, and
    whether it wants one more for its next token. Oldest first they get it; when none is free, the latest gives all."""
    ...
'''


def _give_way(held: list, wants: list, free: int) -> list:
    there, gone, place = list(range(len(held))), [], 0
    while place < len(there):
        request = there[place]
        while wants[request] and not free and request in there:
            gone.append(there.pop())
            free += held[gone[-1]]
        free -= wants[request] and request in there
        place += 1
    return gone


def _oldest(held: list, wants: list, free: int) -> list:
    there, gone = list(range(len(held))), []
    for request in range(len(held)):
        while wants[request] and not free and request in there:
            gone.append(there.pop(0))
            free += held[gone[-1]]
        free -= wants[request] and request in there
    return gone


def _whoever_asks(held: list, wants: list, free: int) -> list:
    gone = []
    for request, wish in enumerate(wants):
        if wish and not free:
            gone.append(request)
            free += held[request]
        else:
            free -= wish
    return gone


def _all_wishes(held: list, wants: list, free: int) -> list:
    """The latest go until there are blocks for all wishes, also for those of who has gone."""
    there, gone = list(range(len(held))), []
    while there and free < sum(wants):
        gone.append(there.pop())
        free += held[gone[-1]]
    return gone


def _never_itself(held: list, wants: list, free: int) -> list:
    """Whoever asks gives way to nobody, and goes without a block."""
    there, gone = list(range(len(held))), []
    for request in range(len(held)):
        while request in there and wants[request] and not free and there[-1] != request:
            gone.append(there.pop())
            free += held[gone[-1]]
        free -= bool(request in there and wants[request] and free)
    return gone


def _never_the_one_who_asks(held: list, wants: list, free: int) -> list:
    """The latest of all others gives way, be it older than who asks."""
    there, gone = list(range(len(held))), []
    for request in range(len(held)):
        while request in there and wants[request] and not free and len(there) > 1:
            gone.append(max(other for other in there if other != request))
            there.remove(gone[-1])
            free += held[gone[-1]]
        free -= bool(request in there and wants[request] and free)
    return gone


def _never_spent(held: list, wants: list, free: int) -> list:
    """Blocks that were made free stay free, whoever gets one."""
    end, gone = len(held), []
    for request in range(len(held)):
        while request < end and wants[request] and not free:
            end -= 1
            gone.append(end)
            free += held[end]
    return gone


def _only_who_want(held: list, wants: list, free: int) -> list:
    there = [request for request, wish in enumerate(wants) if wish]
    gone = _give_way([held[request] for request in there], [True] * len(there), free)
    return [there[place] for place in gone]


def _crowd(held: list, wants: list, free: int) -> Call:
    return Call(f"held={held}, wants={wants}, free={free}", (held, wants, free), _give_way(held, wants, free))


def _draw_crowd(random) -> Call:
    some = range(random.randint(2, 8))
    return _crowd([random.randint(1, 5) for _ in some], [random.random() < 0.7 for _ in some], random.randint(0, 3))


CROWDS = (
    ([1, 1, 2, 5], [False, True, True, True], 0),
    ([3, 3, 2, 2], [True] * 4, 0),
    ([5, 4], [True, False], 1),
    ([2, 2, 6], [True, False, True], 1),
    ([1, 1, 1, 4], [True] * 4, 0),
    ([2, 2, 2, 1], [True] * 4, 2),
    ([4, 1, 3, 2, 1], [False, True, True, False, True], 0),
)

give_way = Exercise(
    GIVE_WAY,
    [_crowd(*crowd) for crowd in CROWDS],
    call,
    {
        "nobody": Hint(
            "Everybody keeps what it has, and nobody gets a block: that is the deadlock.",
            lambda o: len(o.values[1]) == 0,
        ),
        "the oldest": Hint(
            "The oldest gave way. It is the one that must not: it would be dropped again and again, and never end.",
            gives(_oldest),
        ),
        "whoever asks": Hint(
            "Whoever finds no block gave way itself, even the oldest. The latest gives way to it.",
            gives(_whoever_asks),
        ),
        "one block each": Hint(
            "Who gives way gives all of its blocks, as half a cache is as useless as none. Here one block came back "
            "from each.",
            gives(lambda held, wants, free: _give_way([1] * len(held), wants, free)),
        ),
        "only who want": Hint(
            "Somebody was passed over because it wants nothing now. The latest gives way all the same: what it holds "
            "is what others wait for.",
            gives(_only_who_want),
        ),
        "from 1 on": Hint(
            "Places count from 0.",
            gives(lambda *crowd: [place + 1 for place in _give_way(*crowd)]),
        ),
        "all wishes counted": Hint(
            "Blocks were made free for all wishes, also for those of requests that have given way meanwhile. They want "
            "nothing any more.",
            gives(_all_wishes),
        ),
        "never itself": Hint(
            "The latest asked and found no block. Nobody is behind it, so it gives way itself: neither does it stay "
            "without, nor does an older one go for it.",
            gives(_never_itself, _never_the_one_who_asks),
        ),
        "never spent": Hint(
            "Blocks were made free, and given out, but not counted as given: each wish takes one of them.",
            gives(_never_spent),
        ),
        "another order": Hint(
            "These are the right ones. In the order in which they give way the latest comes first.",
            lambda o: sorted(o.values[1]) == sorted(o.values[0]),
        ),
    },
    "`_reserve_slots` in pod/serving/schedulers/base.py is this, and vLLM's rule of 2023.",
    _draw_crowd,
)  # fmt: skip

# ---------------------------------------------------------------- copy on write

ROOM = '''
def room(table, users, length, size):
    """Room for one more token of a sequence: its new table, and the new users of all blocks. `length` tokens lie in the
    blocks of `table`, `size` in each. users[b] counts the tables with block b; 0 is free, and of these the lowest is
    taken. A block that others read, too, is not written: the sequence takes a copy in its place."""
    ...
'''


def _room(table: list, users: list, length: int, size: int) -> tuple:
    table, users = [*table], [*users]
    if length % size == 0:
        table.append(_take(users))
    elif users[table[-1]] > 1:
        users[table[-1]] -= 1
        table[-1] = _take(users)
    return table, users


def _take(users: list) -> int:
    block = users.index(0)
    users[block] = 1
    return block


def _in_place(table: list, users: list, length: int, size: int) -> tuple:
    return _room(table, users, length, size) if length % size == 0 else (table, users)


def _still_counted(table: list, users: list, length: int, size: int) -> tuple:
    new, counts = _room(table, users, length, size)
    return new, [max(a, b) for a, b in zip(users, counts, strict=True)]


def _all_copied(table: list, users: list, length: int, size: int) -> tuple:
    table, users = [*table], [*users]
    for i, block in enumerate(table):
        if users[block] > 1:
            users[block] -= 1
            table[i] = _take(users)
    if length % size == 0:
        table.append(_take(users))
    return table, users


def _full_copied(table: list, users: list, length: int, size: int) -> tuple:
    """The last block is copied when it is shared, also where the token opens another."""
    table, users = [*table], [*users]
    if table and users[table[-1]] > 1:
        users[table[-1]] -= 1
        table[-1] = _take(users)
    if length % size == 0:
        table.append(_take(users))
    return table, users


def _own_copied(table: list, users: list, length: int, size: int) -> tuple:
    if length % size == 0:
        return _room(table, users, length, size)
    table, users = [*table], [*users]
    new = _take(users)
    users[table[-1]] -= 1
    table[-1] = new
    return table, users


def _always_another(table: list, users: list, length: int, size: int) -> tuple:
    users = [*users]
    return [*table, _take(users)], users


def _appended(table: list, users: list, length: int, size: int) -> tuple:
    """The copy comes behind what it is a copy of."""
    alone = length % size and users[table[-1]] == 1
    return (table, users) if alone else _always_another(table, users, length, size)


def _highest(table: list, users: list, length: int, size: int) -> tuple:
    last = max(block for block, count in enumerate(users) if not count)
    new, counts = _room(table, users, length, size)
    first = users.index(0)
    counts[first], counts[last] = counts[last], counts[first]
    return [last if block == first else block for block in new], counts


def _freed(table: list, users: list, length: int, size: int) -> tuple:
    """The block that was copied is nobody's any more."""
    after, counts = _room(table, users, length, size)
    left = {b: 0 for b in table if b not in after}
    return after, [left.get(b, count) for b, count in enumerate(counts)]


def _taken_uncounted(table: list, users: list, length: int, size: int) -> tuple:
    after, counts = _room(table, users, length, size)
    return after, [min(n, before) if not before else n for n, before in zip(counts, users, strict=True)]


def _too_soon(table: list, users: list, length: int, size: int) -> tuple:
    early = length % size == size - 1
    return _always_another(table, users, length, size) if early else _room(table, users, length, size)


def _by_the_next(table: list, users: list, length: int, size: int) -> tuple:
    """As `length` + 1 tokens would have it."""
    return _room(table, users, length + 1, size)


def _fork(table: list, users: list, length: int, size: int) -> Call:
    said = f"table={table}, users={users}, length={length}, size={size}"
    return Call(said, (table, users, length, size), _room(table, users, length, size))


def _draw_fork(random) -> Call:
    count, size = random.randint(1, 4), random.randint(1, 5)
    users = [0, 0, 0, 0, *(random.randint(0, 3) for _ in range(6))]
    random.shuffle(users)
    table = random.sample(range(len(users)), count)
    users = [random.choice((1, 1, 1, 2, 3)) if block in table else n for block, n in enumerate(users)]
    length = size * count - random.randint(0, size - 1)
    return _fork(table, users, length, size) if users.count(0) > count else _draw_fork(random)


FORKS = (
    ([0, 1], [2, 2, 0, 0, 0], 6, 4),
    ([0, 1], [2, 2, 0, 0, 0, 0], 8, 4),
    ([0, 3], [3, 1, 0, 1, 0], 6, 4),
    ([2, 4], [1, 0, 2, 1, 3, 0, 0], 5, 4),
    ([], [1, 0, 0], 0, 4),
    ([1], [0, 1, 0], 2, 2),
    ([1], [0, 1, 0], 1, 2),
    ([2, 0], [1, 0, 1, 0], 3, 2),
)

room = Exercise(
    ROOM,
    [_fork(*fork) for fork in FORKS],
    call,
    {
        "written in place": Hint(
            "The last block is read by others as well. Written there, the token would stand in their texts: it needs a "
            "copy.",
            gives(_in_place),
        ),
        "still counted": Hint(
            "The sequence has a copy now, but the old block still counts it. It would never be free again.",
            gives(_still_counted),
        ),
        "nobody's any more": Hint(
            "The old block counts nobody now, and others still read it: it would be taken and overwritten. It has one"
            " user less.",
            gives(_freed),
        ),
        "taken uncounted": Hint(
            "A free block was taken, and still counts nobody: the next sequence would take it as well.",
            gives(_taken_uncounted),
        ),
        "a token too soon": Hint(
            "Off by one token: `length` are there already, and the new one is number `length`, counted from 0. It "
            "opens a block where length % size is 0.",
            gives(_too_soon, _by_the_next),
        ),
        "the table alone": Hint(
            "The table is right. Two lists are asked for: it, and the new users of all blocks.",
            lambda o: same(o.values[1], o.values[0][0]),
        ),
        "users, then table": Hint("The new table first, then the users.", gives(lambda *fork: _room(*fork)[::-1])),
        "everything copied": Hint(
            "All shared blocks were copied. Only the last one is written; the others may be shared for ever.",
            gives(_all_copied),
        ),
        "a full block copied": Hint(
            "A full block was copied, though nobody will write into it: the token opens a block of its own.",
            gives(_full_copied),
        ),
        "its own block copied": Hint("A block that nobody else holds may be written where it is.", gives(_own_copied)),
        "the copy behind": Hint(
            "The copy stands behind the shared block. It takes its place, and the old block has one user less.",
            gives(_appended),
        ),
        "a block for each token": Hint(
            "Every token got a block of its own. There is room in the last one, unless `length` fills all blocks.",
            gives(_always_another),
        ),
        "the highest": Hint(
            "Of the free blocks the lowest is taken. (Any would do; but then the judge could not tell.)",
            gives(_highest),
        ),
    },
    "`SharingPool.grow` in pod/serving/groups.py is this. The first versions of vLLM did it the same way.",
    _draw_fork,
)

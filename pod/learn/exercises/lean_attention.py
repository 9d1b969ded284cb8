"""Your turn in chapter "LeanAttention": the line of its Algorithm 2 that is wrong as printed, and when a cut pays."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pod.learn.exercises.functions import Call, call, counted, fewer, gives, is_whole, same, smaller
from pod.learn.judge import Exercise, Hint, Outcome
from pod.learn.questions import Question
from pod.reference import State
from pod.schedule import algorithm2
from pod.schedule.decode import equal_cuts

CHAPTER = "lean_attention"
LAST_CTA = '''
def last_cta(end, tiles, cuts):
    """Line 26, mended: the CTA with the last tile of a head that ends at `end` on the line. CTA i ends at cuts[i]."""
    ...
'''
TILE, WIDTH = 8, 4


@dataclass(frozen=True)
class Heads:
    """So many equally long heads on the line, shared out among CTAs."""

    heads: int
    tiles: int
    ctas: int

    def __str__(self) -> str:
        return f"{counted(self.heads, 'head')} of {counted(self.tiles, 'tile')}, cuts {self.cuts.tolist()}"

    @property
    def cuts(self) -> np.ndarray:
        return equal_cuts(np.full(self.heads, self.tiles), self.ctas)

    def wrong(self, rule: Callable) -> list[int]:
        """What a rule says of each head."""
        return [rule(self.tiles * (head + 1), self.tiles, self.cuts) for head in range(self.heads)]


def run(function: Callable, case: Heads) -> Outcome:
    ends = [case.tiles * (head + 1) for head in range(case.heads)]
    said = [function(end, case.tiles, case.cuts.copy()) for end in ends]
    tried = f"{case}"
    if not any(x is not None for x in said):
        return Outcome(tried, "a CTA")
    wanted = [algorithm2.last(end, case.tiles, case.cuts) for end in ends]
    told, known = f"last CTA of each head {list(map(int, wanted))}", {"case": case, "values": (wanted, said)}
    if same(tuple(said), tuple(wanted)):
        return Outcome(tried, told, told, right=True, **known)
    if None in said:
        return Outcome(tried, told, f"{said}", **known)
    if strange := [x for x in said if not is_whole(x)]:
        return Outcome(tried, told, f"{strange[0]!r}, which is no CTA's number", **known)
    known["values"] = (wanted, said := list(map(int, said)))
    off = _error(case, dict(zip(ends, said, strict=True)))
    return Outcome(tried, told, f"last CTA of each head {said}; {off}", **known)


def _error(case: Heads, said: dict[int, int]) -> str:
    """What Algorithm 2 makes of it."""
    random = np.random.default_rng(case.ctas)
    keys = TILE * case.tiles
    heads = [(random.normal(0, 2, (1, keys)), random.normal(size=(keys, WIDTH))) for _ in range(case.heads)]
    try:
        got = algorithm2.run(heads, TILE, case.ctas, lambda end, tiles, cuts: said[end])
    except KeyError as error:
        return f"the host waits for a part that CTA {error} never leaves"
    truth = [State.of(*head).finish()[0] for head in heads]
    return f"the output is off by {max(np.abs(a - b).max() for a, b in zip(got, truth, strict=True)):.2f}"


def _says(*rules: Callable) -> Callable[[Outcome], bool]:
    def is_it(o: Outcome) -> bool:
        return any(o.values[1] == o.case.wrong(rule) for rule in rules)

    is_it.everywhere = True
    return is_it


def _draw(random) -> Heads:
    return Heads(random.randint(1, 6), random.randint(1, 12), random.randint(1, 20))


last_cta = Exercise(
    "last_cta",
    CHAPTER,
    LAST_CTA.strip("\n"),
    [Heads(2, 5, 5), Heads(3, 5, 5), Heads(3, 7, 5), Heads(1, 9, 4), Heads(6, 2, 3), Heads(4, 11, 13), Heads(2, 3, 9)],
    run,
    [
        Hint(
            "as printed",
            "This is the printed line: it divides by the tiles of a head, so it counts heads. A CTA's tiles are not a "
            "head's.",
            _says(algorithm2.printed_last),
        ),
        Hint(
            "one head back",
            "This counts heads as well, from 0. The CTA is found where the ranges end, in `cuts`.",
            _says(lambda end, tiles, cuts: end // tiles - 1),
        ),
        Hint(
            "equally long ranges",
            "Ranges of one length, you say. Tiles that cannot be shared out evenly make some longer by one: look into "
            "`cuts` instead of dividing.",
            lambda o: _says(*_DIVIDING)(o),
        ),
        Hint(
            "the one after",
            "The last tile of the head is end - 1. Where a range ends exactly at `end`, that range holds it, and the "
            "next CTA has nothing of this head.",
            _says(
                lambda end, tiles, cuts: int(np.searchsorted(cuts, end, side="right")),
                lambda end, tiles, cuts: int((cuts > end).argmax()),
            ),
        ),
        Hint(
            "a tile too early",
            "CTA i has tiles up to number cuts[i] - 1. Where a range ends at end - 1, the head's last tile, which is "
            "number end - 1, is the first of the next range.",
            _says(lambda end, tiles, cuts: int(np.searchsorted(cuts, end - 1))),
        ),
        Hint(
            "the cut itself",
            "That is where a range ends, a number of tiles. Which CTA's range is it?",
            _says(lambda end, tiles, cuts: int(cuts[np.searchsorted(cuts, end)])),
        ),
        Hint(
            "no CTA's number",
            "One CTA is asked for, by its number: a whole one, from 0 on.",
            lambda o: "no CTA's number" in o.got,
        ),
        Hint(
            "the one before",
            "This is the last CTA whose range is over by then. Most heads end inside a range: look for the first "
            "that ends at `end` or after it.",
            _says(lambda end, tiles, cuts: max(0, int(np.searchsorted(cuts, end, side="right")) - 1)),
        ),
        Hint(
            "the last of all",
            "That is the last CTA of the whole line. It is right for the last head only.",
            _says(lambda end, tiles, cuts: len(cuts) - 1),
        ),
        Hint(
            "the first",
            "That is the CTA with the first tile of the head. Its last tile is number end - 1 of the line.",
            _says(lambda end, tiles, cuts: int(np.searchsorted(cuts, end - tiles, side="right"))),
        ),
        Hint(
            "one too far",
            "One too far for every head: CTAs count from 0, and CTA i ends at cuts[i].",
            _says(lambda end, tiles, cuts: int(np.searchsorted(cuts, end)) + 1),
        ),
        Hint(
            "nobody",
            "For one head no CTA was found. The last head ends where the last range ends: that CTA has its last tile.",
            lambda o: None in o.values[1],
        ),
        Hint(
            "no cut there",
            "A head need not end where a range ends. Look for the first cut that is not before it.",
            lambda o: isinstance(o.error, ValueError),
        ),
    ],
    "One line, and no crash told anybody: only a head that more than two CTAs share, and a reference, would.",
    _draw,
    smaller(Heads, fewer(1), fewer(1), fewer(1)),
)

_DIVIDING = (
    lambda end, tiles, cuts: int((end - 1) // cuts[0]),
    lambda end, tiles, cuts: int((end - 1) // -(-cuts[-1] // len(cuts))),
    lambda end, tiles, cuts: int((end - 1) // max(1, cuts[-1] // len(cuts))),
    lambda end, tiles, cuts: int((end - 1) * len(cuts) // cuts[-1]),
)  # fmt: skip

# ---------------------------------------------------------------- when a cut pays

GAIN = '''
def gain(units, tiles, workers, tile, merge):
    """How many times as fast equal ranges are as whole units. `units` heads of `tiles` tiles each, 2 or more, are for
    `workers` to share; a tile takes `tile` µs. Where a unit was cut, `merge` µs come on top, once, at the end."""
    ...
'''


def _whole(units: int, tiles: int, workers: int, tile: float, merge: float = 0) -> float:
    """Microseconds of units in waves."""
    return -(-units // workers) * tiles * tile


def _equal(units: int, tiles: int, workers: int, tile: float, merge: float) -> float:
    """Microseconds of equal ranges. Unless each of them has whole units, a unit of two tiles or more is cut."""
    return -(-units * tiles // workers) * tile + merge * (units % workers > 0)


def _gain(*batch) -> float:
    return _whole(*batch) / _equal(*batch)


def _with_waves(count: Callable) -> Callable:
    """The rule with another number of waves of whole units."""
    return lambda units, tiles, workers, tile, merge: (
        count(units, workers) * tiles * tile / _equal(units, tiles, workers, tile, merge)
    )


def _with_merging(due: Callable) -> Callable:
    """The rule with another number of merges that are waited for."""
    return lambda units, tiles, workers, tile, merge: (
        _whole(units, tiles, workers, tile)
        / (_equal(units, tiles, workers, tile, 0) + merge * due(units, tiles, workers))
    )


def _with_ranges(longest: Callable) -> Callable:
    """The rule with another number of tiles in the longest range."""
    return lambda units, tiles, workers, tile, merge: (
        _whole(units, tiles, workers, tile) / (longest(units, tiles, workers) * tile + merge * (units % workers > 0))
    )


def _batch(*batch) -> Call:
    names = ("units", "tiles", "workers", "tile", "merge")
    return Call(", ".join(f"{name}={x:g}" for name, x in zip(names, batch, strict=True)), batch, _gain(*batch))


def _draw_batch(random) -> Call:
    units, tiles = random.randint(1, 600), random.randint(2, 500)
    return _batch(
        units, tiles, random.choice((8, 108, 132, 264)), random.choice((0.25, 0.5, 1)), random.choice((2, 5, 8))
    )


BATCHES = (
    *((288, 256, 264, 1, 0), (128, 400, 132, 0.5, 5), (128, 16, 132, 0.5, 5), (264, 64, 264, 0.5, 5)),
    *((8, 4096, 132, 0.5, 5), (500, 40, 264, 0.5, 5), (132, 256, 264, 0.5, 5), (9, 5, 8, 1, 2)),
)

gain = Exercise(
    "gain",
    CHAPTER,
    GAIN.strip("\n"),
    [_batch(*batch) for batch in BATCHES],
    call,
    [
        Hint(
            "upside down",
            "This is the time of equal ranges over that of whole units. A gain is above 1 where ranges end first.",
            gives(lambda *batch: 1 / _gain(*batch)),
        ),
        Hint(
            "percent, or a difference",
            "How many times as fast is asked for: 1 where both take equally long, 2 where equal ranges take half.",
            gives(lambda *batch: _gain(*batch) - 1, lambda *batch: 100 * (_gain(*batch) - 1),
                  lambda *batch: _whole(*batch) - _equal(*batch)),
        ),
        Hint(
            "never below 1",
            "Where a merge costs more than a cut saves, equal ranges are slower: below 1. Do not hide that.",
            gives(lambda *batch: max(1, _gain(*batch))),
        ),
        Hint(
            "one wave",
            "All units at once, you say. Those for which no worker is left begin when the first have ended.",
            gives(_with_waves(lambda units, workers: 1)),
        ),
        Hint(
            "part of a wave",
            "The units are shared out here as if they could be cut. Whole, a last wave of one unit takes as long as a "
            "full one.",
            gives(_with_waves(lambda units, workers: units / workers),
                  _with_waves(lambda units, workers: max(1, units / workers))),
        ),
        Hint(
            "a wave too few",
            "Units that do not fill a wave still take one: the number of waves is rounded up.",
            gives(_with_waves(lambda units, workers: units // workers),
                  _with_waves(lambda units, workers: max(1, units // workers))),
        ),
        Hint(
            "a wave too many",
            "Units that fill their waves exactly need no further one.",
            gives(_with_waves(lambda units, workers: units // workers + 1)),
        ),
        Hint(
            "part of a tile",
            "A tile is never cut. The busiest worker has its share of all tiles, rounded up.",
            gives(_with_ranges(lambda units, tiles, workers: units * tiles / workers),
                  _with_ranges(lambda units, tiles, workers: units * tiles // workers)),
        ),
        Hint(
            "each unit by itself",
            "Here each unit is cut into equal parts, as a fixed split does it. Equal ranges are cut on the line of all "
            "tiles, wherever units begin.",
            gives(_with_ranges(lambda units, tiles, workers: -(-tiles // max(1, workers // units))),
                  _with_ranges(lambda units, tiles, workers: -(-units // workers) * -(-tiles // workers))),
        ),
        Hint(
            "a merge of nothing",
            "Where the units fill their waves exactly, every range has whole units, and nothing is merged.",
            gives(_with_merging(lambda units, tiles, workers: 1)),
        ),
        Hint(
            "only a few units",
            "Here a merge is due only for fewer units than workers. With more of them, too, ranges cut units, unless "
            "each range has whole ones.",
            gives(_with_merging(lambda units, tiles, workers: units < workers)),
        ),
        Hint(
            "only many units",
            "Here a merge is due only for more units than workers. With fewer of them, too, ranges cut units.",
            gives(_with_merging(lambda units, tiles, workers: units > workers)),
        ),
        Hint(
            "only where tiles are left over",
            "Ranges of equally many tiles can still end inside of a unit. A unit is cut unless every worker gets whole "
            "ones.",
            gives(_with_merging(lambda units, tiles, workers: units * tiles % workers > 0)),
        ),
        Hint(
            "merging for nothing",
            "Nothing is paid for merging here, so a cut pays always. That is the bound of section 7; now `merge` is "
            "due where a unit was cut.",
            gives(_with_merging(lambda units, tiles, workers: 0)),
        ),
        Hint(
            "one merge after the other",
            "Cut units are merged at the same time, each by another worker: `merge` is due once.",
            gives(_with_merging(lambda units, tiles, workers: units * (units % workers > 0)),
                  _with_merging(lambda units, tiles, workers: workers * (units % workers > 0))),
        ),
        Hint(
            "merging in tiles",
            "`merge` is in microseconds already: it takes as long whatever a tile takes.",
            gives(lambda units, tiles, workers, tile, merge: _gain(units, tiles, workers, 1, merge)),
        ),
    ],
    "Beyond a full wave it stays below 2, and where a merge costs more than it saves it falls below 1. "
    "choose.cheapest_parts weighs fixed splits as well.",
    _draw_batch,
)  # fmt: skip

EXERCISES = (last_cta, gain)

QUESTIONS = {
    "two-heads-on-five": Question(
        CHAPTER,
        "Two heads of five tiles, five SMs. How many tile times does it take if a head is never cut "
        "(FlashAttention-2), if every head is cut into two parts (FlashDecoding's *fixed split*), and at best?",
        {
            "5, 3 and 2": "Five tiles in a row are 5, parts of 3 and 2 are 3, and ten tiles for five SMs are 2.",
            "5, 2.5 and 2": "A tile is not cut: half of five tiles is 3 and 2.",
            "10, 5 and 2": "The two heads are computed at the same time.",
        },
        "5, 3 and 2",
    ),
    "three-heads-on-five": Question(
        CHAPTER,
        "Five SMs, three heads of five tiles. The best that is possible is 3 tile times. How many parts of each "
        "head get there?",
        {
            "2": "Six parts for five SMs: the sixth waits for a free one, 4 tile times.",
            "3": "Nine parts, six of them of two tiles: 4 tile times.",
            "5": "These are 15 parts of one tile, three waves of five.",
        },
        "5",
    ),
    "48-heads-6-chats": Question(
        CHAPTER,
        "48 heads and a batch of 6: 288 units for 264 slots. How many parts by either rule?",
        {
            "1 by both": "The units fill the first wave, so neither cuts. The second has 24 CTAs and, by the count of "
            "tiles, costs as much. (On a GPU they have an SM each and run faster: section 6.)",
            "2 by both": "They only cut when the units fill less than 80 % of the slots.",
            "1 by the old, 2 by today's": "Today's counts two slots an SM; 288 fill those, too.",
        },
        "1 by both",
    ),
    "line-26": Question(
        CHAPTER,
        "In section 1's example of two heads on five SMs, head 0 ends at tile 5 and has 5 tiles, and each SM has two. "
        "What does line 26 give, and which SM has the last tile?",
        {
            "1, and SM 1": "SM 1 has tiles 2 and 3.",
            "1, and SM 2": "5 / 5 is 1; tile 4, the fifth, is in SM 2's range of 4 and 5.",
            "2, and SM 2": "SM 2 is right, but the line divides 5 by 5, which is 1.",
        },
        "1, and SM 2",
    ),
    "hosts-in-all-slots": Question(
        CHAPTER,
        "Four heads in three parts, twelve CTAs. FlashDecoding's grid starts the first parts of all heads, then the "
        "second ones. How many CTAs end on a GPU with 4 slots?",
        {
            "all 12": "With a fifth slot they would. Here four hosts have all the slots.",
            "8": "The eight others would end at once, if they ever began.",
            "none": "The four hosts wait for parts that wait for a slot.",
        },
        "none",
    ),
    "one-long-request": Question(
        CHAPTER,
        "The long request has 94 % of all tokens. Uncut, its 8 heads keep 8 of 132 SMs busy. How much slower is that "
        "than equal ranges?",
        {
            "about 16 times": "132 / 8 is 16, if 8 SMs read 8 / 132 of what all read. A few SMs can do better.",
            "about 9 times": "An SM that has the memory nearly to itself reads faster than one of 132.",
            "about 2 times": "8 SMs would have to read half of what all read; each has only so many bytes under way.",
        },
        "about 9 times",
    ),
    "how-long-hosts-wait": Question(
        CHAPTER,
        "How long do hosts wait for the parts of others?",
        {
            "hardly": "All ranges are equally long, so all end at about the same time, and nobody is late.",
            "a tenth of the time": "It would be so if ranges differed by a tenth. They are equal to a tile.",
            "half of the time": "Only somebody whose helpers start a wave later would wait so long.",
        },
        "hardly",
    ),
    "requests-20-3-7-2": Question(
        CHAPTER,
        "Requests of 20, 3, 7 and 2 tiles on five SMs. When does the last SM end under a fixed split in two, which "
        "goes by the longest, and when under equal ranges?",
        {
            "10, and 7": "Half of the longest request is 10 tiles. 32 tiles for five SMs are 7, wherever "
            "requests begin.",
            "7, and 7": "A split in two leaves the longest request in parts of 10.",
            "10, and 4": "32 tiles on five SMs cannot end before 7.",
        },
        "10, and 7",
    ),
    "gain-over-rule-256": Question(
        CHAPTER,
        "The gain over rule 2.5.6 at 48 heads, batch 6, 64K: scheduling alone can bring at most 1.83x, and the "
        "paper states 2.53x. What do we measure?",
        {
            "about 1.1x": "Today's rule gives that in the mean; this batch is just behind a full wave.",
            "about 1.4x": "Presumably the 24 units of the second wave, each alone on its SM, read faster than two that "
            "share one, so that it is shorter than by the count. (Another H200 gave 1.7x, and 32K gives that here.)",
            "about 2.5x": "No schedule of the same tiles can gain more than 1.83 over that rule.",
        },
        "about 1.4x",
    ),
    "worth-a-merge": Question(
        CHAPTER,
        "128 heads on 132 SMs, each tile takes half a microsecond, a merge about 5 µs. By this count, from how "
        "many tiles a head on is it worth a merge?",
        {
            "about 10": "Ten tiles are 5 µs. But a cut saves 3 % of a head, not all of it.",
            "about 400": "Equal ranges save 3 % of a head: of 400 tiles that is 12, or 6 µs.",
            "never": "By this count 3 % of a head that is long enough are more than any merge.",
        },
        "about 400",
    ),
    "behind-by-3-percent": Question(
        CHAPTER,
        "Of the shapes in the next picture: on how many is our decode behind the faster peer by more than 3 %?",
        {
            "on none": "It is not even behind by 1 %. Where all read at DRAM's rate nobody is far ahead, either.",
            "on one or two": "The smallest are those to fear: starting and merging take as long as reading there.",
            "on most": "Our kernel reads a batch above a gigabyte at nearly the same rate, whatever its shape.",
        },
        "on none",
    ),
}

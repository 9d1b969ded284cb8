"""Your turn in chapter "LeanAttention": the line of its Algorithm 2 that is wrong as printed, and when a cut pays."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pod.learn.exercises.functions import Call, call, counted, fewer, gives, is_whole, same, smaller
from pod.learn.judge import Exercise, Hint, Outcome
from pod.reference import State
from pod.schedule import algorithm2
from pod.schedule.decode import equal_cuts

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


last_cta = Exercise(
    LAST_CTA,
    [Heads(2, 5, 5), Heads(3, 5, 5), Heads(3, 7, 5), Heads(1, 9, 4), Heads(6, 2, 3), Heads(4, 11, 13), Heads(2, 3, 9)],
    run,
    {
        "as printed": Hint(
            "This is the printed line: it divides by the tiles of a head, so it counts heads. A CTA's tiles are not a "
            "head's.",
            _says(algorithm2.printed_last),
        ),
        "one head back": Hint(
            "This counts heads as well, from 0. The CTA is found where the ranges end, in `cuts`.",
            _says(lambda end, tiles, cuts: end // tiles - 1),
        ),
        "equally long ranges": Hint(
            "Ranges of one length, you say. Tiles that cannot be shared out evenly make some longer by one: look into "
            "`cuts` instead of dividing.",
            lambda o: _says(*_DIVIDING)(o),
        ),
        "the one after": Hint(
            "The last tile of the head is end - 1. Where a range ends exactly at `end`, that range holds it, and the "
            "next CTA has nothing of this head.",
            _says(
                lambda end, tiles, cuts: int(np.searchsorted(cuts, end, side="right")),
                lambda end, tiles, cuts: int((cuts > end).argmax()),
            ),
        ),
        "a tile too early": Hint(
            "CTA i has tiles up to number cuts[i] - 1. Where a range ends at end - 1, the head's last tile, which is "
            "number end - 1, is the first of the next range.",
            _says(lambda end, tiles, cuts: int(np.searchsorted(cuts, end - 1))),
        ),
        "the cut itself": Hint(
            "That is where a range ends, a number of tiles. Which CTA's range is it?",
            _says(lambda end, tiles, cuts: int(cuts[np.searchsorted(cuts, end)])),
        ),
        "no CTA's number": Hint(
            "One CTA is asked for, by its number: a whole one, from 0 on.", lambda o: "no CTA's number" in o.got
        ),
        "the one before": Hint(
            "This is the last CTA whose range is over by then. Most heads end inside a range: look for the first "
            "that ends at `end` or after it.",
            _says(lambda end, tiles, cuts: max(0, int(np.searchsorted(cuts, end, side="right")) - 1)),
        ),
        "the last of all": Hint(
            "That is the last CTA of the whole line. It is right for the last head only.",
            _says(lambda end, tiles, cuts: len(cuts) - 1),
        ),
        "the first": Hint(
            "That is the CTA with the first tile of the head. Its last tile is number end - 1 of the line.",
            _says(lambda end, tiles, cuts: int(np.searchsorted(cuts, end - tiles, side="right"))),
        ),
        "one too far": Hint(
            "One too far for every head: CTAs count from 0, and CTA i ends at cuts[i].",
            _says(lambda end, tiles, cuts: int(np.searchsorted(cuts, end)) + 1),
        ),
        "nobody": Hint(
            "For one head no CTA was found. The last head ends where the last range ends: that CTA has its last tile.",
            lambda o: None in o.values[1],
        ),
        "no cut there": Hint(
            "A head need not end where a range ends. Look for the first cut that is not before it.",
            lambda o: isinstance(o.error, ValueError),
        ),
    },
    "One line, and no crash told anybody: only a head that more than two CTAs share, and a reference, would.",
    lambda random: Heads(random.randint(1, 6), random.randint(1, 12), random.randint(1, 20)),
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
    GAIN,
    [_batch(*batch) for batch in BATCHES],
    call,
    {
        "upside down": Hint(
            "This is the time of equal ranges over that of whole units. A gain is above 1 where ranges end first.",
            gives(lambda *batch: 1 / _gain(*batch)),
        ),
        "percent, or a difference": Hint(
            "How many times as fast is asked for: 1 where both take equally long, 2 where equal ranges take half.",
            gives(lambda *batch: _gain(*batch) - 1, lambda *batch: 100 * (_gain(*batch) - 1),
                  lambda *batch: _whole(*batch) - _equal(*batch)),
        ),
        "never below 1": Hint(
            "Where a merge costs more than a cut saves, equal ranges are slower: below 1. Do not hide that.",
            gives(lambda *batch: max(1, _gain(*batch))),
        ),
        "one wave": Hint(
            "All units at once, you say. Those for which no worker is left begin when the first have ended.",
            gives(_with_waves(lambda units, workers: 1)),
        ),
        "part of a wave": Hint(
            "The units are shared out here as if they could be cut. Whole, a last wave of one unit takes as long as a "
            "full one.",
            gives(_with_waves(lambda units, workers: units / workers),
                  _with_waves(lambda units, workers: max(1, units / workers))),
        ),
        "a wave too few": Hint(
            "Units that do not fill a wave still take one: the number of waves is rounded up.",
            gives(_with_waves(lambda units, workers: units // workers),
                  _with_waves(lambda units, workers: max(1, units // workers))),
        ),
        "a wave too many": Hint(
            "Units that fill their waves exactly need no further one.",
            gives(_with_waves(lambda units, workers: units // workers + 1)),
        ),
        "part of a tile": Hint(
            "A tile is never cut. The busiest worker has its share of all tiles, rounded up.",
            gives(_with_ranges(lambda units, tiles, workers: units * tiles / workers),
                  _with_ranges(lambda units, tiles, workers: units * tiles // workers)),
        ),
        "each unit by itself": Hint(
            "Here each unit is cut into equal parts, as a fixed split does it. Equal ranges are cut on the line of all "
            "tiles, wherever units begin.",
            gives(_with_ranges(lambda units, tiles, workers: -(-tiles // max(1, workers // units))),
                  _with_ranges(lambda units, tiles, workers: -(-units // workers) * -(-tiles // workers))),
        ),
        "a merge of nothing": Hint(
            "Where the units fill their waves exactly, every range has whole units, and nothing is merged.",
            gives(_with_merging(lambda units, tiles, workers: 1)),
        ),
        "only a few units": Hint(
            "Here a merge is due only for fewer units than workers. With more of them, too, ranges cut units, unless "
            "each range has whole ones.",
            gives(_with_merging(lambda units, tiles, workers: units < workers)),
        ),
        "only many units": Hint(
            "Here a merge is due only for more units than workers. With fewer of them, too, ranges cut units.",
            gives(_with_merging(lambda units, tiles, workers: units > workers)),
        ),
        "only where tiles are left over": Hint(
            "Ranges of equally many tiles can still end inside of a unit. A unit is cut unless every worker gets whole "
            "ones.",
            gives(_with_merging(lambda units, tiles, workers: units * tiles % workers > 0)),
        ),
        "merging for nothing": Hint(
            "Nothing is paid for merging here, so a cut pays always. That is the bound of section 7; now `merge` is "
            "due where a unit was cut.",
            gives(_with_merging(lambda units, tiles, workers: 0)),
        ),
        "one merge after the other": Hint(
            "Cut units are merged at the same time, each by another worker: `merge` is due once.",
            gives(_with_merging(lambda units, tiles, workers: units * (units % workers > 0)),
                  _with_merging(lambda units, tiles, workers: workers * (units % workers > 0))),
        ),
        "merging in tiles": Hint(
            "`merge` is in microseconds already: it takes as long whatever a tile takes.",
            gives(lambda units, tiles, workers, tile, merge: _gain(units, tiles, workers, 1, merge)),
        ),
    },
    "Beyond a full wave it stays below 2, and where a merge costs more than it saves it falls below 1. "
    "choose.cheapest_parts weighs fixed splits as well.",
    _draw_batch,
)  # fmt: skip

"""Your turn in chapter "POD kernel": where a piece of a row lies, so that eight rows come from all banks at once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pod.learn.exercises.functions import fewer, is_whole, smaller
from pod.learn.judge import Exercise, Hint, Outcome

SWIZZLE = '''
def swizzle(row, piece, pieces):
    """In which place of its row, 0 to pieces - 1, this piece of 16 bytes lies. A row has 2, 4, 8 or 16 of them."""
    ...
'''
ROWS, LINE = 8, 8  # rows that ldmatrix reads at once; pieces of 16 bytes in all 32 banks


@dataclass(frozen=True)
class Rows:
    """Eight rows below each other, of so many pieces."""

    pieces: int
    block: int  # the rows are 8 block, 8 block + 1, ...

    def __str__(self) -> str:
        return f"rows {self.rows[0]} to {self.rows[-1]}, {self.pieces} pieces each"

    @property
    def rows(self) -> range:
        return range(ROWS * self.block, ROWS * (self.block + 1))


def accesses(places: list[int], case: Rows) -> int:
    """How often shared memory is asked for one piece of each row, which lie in these places of their rows."""
    columns = [(row * case.pieces + place) % LINE for row, place in zip(case.rows, places, strict=True)]
    return max(Counter(columns).values())


def run(function: Callable, case: Rows) -> Outcome:
    said = [[function(row, piece, case.pieces) for piece in range(case.pieces)] for row in case.rows]
    if any(place is None for places in said for place in places):
        return Outcome(str(case), "a place")
    for row, places in zip(case.rows, said, strict=True):
        if broken := [place for place in places if not is_whole(place)]:
            wanted = f"places 0 to {case.pieces - 1}"
            return Outcome(f"{case}; row {row}", wanted, f"{broken[0]!r}, which is no whole number", case=case)
    said = [[int(place) for place in places] for places in said]
    known = {"case": case, "values": (None, said)}
    for row, places in zip(case.rows, said, strict=True):
        if len(set(places)) < len(places):
            return Outcome(f"{case}; row {row}", "a place of its own for each piece", f"places {places}", **known)
        if set(places) != set(range(case.pieces)):
            return Outcome(f"{case}; row {row}", f"places 0 to {case.pieces - 1}", f"places {places}", **known)
    asked = [accesses([places[piece] for places in said], case) for piece in range(case.pieces)]
    worst = asked.index(max(asked))
    there = [places[worst] for places in said]
    got = f"{asked[worst]} accesses for piece {worst} of each row: it lies in places {there}"
    return Outcome(f"{case}", "1 access for any piece of all eight rows", got, right=asked[worst] == 1, **known)


def _fewer_pieces(pieces: int) -> tuple[int, ...]:
    """Those of heads of 64 numbers are the plainest case."""
    return (8,) if pieces == 16 else ()


def _gives(*rules: Callable) -> Callable[[Outcome], bool]:
    """A hint's test: whether these are the places that a rule, wrong in its own way, gives."""

    def is_it(o: Outcome) -> bool:
        case, said = o.case, o.values[1]
        return any(said == [[rule(r, c, case.pieces) for c in range(case.pieces)] for r in case.rows] for rule in rules)

    is_it.everywhere = True
    return is_it


def _out_of_the_row(o: Outcome) -> bool:
    return any(not 0 <= place < o.case.pieces for places in o.values[1] for place in places)


swizzle = Exercise(
    SWIZZLE,
    [Rows(8, 0), Rows(16, 0), Rows(16, 3), Rows(8, 5), Rows(4, 0), Rows(4, 7), Rows(2, 0), Rows(2, 2)],
    run,
    {
        "row by row": Hint(
            "Every piece lies where it would without a swizzle, so eight pieces below each other are in the same four "
            "banks. The place must depend on the row.",
            _gives(lambda row, piece, pieces: piece),
        ),
        "bytes": Hint(
            "These are bytes. A place is a number of pieces: 0 for the first 16 bytes of the row, 1 for the next.",
            lambda o: _out_of_the_row(o) and all(place % 16 == 0 for places in o.values[1] for place in places),
        ),
        "half a place": Hint(
            "A place is a whole number. With / there are halves of a place: // cuts them off.",
            lambda o: "no whole number" in o.got,
        ),
        "from 1 on": Hint(
            "Places count from 0: of `pieces` the last is pieces - 1.",
            lambda o: {place for places in o.values[1] for place in places} == set(range(1, o.case.pieces + 1)),
        ),
        "through all rows": Hint(
            "That counts pieces from the first row on. A place counts from the beginning of its own row.",
            lambda o: all(
                row * o.case.pieces <= place < (row + 1) * o.case.pieces
                for row, places in zip(o.case.rows, o.values[1], strict=True)
                for place in places
            ),
        ),
        "the row alone": Hint(
            "All pieces of a row are in one place: they overwrite each other. The place depends on the piece, too.",
            lambda o: all(len(set(places)) == 1 for places in o.values[1]),
        ),
        "half a row twice": Hint(
            "In a row of 16 pieces, piece 8 lies where piece 0 lies. Only the part of the place below 8 may change "
            "with the row; the half of the row stays the piece's own.",
            lambda o: o.case.pieces == 16 and set(o.values[1][0]) == set(range(8)),
        ),
        "the whole row number": Hint(
            "From row 8 on the piece leaves its row: eight rows are read at once, so the row's number counts from 0 to "
            "7 and begins anew: row % 8.",
            lambda o: _out_of_the_row(o) and o.case.pieces >= LINE and o.case.block > 0,
        ),
        "too far for a short row": Hint(
            "Right for rows of 8 pieces and more. A shorter row has no place number 7: the piece leaves its row. How "
            "many different places are there, and which rows must differ?",
            lambda o: _out_of_the_row(o) and o.case.pieces < LINE,
        ),
        "neighbours of a short row": Hint(
            "In the row it stays, but two rows of 4 pieces share the 128 bytes of all banks, and are apart already. "
            "Only every second row need move on: row // 2. With 2 pieces it is every fourth.",
            lambda o: o.case.pieces < LINE,
        ),
        "some rows alike": Hint(
            "Some of the eight rows still have the piece in the same place. From row to row, all eight places must "
            "come.",
            lambda o: o.got is not None and "accesses" in o.got,
        ),
    },
    "For rows of 8 pieces or more it is rung 5's one new line, and all tiles of the production kernel lie so.",
    lambda random: Rows(random.choice((2, 4, 8, 16)), random.randint(0, 15)),
    smaller(Rows, _fewer_pieces, fewer(0)),
)

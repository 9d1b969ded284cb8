"""Your turn in chapter "tiling": count the bytes of a tiling."""

from __future__ import annotations

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

CHAPTER = "tiling"
BYTES_MOVED = '''
def bytes_moved(n, s, rows):
    """Bytes that one head moves: n queries in tiles of `rows`, each tile against all s keys. bf16, 128 numbers each."""
    ...
'''
ROW = 128 * 2  # bytes


def _moved(n: int, s: int, rows: int) -> int:
    return ROW * (2 * n + -(-n // rows) * 2 * s)


CASES = ((128, 4096, 128), (128, 4096, 16), (200, 1000, 64), (1, 12288, 64), (4096, 4096, 128))

bytes_moved = Exercise(
    "bytes_moved",
    CHAPTER,
    BYTES_MOVED.strip("\n"),
    [Call(f"n={n}, s={s}, rows={rows}", (n, s, rows), _moved(n, s, rows)) for n, s, rows in CASES],
    call,
    [
        Hint(
            "elements",
            "These are elements. One of bf16 has 2 bytes.",
            lambda o: 2 * o.values[1] == o.values[0],
        ),
        Hint(
            "keys but no values",
            "Keys are there, values are not: a tile needs as many bytes of V as of K.",
            gives(lambda n, s, rows: ROW * (2 * n + -(-n // rows) * s)),
        ),
        Hint(
            "queries and outputs forgotten",
            "K and V are right. Each query comes in once, too, and each output goes out.",
            gives(lambda n, s, rows: ROW * -(-n // rows) * 2 * s),
        ),
        Hint(
            "each byte once",
            "Every tile of queries fetches all keys and values again. Here they came once for all tiles.",
            gives(lambda n, s, rows: ROW * (2 * n + 2 * s)),
        ),
        Hint(
            "half a tile",
            "200 queries in tiles of 64 are four tiles, and the last fetches all keys though it is "
            "mostly empty: round up.",
            lambda o: o.case.arguments[0] % o.case.arguments[2] != 0 and o.values[1] < o.values[0],
        ),
        Hint(
            "a fetch a query",
            "A tile fetches keys and values once for all of its rows; that is what rows are for.",
            gives(lambda n, s, rows: ROW * (2 * n + n * 2 * s)),
        ),
    ],
    "Twice the rows, half the bytes; the columns do not occur in it at all.",
)

EXERCISES, QUESTIONS = (bytes_moved,), {}

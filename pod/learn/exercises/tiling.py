"""Your turn in chapter "tiling": count the bytes of a tiling."""

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

BYTES_MOVED = '''
def bytes_moved(n, s, rows):
    """Bytes that one head moves: n queries in tiles of `rows`, each tile against all s keys. bf16, 128 numbers each."""
    ...
'''
ROW = 128 * 2  # bytes


def _moved(n: int, s: int, rows: int) -> int:
    return ROW * (2 * n + -(-n // rows) * 2 * s)


def _case(n: int, s: int, rows: int) -> Call:
    return Call(f"n={n}, s={s}, rows={rows}", (n, s, rows), _moved(n, s, rows))


def _draw(random) -> Call:
    n, rows = random.randint(1, 9000), 16 << random.randint(0, 4)
    return _case(n, n + random.randint(0, 9000), rows)


CASES = ((128, 4096, 128), (128, 4096, 16), (200, 1000, 64), (1, 12288, 64), (4096, 4096, 128))

bytes_moved = Exercise(
    BYTES_MOVED,
    [_case(*case) for case in CASES],
    call,
    {
        "elements": Hint("These are elements. One of bf16 has 2 bytes.", lambda o: 2 * o.values[1] == o.values[0]),
        "four bytes": Hint(
            "Twice as many as there are. fp32 has 4 bytes, bf16 has 2.", lambda o: o.values[1] == 2 * o.values[0]
        ),
        "keys but no values": Hint(
            "Keys are there, values are not: a tile needs as many bytes of V as of K.",
            gives(lambda n, s, rows: ROW * (2 * n + -(-n // rows) * s)),
        ),
        "queries and outputs forgotten": Hint(
            "K and V are right. Each query comes in once, too, and each output goes out.",
            gives(lambda n, s, rows: ROW * -(-n // rows) * 2 * s, lambda n, s, rows: ROW * (n - (-n // rows) * 2 * s)),
        ),
        "tiles of keys": Hint(
            "Here tiles of keys fetch all queries. It is the other way round: a tile of `rows` queries stays, and the "
            "keys come by.",
            gives(lambda n, s, rows: ROW * (2 * s + -(-s // rows) * 2 * n)),
        ),
        "scores as well": Hint(
            "The scores are there, too. That they never leave the SM is what tiles are for.",
            gives(*(lambda n, s, rows, x=x: _moved(n, s, rows) + x * n * s for x in (1, 2, 4, 8))),
        ),
        "rows for tiles": Hint(
            "Keys and values came once for each row of a tile. They come once for each tile, and n queries are n / "
            "rows of them.",
            gives(lambda n, s, rows: ROW * (2 * n + rows * 2 * s)),
        ),
        "empty rows": Hint(
            "Rows of the last tile that have no query fetch nothing and store nothing.",
            gives(lambda n, s, rows: _moved(-(-n // rows) * rows, s, rows)),
        ),
        "one tile too many": Hint(
            "128 queries are one tile of 128, not two: round up only where something is left over.",
            gives(lambda n, s, rows: ROW * (2 * n + (n // rows + 1) * 2 * s)),
        ),
        "each byte once": Hint(
            "Every tile of queries fetches all keys and values again. Here they came once for all tiles.",
            gives(lambda n, s, rows: ROW * (2 * n + 2 * s)),
        ),
        "half a tile": Hint(
            "200 queries in tiles of 64 are four tiles, and the last fetches all keys though it is "
            "mostly empty: round up.",
            gives(
                lambda n, s, rows: ROW * (2 * n + n // rows * 2 * s),
                lambda n, s, rows: ROW * (2 * n + n / rows * 2 * s),
            ),
        ),
        "a fetch a query": Hint(
            "A tile fetches keys and values once for all of its rows; that is what rows are for.",
            gives(lambda n, s, rows: ROW * (2 * n + n * 2 * s)),
        ),
    },
    "Twice the rows, half the bytes; the columns do not occur in it at all.",
    _draw,
)

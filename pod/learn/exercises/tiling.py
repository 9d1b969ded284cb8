"""Your turn in chapter "tiling": count the bytes of a tiling."""

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint
from pod.learn.questions import Question

CHAPTER = "tiling"
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
    "bytes_moved",
    CHAPTER,
    BYTES_MOVED.strip("\n"),
    [_case(*case) for case in CASES],
    call,
    [
        Hint(
            "elements",
            "These are elements. One of bf16 has 2 bytes.",
            lambda o: 2 * o.values[1] == o.values[0],
        ),
        Hint(
            "four bytes",
            "Twice as many as there are. fp32 has 4 bytes, bf16 has 2.",
            lambda o: o.values[1] == 2 * o.values[0],
        ),
        Hint(
            "keys but no values",
            "Keys are there, values are not: a tile needs as many bytes of V as of K.",
            gives(lambda n, s, rows: ROW * (2 * n + -(-n // rows) * s)),
        ),
        Hint(
            "queries and outputs forgotten",
            "K and V are right. Each query comes in once, too, and each output goes out.",
            gives(lambda n, s, rows: ROW * -(-n // rows) * 2 * s, lambda n, s, rows: ROW * (n - (-n // rows) * 2 * s)),
        ),
        Hint(
            "tiles of keys",
            "Here tiles of keys fetch all queries. It is the other way round: a tile of `rows` queries stays, and the "
            "keys come by.",
            gives(lambda n, s, rows: ROW * (2 * s + -(-s // rows) * 2 * n)),
        ),
        Hint(
            "scores as well",
            "The scores are there, too. That they never leave the SM is what tiles are for.",
            gives(*(lambda n, s, rows, x=x: _moved(n, s, rows) + x * n * s for x in (1, 2, 4, 8))),
        ),
        Hint(
            "rows for tiles",
            "Keys and values came once for each row of a tile. They come once for each tile, and n queries are n / "
            "rows of them.",
            gives(lambda n, s, rows: ROW * (2 * n + rows * 2 * s)),
        ),
        Hint(
            "empty rows",
            "Rows of the last tile that have no query fetch nothing and store nothing.",
            gives(lambda n, s, rows: _moved(-(-n // rows) * rows, s, rows)),
        ),
        Hint(
            "one tile too many",
            "128 queries are one tile of 128, not two: round up only where something is left over.",
            gives(lambda n, s, rows: ROW * (2 * n + (n // rows + 1) * 2 * s)),
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
            gives(
                lambda n, s, rows: ROW * (2 * n + n // rows * 2 * s),
                lambda n, s, rows: ROW * (2 * n + n / rows * 2 * s),
            ),
        ),
        Hint(
            "a fetch a query",
            "A tile fetches keys and values once for all of its rows; that is what rows are for.",
            gives(lambda n, s, rows: ROW * (2 * n + n * 2 * s)),
        ),
    ],
    "Twice the rows, half the bytes; the columns do not occur in it at all.",
    _draw,
)

EXERCISES = (bytes_moved,)
QUESTIONS = {
    "scores-to-memory": Question(
        CHAPTER,
        "One head, 12,288 tokens, bf16: how much larger is S than Q, K, V and O together? And does S of 32 heads fit "
        "beside the model on an 80 GB card?",
        {
            "2.4 times, and it fits": "S has 12,288 numbers a row, Q, K, V and O together 512.",
            "24 times, and it fits": "12,288 / 512. Ten gigabytes beside the 12 of the weights: the trouble is not "
            "room.",
            "24 times, and it does not fit": "The factor is right. 32 heads take 9.7 GB, and the weights 12.",
        },
        "24 times, and it fits",
    ),
    "blocks-with-a-mask": Question(
        CHAPTER,
        "Those 8 queries are the end of 12 tokens. With tiles of 4 x 3 the score matrix has 2 x 4 blocks. How many are "
        "computed, and how many of these need a mask?",
        {
            "8, all with a mask": "A block that lies wholly in the past needs none, and one wholly in the future is "
            "skipped.",
            "7, of which 3 need one": "One block is all future. Three are crossed by the diagonal.",
            "5, of which 2 need one": "The first four queries see 8 keys, which is three blocks; the others all four.",
        },
        "7, of which 3 need one",
    ),
    "fewer-bytes-by": Question(
        CHAPTER,
        "At 4,096 tokens, by what factor does the tiled version (128 x 128) move fewer bytes than the standard one?",
        {
            "4": "Tiles give a factor of 2, skipped blocks 1.9. But every tile of queries fetches all keys before it, "
            "so both versions grow with the square of the length.",
            "30": "That is what DRAM will see, once L2 answers most of the fetches. Of the tiles we count what the SMs "
            "ask for.",
            "1,000": "Each byte once would be 33 times fewer; nobody gets below that.",
        },
        "4",
    ),
    "rows-or-columns": Question(
        CHAPTER,
        "We double the rows of the tile; then instead its columns. By what factor does either change the bytes?",
        {
            "half and half": "Columns say how many keys are taken at a time, not how often each is fetched.",
            "half, and nothing": "A fetched key is used once by each row of the tile; columns do not occur in that.",
            "nothing, and half": "The other way round: more rows are more uses of each fetched key.",
        },
        "half, and nothing",
    ),
    "flops-a-useful-one": Question(
        CHAPTER,
        "A decode of Llama-2-7B runs through a prefill tile of 128 rows; one of Llama-3-8B through a tile of 16. How "
        "many FLOPs are done for each useful one?",
        {
            "128 and 16": "Llama-3-8B has groups of 4: four query heads share the tile.",
            "128 and 4": "One row of 128 is useful, and four of 16.",
            "1 and 1": "Rows that are not there are zeros, and multiplied all the same.",
        },
        "128 and 4",
    ),
    "tiles-that-fit": Question(
        CHAPTER,
        "How many CTAs with a tile of 128 x 64 fit on one SM of an A100? And would one of 256 x 128 fit on an H200?",
        {
            "2, and yes": "It has room in shared memory: 128 of 227 KiB. But look at the registers.",
            "2, and no": "Shared memory: 65 of 164 KiB each. The large tile wants all 65,536 registers for scores and "
            "output, and nothing is left for the rest.",
            "4, and no": "64 KiB of shared memory each, and 164 KiB on the SM.",
        },
        "2, and no",
    ),
}

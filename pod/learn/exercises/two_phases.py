"""Your turn in chapter "two phases": the mask of a chunk."""

from dataclasses import replace

import numpy as np

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint, Outcome

CHUNK_MASK = '''
def chunk_mask(n, s):
    """n x s booleans: which of the s keys each of the chunk's n queries sees. The chunk is the last n tokens."""
    ...
'''


def _mask(n: int, s: int) -> np.ndarray:
    return np.arange(s) <= s - n + np.arange(n)[:, None]


def _itself(n: int, s: int) -> np.ndarray:
    seen = np.zeros((n, s), dtype=bool)
    seen[:, s - n :] = np.tri(n, dtype=bool)
    return seen


def _case(n: int, s: int) -> Call:
    return Call(f"n={n}, s={s}", (n, s), _mask(n, s).astype(int))


def run(function, case: Call) -> Outcome:
    """As `call`; and numbers are no mask, even where they are 0 and 1."""
    tried = call(function, case)
    if tried.right and (kind := np.asarray(tried.got).dtype).kind != "b":
        return replace(tried, expected="booleans", got=f"the same in {kind}", right=False)
    return tried


def _draw(random) -> Call:
    n = random.randint(1, 9)
    return _case(n, n + random.randint(0, 9))


CASES = ((4, 4), (2, 5), (3, 9), (1, 7), (6, 8))

chunk_mask = Exercise(
    CHUNK_MASK,
    [_case(n, s) for n, s in CASES],
    run,
    {
        "upper left": Hint(
            "The triangle begins at the upper left, as with is_causal=True: right for the first "
            "chunk, and wrong for every later one. Align it at the lower right: the last query sees "
            "all keys.",
            gives(lambda n, s: np.tri(n, s)),
        ),
        "so many keys on": Hint(
            "The diagonal begins n keys on, which is how long the chunk is. What came before the chunk are s - n keys.",
            gives(lambda n, s: np.tri(n, s, n), lambda n, s: np.tri(n, s, n - 1)),
        ),
        "not booleans": Hint(
            "The right places, as numbers. Attention takes numbers for something to be added to the scores, and "
            "adding 0 hides nothing. Only booleans are a mask.",
            lambda o: o.expected == "booleans",
        ),
        "no mask": Hint(
            "Every query sees every key, also those of tokens that come after it.", gives(lambda n, s: np.ones((n, s)))
        ),
        "itself only": Hint(
            "The chunk looks only at itself. The keys of all tokens before it are in the cache, and it sees them all.",
            gives(_itself),
        ),
        "not oneself": Hint("A token sees itself, too.", gives(lambda n, s: np.tri(n, s, s - n - 1))),
        "the past only": Hint(
            "The chunk sees what came before it. Its own tokens are keys as well, up to the one that looks.",
            gives(lambda n, s: np.tile(np.arange(s) < s - n, (n, 1))),
        ),
        "the next one": Hint(
            "Each query sees one key too many: that of the token which it is to predict.",
            gives(lambda n, s: np.tri(n, s, s - n + 1)),
        ),
        "to be added": Hint(
            "This mask is to be added to scores: 0 and minus infinity. Asked for are booleans: True says what is seen.",
            gives(lambda n, s: np.where(_mask(n, s), 0, -np.inf)),
        ),
        "the other triangle": Hint(
            "Here early queries see more than late ones. A row is a query, and the last row sees all keys.",
            gives(
                lambda n, s: _mask(n, s).T,
                lambda n, s: _mask(n, s)[::-1],
                lambda n, s: _mask(n, s)[::-1, ::-1],
                lambda n, s: np.triu(np.ones((n, s))),
                lambda n, s: np.triu(np.ones((n, s)), s - n),
            ),
        ),
        "upside down": Hint(
            "True should say what is seen; here it says what is hidden.", gives(lambda n, s: ~_mask(n, s))
        ),
    },
    "One row more than a triangle of the prompt, cut anywhere: chunks do not change the answer.",
    _draw,
)

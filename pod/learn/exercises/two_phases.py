"""Your turn in chapter "two phases": the mask of a chunk."""

from __future__ import annotations

import numpy as np

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint

CHAPTER = "two_phases"
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


CASES = ((4, 4), (2, 5), (3, 9), (1, 7), (6, 8))

chunk_mask = Exercise(
    "chunk_mask",
    CHAPTER,
    CHUNK_MASK.strip("\n"),
    [Call(f"n={n}, s={s}", (n, s), _mask(n, s).astype(int)) for n, s in CASES],
    call,
    [
        Hint(
            "upper left",
            "The triangle begins at the upper left, as with is_causal=True: right for the first "
            "chunk, and wrong for every later one. Align it at the lower right: the last query sees "
            "all keys.",
            gives(lambda n, s: np.tri(n, s)),
        ),
        Hint(
            "no mask",
            "Every query sees every key, also those of tokens that come after it.",
            gives(lambda n, s: np.ones((n, s))),
        ),
        Hint(
            "itself only",
            "The chunk looks only at itself. The keys of all tokens before it are in the cache, and it sees them all.",
            gives(_itself),
        ),
        Hint(
            "not oneself",
            "A token sees itself, too.",
            gives(lambda n, s: np.tri(n, s, s - n - 1)),
        ),
        Hint(
            "upside down",
            "True should say what is seen; here it says what is hidden.",
            gives(lambda n, s: ~_mask(n, s)),
        ),
    ],
    "One row more than a triangle of the prompt, cut anywhere: chunks do not change the answer.",
)

EXERCISES, QUESTIONS = (chunk_mask,), {}

"""Your turn in chapter "two phases": the mask of a chunk."""

from dataclasses import replace

import numpy as np

from pod.learn.exercises.functions import Call, call, gives
from pod.learn.judge import Exercise, Hint, Outcome
from pod.learn.questions import Question

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
    "chunk_mask",
    CHAPTER,
    CHUNK_MASK.strip("\n"),
    [_case(n, s) for n, s in CASES],
    run,
    [
        Hint(
            "upper left",
            "The triangle begins at the upper left, as with is_causal=True: right for the first "
            "chunk, and wrong for every later one. Align it at the lower right: the last query sees "
            "all keys.",
            gives(lambda n, s: np.tri(n, s)),
        ),
        Hint(
            "so many keys on",
            "The diagonal begins n keys on, which is how long the chunk is. What came before the chunk are s - n keys.",
            gives(lambda n, s: np.tri(n, s, n), lambda n, s: np.tri(n, s, n - 1)),
        ),
        Hint(
            "not booleans",
            "The right places, as numbers. Attention takes numbers for something to be added to the scores, and "
            "adding 0 hides nothing. Only booleans are a mask.",
            lambda o: o.expected == "booleans",
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
            "the past only",
            "The chunk sees what came before it. Its own tokens are keys as well, up to the one that looks.",
            gives(lambda n, s: np.tile(np.arange(s) < s - n, (n, 1))),
        ),
        Hint(
            "the next one",
            "Each query sees one key too many: that of the token which it is to predict.",
            gives(lambda n, s: np.tri(n, s, s - n + 1)),
        ),
        Hint(
            "to be added",
            "This mask is to be added to scores: 0 and minus infinity. Asked for are booleans: True says what is seen.",
            gives(lambda n, s: np.where(_mask(n, s), 0, -np.inf)),
        ),
        Hint(
            "the other triangle",
            "Here early queries see more than late ones. A row is a query, and the last row sees all keys.",
            gives(
                lambda n, s: _mask(n, s).T,
                lambda n, s: _mask(n, s)[::-1],
                lambda n, s: _mask(n, s)[::-1, ::-1],
                lambda n, s: np.triu(np.ones((n, s))),
                lambda n, s: np.triu(np.ones((n, s)), s - n),
            ),
        ),
        Hint(
            "upside down",
            "True should say what is seen; here it says what is hidden.",
            gives(lambda n, s: ~_mask(n, s)),
        ),
    ],
    "One row more than a triangle of the prompt, cut anywhere: chunks do not change the answer.",
    _draw,
)

EXERCISES = (chunk_mask,)
QUESTIONS = {
    "flops-of-80-chats": Question(
        CHAPTER,
        "One chat of Llama-3-8B decodes with 4 FLOPs per byte of its keys and values. With 80 chats in a batch, how "
        "many FLOPs per byte in attention, and how many in the weight matrices?",
        {
            "320 and 320": "The weights are shared by all chats. Keys and values are not.",
            "4 and 80": "Eighty times the work of attention comes with eighty times the bytes; the weights come once.",
            "80 and 4": "The other way round: what all chats share is the weights.",
        },
        "4 and 80",
    ),
    "tokens-up-to-the-roof": Question(
        CHAPTER,
        "From how many tokens on does a chunk of Llama-3-8B (group 4) hit the flat roof of an A100?",
        {
            "about 40": "153 FLOPs per byte over a group of 4.",
            "about 150": "That would be so without groups: 153 over 1.",
            "about 1,000": "By then it is far to the right; real chunks are.",
        },
        "about 40",
    ),
    "roof-of-c1": Question(
        CHAPTER,
        "Which roof does C1 hit on an A100, as a whole? And its two halves?",
        {
            "the flat roof, and so do both halves": "Its decodes have 4 FLOPs per byte, far down the slope.",
            "the slope, and its halves one roof each": "The average of the two exists only if they run at the same "
            "time.",
            "the slope, and so do both halves": "A chunk of 12,288 tokens is far to the right.",
        },
        "the slope, and its halves one roof each",
    ),
    "chats-beside-a-chunk": Question(
        CHAPTER,
        "The 80 chats' tokens join the chunk's batch. Attention still runs as two kernels, one after the other. By how "
        "much do the chats get cheaper in the weight matrices, and in attention?",
        {
            "by half, and by nothing": "The weights were fetched for the chunk anyway. Keys and values are their own, "
            "and fetched by a kernel of their own.",
            "by half in both": "In attention, nothing that the chunk fetches is of use to them.",
            "nearly free in both": "For a few chats the weights are; 80 tokens more are 8 % more work for the tensor "
            "cores.",
        },
        "by half, and by nothing",
    ),
    "two-wrong-masks": Question(
        CHAPTER,
        "Two wrong masks: the chunk looks only at itself, or the causal mask starts at the upper left corner, as in "
        "torch's is_causal=True. In which of the four chunks is the output wrong?",
        {
            "in all four": "The first chunk is a whole prompt: nothing came before it, and the corners coincide.",
            "in all but the first": "For both masks. A test with a single chunk would have passed.",
            "in the last only": "Every chunk but the first has tokens before it that it must see.",
        },
        "in all but the first",
    ),
    "price-of-cutting": Question(
        CHAPTER,
        "Our prompt of 12,288 tokens in chunks of 1,024 instead of at once: how many times the bytes, and how many "
        "times the time of attention on an A100?",
        {
            "12 times, and 12 times": "A chunk fetches the keys before it, not all keys; and it waits for FLOPs.",
            "1.6 times, and 1.6 times": "The bytes are right. But prefill does not wait for bytes.",
            "1.6 times, and no more time": "Prefill has bytes to spare, down to chunks of a few dozen tokens.",
        },
        "1.6 times, and no more time",
    ),
    "bound-of-all-work": Question(
        CHAPTER,
        "Decode also does some arithmetic, prefill also moves some bytes. Is the roofline of the whole batch above or "
        "below max(Tp, Td)?",
        {
            "below, by a lot": "It cannot be below: the longer half alone takes that long.",
            "equal": "Both halves go through the same tensor cores and the same DRAM, so a little is added.",
            "above, by a few percent": "Each half's small need of the other's resource comes on top.",
        },
        "above, by a few percent",
    ),
}

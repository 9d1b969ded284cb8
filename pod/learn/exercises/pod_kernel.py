"""Your turn in chapter "POD kernel": a sliding window in the production kernel."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from pod.batch import HybridBatch
from pod.lab.mutate import Mistake, made_for
from pod.learn import changed
from pod.learn.faults import CellError
from pod.learn.judge import Exercise, Hint, Outcome
from pod.learn.questions import Question
from pod.reference import State

CHAPTER = "pod_kernel"
WINDOW = '''
window = """
// Row `row` of the tile sees keys from first(row) up to, not including, visible(row): `kWindow` keys at most.
DEV int first(int row) const { return 0; }
// Whether every row sees all of the keys key .. key + kKeys - 1, so that this block needs no mask.
DEV bool all_see(int key) const { return key + kKeys <= visible(0); }
"""
'''
BATCH = HybridBatch((70, 1, 1, 20), (300, 177, 13, 20), num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16)
SAID = "a chunk of 70 tokens at the end of 300, chats of 177 and 13, a prompt of 20"
EXACT = 0.03
KEYS = (64, 16)  # a block's, of prefill and decode
FILE = "include/tile_attention.cuh"
FIRST = re.compile(r"int first\(int row\)[^}]*")
PLACES = (
    ("if (column(j) + e >= seen) ", "if (column(j) + e >= seen || column(j) + e < first(row(r, h)) - key) "),
    ("        const int all_see = visible(0);  // the first row sees fewest; up to there no mask is needed\n", ""),
    ("        for (; key + kKeys <= all_see; key += kKeys) step<false>(key);\n", ""),
    ("for (; key < work.end; key += kKeys) step<true>(key);",
     "for (; key < work.end; key += kKeys) all_see(key) ? step<false>(key) : step<true>(key);"),
)  # fmt: skip
BEFORE = "    // The row's place in the tile, and how many keys it sees.\n"


def put_in(text: str, csrc: Path) -> None:
    """The reader's two functions become members of TileAttention."""
    inside = f'    const int kWindow = pod_chosen;\n#line 1 "cell"\n{text}\n#line 1 "kernel"\n{BEFORE}'
    first, *others = (*PLACES, (BEFORE, inside))
    Mistake("window", FILE, *first, also=tuple(others)).apply(csrc)


@dataclass(frozen=True)
class Case:
    window: int

    def __str__(self) -> str:
        return f"kWindow = {self.window}; {SAID}"


def launch(text: str, case: Case) -> Outcome:
    changed.check(text, "window", "the two functions")
    text = text.strip("\n")
    ran = changed.run(changed.built(text, partial(put_in, text)), BATCH, made_for(BATCH), case.window)
    if ran.report:
        raise CellError(ran.report)
    got = ran.out
    wanted = attention(case, right)
    off = np.abs(got - wanted).max(axis=(1, 2))
    wrong = np.flatnonzero(~(off < EXACT))
    known = {"case": case, "values": (wanted, got), "right": not len(wrong), "arguments": (text,)}
    return Outcome(str(case), "what float64 says", _where(wrong, off), **known)


def _where(wrong: np.ndarray, off: np.ndarray) -> str:
    if not len(wrong):
        return "the same"
    ends = np.cumsum(BATCH.q_lens)
    request = int(np.searchsorted(ends, wrong[0], side="right"))
    token, by = wrong[0] - ends[request] + BATCH.q_lens[request], off[wrong[0]]
    return f"{len(wrong)} of {len(off)} tokens are off, first token {token} of request {request}, by {by:.2f}"


# ---------------------------------------------------------------- what comes of a rule


# rule(window, token, first token of the tile, keys, keys of a block, head of its group) -> which keys are seen
Rule = Callable[..., np.ndarray]


def right(window, token, start, keys, block, head):
    return keys > token - window


def _without(window, token, start, keys, block, head):
    return np.ones(len(keys), bool)


def _one_more(window, token, start, keys, block, head):
    return keys >= token - window


def _one_less(window, token, start, keys, block, head):
    return keys > token - window + 1


def _bare_blocks(window, token, start, keys, block, head, least=-1):
    """The window only where there is a mask anyway: not in blocks that lie before the first row."""
    begin = keys // block * block
    return right(window, token, start, keys, block, head) | ((begin + block <= start + 1) & (begin >= least))


def _first_row(window, token, start, keys, block, head):
    """A block goes without a mask if its keys are in the window of the first row."""
    return _bare_blocks(window, token, start, keys, block, head, least=start - window + 1)


def _one_for_all(window, token, start, keys, block, head):
    """All rows of the tile with the first row's window."""
    return keys > start - window


def _unmasked(o: Outcome) -> bool:
    """Whether the first token of the prompt, which sees itself alone with any window, is off."""
    first = -BATCH.q_lens[-1]
    return bool(np.abs(o.values[0] - o.values[1])[first].max() > EXACT)


def _row_for_token(window, token, start, keys, block, head):
    """The row's number in its tile taken for its token's."""
    return keys >= (token - start if block == KEYS[0] else head) - window


def _row_and_one(window, token, start, keys, block, head):
    return keys > (token - start if block == KEYS[0] else head) - window


def _tokens_for_heads(window, token, start, keys, block, head):
    """In a decode, row h taken for the h-th token."""
    return keys > token + (head if block == KEYS[1] else 0) - window


@cache
def attention(case: Case, rule: Rule) -> np.ndarray:
    """In float64, with keys that the rule lets a row see."""
    q, k, v, table = BATCH.tensors(seed=changed.SEED)
    outs = []
    for i, (q_len, kv_len) in enumerate(zip(BATCH.q_lens, BATCH.kv_lens, strict=True)):
        pages = table[i, : -(-kv_len // BATCH.page_size)].long()
        mine = [x[pages].flatten(0, 1)[:kv_len].double().numpy() for x in (k, v)]
        queries = q[sum(BATCH.q_lens[:i]) :][:q_len].double().numpy()
        outs += [_row(case, rule, queries[t], *mine, kv_len - q_len + t, kv_len - q_len, q_len) for t in range(q_len)]
    return np.array(outs)


def _row(case: Case, rule: Rule, query, k, v, token: int, start: int, q_len: int) -> np.ndarray:
    keys, heads = np.arange(token + 1), []
    for head, x in enumerate(query):
        of = head // BATCH.group
        seen = rule(case.window, token, start, keys, KEYS[q_len == 1], head % BATCH.group)
        scores = np.where(seen, k[: token + 1, of] @ x / np.sqrt(BATCH.head_dim), -np.inf)
        heads.append(State.of(scores[None], v[: token + 1, of]).finish()[0][0])
    return np.array(heads)


def _gives(rule: Rule) -> Callable[[Outcome], bool]:
    return lambda o: np.abs(o.values[1] - attention(o.case, rule)).max() < EXACT


window = Exercise(
    "window",
    CHAPTER,
    WINDOW.strip("\n"),
    [Case(40), Case(150), Case(1000), Case(1)],
    launch,
    [
        Hint(
            "no window",
            "Every row still sees all keys up to its own. first(row) must rise with the row's token, which is number "
            "work.pos + row * diagonal of its context.",
            _gives(_without),
        ),
        Hint(
            "one too many",
            "kWindow keys are the row's own and kWindow - 1 before it. These rows see one more.",
            _gives(_one_more),
        ),
        Hint(
            "one too few",
            "kWindow keys are the row's own and kWindow - 1 before it. These rows see one less.",
            _gives(_one_less),
        ),
        Hint(
            "cut off with the piece",
            "`visible` ends where the piece of work ends, at work.end, and with it your window moves back. The row's "
            "own token is number work.pos + row * diagonal, whatever its piece.",
            lambda o: "visible" in FIRST.search(o.arguments[0])[0],
        ),
        Hint(
            "a row for a token",
            "`row` counts from 0 in its tile. The tile's first token is number work.pos of its context: begin there.",
            lambda o: _gives(_row_for_token)(o) or _gives(_row_and_one)(o),
        ),
        Hint(
            "no mask at all",
            "Rows see keys of tokens after their own: even the first token of a prompt is off. A block may go without "
            "a mask only if every row sees its last key *and* its first.",
            _unmasked,
        ),
        Hint(
            "one window for all",
            "All rows of a tile have the first row's window. It moves on with each row, by row * diagonal.",
            _gives(_one_for_all),
        ),
        Hint(
            "blocks without a mask",
            "The mask is right where there is one. But most blocks lie wholly before the first row, go without a "
            "mask, as all_see says, and are seen in full.",
            _gives(_bare_blocks),
        ),
        Hint(
            "the first row's window",
            "all_see asks only the first row. The last row's window begins latest: keys that the first row still sees "
            "are behind it. A tile has Tile::kRows rows.",
            _gives(_first_row),
        ),
        Hint(
            "heads are not tokens",
            "Chunks are right and chats are not. The rows of a decode are the heads of one token; that is why "
            "`visible` multiplies by diagonal, which is 0 there.",
            _gives(_tokens_for_heads),
        ),
    ],
    "Two lines, and the production kernel has a window. What it still does in vain: it fetches "
    "blocks that nobody sees. Where a piece begins, `begin`, is a matter of its plan, and that is Python.",
)

EXERCISES = (window,)

QUESTIONS = {
    "first-rung": Question(
        CHAPTER,
        "An H200's tensor cores multiply at 989 TFLOP/s, its other arithmetic at 67. What does one thread a row reach, "
        "in C++ as one would first write it?",
        {
            "about 5": "Half a percent. Unpacking, exponentials and the reading of keys take turns with the "
            "multiplications.",
            "about 50": "Near the 67: the multiplications would have to be nearly all that a thread does.",
            "about 300": "Only tensor cores could, and nobody has asked them yet.",
        },
        "about 5",
    ),
    "tile-gain": Question(
        CHAPTER,
        "Four warps share a CTA. Before, each fetched every key and value for itself; now they fetch them once, "
        "together. How much faster is prefill?",
        {
            "1.8 times": "It saves 45 % of the time. The multiplications are still done by threads, one at a time.",
            "4 times": "If it did nothing but fetch.",
            "not at all": "Caches help the first rung, but each load still takes its turn in each warp.",
        },
        "1.8 times",
    ),
    "mma-gain": Question(
        CHAPTER,
        "Through `mma`, tensor cores multiply 9 times as fast as the other arithmetic. How much faster is the kernel?",
        {
            "1.5 times": "Loads, unpacking and multiplications took turns in the threads, and `mma` replaces more than "
            "the multiplications.",
            "5 times": "From 1 % of the limit to 5. Several things ended at once: multiplying in threads, unpacking "
            "each operand for it, and spilled registers. What now takes the time is not multiplication.",
            "9 times": "If multiplying were all.",
        },
        "5 times",
    ),
    "ahead-gain": Question(
        CHAPTER,
        "In the sketch, copies that run ahead bring more than a factor of two. What do they bring here?",
        {
            "1.05 times": "The sketch takes copies to be the long part, and here something else is.",
            "1.5 times": "If a copy took half as long as what is done with the block.",
            "2 times": "If a copy took as long as what is done with the block.",
        },
        "1.05 times",
    ),
    "eight-rows": Question(
        CHAPTER,
        "A row of 128 numbers in 16 bits is 256 bytes, a multiple of the 128 bytes that shared memory delivers at "
        "once. Eight rows below each other: how many accesses does it take to read 16 bytes of each?",
        {
            "1": "128 bytes in all, but they lie in the same place of eight rows.",
            "2": "Two would do for 256 bytes, if they were spread over all banks.",
            "8": "Stored plainly, all eight pieces lie in the same four banks and wait for each other.",
        },
        "8",
    ),
    "split-gain": Question(
        CHAPTER,
        "Eight sequences decode 64K keys each: 32 query heads on 8 KV heads, 132 SMs, one CTA to each. Rung 5 has a "
        "tile for each query head. Now four heads share a tile, and each tile's keys are cut into two parts. How much "
        "faster is decode?",
        {
            "2 times": "Cutting alone brings that: 128 of the 132 SMs have work, instead of 64.",
            "5 times": "2.5 by sharing a tile: two rounds become one, and presumably four heads that no longer fetch "
            "the same keys bring the rest. And 2 by cutting.",
            "8 times": "A quarter of the tiles, then each half as long: that would be with equally many SMs at work. "
            "But the 256 tiles ran on 132 SMs, and the 64 on 64. By rounds it is 4, as two become one, half as long.",
        },
        "5 times",
    ),
    "two-gain": Question(
        CHAPTER,
        "A CTA of rung 7 has four warps, half of rung 6's. What does a second one on the same SM bring prefill?",
        {
            "nothing": "If four warps left nothing idle. They wait at their barrier, and the second CTA has its own.",
            "a quarter": "Measured with the same kernel, kept alone on its SM by memory that it asks for and does not "
            "use. Whether its warps bring that or its own barrier was not tested: a CTA of eight warps with 32 rows "
            "each would tell.",
            "a factor of two": "Twice the warps, but not twice the tensor cores or the shared memory: now and then "
            "both want the same.",
        },
        "a quarter",
    ),
    "ctas-of-a-batch": Question(
        CHAPTER,
        "How many CTAs is that, with tiles of 128 rows for prefill and 4 warps a CTA for decode?",
        {
            "5": "One for each request would do if a tile held all heads; here a prefill tile holds one query head.",
            "6": "Four prefill tiles, one for each query head, and eight decodes of a KV head each, four to a CTA.",
            "12": "A decode takes a warp, not a CTA: four of the eight share one.",
        },
        "6",
    ),
    "panels-of-the-ring": Question(
        CHAPTER,
        "A tile of 128 rows with heads of 128 numbers takes 32 KB for its queries and 16 KB for a panel of 64 keys. "
        "Two CTAs share 164 KB on an A100, 228 KB on an H200. For how many panels has the ring room?",
        {
            "3 and 4": "Half of it less 1 KB, which each CTA costs besides, is 81 and 113 KB. Less 32 that leaves room "
            "for three and for five; a step takes a pair, so four are used.",
            "3 and 5": "There would be, but a step reads a pair and fetches a pair: room for a fifth never helps.",
            "5 and 7": "The queries lie there, too, for as long as the tile lasts.",
        },
        "3 and 4",
    ),
    "same-bits": Question(
        CHAPTER,
        "The same batch by block, by warp, by ticket, and as two launches. Are the results equal to the last bit?",
        {
            "yes": "A binding says who computes a piece, and when. The piece is computed by the same code.",
            "no, but nearly": "Parts are merged in the order of their slots, whoever comes last. Nothing depends on "
            "time.",
            "only those in one launch": "The number of launches changes no piece.",
        },
        "yes",
    ),
    "how-many-barriers-can-go": Question(
        CHAPTER,
        "Here are all twelve. How many can go?",
        {
            "none": "Some promise what their neighbours happen to keep anyway.",
            "three": "Nine are needed; three are spare as things stand today.",
            "seven": "Most of them stand between a write and a read of another thread.",
        },
        "three",
    ),
    "worst-of-2000": Question(
        CHAPTER,
        "bf16 keeps eight bits of a number, so no kernel is exact. By how much may the worst of 7,000 batches be "
        "less exact than torch's own attention in the same dtype?",
        {
            "not at all": "Both round at slightly different places, and the worst of 7,000 is found where it is worst.",
            "by a fifth": "The worst are 1.03 to 1.21 times as far off. More than half again would count as wrong.",
            "tenfold": "That would be a bug: sums are kept in 32 bits here as there.",
        },
        "by a fifth",
    ),
    "how-many-fused-fit": Question(
        CHAPTER,
        "Prefill alone fills an SM with two CTAs. How many CTAs of the fused kernel fit?",
        {
            "1": "That is fusing by warps: its CTA holds both halves at once.",
            "2": "A CTA does one of the two, so it needs the larger of both, not the sum.",
            "4": "Prefill's registers alone fill an SM with two. (On an H200 the larger shared memory is decode's.)",
        },
        "2",
    ),
    "each-half-alone": Question(
        CHAPTER,
        "Prefill of 8K tokens: what share of those 640 TFLOP/s? Decode of 64 requests with 16K tokens: what share of "
        "the bare read?",
        {
            "30 % and 60 %": "Such halves would be worth nothing: two slow kernels overlap wonderfully.",
            "60 % and 97 %": "Prefill is ahead of torch's FlashAttention-2, and where the work divides evenly decode "
            "nearly only reads.",
            "90 % and 80 %": "The softmax, the waits and the mask cost prefill more; decode has little but reading.",
        },
        "60 % and 97 %",
    ),
}

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
from pod.reference import State

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


def _bare_blocks(window, token, start, keys, block, head, least=-1):
    """The window only where there is a mask anyway: not in blocks that lie before the first row."""
    begin = keys // block * block
    return right(window, token, start, keys, block, head) | ((begin + block <= start + 1) & (begin >= least))


def _first_row(window, token, start, keys, block, head):
    """A block goes without a mask if its keys are in the window of the first row."""
    return _bare_blocks(window, token, start, keys, block, head, least=start - window + 1)


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
    WINDOW,
    [Case(40), Case(150), Case(1000), Case(1)],
    launch,
    {
        "no window": Hint(
            "Every row still sees all keys up to its own. first(row) must rise with the row's token, which is number "
            "work.pos + row * diagonal of its context.",
            _gives(lambda window, token, start, keys, *_: np.ones(len(keys), bool)),
        ),
        "one too many": Hint(
            "kWindow keys are the row's own and kWindow - 1 before it. These rows see one more.",
            _gives(lambda window, token, start, keys, *_: keys >= token - window),
        ),
        "one too few": Hint(
            "kWindow keys are the row's own and kWindow - 1 before it. These rows see one less.",
            _gives(lambda window, token, start, keys, *_: keys > token - window + 1),
        ),
        "cut off with the piece": Hint(
            "`visible` ends where the piece of work ends, at work.end, and with it your window moves back. The row's "
            "own token is number work.pos + row * diagonal, whatever its piece.",
            lambda o: "visible" in FIRST.search(o.arguments[0])[0],
        ),
        "a row for a token": Hint(
            "`row` counts from 0 in its tile. The tile's first token is number work.pos of its context: begin there.",
            lambda o: _gives(_row_for_token)(o) or _gives(_row_and_one)(o),
        ),
        "no mask at all": Hint(
            "Rows see keys of tokens after their own: even the first token of a prompt is off. A block may go without "
            "a mask only if every row sees its last key *and* its first.",
            _unmasked,
        ),
        "one window for all": Hint(
            "All rows of a tile have the first row's window. It moves on with each row, by row * diagonal.",
            _gives(lambda window, token, start, keys, *_: keys > start - window),
        ),
        "blocks without a mask": Hint(
            "The mask is right where there is one. But most blocks lie wholly before the first row, go without a "
            "mask, as all_see says, and are seen in full.",
            _gives(_bare_blocks),
        ),
        "the first row's window": Hint(
            "all_see asks only the first row. The last row's window begins latest: keys that the first row still sees "
            "are behind it. A tile has Tile::kRows rows.",
            _gives(_first_row),
        ),
        "heads are not tokens": Hint(
            "Chunks are right and chats are not. The rows of a decode are the heads of one token; that is why "
            "`visible` multiplies by diagonal, which is 0 there.",
            _gives(_tokens_for_heads),
        ),
    },
    "Two lines, and the production kernel has a window. What it still does in vain: it fetches "
    "blocks that nobody sees. Where a piece begins, `begin`, is a matter of its plan, and that is Python.",
)

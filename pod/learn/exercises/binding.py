"""Your turn in chapter "POD kernel": a binding of your own in the production kernel."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from pod.batch import HybridBatch
from pod.hardware import GPUS
from pod.lab.mutate import Mistake
from pod.learn import changed
from pod.learn.faults import CellError
from pod.learn.judge import Exercise, Hint, Outcome
from pod.reference import hybrid_attention
from pod.schedule import decide

BINDING = '''
binding = """
DEV static Assignment assign(const Choice& c, sptr<Assignment>) {
    const int block = blockIdx.x;
    if (block < c.slots[kPrefill]) return {kPrefill, block, -1, 0};
    return {kDecode, block - c.slots[kPrefill], -1, 0};
}
"""
'''
EXACT = 0.03
OPS = ("prefill", "decode")
SAYS = """
struct Mine {
#line 1 "cell"
%s
#line 1 "kernel"
};
struct Told : ByBlock {
    DEV static Assignment assign(const Choice& c, sptr<Assignment> box) {
        const Assignment a = Mine::assign(c, box);
        if (threadIdx.x %% 32 == 0) printf("CTA %%d: %%d %%d\\n", int(blockIdx.x), a.op, a.id), fflush(stdout);
        return a;
    }
};
"""
AFTER = "// Warp-parallel, as HFuse does it"
ASSIGNED = re.compile(r"CTA (\d+): (-?\d+) (-?\d+)")


def put_in(text: str, csrc: Path) -> None:
    """The reader's function is the binding with which the driver launches."""
    Mistake("binding", "include/binding.cuh", AFTER, f"#include <cstdio>\n{SAYS % text}{AFTER}").apply(csrc)
    Mistake("launch", "emulate/driver.cu", "TestShape, ByTicket,", "TestShape, Told,").apply(csrc)


@dataclass(frozen=True)
class Case:
    """A chunk at the end of its context, and chats, on so many SMs."""

    chunk: int
    chats: int
    sms: int

    @property
    def batch(self) -> HybridBatch:
        chunks = (self.chunk,) if self.chunk else ()
        return HybridBatch((*chunks, *[1] * self.chats), (*(n + 60 for n in chunks), *[40] * self.chats),
                           num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16)  # fmt: skip

    @property
    def schedule(self):
        return decide.hybrid(self.batch, GPUS["a100"], self.sms, "pod", "50:50", 2, prefill_splits=1, decode_splits=1)

    @property
    def slots(self) -> tuple[int, int]:
        made = self.schedule
        return len(made.prefill), -(-(len(made.decode.pieces) - 1) // made.shape.virtual)

    @property
    def in_rounds(self) -> int:
        """CTAs of each kind, as long as both have a whole round left."""
        return min(self.slots) // self.sms * self.sms

    def __str__(self) -> str:
        return "{} pieces of prefill, {} of decode, {} SMs".format(*self.slots, self.sms)


def launch(text: str, case: Case) -> Outcome:
    changed.check(text, "binding", "the function `assign`")
    text = text.strip("\n")
    ran = changed.run(changed.built(text, partial(put_in, text)), case.batch, case.schedule)
    threads = sorted({tuple(map(int, found.groups())) for line in ran.printed if (found := ASSIGNED.match(line))})
    given = [(op, id) for _, op, id in threads]
    known = {"case": case, "values": (threads, given)}
    wanted = f"each piece once, and kinds that change every {case.sms} CTAs while both have {case.sms} left"
    if promise := broken(threads, case, ended=not ran.report):
        return Outcome(f"{case}", wanted, f"{_said(given)}: {promise}", **known)
    if ran.report:
        return Outcome(f"{case}", wanted, error=CellError(ran.report), **known)
    q, k, v, table = case.batch.tensors(seed=changed.SEED)
    off = np.abs(ran.out - hybrid_attention(q, k, v, case.batch.q_lens, case.batch.kv_lens, table)[0]).max()
    return Outcome(f"{case}", "what float64 says", f"off by {off:.2f}", right=bool(off < EXACT), **known)


def broken(threads: list[tuple[int, int, int]], case: Case, ended: bool) -> str:
    """The first promise of a binding that these (CTA, kind, piece) do not keep; "" when they keep all."""
    ctas, given = [cta for cta, *_ in threads], [(op, id) for _, op, id in threads]
    if torn := [cta for cta in ctas if ctas.count(cta) > 1]:
        return f"the warps of CTA {torn[0]} do not agree"
    if strange := [(op, id) for op, id in given if op not in (0, 1) or not 0 <= id < case.slots[op]]:
        return f"there is no {_said(strange[:1])}"
    if again := [x for x in given if given.count(x) > 1]:
        return f"{_said(again[:1])} twice"
    return "" if not ended or _in_rounds(given, case) else "not in rounds"


def _in_rounds(given: list[tuple[int, int]], case: Case) -> bool:
    rounds = _kinds(given, case.sms)[: 2 * case.in_rounds // case.sms]
    pairs = zip(rounds[::2], rounds[1::2], strict=True)
    return all(len(kinds) == 1 for kinds in rounds) and all(a != b for a, b in pairs)


def _kinds(given: list[tuple[int, int]], sms: int) -> list[set[int]]:
    """Of each round of CTAs, one for each SM."""
    return [{op for op, _ in given[i : i + sms]} for i in range(0, len(given), sms)]


def _said(given: list[tuple[int, int]]) -> str:
    return " ".join(f"{'PD'[op] if op in (0, 1) else op}{id}" for op, id in given)


def _promise(words: str) -> Callable[[Outcome], bool]:
    return lambda o: words in str(o.got).rpartition(": ")[2]


def _wrong_piece(o: Outcome) -> bool:
    return _promise("there is no")(o) or _promise("twice")(o)


def _changes(o: Outcome) -> int:
    return sum(before[0] != after[0] for before, after in pairwise(o.values[1]))


def _begins(o: Outcome, number: int) -> int | None:
    """The piece with which a round begins, if it was reached."""
    given = o.values[1][number * o.case.sms :]
    return given[0][1] if given else None


binding = Exercise(
    BINDING,
    [Case(140, 20, 3), Case(200, 5, 2), Case(70, 8, 2), Case(0, 9, 2), Case(130, 0, 3), Case(250, 14, 3)],
    launch,
    {
        "threads of two minds": Hint(
            "All threads of a CTA must come to the same answer: it depends on blockIdx.x, never on threadIdx.x.",
            _promise("do not agree"),
        ),
        "all of one kind first": Hint(
            "One kind fills both slots of every SM before the other begins, as it does without your binding. The kind "
            "must change after c.sms CTAs, not at its end.",
            lambda o: _promise("not in rounds")(o) and _changes(o) == 1,
        ),
        "alternating": Hint(
            "Neighbours in the grid are neighbours on the GPU: CTA 0 goes to SM 0, CTA 1 to SM 1, and SM 0 gets CTA "
            "c.sms as its second. So the kind must change after c.sms CTAs, as in chapter 06.",
            lambda o: len(_kinds(o.values[1], 2)[0]) == 2 and o.case.sms > 1 and o.case.in_rounds > 0,
        ),
        "the same pieces again": Hint(
            "The kinds are right. But each round of a kind begins with piece 0 again: its second one goes on where its "
            "first has ended.",
            lambda o: _wrong_piece(o) and _begins(o, 1) == _begins(o, 2) == 0,
        ),
        "rounds of the other counted": Hint(
            "The kinds are right. But pieces are counted through both kinds: when a kind has its second round, two "
            "rounds have gone by, and only one of them was its own.",
            lambda o: _wrong_piece(o) and _begins(o, 1) == o.case.sms,
        ),
        "used up": Hint(
            "The rounds are right, and go on when one kind has no whole round left. It must leave its CTAs to the "
            "other, or they ask for pieces that do not exist.",
            _promise("there is no"),
        ),
        "the rest begins anew": Hint(
            "The rounds are right. Behind them a piece comes twice: the rest of a kind begins where its rounds have "
            "ended.",
            _promise("twice"),
        ),
        "rounds of another length": Hint(
            "A round is one CTA for each SM, so c.sms of them: it may be another number on another GPU.",
            _promise("not in rounds"),
        ),
    },
    "That is all that a fused kernel needs to know of its order. On an empty GPU each SM now begins with both kinds; "
    "from then on nobody knows who ends first, and that is why the paper's binding draws tickets.",
)  # fmt: skip

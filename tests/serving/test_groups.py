"""Sequences that share blocks: whatever is forked, written and given back, nobody's text changes but its writer's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.serving.blocks import PagedPool
from pod.serving.groups import SharingPool
from pod.serving.request import Request

BLOCKS, SIZE = 12, 4
MOVES = st.lists(st.tuples(st.sampled_from(["come", "fork", "write", "go"]), st.integers(0, 7)), max_size=60)


class Texts:
    """What a GPU would do with the blocks: tokens are written where the tables say, and copies are made."""

    def __init__(self, pool: SharingPool):
        self.pool, self.memory, self.texts, self.requests = pool, {}, {}, {}

    def come(self, which: int) -> None:
        request = Request(len(self.texts), 1 + which, 40)
        if self.pool.can_admit(request):
            self.pool.admit(request)
            request.advance(request.prompt)
            self.requests[request.id] = request
            self._write(request, [f"{request.id}.{i}" for i in range(request.prompt)], 0)

    def fork(self, which: int) -> None:
        if parent := self._pick(which):
            child = Request(len(self.texts), parent.prompt, parent.output)
            self.pool.fork(parent, child)
            self.requests[child.id], self.texts[child.id] = child, [*self.texts[parent.id]]

    def write(self, which: int) -> None:
        if (request := self._pick(which)) and self.pool.grow(request):
            for old, new in self.pool.copies:
                self.memory[new] = dict(self.memory[old])
            self.pool.copies.clear()
            self._write(request, [f"{request.id}.{request.computed}"], request.computed)
            request.advance(1)

    def go(self, which: int) -> None:
        if request := self._pick(which):
            self.pool.release(self.requests.pop(request.id))

    def _pick(self, which: int) -> Request | None:
        return list(self.requests.values())[which % len(self.requests)] if self.requests else None

    def _write(self, request: Request, tokens: list, at: int) -> None:
        self.texts[request.id] = [*self.texts.get(request.id, [])[:at], *tokens]
        for i, token in enumerate(tokens, at):
            self.memory.setdefault(self.pool.tables[request.id][i // SIZE], {})[i % SIZE] = token

    def check(self) -> None:
        tables = {i: self.pool.tables[i] for i in self.requests}
        users = [sum(block in table for table in tables.values()) for block in range(BLOCKS)]
        assert self.pool.users == users, "a block counts whose tables it is in"
        assert sorted(self.pool.free) == [b for b, n in enumerate(users) if not n], "blocks lost, or freed in use"
        for i, table in tables.items():
            kept = [self.memory.get(table[at // SIZE], {}).get(at % SIZE) for at in range(self.requests[i].computed)]
            assert kept == self.texts[i], "somebody wrote into a text of another"


def play(pool: SharingPool, moves) -> None:
    texts = Texts(pool)
    for name, which in moves:
        getattr(texts, name)(which)
        texts.check()


@settings(deadline=None, max_examples=300)
@given(MOVES)
def test_whatever_is_forked_every_text_stays_its_own(moves):
    play(SharingPool(BLOCKS, SIZE, watermark=0.0), moves)


class WritesInPlace(SharingPool):
    grow = PagedPool.grow


class CopiesNothing(SharingPool):
    def grow(self, request):
        done = super().grow(request)
        self.copies.clear()
        return done


class FreesAtOnce(SharingPool):
    release = PagedPool.release


class NeverCountsDown(SharingPool):
    def grow(self, request):
        before = list(self.users)
        done = super().grow(request)
        self.users = [max(a, b) for a, b in zip(before, self.users, strict=True)]
        return done


FORKED = [("come", 5), ("fork", 0), ("write", 0), ("write", 1), ("go", 0), ("write", 0), ("come", 3)]


@pytest.mark.parametrize("wrong", [WritesInPlace, CopiesNothing, FreesAtOnce, NeverCountsDown])
def test_a_pool_that_forgets_a_rule_is_caught(wrong):
    play(SharingPool(BLOCKS, SIZE, watermark=0.0), FORKED)
    with pytest.raises(AssertionError):
        play(wrong(BLOCKS, SIZE, watermark=0.0), FORKED)


def test_four_answers_share_a_prompt_and_copy_one_block_each_but_the_last():
    pool, first = SharingPool(BLOCKS, SIZE, watermark=0.0), Request(0, 10, 40)
    pool.admit(first)
    first.advance(10)
    answers = [first, *(Request(i, 10, 40) for i in (1, 2, 3))]
    for other in answers[1:]:
        pool.fork(first, other)
    assert len(pool.free) == BLOCKS - 3, "a fork takes no block"
    assert all(pool.grow(r) for r in answers)
    assert len(pool.copies) == 3 and len(pool.free) == BLOCKS - 6, "the last finds the old block for itself"
    assert [table[:2] for table in pool.tables.values()] == [pool.tables[0][:2]] * 4


def test_who_holds_blocks_is_no_child():
    pool, request = SharingPool(BLOCKS, SIZE), Request(0, 4, 4)
    pool.admit(request)
    with pytest.raises(ValueError, match="^child: got id 0, which holds blocks already$"):
        pool.fork(request, request)

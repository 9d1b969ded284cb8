"""Prompts that begin alike share blocks: what is shared is what it should be, and nothing is lost."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.__main__ import main
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine, answer
from pod.serving.loop import Ticks, serve
from pod.serving.model import Llama, random_weights
from pod.serving.prefix import PrefixPool, names
from pod.serving.request import Request
from pod.serving.schedulers import VLLM, Sarathi
from pod.serving.shapes import Shape
from pod.simulate.metrics import requests as served
from pod.simulate.run import Run, Setup, simulate
from pod.simulate.workload import Workload, read_prefixes

SIZE = 4


class Witness(Ticks):
    """Writes each request's own text into its blocks, token by token, and looks at all that is read."""

    def __init__(self, scheduler, texts: dict[int, tuple]):
        self.pool, self.texts, self.written, self.read = scheduler.pool, texts, {}, 0

    def submit(self, batch, event) -> float:
        self.check_pool()
        for request, new, before in batch.prefills:
            self.look(request, before)
            self.write(request, before, new)
        for request in batch.decodes:
            self.look(request, request.computed)
            self.write(request, request.computed, 1)
        return super().submit(batch, event)

    def place(self, request, token: int) -> tuple[int, int]:
        return self.pool.tables[request.id][token // SIZE], token % SIZE

    def text(self, request, token: int):
        mine = self.texts[request.id]
        return mine[: token + 1] if token < len(mine) else (request.id, token)  # an answer is nobody else's

    def look(self, request, before: int) -> None:
        for token in range(before):
            self.read += 1
            assert self.written[self.place(request, token)] == self.text(request, token), "somebody else's keys"

    def write(self, request, before: int, new: int) -> None:
        for token in range(before, before + new):
            block, _ = self.place(request, token)
            assert self.pool.users[block] == 1, "a block that others read is written"
            self.written[self.place(request, token)] = self.text(request, token)

    def check_pool(self) -> None:
        pool = self.pool
        held = Counter(block for table in pool.tables.values() for block in table)
        assert [held[b] for b in range(pool.num_blocks)] == pool.users, "users are who holds a block"
        assert set(pool.free) == {b for b in range(pool.num_blocks) if not held[b]}, "a block is held or free"
        assert {block: name for name, block in pool.known.items()} == pool.content, "one block a name, one name a block"
        assert all(len(set(table)) == len(table) for table in pool.tables.values())


def run(prompts: list[tuple], blocks: int, scheduler=Sarathi, output: int = 5, **options) -> tuple[Witness, list]:
    pool = PrefixPool(blocks, SIZE, watermark=0.0)
    made = scheduler(pool, 4, **options)
    asked = [Request(i, len(p), output, float(i), pool.names(p)) for i, p in enumerate(prompts)]
    witness = Witness(made, dict(enumerate(prompts)))
    log = serve(asked, [made], witness)
    witness.check_pool()
    assert not pool.tables and all(r.finished for r in asked if r.id not in log.refused)
    return witness, log.iterations


texts = st.lists(st.tuples(st.sampled_from((1, 2)), st.integers(1, 30)).map(lambda t: t[:1] * t[1]), min_size=1,
                 max_size=12)  # fmt: skip


@given(prompts=texts, blocks=st.integers(10, 40), chunk=st.integers(3, 20), many=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_nobody_reads_what_is_not_theirs_and_no_block_is_lost(prompts, blocks, chunk, many):
    run(prompts, blocks, chunk=chunk, max_prefills=many)
    run(prompts, blocks, VLLM)


ADMIT = PrefixPool.admit


def _fresh_and_still_known(pool):
    block, _ = pool.free.popitem(last=False)
    pool.users[block] = 1
    return block


def _admit_and_name(pool, request):
    ADMIT(pool, request)
    before, request.computed = request.computed, request.prompt
    pool.filled(request)
    request.computed = before


def _release_all(pool, request):
    for block in pool.tables.pop(request.id):
        pool.users[block] = 0
        pool.free[block] = None


BUGS = {
    "a taken block keeps its name": ("_fresh", _fresh_and_still_known),
    "a chunk counts before it is computed": ("admit", _admit_and_name),
    "a block is free while others read it": ("release", _release_all),
}
CROWD = [(1,) * n for n in (20, 25, 9, 30)] + [(2,) * 28, (1,) * 24, (2,) * 30, (1,) * 30]


def crowd() -> None:
    run(CROWD, 24, chunk=7, max_prefills=2)
    run([(i % 3,) * 30 for i in range(9)], 10, chunk=7)


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught(bug, monkeypatch):
    crowd()
    name, wrong = BUGS[bug]
    monkeypatch.setattr(PrefixPool, name, wrong)
    with pytest.raises((AssertionError, KeyError)):
        crowd()


def test_a_text_that_is_there_is_not_computed_again():
    text = tuple(range(22))
    _, events = run([text, (*text, 1, 2, 3), text[:20]], 40, chunk=64, output=1)
    assert [chunk[1:3] for event in events for chunk in event.prefills] == [(22, 0), (5, 20), (4, 16)]


def test_the_least_recently_used_text_goes_first_and_its_end_before_its_beginning():
    pool = PrefixPool(8, SIZE, watermark=0.0)
    for i, text in enumerate(("a" * 12, "b" * 12)):
        request = Request(i, 12, 1, prefix=pool.names([ord(c) for c in text]))
        pool.admit(request)
        request.advance(12)
        pool.filled(request)
        pool.release(request)
    pool.admit(Request(2, 12, 1))  # two blocks are empty, so one of the older text's goes
    left = [len(pool.shared(Request(3, 13, 1, prefix=pool.names([ord(c)] * 13)))) for c in "ab"]
    assert left == [2, 3]


def test_names_tell_texts_apart_by_all_before():
    a, b = names([1, 2, 3, 4, 5, 6], 2), names([9, 2, 3, 4, 5, 6], 2)
    assert len(a) == 3 and not set(a) & set(b) and names([1, 2, 3, 4], 2) == a[:2]


def test_the_engine_answers_the_same_and_computes_less():
    import torch

    tiny = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=128)
    common = np.random.default_rng(0).integers(0, 96, 32).tolist()
    prompts = [common + np.random.default_rng(i).integers(0, 96, 3 + 4 * i).tolist() for i in range(6)]
    given, computed = [], []
    for kind in (PagedPool, PrefixPool):
        pool = kind(40, 4)
        lane = Sarathi(pool, 3, chunk=16)
        engine = Engine(Llama(tiny, random_weights(3, 2), dtype=torch.float64), pool)
        answers, log = answer(engine, lane, prompts, 9)
        given.append([a.tokens for a in answers])
        computed.append(sum(chunk[1] for event in log.iterations for chunk in event.prefills))
    assert given[0] == given[1] and computed[1] < 0.7 * computed[0]


# ---------------------------------------------------------------- traces that say which prompts begin alike


ALIKE = "arrival_ms,prefill_tokens,decode_tokens,like,shared\n0,2000,5,,0\n9000,2000,5,0,3\n18000,1500,5,1,2\n"


def trace(tmp_path, text: str, name: str = "t.csv") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_two_forms_of_a_trace_say_the_same(tmp_path):
    hashes = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 9]]
    rows = [f'{{"timestamp": {9000 * i}, "input_length": {n}, "output_length": 5, "hash_ids": {ids}}}'
            for i, (n, ids) in enumerate(zip((2000, 2000, 1500), hashes, strict=True))]  # fmt: skip
    ours, theirs = trace(tmp_path, ALIKE), trace(tmp_path, "\n".join(rows), "t.jsonl")
    same = lambda names: [[[a == b for b in sum(names, ())] for a in row] for row in names]  # noqa: E731
    assert same(read_prefixes(ours)) == same(read_prefixes(theirs))


def test_a_common_beginning_comes_sooner(tmp_path):
    work = Workload(trace(tmp_path, ALIKE), None)
    logs = [simulate(Setup(max_tokens=4096, prefix_cache=on), work.requests()) for on in (False, True)]
    first = [{c[0]: c[2] for e in reversed(log.iterations) for c in e.prefills} for log in logs]
    assert first == [{0: 0, 1: 0, 2: 0}, {0: 0, 1: 1536, 2: 1024}]
    plain, cached = (served(log).ttft for log in logs)
    assert cached[0] == plain[0] and (cached[1:] < plain[1:]).all()
    row = Run(Setup(max_tokens=4096, prefix_cache=True), work).full()
    assert row["computed_percent"] == pytest.approx(100 * (5500 - 2560) / 5500)


def test_a_trace_that_starts_again_brings_other_texts(tmp_path):
    asked = Workload(trace(tmp_path, ALIKE), 6).requests()
    assert not set(asked[0].prefix) & set(asked[3].prefix)


def test_without_common_beginnings_a_cache_changes_nothing(tmp_path):
    work = Workload(trace(tmp_path, ALIKE.replace(",0,3", ",,0").replace(",1,2", ",,0")), None)
    logs = [simulate(Setup(max_tokens=4096, prefix_cache=on), work.requests()) for on in (False, True)]
    assert [e.end for e in logs[0].iterations] == [e.end for e in logs[1].iterations]


@pytest.mark.parametrize(("text", "options", "words"), [
    (ALIKE.replace("0,3", "1,3"), "", "row 3, columns like, shared: got '1', '3', allowed are an earlier request"),
    (ALIKE.replace("0,3", "0,5"), "", "row 3, columns like, shared: got '0', '5'"),
    (ALIKE.replace("0,3", "0,x"), "", "row 3, columns like, shared: got '0', 'x'"),
    (ALIKE.replace("0,3", "0,-1"), "", "row 3, columns like, shared: got '0', '-1'"),
    ("prefill_tokens,decode_tokens\n5,5\n", "", "which does not say whose prompts begin alike"),
    (ALIKE, "--block-size 7", "block_size: got 7, allowed with names of 512 tokens are its divisors"),
    (ALIKE, "--scheduler orca", "prefix_cache: got True, allowed are False, and True beside --pp 1, no --"),
    (ALIKE, "--pp 2", "prefix_cache: got True, allowed are False, and True beside --pp 1"),
    (ALIKE, "--replicas 2 --prompt-replicas 1", "prefix_cache: got True, allowed are False, and Tr"),
])  # fmt: skip
def test_what_cannot_be_shared_is_one_line(text, options, words, tmp_path, refused):
    assert words in refused("simulate", "--prefix-cache", "--workload", trace(tmp_path, text), *options.split())


def test_a_trace_that_says_it_of_some_rows_is_told_that_all_are_wanted(tmp_path, refused):
    rows = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1]}\n'
    rows += '{"timestamp": 0, "input_length": 9, "output_length": 5}\n'
    said = refused("simulate", "--prefix-cache", "--workload", trace(tmp_path, rows, "t.jsonl"))
    assert said.endswith("allowed are traces with hash_ids, or with like and shared, in every row\n")


def test_hash_ids_that_are_none_are_refused(tmp_path, capsys):
    row = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]}\n'
    assert main(["simulate", "--prefix-cache", "--workload", trace(tmp_path, row, "t.jsonl")]) == 2
    told = "row 1, column hash_ids: got '[1]', allowed are 2 integers, one for each 512 tokens"
    assert told in capsys.readouterr().err

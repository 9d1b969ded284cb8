"""The engine under every scheduler: the same greedy tokens, whoever shares the batch and whoever is sent away."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pod.experiments.engine import engine_tp
from pod.lab.measure import ranks
from pod.lab.show.engine import WrongRows
from pod.serving import engine as engine_module
from pod.serving.backends import Ours
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.engine import Engine, answer
from pod.serving.events import Log
from pod.serving.loop import Replay, Ticks, WallClock, serve
from pod.serving.model import Group, Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import SCHEDULERS, SWAP, VLLM, Batch, Chunk, Orca, Sarathi, SarathiV1, Scheduler, Static
from pod.serving.shapes import Shape
from pod.serving.step import Arrays, pack, predicting
from pod.simulate import windows

TINY = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=128)
PROMPTS = [np.random.default_rng(i).integers(0, TINY.vocab, n).tolist() for i, n in enumerate((5, 40, 17, 23, 1, 31))]
OUTPUT = 14


def tiny(group: Group | None = None) -> Llama:
    """float64, so that no near tie is decided by the order of a sum."""
    return Llama(TINY, random_weights(3, TINY.layers), dtype=torch.float64, group=group)


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Every prompt by itself, unbroken: what any company must give too."""
    out = []
    for prompt in PROMPTS:
        pool = PagedPool(40, 4)
        (result,), _ = answer(Engine(tiny(), pool), VLLM(pool, 1), [prompt], OUTPUT)
        out.append(result.tokens)
    assert len({tuple(tokens) for tokens in out}) == len(PROMPTS) and len(set(sum(out, []))) > 20
    return out


def reserved() -> ReservedPool:
    return ReservedPool(4 * 64, 64, block_size=1)


def plain(kind: type[Scheduler]) -> Scheduler:
    return kind(PagedPool(60, 4) if kind.pool_type is PagedPool else reserved(), 4)


WAYS = {name: partial(plain, kind) for name, kind in SCHEDULERS.items()} | {
    "static": lambda: Static(reserved(), 3),
    "orca": lambda: Orca(reserved(), 4),
    "vllm": lambda: VLLM(PagedPool(60, 4), 8),
    "sarathi_v1": lambda: SarathiV1(reserved(), 4, chunk=8, tile=4),
    "sarathi, chunk 1": lambda: Sarathi(PagedPool(60, 4), 3, chunk=4),
    "sarathi, chunk 7": lambda: Sarathi(PagedPool(60, 4), 8, chunk=7),
    "sarathi, two prompts": lambda: Sarathi(PagedPool(60, 4), 8, chunk=16, max_prefills=2),
    "sarathi, all at once": lambda: Sarathi(PagedPool(60, 16), 8, chunk=1000, max_prefills=6),
}
TIGHT = {
    "vllm": lambda: VLLM(PagedPool(15, 4, 0.0), 8),
    "vllm, swap": lambda: VLLM(PagedPool(15, 4, 0.0, swap_blocks=30), 8, preemption=SWAP),
    "sarathi": lambda: Sarathi(PagedPool(16, 4, 0.0), 8, chunk=9),
    "sarathi, swap": lambda: Sarathi(PagedPool(16, 4, 0.0, swap_blocks=30), 8, preemption=SWAP, chunk=9),
}


@pytest.mark.parametrize("way", WAYS)
def test_company_changes_no_token(way, alone):
    scheduler = WAYS[way]()
    answers, log = answer(Engine(tiny(), scheduler.pool), scheduler, PROMPTS, OUTPUT)
    assert [a.tokens for a in answers] == alone
    assert max(len(e.decodes) + len(e.prefills) for e in log.iterations) > 1, "nobody had company"


@pytest.mark.parametrize("way", TIGHT)
def test_a_pool_too_small_for_all_changes_no_token(way, alone):
    scheduler = TIGHT[way]()
    answers, log = answer(Engine(tiny(), scheduler.pool), scheduler, PROMPTS, OUTPUT)
    sent_away = [how for e in log.iterations for _, how in e.preempted]
    assert len(sent_away) >= 3 and ("swap" in sent_away) == ("swap" in way)
    assert [a.tokens for a in answers] == alone


def test_logits_from_the_wrong_rows_are_noticed(alone):
    scheduler = WAYS["sarathi, chunk 7"]()
    answers, _ = answer(WrongRows(tiny(), scheduler.pool), scheduler, PROMPTS, OUTPUT)
    assert [a.tokens for a in answers] != alone


def test_a_stop_token_ends_one_answer_and_no_other(alone):
    stop = alone[1][4]
    ends = [tokens.index(stop) + 1 if stop in tokens else OUTPUT for tokens in alone]
    pool = PagedPool(60, 4)
    answers, _ = answer(Engine(tiny(), pool, stop=[stop]), Sarathi(pool, 8, chunk=16), PROMPTS, OUTPUT)
    assert [a.tokens for a in answers] == [tokens[:n] for tokens, n in zip(alone, ends, strict=True)]
    assert min(ends) < OUTPUT == max(ends) and len(pool.free) == 60


def test_a_bad_request_stops_nobody(alone):
    pool = PagedPool(20, 4)
    prompts = [[], PROMPTS[0], [1] * 120, [5, TINY.vocab], [1] * 90, PROMPTS[2]]
    answers, _ = answer(Engine(tiny(), pool), Sarathi(pool, 8, chunk=16), prompts, OUTPUT)
    assert [a.error for a in answers] == [
        "the prompt is empty, allowed is at least one token", None, "120 tokens and 14 to come, Tiny takes 128 in all",
        "a token outside of the vocabulary, allowed are 0 to 95",
        "104 tokens and the watermark need 27 blocks, the pool has 20", None,
    ]  # fmt: skip
    assert [a.tokens for a in answers] == [[], alone[0], [], [], [], alone[2]]


def test_who_can_never_be_served_hears_it_before_anything_runs(monkeypatch):
    pool = PagedPool(20, 4)
    monkeypatch.setattr(engine_module, "serve", lambda requests, *rest, **run: Log() if requests == [] else 1 / 0)
    answers, _ = answer(Engine(tiny(), pool), VLLM(pool, 8, max_tokens=50), [[1] * 90, [1] * 45, [1]], [9, 9, 0])
    assert [a.error for a in answers] == [
        "99 tokens, an iteration has 50", "54 tokens, an iteration has 50", "0 tokens to come, allowed is at least one",
    ]  # fmt: skip


def test_lists_and_pools_that_do_not_belong_together_are_refused():
    pool = PagedPool(60, 4)
    engine = Engine(tiny(), pool)
    with pytest.raises(ValueError, match="^scheduler: got one with a pool of its own, allowed is one that has the eng"):
        answer(engine, Sarathi(PagedPool(60, 4), 8), PROMPTS, OUTPUT)
    for rest in (([3], None), (3, [0.0])):
        with pytest.raises(ValueError, match="^prompts: got 6, with . outputs and . arrivals, allowed are equal"):
            answer(engine, Sarathi(pool, 8), PROMPTS, *rest)


def test_a_prompt_may_fill_the_context_and_the_pool_to_the_last_token():
    pool = PagedPool(32, 4, watermark=0.0)
    answers, _ = answer(Engine(tiny(), pool), Sarathi(pool, 8), [[1] * 100, [1] * 101], 28)
    assert len(answers[0].tokens) == 28 and answers[1].error == "101 tokens and 28 to come, Tiny takes 128 in all"


def test_the_simulator_makes_the_batches_of_a_real_run():
    """Its times fed back, zero tolerance, with arrivals and preemptions on a wall clock."""
    scheduler = Sarathi(PagedPool(16, 4, 0.0), 8, chunk=9)
    arrivals = [0.0, 0.001, 0.004, 0.02, 0.021, 0.05]
    _, log = answer(Engine(tiny(), scheduler.pool), scheduler, PROMPTS, OUTPUT, arrivals)
    requests = [Request(i, len(p), OUTPUT, t) for i, (p, t) in enumerate(zip(PROMPTS, arrivals, strict=True))]
    again = serve(requests, [Sarathi(PagedPool(16, 4, 0.0), 8, chunk=9)], Replay(log))
    batches = lambda log: [(e.prefills, e.decodes, e.preempted, e.free) for e in log.iterations]  # noqa: E731
    assert batches(again) == batches(log) and any(e.preempted for e in log.iterations)


def test_a_batch_is_read_off_its_own_rows():
    """In a hybrid batch the rows that predict are the last of each complete prompt, then one a decode."""
    a, b, c = Request(0, 6, 4), Request(1, 3, 4), Request(2, 5, 4)
    c.advance(5)
    batch = Batch(prefills=[Chunk(a, 4, 0), Chunk(b, 3, 0)], decodes=[c])
    step = pack(batch, {0: list(range(6)), 1: [7, 8, 9], 2: [1, 2, 3, 4, 5, 6]}, {0: [0, 1], 1: [2], 2: [3, 4]}, 4)
    assert step.rows.tolist() == [6, 7] and [r.id for r in predicting(batch)] == [1, 2]
    assert step.tokens.tolist() == [0, 1, 2, 3, 7, 8, 9, 6] and step.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 5]
    assert step.slots.tolist() == [0, 1, 2, 3, 8, 9, 10, 17]


def test_tables_that_are_kept_as_arrays_follow_their_lists():
    """Who grows, comes back with other blocks, or was somebody else under the same number."""
    lists, random = {}, np.random.default_rng(0)
    arrays = Arrays(lists)
    for turn in range(2000):
        id_, what = int(random.integers(0, 9)), random.random()
        if id_ not in lists or what < 0.1:
            lists[id_] = random.integers(0, 99, random.integers(0, 5)).tolist()
        elif what < 0.2:
            del lists[id_]
        else:
            lists[id_].append(turn)
        assert all(arrays[i].tolist() == blocks and arrays[i].dtype == np.int32 for i, blocks in lists.items())
    for id_ in range(1000):
        lists.clear()
        lists[id_] = [id_]
        arrays.sweep()
        assert arrays[id_].tolist() == [id_] and len(arrays._known) < 70


def test_the_next_plan_is_made_ahead_and_used_only_if_it_fits(monkeypatch):
    """A request that ends or arrives makes the guess worthless; the lengths that count are those of the step."""
    made = []
    monkeypatch.setattr("pod.attention.plan", lambda q_lens, kv_lens, *rest: made.append(kv_lens) or len(made))
    ours = Ours("pod", 2, 1, 64, 16, torch.float16, "cpu")
    host = lambda *kv_lens: SimpleNamespace(q_lens=np.ones_like(kv_lens), kv_lens=np.array(kv_lens), table=kv_lens)  # noqa: E731
    for step in (host(5, 9), host(6, 10), host(7, 11), host(8), host(9)):
        ours.plan(step, step)
        assert made[ours.made - 1] == step.kv_lens.tolist() and ours.table == step.table
        ours.expect(step)
    assert made == [[5, 9], [6, 10], [7, 11], [8, 12], [8], [9], [10]], "each planned once, but for the wrong guess"


# ---------------------------------------------------------------- two processes


def _serve(rank: int, size: int, device: str) -> list[list[int]] | None:
    torch.set_num_threads(1)
    pool = PagedPool(16, 4, 0.0)
    engine = Engine(tiny(Group(rank, size)), pool)
    if rank:
        return engine.follow()
    answers, _ = answer(engine, Sarathi(pool, 8, chunk=9), PROMPTS, OUTPUT)
    engine.close()
    return [a.tokens for a in answers]


def test_two_processes_answer_as_one_does(alone):
    assert ranks.run(_serve, 2, "cpu") == alone


def test_the_suite_for_two_gpus_runs_on_two_processes_here():
    """Its own check that two answer as one included; one token more an iteration would make another digest."""
    load = replace(engine_tp.LOAD, chunk=64, total=200, iterations=8)
    (rows,) = engine_tp.start(2, "cpu", {"run": "sdpa"}, load, replace(TINY, vocab=512)).values()
    events = windows.window(load, Ticks(), load.scheduler())
    assert [row["digest"] for row in rows] == [windows.digest(event) for event in events]
    assert all(row["scheduled_ms"] < row["planned_ms"] < row["launched_ms"] < row["end_ms"] for row in rows)


def _fail(rank: int, size: int, device: str, folder: Path) -> None:
    """The second process finds no memory for its share of the cache."""
    pool = Huge() if rank else PagedPool(16, 4, 0.0)
    try:
        Engine(tiny(Group(rank, size)), pool)
    except ValueError as error:
        (folder / str(rank)).write_text(str(error))


class Huge:
    """What the engine asks of a pool, without the list of a quadrillion free blocks."""

    num_blocks, block_size, swap_blocks = 2**50, 4, 0


def test_who_finds_no_memory_stops_every_process(tmp_path):
    ranks.run(_fail, 2, "cpu", tmp_path)
    said = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    assert said[0] == "blocks: got 16, another process has no room for them" and "has no room (" in said[1]


# ---------------------------------------------------------------- on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs and their kernels")
def test_every_attention_and_graphs_agree_on_a_gpu():
    from pod.lab.measure import check_engine

    assert check_engine.main() == 0


def test_the_clock_of_the_engine_is_the_loops():
    pool = PagedPool(60, 4)
    engine = Engine(tiny(), pool)
    _, log = answer(engine, Sarathi(pool, 8, chunk=16), PROMPTS[:2], 3)
    assert isinstance(engine.clock, WallClock) and len(engine.marks) == len(log.iterations)
    for event, (planned, launched) in zip(log.iterations, engine.marks, strict=True):
        assert event.scheduled < planned < launched < event.end <= engine.clock.now

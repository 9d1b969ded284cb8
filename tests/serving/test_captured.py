"""Iterations of padded sizes through the code that captures them, with a replay that computes everything anew."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_engine import OUTPUT, PROMPTS, TIGHT, TINY, WAYS, tiny

from pod.experiments.engine import engine_tp_graphs
from pod.lab.measure import check_engine, ranks
from pod.serving import captured
from pod.serving import engine as engine_module
from pod.serving.backends import FixedFlash, FixedInTurn, Ours, Sdpa
from pod.serving.captured import LARGEST, MOST_SEQUENCES, SIZES, Size, Staged, Whole, size_for
from pod.serving.engine import PIECES, WHOLE, Cache, Engine, answer
from pod.serving.loop import Ticks
from pod.serving.model import Group
from pod.serving.schedulers import VLLM
from pod.serving.step import Step
from pod.simulate import windows


class Work:
    """A workspace that only remembers lengths where the GPU would read them, and attention by torch."""

    def update(self, *lens) -> None:
        self.lens = lens

    def attend(self, q, k_cache, v_cache, table, out):
        mine, rows = self.lens[0] > 0, int(self.lens[0].sum())
        some = Step(None, 0, *(x[mine] for x in self.lens), None, None, None, None, table[mine])
        sdpa = Sdpa()
        sdpa.plan(some, some)
        if rows:
            out[:rows] = sdpa.run(q[:rows], k_cache, v_cache)
        return out


class Fixable(Sdpa):
    """Torch's attention for any lengths. `alone` may be another one for decodes."""

    alone = None

    def fix(self, tokens, sequences, longest):
        return Work()


class Replayed(Whole):
    """Whole iterations without a GPU. `ran` are their sizes, in order."""

    def __init__(self, *of):
        super().__init__(*of)
        self.ran = []

    def ready(self, step):
        made = super().ready(step)
        self.ran.append((len(step.tokens), made and len(made.staged.device.tokens)))
        return made

    def _capture(self, iteration):
        iteration()
        return iteration


@pytest.fixture
def replayed(monkeypatch):
    monkeypatch.setattr(engine_module, "possible", lambda attention, model: True)
    monkeypatch.setattr(engine_module, "backend", lambda *of: Fixable())
    monkeypatch.setattr(engine_module, "Whole", Replayed)


@pytest.mark.parametrize("way", ["vllm", "sarathi, chunk 7", "sarathi, all at once", *TIGHT])
def test_padding_changes_no_token(way, replayed, monkeypatch):
    """Arrivals, chunks, decodes and preemptions, each iteration once padded and once as it is."""
    monkeypatch.setattr(captured, "SIZES", [3, 5, 11, 40, 200])
    make = (WAYS | TIGHT)[way]
    scheduler = make()
    eager = Engine(tiny(), scheduler.pool, graphs=False)
    want, _ = answer(eager, scheduler, PROMPTS, OUTPUT)
    scheduler = make()
    engine = Engine(tiny(), scheduler.pool, graphs=True)
    got, log = answer(engine, scheduler, PROMPTS, OUTPUT)
    assert [a.tokens for a in got] == [a.tokens for a in want]
    assert [tokens for tokens, _ in engine.whole.ran] == [e.tokens for e in log.iterations]
    assert any(tokens < padded for tokens, padded in engine.whole.ran), "nothing was padded"
    assert len(engine.marks) == len(log.iterations)


def test_a_sampler_of_the_callers_gets_the_logits_of_those_who_predict(replayed):
    seen, pools = [], [WAYS["sarathi, chunk 7"]() for _ in range(2)]

    def second(logits, requests):
        seen.append(logits.shape[0] == len(requests))
        return logits.topk(2).indices[:, 1]

    wanted, got = ([a.tokens for a in answer(Engine(tiny(), s.pool, sample=second, graphs=g), s, PROMPTS, OUTPUT)[0]]
                   for s, g in zip(pools, (False, True), strict=True))  # fmt: skip
    assert got == wanted and all(seen)


def test_rows_of_padding_write_to_the_spare_block_alone(replayed):
    scheduler = WAYS["vllm"]()
    engine = Engine(tiny(), scheduler.pool, graphs=True)
    data = engine.cache.data
    data.fill_(5.0)
    engine.whole.captured_for(24)  # its first run is on the spare block as well
    assert bool((data[:, :, :-1] == 5.0).all()) and not bool((data[:, :, -1] == 5.0).all())
    step = some_step(engine.pool.block_size)
    with torch.inference_mode():
        assert engine.whole.ready(step) is engine.whole.captured_for(16)
        logits = engine.whole.captured_for(16).run(5)
    written = (data[0, 0, :-1] != 5.0).any(-1).any(-1).flatten().nonzero()[:, 0]
    assert written.tolist() == sorted(step.slots.tolist()) and logits.shape == (5, 96) and bool(logits.isfinite().all())


def some_step(block: int) -> Step:
    """A chunk of 9 tokens over 5 and 4 decodes of 3, in blocks 1 to 8."""
    q_lens, kv_lens = [9, 1, 1, 1, 1], [14, 3, 3, 3, 3]
    positions = [*range(5, 14), 2, 2, 2, 2]
    table = np.zeros((5, 4), np.int32)
    table[0], table[1:, 0] = [1, 2, 3, 4], [5, 6, 7, 8]
    owner = np.repeat(np.arange(5), q_lens)
    slots = table[owner, np.array(positions) // block] * block + np.array(positions) % block
    fields = (q_lens, kv_lens, range(13), positions, slots, [8, 9, 10, 11, 12])
    return Step(None, 1, *(np.array(x, np.int32) for x in fields), table)


def test_what_is_staged_is_the_step_and_nothing_of_the_one_before():
    staged, size = Staged(Size(16, 16, 7), 99, torch.device("cpu")), (16, 16, 7)
    staged.pinned.fill_(77)
    step = some_step(4)
    staged.fill(step)
    for name, fill in (("q_lens", 0), ("kv_lens", 0), ("tokens", 0), ("positions", 0), ("slots", 99), ("rows", 0)):
        got, new = getattr(staged.device, name).tolist(), getattr(step, name).tolist()
        assert got == new + [fill] * (16 - len(new)), name
    assert staged.device.table.shape == size[1:] and staged.device.table[:5, :4].tolist() == step.table.tolist()
    assert staged.device.q_lens.data_ptr() == staged.there[5:].data_ptr(), "of one copy"


def test_what_is_staged_waits_until_the_step_before_has_gone_up():
    """Several micro-batches of a pipeline may be launched before the GPU copies the first."""
    staged, seen = Staged(Size(16, 16, 7), 99, torch.device("cpu")), []
    look = lambda: seen.append(staged.pinned.tolist())  # noqa: E731
    staged.copied = SimpleNamespace(synchronize=look, record=look)
    for block in (1, 2):
        staged.fill(staged.alone(block))
    before, first, still, second = seen
    assert before != first == still != second


@pytest.mark.parametrize("tokens, sequences, padded", [
    (1, 1, 1), (2, 2, 2), (5, 5, 6), (7, 1, 8), (9, 9, 12), (13, 2, 16), (57, 57, 64), (65, 65, 96), (1024, 58, 1024),
    (1025, 58, 1536), (2048, 256, 2048), (2049, 1, None), (300, 257, None),
])  # fmt: skip
def test_sizes_are_powers_of_two_and_the_halves_between(tokens, sequences, padded):
    assert size_for(tokens, sequences) == padded
    assert padded is None or tokens <= padded < 2 * tokens


def test_every_size_has_room_for_as_many_sequences_as_it_is_chosen_for():
    assert SIZES[0] == 1 and SIZES[-1] == LARGEST and len(SIZES) == 22
    for tokens in range(1, LARGEST + 1):
        for sequences in {min(tokens, MOST_SEQUENCES), 1}:
            assert min(size_for(tokens, sequences), MOST_SEQUENCES) >= sequences


def test_what_is_too_large_runs_as_it_is(replayed, monkeypatch):
    monkeypatch.setattr(captured, "SIZES", [1, 2, 3, 4])
    scheduler = WAYS["sarathi, chunk 7"]()
    engine = Engine(tiny(), scheduler.pool, graphs=True)
    want = WAYS["sarathi, chunk 7"]()
    wanted, _ = answer(Engine(tiny(), want.pool, graphs=False), want, PROMPTS, OUTPUT)
    got, _ = answer(engine, scheduler, PROMPTS, OUTPUT)
    assert [a.tokens for a in got] == [a.tokens for a in wanted]
    assert {padded for _, padded in engine.whole.ran} == {1, 2, 3, 4, None}


def test_warming_makes_all_sizes_up_to_the_budget(replayed):
    scheduler = WAYS["vllm"]()
    engine = Engine(tiny(), scheduler.pool, graphs=True)
    engine.warm(5, 20)
    assert list(engine.whole.made) == [24, 16, 12, 8, 6, 4, 3, 2, 1]
    engine.warm(1, 10**6)
    assert sorted(engine.whole.made) == SIZES


def test_warming_runs_the_head_for_any_number_of_rows(replayed):
    """It is outside the graphs, and its kernels differ by rows."""
    scheduler, seen = WAYS["vllm"](), []
    engine = Engine(tiny(), scheduler.pool, graphs=True)
    logits = engine.model.logits
    engine.model.logits = lambda x: seen.append(len(x)) or logits(x)
    engine.warm(5, 20)
    assert set(seen) == {1, 2, 3, 4, 5}


def _serve(rank: int, size: int, device: str, folder: str) -> None:
    torch.set_num_threads(1)
    engine_module.possible, engine_module.backend, engine_module.Whole = (
        lambda *of: True, lambda *of: Fixable(), Replayed)  # fmt: skip
    scheduler = WAYS["sarathi, chunk 7"]()
    engine = Engine(tiny(Group(rank, size)), scheduler.pool, graphs=WHOLE)
    if rank:
        engine.follow()
        answers = []
    else:
        engine.warm(2, 4)
        answers, _ = answer(engine, scheduler, PROMPTS, OUTPUT)
        engine.close()
    torch.save(([a.tokens for a in answers], list(engine.whole.made), engine.whole.ran), f"{folder}/{rank}")


def test_two_processes_capture_the_same_sizes_in_the_same_order(tmp_path):
    """They meet in every layer, so one that captured alone would wait for the other for good."""
    ranks.run(_serve, 2, "cpu", str(tmp_path))
    (got, *made), (_, *others) = (torch.load(tmp_path / str(rank)) for rank in (0, 1))
    scheduler = WAYS["sarathi, chunk 7"]()
    want, _ = answer(Engine(tiny(), scheduler.pool, graphs=False), scheduler, PROMPTS, OUTPUT)
    assert got == [a.tokens for a in want] and made == others
    assert made[0][:4] == [4, 3, 2, 1] and all(padded for _, padded in made[1])


def _measure(rank: int, world: int, device: str) -> dict:
    engine_module.possible, engine_module.backend, engine_module.Whole = (
        lambda *of: True, lambda *of: Fixable(), Replayed)  # fmt: skip
    check_engine.PROMPTS, check_engine.OUTPUT, engine_tp_graphs.GRAPHS = (300, 3, 70), 5, (WHOLE, False)
    return engine_tp_graphs.runs(rank, world, device, SHORT, replace(TINY, vocab=512), "sdpa")


SHORT = replace(engine_tp_graphs.LOAD, chunk=64, total=200, iterations=8)


def test_what_two_gpus_are_asked_for_runs_on_two_processes_here():
    """The same logits as one process, with whole iterations and without, then the same batches by both."""
    found = ranks.run(_measure, 2, "cpu")
    batches = [windows.digest(event) for event in windows.window(SHORT, Ticks(), SHORT.scheduler())]
    assert list(found) == [WHOLE, False] and engine_tp_graphs.GRAPHS == (WHOLE, PIECES)
    assert engine_tp_graphs.cases()[0].keys() == set(engine_tp_graphs.KEYS) and engine_tp_graphs.WHOLE == ()
    for rows in found.values():
        assert [row["digest"] for row in rows] == batches
        assert all(row["same_percent"] == 100 and row["whole_error"] < 1e-4 > row["eager_error"] for row in rows)


def test_several_gpus_have_whole_iterations_only_when_asked(replayed):
    for size, graphs in ((1, True), (2, WHOLE), (2, True)):
        engine = object.__new__(Engine)
        engine.model, engine.cache = SimpleNamespace(group=Group(0, size), context=64, layers=()), Cache8()
        engine.attention = Fixable()
        assert (engine._graphs(graphs)[0] is not None) == ((size, graphs) != (2, True))


class Cache8:
    blocks, block_size = 8, 4

    def __iter__(self):
        return iter(())


def test_graphs_that_are_not_possible_are_refused():
    pool = VLLM(WAYS["vllm"]().pool, 1).pool
    for graphs in (WHOLE, "all", 3):
        with pytest.raises(ValueError, match="^graphs: got .*, allowed"):
            Engine(tiny(), pool, graphs=graphs)
    assert PIECES != WHOLE and Engine(tiny(), pool).whole is None and isinstance(Engine(tiny(), pool).cache, Cache)


@pytest.mark.parametrize("method, able", [("auto", True), ("hopper", True), ("pod", False)])
def test_whole_iterations_are_for_our_kernel_on_hopper(monkeypatch, method, able):
    monkeypatch.setattr("pod.kernels.sm90.available", lambda device: True)
    model = SimpleNamespace(device=torch.device("cuda"))
    attention = object.__new__(Ours)
    attention.method = method
    assert captured.possible(attention, model) is able and not captured.possible(Sdpa(), model)


def test_an_engine_that_is_dropped_leaves_no_cache_behind(monkeypatch):
    """At once: the next one may need its memory, and a walk over all objects may be far."""
    kept = type("Kept", (Replayed,), {"_capture": lambda self, iteration: iteration() or len})  # as a graph: of nobody
    monkeypatch.setattr(engine_module, "possible", lambda attention, model: True)
    monkeypatch.setattr(engine_module, "backend", lambda *of: Fixable())
    monkeypatch.setattr(engine_module, "Whole", kept)
    engine = Engine(tiny(), WAYS["vllm"]().pool, graphs=True)
    engine.warm(4)
    cache = weakref.ref(engine.cache)
    gc.disable()
    del engine
    gc.enable()
    assert cache() is None


class Flash:
    """FlashAttention-3's operators as its documentation has them: only the rows of `seqused_q` are computed."""

    def __init__(self):
        self.planned, self.most, self.parts = 0, [], []

    def get_scheduler_metadata(self, sequences, most, longest, *sizes, num_splits, **rows):
        self.planned += 1
        self.parts.append(num_splits)
        return self.planned

    def fwd(self, q, k_cache, v_cache, out, page_table, max_seqlen_q, seqused_k, scheduler_metadata, is_causal,
            cu_seqlens_q, seqused_q, num_splits):  # fmt: skip
        assert is_causal and scheduler_metadata == len(self.most) + 1 and num_splits == self.parts[len(self.most)]
        self.most.append(max_seqlen_q)
        used = cu_seqlens_q.diff() if seqused_q is None else seqused_q
        for i, (start, count) in enumerate(zip(cu_seqlens_q.tolist(), used.tolist(), strict=False)):
            assert 0 <= count <= max_seqlen_q
            if count:
                out[start : start + count] = alone(q[start : start + count], seqused_k[i], page_table[i])(
                    k_cache, v_cache
                )


def alone(q, kv_len, pages):
    """One sequence by torch."""
    sdpa, one = Sdpa(), torch.tensor([len(q)])
    step = Step(None, 0, one, kv_len[None], None, None, None, None, pages[None])
    sdpa.plan(step, step)
    return lambda k_cache, v_cache: sdpa.run(q, k_cache, v_cache)


LENGTHS = {  # q_lens, then kv_lens; sequences and rows behind them are padding
    "a chunk and decodes": ([9, 1, 1, 1, 1], [14, 3, 9, 3, 7]),
    "two chunks, one of a token": ([1, 5, 1, 1], [4, 9, 3, 12]),
    "decodes alone": ([1, 1, 1], [4, 9, 12]),
    "a prompt alone": ([13], [13]),
    "no room left": ([13, 1, 1, 1], [16, 2, 3, 4]),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("way", ["two calls", "one call", "in turn"])
def test_what_is_fixed_computes_any_lengths(way, name):
    """Sixteen rows and six sequences, whatever comes."""
    tokens, sequences, (q_lens, kv_lens) = 16, 6, LENGTHS[name]
    torch.manual_seed(0)
    q, caches = torch.randn(tokens, 4, 16), torch.randn(2, 9, 4, 2, 16)
    table = torch.stack([torch.randperm(8)[:4] for _ in range(sequences)]).int()
    padded = [torch.tensor(x + [0] * (sequences - len(x)), dtype=torch.int32) for x in (q_lens, kv_lens)]
    want, rows = torch.zeros(tokens, 4, 16), sum(q_lens)
    for i, part in enumerate(q[:rows].split(q_lens)):
        want[sum(q_lens[:i]) : sum(q_lens[: i + 1])] = alone(part, padded[1][i], table[i])(*caches)
    if way == "in turn":
        options = (4, torch.float32, torch.device("cpu"), "hopper")
        fixed = FixedInTurn(Work(), Work(), tokens, sequences, (4, 2, 16), options)
    else:
        fixed = FixedFlash((tokens,) if way == "one call" else (tokens, 1), (4, 2, 16, 4, torch.float32), 16)
        fixed.kernels = Flash()
    for _ in range(2):  # what was there before is no part of it
        fixed.update(*padded)
    if way != "in turn":
        fixed.kernels.planned, fixed.calls = 0, [c | {"scheduler_metadata": i} for i, c in enumerate(fixed.calls, 1)]
    got = fixed.attend(q, *caches, table, torch.zeros(tokens, 4, 16))
    assert torch.allclose(got[:rows], want[:rows], atol=1e-5)


def test_decodes_alone_are_fixed_by_themselves(replayed, monkeypatch):
    """A call for prompts would be launched for nothing."""
    mine = Fixable()
    mine.alone = Fixable()
    monkeypatch.setattr(engine_module, "backend", lambda *of: mine)
    scheduler = WAYS["sarathi, chunk 7"]()
    engine = Engine(tiny(), scheduler.pool, graphs=True)
    got, log = answer(engine, scheduler, PROMPTS, OUTPUT)
    eager = WAYS["sarathi, chunk 7"]()
    want, _ = answer(Engine(tiny(), eager.pool, graphs=False), eager, PROMPTS, OUTPUT)
    assert [a.tokens for a in got] == [a.tokens for a in want]
    for made, prompts in ((engine.whole.made, True), (engine.whole.decodes.made, False)):
        sizes = {size_for(e.tokens, e.tokens) for e in log.iterations if bool(e.prefills) == prompts}
        assert sizes == set(made) and sizes


@pytest.mark.parametrize(
    "most, heads, longest, parts",
    [((512, 1), 32, 16384, [1, 0]), ((128, 1), 8, 16384, [0, 0]), ((128, 1), 40, 1024, [1, 0]), ((512,), 32, 512, [0])],
)
def test_prompts_in_a_call_of_their_own_keep_keys_whole_where_tiles_are_many(monkeypatch, most, heads, longest, parts):
    """In one call, as vLLM makes it, and for few tiles that read many keys, it cuts as it likes."""
    fixed = FixedFlash.__new__(FixedFlash)
    fixed.most, fixed.sizes, fixed.longest, fixed.kernels = most, (heads, 8, 128, 16, torch.bfloat16), longest, Flash()
    fixed.update(torch.tensor([9, 1, 1]), torch.tensor([20, 30, 40]))
    assert fixed.kernels.parts == parts == [call["num_splits"] for call in fixed.calls]

"""A model in stages: the tokens of one device, whoever schedules, and one clear word from all when a stage fails."""

import gc
import multiprocessing
import os
import signal
import weakref
from collections import deque
from contextlib import nullcontext
from itertools import count
from queue import SimpleQueue
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pod.serving import captured, engine, stages
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.engine import Engine
from pod.serving.loop import serve
from pod.serving.model import Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import VLLM, Orca, Sarathi, SarathiV1
from pod.serving.shapes import Shape
from pod.serving.stages import Line, Part, Pipeline, Stage, answer
from pod.serving.step import predicting

LAYERS, BLOCK, BLOCKS, OUTPUT = 5, 4, 240, 14
TINY = Shape("tiny", "Tiny", LAYERS, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=128)
LENGTHS = (5, 40, 17, 23, 1, 31, 12, 9)
PROMPTS = [np.random.default_rng(i).integers(0, TINY.vocab, n).tolist() for i, n in enumerate(LENGTHS)]
ARRIVALS = [0.0, 0.001, 0.02, 0.05, 0.051, 0.07, 0.3, 0.301]  # to lanes that are idle, and to some that are not
STOP = 94


def reserved() -> ReservedPool:
    return ReservedPool(60, 64, BLOCK)


WAYS = {
    "orca": lambda waiting: Orca(reserved(), 2, waiting),
    "sarathi_v1": lambda waiting: SarathiV1(reserved(), 3, waiting, chunk=8, tile=4),
    "sarathi": lambda waiting: Sarathi(PagedPool(60, BLOCK), 8, waiting, chunk=9),
    "vllm": lambda waiting: VLLM(PagedPool(60, BLOCK), 2, waiting),
    "sarathi, tight": lambda waiting: Sarathi(PagedPool(15, BLOCK, 0.0), 8, waiting, chunk=9),
    "vllm, tight": lambda waiting: VLLM(PagedPool(15, BLOCK, 0.0), 8, waiting),
}


def lanes(way: str, count: int) -> list:
    waiting = deque()
    return [WAYS[way](waiting) for _ in range(count)]


def part(line: Line) -> Part:
    """float64, so that no near tie is decided by the order of a sum."""
    return Part(TINY, random_weights(3, LAYERS), line, dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As each process has: more would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """What one device answers."""
    pool = PagedPool(100, BLOCK)
    model = Llama(TINY, random_weights(3, LAYERS), dtype=torch.float64)
    answers, _ = engine.answer(Engine(model, pool), Sarathi(pool, 8, chunk=16), PROMPTS, OUTPUT)
    assert len({tuple(a.tokens) for a in answers}) == len(PROMPTS)
    return [a.tokens for a in answers]


# ---------------------------------------------------------------- what each process does


def served(line: Line, way: str, arrivals=None, stop=()):
    stage = Stage(part(line), BLOCKS, BLOCK)
    if line.rank:
        return stage.follow()
    pipeline = Pipeline(stage, lanes(way, line.size), stop)
    answers, log = answer(pipeline, PROMPTS, OUTPUT, arrivals)
    pipeline.close()
    return [a.tokens for a in answers], log


def all_ways(line: Line) -> dict:
    found = {way: served(line, way) for way in WAYS}
    return found | {"arrivals": served(line, "sarathi", ARRIVALS), "stop": served(line, "vllm", stop=[STOP])}


def padded(line: Line):
    """As whole iterations on a GPU are: padded, from buffers that stay."""
    from test_captured import Fixable, Replayed

    stages.possible, stages.backend, stages.Whole = lambda *of: True, lambda *of: Fixable(), Replayed
    stages.LARGEST, captured.SIZES = 24, [n for n in captured.SIZES if n <= 24]  # what is larger runs as it is
    return served(line, "orca")


def ends_early(line: Line, how) -> None:
    """The second of three does not survive its fifth micro-batch."""
    stage, left = Stage(part(line), BLOCKS, BLOCK), iter(range(4))
    planned = stage._planned
    if line.rank == 1:
        stage._planned = lambda step: how() if next(left, None) is None else planned(step)
    stage.follow() if line.rank else answer(Pipeline(stage, lanes("sarathi", 3)), PROMPTS, OUTPUT)


def raises(line: Line) -> None:
    ends_early(line, lambda: [][7])


def dies(line: Line) -> None:
    ends_early(line, lambda: os.kill(os.getpid(), signal.SIGKILL))


def finds_no_memory(line: Line) -> None:
    stage = Stage(part(line), 2**50 if line.last else BLOCKS, BLOCK)
    stage.follow() if line.rank else answer(Pipeline(stage, lanes("sarathi", 3)), PROMPTS, OUTPUT)


def asks_for_too_much(line: Line) -> None:
    stage = Stage(part(line), 100, BLOCK)
    stage.follow() if line.rank else Pipeline(stage, lanes("sarathi", 3))


def process(rank: int, size: int, folder: str, work) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        with Line(rank, size) as line:
            found = work(line)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    torch.save(found, f"{folder}/{rank}.pt")


def start(size: int, folder, work) -> list:
    """What each process found; None of one that did not come so far."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "pod.serving.stages"])  # which takes a start all its time
    processes = [context.Process(target=process, args=(rank, size, str(folder), work)) for rank in range(size)]
    for one in processes:
        one.start()
    for one in processes:
        one.join(60)
    hang = [rank for rank, one in enumerate(processes) if one.is_alive()]
    for one in processes:
        one.kill()
    assert not hang, f"processes that hang: {hang}"
    files = [folder / f"{rank}.pt" for rank in range(size)]
    return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


@pytest.fixture(scope="module", params=(2, 3, 4))
def run(request, tmp_path_factory) -> tuple[int, dict]:
    """So many stages, and what process 0 found."""
    return request.param, start(request.param, tmp_path_factory.mktemp("stages"), all_ways)[0]


# ---------------------------------------------------------------- the same tokens


@pytest.mark.parametrize("way", WAYS)
def test_stages_answer_as_one_device_does(run, alone, way):
    size, found = run
    tokens, log = found[way]
    assert tokens == alone
    assert {event.lane for event in log.iterations} == set(range(size))
    assert any(event.preempted for event in log.iterations) == ("tight" in way)


def test_who_arrives_later_is_answered_alike(run, alone):
    tokens, log = run[1]["arrivals"]
    assert tokens == alone
    began = {id_: event.scheduled for event in reversed(log.iterations) for id_, *_ in event.prefills}
    assert all(began[i] >= time for i, time in enumerate(ARRIVALS))


def test_a_stop_token_ends_an_answer_in_a_pipeline_too(run, alone):
    ends = [tokens.index(STOP) + 1 if STOP in tokens else OUTPUT for tokens in alone]
    assert min(ends) < OUTPUT
    assert run[1]["stop"][0] == [tokens[:n] for tokens, n in zip(alone, ends, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_the_simulator_forms_the_batches_of_a_real_pipeline(run, way):
    size, found = run
    requests = [Request(i, len(prompt), OUTPUT) for i, prompt in enumerate(PROMPTS)]
    ends = count(1)
    log = serve(requests, lanes(way, size), SimpleNamespace(submit=lambda *_: float(next(ends))))
    batches = lambda log: [(e.lane, e.prefills, e.decodes, e.preempted) for e in log.iterations]  # noqa: E731
    assert batches(found[way][1]) == batches(log)


def test_padded_iterations_pass_on_what_is_not_padding(tmp_path, alone):
    assert start(2, tmp_path, padded)[0][0] == alone


# ---------------------------------------------------------------- when each stage had it


def test_every_stage_tells_when_it_had_each_micro_batch(run):
    size, found = run
    events = found["sarathi"][1].iterations
    for event in events:
        times = [event.scheduled, *(time for stage in event.stages for time in stage), event.end]
        assert len(event.stages) == size and times == sorted(times) and times[0] > 0
    for stage in zip(*(event.stages for event in events), strict=True):
        assert all(one[1] <= after[0] for one, after in zip(stage, stage[1:], strict=False)), "one at a time"


def test_several_micro_batches_are_on_their_way(run):
    size, found = run
    events = found["orca"][1].iterations
    most = max(sum(other.scheduled <= event.scheduled < other.end for other in events) for event in events)
    assert most == size


# ---------------------------------------------------------------- one word from everybody


@pytest.mark.parametrize("work, words, own", [
    (raises, "stage 1 of 3: IndexError: list index out of range", "IndexError: list index out of range"),
    (finds_no_memory, "stage 2 of 3: ValueError: blocks: got 1125899906842624 of 4 tokens", "ValueError: blocks: got"),
    (asks_for_too_much, "stage 0 of 3: ValueError: lanes: got pools of 180 blocks, allowed are up to 100",
     "ValueError: lanes: got pools of 180 blocks, allowed are up to 100"),
    (dies, "stage 1 of 3: its process is gone", None),
])  # fmt: skip
def test_who_fails_takes_everybody_along_and_says_why(tmp_path, work, words, own):
    said = start(3, tmp_path, work)
    mine = said.pop(int(words[6]))
    assert all(each.startswith(f"Broken: {words}") and "\n" not in each for each in said)
    assert mine is own is None or mine.startswith(own)


# ---------------------------------------------------------------- without other processes


def test_one_stage_with_two_lanes_is_a_pipeline_too(alone):
    with Line() as line:
        assert served(line, "sarathi")[0] == alone
        pipeline = Pipeline(Stage(part(line), BLOCKS, BLOCK), lanes("sarathi", 2))
        assert [a.tokens for a in answer(pipeline, PROMPTS, OUTPUT)[0]] == alone


def test_lanes_that_write_into_the_same_blocks_are_noticed(alone):
    with Line() as line:
        pipeline = Pipeline(Stage(part(line), BLOCKS, BLOCK), lanes("sarathi", 2))
        for tables in pipeline.tables:
            tables.first = 0
        assert [a.tokens for a in answer(pipeline, PROMPTS, OUTPUT)[0]] != alone


def test_tokens_that_go_to_the_wrong_requests_are_noticed(alone, monkeypatch):
    monkeypatch.setattr(stages, "predicting", lambda batch: predicting(batch)[::-1])
    with Line() as line:
        assert served(line, "orca")[0] != alone


def test_every_layer_is_on_one_stage_and_only_the_ends_have_more():
    full = Llama(TINY, random_weights(3, LAYERS))
    for size in range(1, LAYERS + 1):
        parts = [Part(TINY, random_weights(3, LAYERS), place(rank, size)) for rank in range(size)]
        layers = [layer for one in parts for layer in one.layers]
        assert len(layers) == LAYERS
        assert all(torch.equal(a.qkv, b.qkv) for a, b in zip(layers, full.layers, strict=True))
        assert [one.embedding is not None for one in parts] == [True] + [False] * (size - 1)
        assert [one.head is not None for one in parts] == [False] * (size - 1) + [True]
        assert max(len(one.layers) for one in parts) - min(len(one.layers) for one in parts) <= 1
    with pytest.raises(ValueError, match="^stages: got 6, Tiny allows up to its 5 layers$"):
        Part(TINY, random_weights(3, LAYERS), place(0, 6))


def place(rank: int, size: int) -> Line:
    """Where a process is, without the others."""
    line = object.__new__(Line)
    line.rank, line.size = rank, size
    return line


def test_the_cache_has_the_stages_own_layers_alone():
    with Line() as line:
        whole = Stage(part(line), 10, BLOCK).cache.data
    some = Stage(Part(TINY, random_weights(3, LAYERS), place(1, 2), dtype=torch.float64), 10, BLOCK).cache.data
    assert (len(whole), len(some)) == (5, 2) and some.shape[1:] == whole.shape[1:]


def test_a_stage_that_is_dropped_leaves_no_cache_behind():
    with Line() as line:
        pipeline = Pipeline(Stage(part(line), BLOCKS, BLOCK), lanes("orca", 2))
        answer(pipeline, PROMPTS, OUTPUT)
        kept = weakref.ref(pipeline.stage.cache)
        del pipeline
        gc.collect()
        assert kept() is None


def test_a_stage_that_fails_on_a_gpu_ends_whatever_waits_there(monkeypatch):
    said, alarms = [], []
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(stages.signal, "alarm", alarms.append)
    line = place(1, 2)
    line.stages, line.home = [], SimpleNamespace(send=said.append)
    line._readings, line._lock = SimpleQueue(), Lock()
    with pytest.raises(ValueError, match="^two\nlines$"), line:
        raise ValueError("two\nlines")
    assert alarms == [stages.GRACE] and str(said[0]) == "stage 1 of 2: ValueError: two"


@pytest.mark.parametrize("pool, words", [
    (lambda: PagedPool(40, BLOCK, swap_blocks=9), "a pool of 4 tokens a block and 9 blocks to swap, allowed are 4 a"),
    (lambda: PagedPool(40, 8), "a pool of 8 tokens a block and 0 blocks to swap, allowed are 4 a"),
    (lambda: PagedPool(400, BLOCK), "pools of 800 blocks, allowed are up to 240"),
])  # fmt: skip
def test_lanes_that_do_not_fit_the_cache_are_refused(pool, words):
    with Line() as line, pytest.raises(ValueError, match=f"^lanes: got {words}"):
        Pipeline(Stage(part(line), BLOCKS, BLOCK), [Sarathi(pool(), 8) for _ in range(2)])


class Late:
    """Events of a GPU whose clock runs slow, read by a host that is late by what comes next."""

    def __init__(self, second: float):
        self.second = second

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other) -> float:
        return 1000 * (other.second - self.second)


def test_marks_of_a_gpu_are_read_on_the_hosts_clock(monkeypatch):
    watch = stages.Stopwatch(torch.device("cpu"))
    watch.on_gpu, watch.first = True, Late(0.0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    delays = iter([3e-3, 1e-5, 5e-3, 2e-5])
    for i in range(1, 5):
        monkeypatch.setattr(stages.time, "perf_counter", lambda i=i: 100.0 + i + next(delays))
        begin, end = watch.read(Late(i - 0.25), Late(i))
        assert end - begin == pytest.approx(0.25) and end == pytest.approx(100 + i, abs=4e-3 if i == 1 else 2e-5)

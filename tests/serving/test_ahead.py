"""The next iteration is launched while one runs: the same tokens, and no memory written that a launch still reads."""

from collections import deque
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf

import pytest
import torch
from test_captured import Fixable, Replayed
from test_engine import OUTPUT, PROMPTS, TIGHT, WAYS, tiny

from pod.serving import engine as engine_module
from pod.serving.blocks import PagedPool
from pod.serving.captured import Staged
from pod.serving.engine import Engine, answer
from pod.serving.events import Log
from pod.serving.loop import Ahead, Loop, Replay, Ticks, serve
from pod.serving.model import Group
from pod.serving.prefix import PrefixPool
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.simulate import windows
from pod.simulate.metrics import metrics


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[list[int]]]:
    """What comes out where every iteration is waited for."""
    return {way: tokens(make(), ahead=False)[0] for way, make in (WAYS | TIGHT).items()}


def tokens(scheduler, kind=Engine, prompts=PROMPTS, output=OUTPUT, **options):
    engine = kind(tiny(), scheduler.pool, **{"graphs": False} | options)
    answers, log = answer(engine, scheduler, prompts, output)
    return [a.tokens for a in answers], log, engine


@pytest.mark.parametrize("way", WAYS | TIGHT)
def test_running_ahead_changes_no_token_and_no_batch(way, wanted):
    """Schedulers decide with lengths, which are known before the tokens are: nobody arrives late here."""
    scheduler = (WAYS | TIGHT)[way]()
    got, log, engine = tokens(scheduler, ahead=True)
    assert got == wanted[way] and engine.loop is Ahead
    _, waited, _ = tokens((WAYS | TIGHT)[way](), ahead=False)
    told = lambda log: [replace(e, scheduled=0, end=0) for e in log.iterations]  # noqa: E731
    assert told(log) == told(waited) and len(engine.marks) == len(log.iterations)
    assert all(b.scheduled < a.end < b.end for a, b in zip(log.iterations, log.iterations[1:], strict=False))
    assert len(scheduler.pool.free) == scheduler.pool.num_blocks and not scheduler.running


# ---------------------------------------------------------------- a GPU that does everything as late as it may


class Later:
    """What the GPU has not computed yet. Reading waits for all that was launched before it."""

    def __init__(self, line: deque, work):
        self.line, self.work, self.value = line, work, None
        line.append(self)

    def now(self):
        while self.work:
            self.line.popleft()._run()
        return self.value

    def _run(self) -> None:
        work, self.work = self.work, None
        self.value = work()

    def tolist(self) -> list[int]:
        return self.now().tolist()


class Late(Engine):
    """On a stream of its own, which runs nothing before somebody waits for it: what the host then has overwritten, or
    what was not put in order, gives other tokens."""

    def __init__(self, *of, **options):
        self.line, self.copies = deque(), {}
        super().__init__(*of, **options)
        self.sample = lambda logits, requests: Later(self.line, lambda: logits.now().argmax(-1))

    def run(self, step):
        made = self.whole.made_for(len(step.tokens), len(step.q_lens), step.chunks)
        self._stage(made.staged, step)
        self._feed(step, made.staged.device)
        self.planned = self.launched = self.clock.now
        self._meter = None
        return Later(self.line, torch.inference_mode()(partial(made.run, len(step.rows))))

    def _stage(self, staged: Staged, step) -> None:
        if type(staged.there) is not Lane:
            staged.there, staged.copied = Lane(staged.there, self.line), Copied()
        staged.fill(step)

    def _feed(self, host, device) -> None:
        newest, unknown = self.newest, Engine._feed
        if newest is not None:
            late = partial(unknown, Fed(newest), host, device)
            Later(self.line, torch.inference_mode()(late))


class Fed:
    """What `_feed` asks of an engine, when the tokens before are there."""

    def __init__(self, newest):
        self.later = newest

    @property
    def newest(self):
        return self.later.now()


class Lane:
    """Memory of the GPU into which copies go in their turn."""

    newest = None

    def __init__(self, memory, line):
        self.memory, self.line = memory, line

    def copy_(self, pinned, non_blocking):
        Lane.newest = Later(self.line, lambda: self.memory.copy_(pinned))


class Copied:
    """An event behind the newest copy."""

    copy = None

    def record(self) -> None:
        self.copy = Lane.newest

    def synchronize(self) -> None:
        if self.copy:
            self.copy.now()


@pytest.fixture
def whole(monkeypatch):
    monkeypatch.setattr(engine_module, "possible", lambda attention, model: True)
    monkeypatch.setattr(engine_module, "backend", lambda *of: Fixable())
    monkeypatch.setattr(engine_module, "Whole", Replayed)


@pytest.mark.parametrize("way", WAYS | {name: make for name, make in TIGHT.items() if "swap" not in name})
def test_a_gpu_that_is_late_reads_what_was_meant_for_it(way, whole, wanted):
    got, _, engine = tokens((WAYS | TIGHT)[way](), Late, graphs=True)
    assert got == wanted[way] and engine.ahead and not engine.line


def test_memory_that_a_late_gpu_still_reads_must_not_be_written(whole, wanted, monkeypatch):
    """The check above can fail."""
    monkeypatch.setattr(Copied, "synchronize", lambda self: None)
    assert tokens(WAYS["vllm"](), Late, graphs=True)[0] != wanted["vllm"]


# ---------------------------------------------------------------- who comes, who ends, who goes


def test_the_simulator_makes_the_batches_of_a_run_ahead_with_arrivals():
    """A batch holds whoever had come when it was decided, though another still ran."""
    make = lambda: Sarathi(PagedPool(16, 4, 0.0), 8, chunk=9)  # noqa: E731
    arrivals, scheduler = [0.0, 0.001, 0.004, 0.02, 0.021, 0.05], make()
    answers, log = answer(Engine(tiny(), scheduler.pool, ahead=True), scheduler, PROMPTS, OUTPUT, arrivals)
    requests = [Request(i, len(p), OUTPUT, t) for i, (p, t) in enumerate(zip(PROMPTS, arrivals, strict=True))]
    again = serve(requests, [make()], Replay(log))
    batches = lambda log: [(e.prefills, e.decodes, e.preempted, e.free) for e in log.iterations]  # noqa: E731
    assert batches(again) == batches(log) and any(e.preempted for e in log.iterations)
    assert all(len(a.tokens) == OUTPUT for a in answers)


@pytest.mark.parametrize("way", WAYS | TIGHT)
@pytest.mark.parametrize("which", range(3))
def test_a_stop_token_ends_an_answer_that_is_launched_once_more(way, which, wanted):
    """With who is sent away meanwhile, with his last token by length, and with a batch that stays together."""
    alone = wanted["vllm"]
    stop = (alone[1][4], alone[0][0], alone[2][-1])[which]
    ends = [each.index(stop) + 1 if stop in each else OUTPUT for each in alone]
    scheduler = (WAYS | TIGHT)[way]()
    got, log, _ = tokens(scheduler, stop=[stop], ahead=True)
    assert got == [each[:n] for each, n in zip(alone, ends, strict=True)] and min(ends) < OUTPUT
    assert len(scheduler.pool.free) == scheduler.pool.num_blocks and not (scheduler.running or scheduler.waiting)
    assert sum(len(e.decodes) + sum(c[3] for c in e.prefills) for e in log.iterations) == sum(ends)
    assert sorted(sum((e.finished for e in log.iterations), [])) == list(range(len(PROMPTS)))
    assert metrics(log)["requests"] == len(PROMPTS)


@pytest.mark.parametrize("way", WAYS | TIGHT)
def test_several_answers_that_stop_at_once_all_give_their_blocks_back(way, wanted):
    alone = wanted["vllm"][2]
    scheduler = (WAYS | TIGHT)[way]()
    got, log, _ = tokens(scheduler, prompts=[PROMPTS[2]] * 3, stop=[alone[5]], ahead=True)
    assert got == [alone[: alone.index(alone[5]) + 1]] * 3
    assert len(scheduler.pool.free) == scheduler.pool.num_blocks and not (scheduler.running or scheduler.waiting)
    assert sorted(sum((e.finished for e in log.iterations), [])) == [0, 1, 2]


def test_who_leaves_with_a_batch_that_stays_together_has_all_his_tokens_before(wanted):
    """The longest answer stops while the last token of another is on its way; both are retired with that."""
    long, short = wanted["static"][1], wanted["static"][2]
    at = next(i for i in range(3, OUTPUT - 2) if long[i] not in long[:i] + short[: i + 2])
    scheduler = WAYS["static"]()
    engine = Engine(tiny(), scheduler.pool, stop=[long[at]], graphs=False, ahead=True)
    answers, log = answer(engine, scheduler, PROMPTS[1:3], [OUTPUT, at + 2])
    assert [a.tokens for a in answers] == [long[: at + 1], short[: at + 2]]
    assert [e.finished for e in log.iterations[-2:]] == [[0], [1]]
    assert metrics(log)["requests"] == 2


def test_the_surplus_token_was_really_launched(wanted):
    """So the test above can fail: without stops known in time, a row is computed for nobody."""
    stop, rows = wanted["vllm"][1][4], []
    scheduler = WAYS["vllm"]()
    engine = Engine(tiny(), scheduler.pool, stop=[stop], ahead=True)
    engine.sample = lambda logits, requests: rows.append(len(logits)) or logits.argmax(-1)
    answers, _ = answer(engine, scheduler, PROMPTS, OUTPUT)
    assert sum(rows) > sum(len(a.tokens) for a in answers)


def test_prompts_that_share_blocks_may_run_ahead():
    """Their blocks have names as soon as they are launched: whoever reads them comes behind on the GPU."""
    prompts, made = [PROMPTS[1] + [i] for i in range(4)] + [PROMPTS[1]] * 2, []
    for ahead in (False, True):
        scheduler = Sarathi(PrefixPool(60, 4), 8, chunk=16)
        made.append(tokens(scheduler, prompts=prompts, ahead=ahead))
    (want, *_), (got, log, _) = made
    assert got == want and sum(c[1] for e in log.iterations for c in e.prefills) < sum(map(len, prompts))


def test_who_is_forgotten_gets_no_token_and_disturbs_nobody(wanted):
    """A reader hangs up while an iteration with him runs."""
    scheduler = WAYS["sarathi, chunk 7"]()
    engine = Engine(tiny(), scheduler.pool, ahead=True)
    requests = [Request(i, len(p), OUTPUT) for i, p in enumerate(PROMPTS)]
    engine.texts = {i: list(p) for i, p in enumerate(PROMPTS)}
    loop = Ahead([scheduler], engine, engine.clock, into=Log())
    for request in requests:
        loop.receive(request)
    loop.launch(0.0)
    for turn in count():
        if not loop.busy:
            break
        loop.proceed(inf)
        if turn in (12, 20):
            gone = scheduler.running[0]
            assert any(gone in flight.requests for flight in loop._flights)
            scheduler.cancel(gone)
            engine.forget(gone)
        loop.launch(0.0)
    left = {i: engine.texts[i][len(p) :] for i, p in enumerate(PROMPTS) if i in engine.texts}
    assert len(left) == len(PROMPTS) - 2 and all(text == wanted["vllm"][i] for i, text in left.items())
    assert len(scheduler.pool.free) == scheduler.pool.num_blocks


def test_a_window_ends_with_all_of_its_iterations():
    """The last one is waited for, and the others are those of a run that waits for each."""
    load = windows.Load("llama-3-8b", 17, 64, 256, 20)
    rows = []
    for ahead in (False, True):
        scheduler = load.scheduler()
        engine = Engine(tiny(), scheduler.pool, ahead=ahead)
        engine.texts = {r.id: [1] * r.prompt for r in load.requests()} | {r.id: [1] * (r.prompt + 1)
                                                                          for r in scheduler.running}  # fmt: skip
        engine.model.context = 256
        engine.model.cos, engine.model.sin = engine.model._rotations()
        events = windows.window(load, engine, scheduler, engine.clock)
        assert len(events) == len(engine.marks) == 20 and all(e.end > e.scheduled for e in events)
        rows.append([windows.digest(e) for e in events])
    assert rows[0] == rows[1] == [windows.digest(e) for e in windows.window(load, Ticks(), load.scheduler())]


def test_where_an_iteration_begins():
    """Decided after the tokens before, or while that iteration ran."""
    assert windows.began([0.0, 2.0, 3.0], [1.5, 2.5, 4.0]).tolist() == [0.0, 2.0, 3.0]
    assert windows.began([0.0, 0.1, 1.6], [1.5, 2.5, 4.0]).tolist() == [0.0, 1.5, 2.5]


def test_only_who_needs_no_word_from_others_runs_ahead(whole, monkeypatch):
    pool = PagedPool(60, 4)
    assert Engine(tiny(), pool).loop is Loop and Engine(tiny(), pool, graphs=True).loop is Ahead
    two = tiny(Group(0, 2))
    monkeypatch.setattr(Engine, "_everywhere", lambda self, make: make())
    with pytest.raises(ValueError, match="^ahead: got True, allowed with whole iterations on one GPU, and on a CPU al"):
        Engine(two, pool, graphs="whole", ahead=True)
    assert Engine(two, pool, graphs="whole").loop is Loop

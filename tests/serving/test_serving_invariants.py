"""Whatever arrives, the schedulers keep their promises. `check_run` holds them; seeded bugs show that it looks."""

from bisect import insort
from collections import Counter, deque
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.hardware import A100
from pod.serving import loop
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.engine import problem
from pod.serving.events import Log, iteration
from pod.serving.loop import Ticks, serve
from pod.serving.request import Request, age
from pod.serving.schedulers import SCHEDULERS, VLLM, Batch, Chunk, Orca, Sarathi, SarathiV1, Scheduler, Static
from pod.serving.schedulers.base import PreemptingScheduler
from pod.serving.schedulers.published import PaddedVLLM, PublishedPool, SarathiServe
from pod.serving.shapes import shape
from pod.simulate.cost import AnalyticalCost, Work
from pod.simulate.metrics import token_times
from pod.simulate.run import Setup, SimExecutor

MAX_TOKENS = 48  # of a request


class Witness:
    """An executor that takes one second a batch and looks at everything first."""

    def __init__(self, lanes: list[Scheduler], requests: list[Request]):
        self.lanes, self.iterations = lanes, 0
        tokens = sum(r.prompt + r.output for r in requests)
        # each token once, and again after each preemption; more than this is a livelock
        self.limit = 50 * tokens + 1000

    def submit(self, batch: Batch, event) -> float:
        scheduler = self.lanes[event.lane]
        self.iterations += 1
        assert self.iterations < self.limit, "livelock"
        check_pool(scheduler)
        check_queues(scheduler, alone=len(self.lanes) == 1)
        check_batch(scheduler, batch)
        check_policy(scheduler, batch)
        return event.scheduled + 1.0


def check_pool(scheduler: Scheduler) -> None:
    pool = scheduler.pool
    held = [b for table in pool.tables.values() for b in table]
    assert sorted(held + pool.free) == list(range(pool.num_blocks)), "blocks lost, shared or freed twice"
    away = [b for table in pool.swapped.values() for b in table]
    assert sorted(away + pool.swap_free) == list(range(pool.swap_blocks)), "host blocks lost, shared or freed twice"
    assert set(pool.tables) == {r.id for r in scheduler.running}, "exactly the running hold blocks"


def check_queues(scheduler: Scheduler, alone: bool) -> None:
    running, waiting = scheduler.running, list(scheduler.waiting)
    assert len(running) <= scheduler.max_batch
    assert running == sorted(running, key=age), "running is oldest first"
    assert waiting == sorted(waiting, key=age), "nobody overtakes in the queue"
    ids = [r.id for r in running + waiting]
    assert len(ids) == len(set(ids)), "a request is in one place"
    if running and waiting and alone:  # with more lanes, the head may have been preempted by another
        assert age(running[-1]) < age(waiting[0]), "nobody overtakes into the batch"


def check_batch(scheduler: Scheduler, batch: Batch) -> None:
    members = [c.request for c in batch.prefills] + batch.decodes + batch.idle
    assert len(members) == len({r.id for r in members}), "a request is in the batch once"
    assert {r.id for r in members} <= {r.id for r in scheduler.running}
    for request, tokens, context in batch.prefills:
        assert tokens >= 1 and context == request.computed, "chunks follow each other without gap or overlap"
        assert context + tokens <= request.prefill == request.prompt + (request.generated if request.prefilling else 0)
        check_room(scheduler, request, tokens)
    for request in batch.decodes:
        assert request.computed == request.prompt + request.generated - 1, "a decode feeds its newest token"
        check_room(scheduler, request, 1)
    assert all(r.finished for r in batch.idle)
    stayed = [r for r in scheduler.running if r.id not in {c.request.id for c in batch.prefills if c.context == 0}]
    for request, how in batch.preempted:
        assert how != "swap" or not request.prefilling, "half a prompt is not worth a copy, and cannot decode"
        assert stayed or len(scheduler.pool.tables) == 0, "the oldest is never preempted for a younger one"
        assert all(age(r) < age(request) for r in stayed), "the latest is preempted first"


def check_room(scheduler: Scheduler, request: Request, tokens: int) -> None:
    room = len(scheduler.pool.tables[request.id]) * scheduler.pool.block_size
    assert room >= request.computed + tokens, "every new token has a slot before it is computed"


def check_policy(scheduler: Scheduler, batch: Batch) -> None:
    name, whole = scheduler.name, all(c.context == 0 and c.last for c in batch.prefills)
    running = [r for r in scheduler.running if not r.finished]
    decoding = {r.id for r in running if not r.prefilling}
    if batch.prefills and name in ("vllm", "static"):
        assert whole and not batch.decodes, "prompts run whole and alone"
        assert sum(c.tokens for c in batch.prefills) <= getattr(scheduler, "max_tokens", 10**9)
    else:
        assert {r.id for r in batch.decodes} == decoding, "no decode waits"
    if name == "orca":
        assert whole
    if name == "sarathi":
        assert batch.tokens <= max(scheduler.chunk, len(batch.decodes)), "the budget holds"
        assert len(batch.prefills) <= scheduler.max_prefills
    if name == "sarathi_v1":
        assert len(batch.prefills) <= 1 and len(batch.decodes) <= scheduler.max_batch - bool(batch.prefills)
        for chunk in batch.prefills:
            if not chunk.last:
                assert batch.tokens % scheduler.tile == 0 or batch.tokens == scheduler.chunk
    fresh = [c.request for c in batch.prefills if c.context == 0]
    if batch.preempted and not isinstance(scheduler, SarathiServe):
        assert not fresh and not batch.swapped_in, "nobody comes in the breath in which somebody is sent away"
    if fresh and name in ("vllm", "sarathi") and not batch.swapped_in:
        free_then = len(scheduler.pool.free)
        assert free_then >= scheduler.pool.kept_free, "admission leaves the watermark"


def check_run(lanes: list[Scheduler], requests: list[Request]):
    given_lengths = {r.id: (r.prompt, r.output) for r in requests}
    log = serve(requests, lanes, Witness(lanes, requests))
    served = set(given_lengths) - set(log.refused)
    finished = [i for event in log.iterations for i in event.finished]
    assert sorted(finished) == sorted(served), "every request is answered once"
    emitted = Counter(token_times(log)[0].tolist() if log.iterations else [])
    assert emitted == {i: given_lengths[i][1] for i in served}, "as many tokens come out as were asked for"
    computed, preempted = Counter(), Counter()
    for event in log.iterations:
        computed.update({c[0]: 0 for c in event.prefills})
        for id_, tokens, *_ in event.prefills:
            computed[id_] += tokens
        computed.update(event.decodes)
        preempted.update(i for i, how in event.preempted if how == "recompute")
    for i in served:
        prompt, output = given_lengths[i]
        if preempted[i]:
            assert computed[i] >= prompt + output - 1
        else:
            assert computed[i] == prompt + output - 1, "chunked or whole, a token is computed once"
    check_events(log, lanes)
    for lane in lanes:
        assert not lane.running and not lane.waiting and len(lane.pool.free) == lane.pool.num_blocks
        assert len(lane.pool.swap_free) == lane.pool.swap_blocks
    return log


class Told:
    """A request as the events tell of it, and nothing else."""

    def __init__(self, prompt: int, output: int):
        self.prompt, self.output, self.prefill = prompt, output, prompt
        self.computed = self.generated = 0

    def leave(self, how: str) -> None:
        if how == "recompute":
            self.prefill, self.computed = self.prompt + self.generated, 0

    def blocks(self, pool: PagedPool, decodes: bool) -> int:
        return pool.blocks_for(getattr(pool, "max_tokens", max(self.prefill, self.computed + decodes)))


def check_events(log: Log, lanes: list[Scheduler]) -> None:
    """Every field of every event, against what the events before it and the lengths alone say."""
    told = {i: Told(prompt, output) for i, _, prompt, output in log.requests if i not in log.refused}
    running: list[set[int]] = [set() for _ in lanes]
    gone = 0
    for event in log.iterations:
        here, pool = running[event.lane], lanes[event.lane].pool
        for i, how in event.preempted:
            here.remove(i)
            told[i].leave(how)
        here |= {chunk[0] for chunk in event.prefills} | set(event.decodes)
        for i, tokens, context, last in event.prefills:
            assert context == told[i].computed and last == (context + tokens == told[i].prefill)
        assert event.decode_context == sum(told[i].computed + 1 for i in event.decodes), "with their newest tokens"
        assert set(event.idle) == {i for i in here if told[i].generated == told[i].output}
        assert event.free == pool.num_blocks - sum(told[i].blocks(pool, i in event.decodes) for i in here)
        if len(lanes) == 1:
            came = sum(at <= event.scheduled for i, at, *_ in log.requests if i in told)
            assert event.waiting == came - gone - len(here)
        assert set(event.swapped_in) <= set(event.decodes) and event.end > event.scheduled
        for i, tokens, _, last in event.prefills:
            told[i].computed += tokens
            told[i].generated += last
        for i in event.decodes:
            told[i].computed += 1
            told[i].generated += 1
        assert all(told[i].generated == told[i].output for i in event.finished)
        here -= set(event.finished)
        gone += len(event.finished)


lengths = st.integers(1, 24)
arrivals = st.one_of(st.just(0.0), st.integers(0, 40).map(float))
request_lists = st.lists(st.tuples(lengths, lengths, arrivals), min_size=1, max_size=14)


PUBLISHED_PAIRS = {"sarathi": [(SarathiServe, PublishedPool)],
                   "vllm": [(VLLM, PublishedPool), (PaddedVLLM, PublishedPool)]}  # fmt: skip


@st.composite
def systems(draw):
    """A scheduler on a pool that may only just fit its largest request, sometimes as the lanes of a pipeline."""
    name = draw(st.sampled_from(sorted(SCHEDULERS)))
    stages, waiting = draw(st.sampled_from([1, 1, 1, 2, 3])), deque()
    block_size, max_batch = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kind, options = SCHEDULERS[name], {}
    if kind.pool_type is ReservedPool:
        one = -(-MAX_TOKENS // block_size)
        pool = lambda: ReservedPool(blocks, MAX_TOKENS, block_size)  # noqa: E731
        blocks = one * draw(st.integers(1, 4)) + draw(st.integers(0, 3))
    else:
        blocks = draw(st.integers(8, 60))
        preemption = draw(st.sampled_from(["recompute", "swap"])) if stages == 1 else "recompute"
        swap = draw(st.sampled_from([0, 5, 200])) if preemption == "swap" else 0
        watermark = draw(st.sampled_from([0.0, 0.01, 0.1]))
        kind, paged = draw(st.sampled_from([(SCHEDULERS[name], PagedPool), *PUBLISHED_PAIRS.get(name, [])]))
        pool = lambda: paged(blocks, block_size, watermark, swap)  # noqa: E731
        options["preemption"] = preemption
    if name == "vllm":
        options["max_tokens"] = draw(st.integers(20, 100))
    if name == "sarathi":
        options["chunk"] = draw(st.integers(1, 40))
        options |= {"max_prefills": draw(st.integers(1, 3))} if kind is Sarathi else {}
    if name == "sarathi_v1":
        options |= {"chunk": draw(st.sampled_from([4, 8, 16])), "tile": 4}
    return [kind(pool(), max_batch, waiting, **options) for _ in range(stages)]


def make(rows) -> list[Request]:
    return [Request(i, prompt, output, arrival) for i, (prompt, output, arrival) in enumerate(rows)]


@settings(max_examples=400, deadline=None)
@given(systems(), request_lists)
def test_every_scheduler_keeps_its_promises(lanes, rows):
    check_run(lanes, make(rows))


@settings(max_examples=150, deadline=None)
@given(request_lists, st.integers(1, 3), st.sampled_from(["recompute", "swap"]), st.sampled_from(["vllm", "sarathi"]))
def test_a_pool_that_only_just_fits_is_no_livelock(rows, block_size, preemption, name):
    largest = max(prompt + output for prompt, output, _ in rows)
    pool = PagedPool(-(-largest // block_size), block_size, watermark=0.0, swap_blocks=8)
    log = check_run([SCHEDULERS[name](pool, 8, preemption=preemption)], make(rows))
    assert not log.refused


@settings(max_examples=100, deadline=None)
@given(request_lists, st.integers(1, 30))
def test_chunked_and_whole_prompts_compute_the_same_tokens(rows, chunk):
    def totals(chunk: int) -> Counter:
        log = check_run([Sarathi(PagedPool(10_000), 64, chunk=chunk)], make(rows))
        count = Counter()
        for event in log.iterations:
            count.update(event.decodes)
            for id_, tokens, *_ in event.prefills:
                count[id_] += tokens
        return count

    assert totals(chunk) == totals(10_000)


# ---- seeded bugs: each must be caught by the checks above


def crowd(seed: int) -> list[Request]:
    """A load under which pools of 16 blocks run dry, and those of 24 now and then in the midst of a prompt."""
    return [Request(i, 3 + (7 * i + seed) % 11, 6 + (5 * i + seed) % 17, float(i * seed % 5)) for i in range(12)]


def run_all() -> None:
    for seed in range(3):
        for preemption, blocks in product(("recompute", "swap"), (16, 24, 32)):
            pool = lambda: PagedPool(blocks, 2, 0.1, 40)  # noqa: B023, E731
            check_run([VLLM(pool(), 6, preemption=preemption, max_tokens=40)], crowd(seed))
            check_run([Sarathi(pool(), 6, preemption=preemption, chunk=5)], crowd(seed))
        for blocks in (12, 16, 20):
            waiting = deque()
            check_run([Sarathi(PagedPool(blocks, 2, 0.0), 6, waiting, chunk=5) for _ in range(2)], crowd(seed))
        for kind in (Static, Orca):
            check_run([kind(ReservedPool(80, 40), 4)], crowd(seed))
        check_run([SarathiV1(ReservedPool(120, 40), 4, chunk=8, tile=4)], crowd(seed))


PREEMPT, SCHEDULE = PreemptingScheduler._preempt, Orca.schedule
BUGS = {}  # name -> whose what is replaced, and by what


def in_place_of(owner, name: str):
    def note(wrong):
        BUGS[wrong.__name__] = owner, name, wrong

    return note


@in_place_of(PagedPool, "release")
def leak_a_block(self, request):
    self.free.extend(self.tables.pop(request.id)[1:])


@in_place_of(PagedPool, "release")
def free_twice(self, request):
    table = self.tables.pop(request.id)
    self.free.extend(table + table[:1])


@in_place_of(PagedPool, "grow")
def open_a_block_one_token_late(self, request):
    if (request.computed + self.block_size - 1) % self.block_size:
        return True
    if self.free:
        self.tables[request.id].append(self.free.pop())
        return True
    return False


@in_place_of(PreemptingScheduler, "_preempt")
def preempt_the_oldest(self, request, batch):
    if self.running:
        self.running.append(request)
        request = self.running.pop(0)
    PREEMPT(self, request, batch)


@in_place_of(PreemptingScheduler, "_preempt")
def preempted_go_to_the_back(self, request, batch):
    PREEMPT(self, request, batch)
    self.waiting.append(self.waiting.popleft())


@in_place_of(Request, "restart")
def recompute_forgets_the_output(self):
    self.computed, self.prefill = 0, self.prompt


@in_place_of(Request, "advance")
def every_chunk_emits_a_token(self, tokens):
    self.computed += tokens
    self.generated += 1


@in_place_of(Sarathi, "_room")
def decodes_do_not_count_in_the_budget(self, batch):
    return self.chunk - batch.tokens + len(batch.decodes)


@in_place_of(PagedPool, "swap_in")
def swap_in_keeps_the_host_blocks(self, request):
    held = self.swapped.pop(request.id)
    self.tables[request.id] = self._take(self.free, len(held))
    return len(held)


@in_place_of(PreemptingScheduler, "_admissible")
def swapped_may_be_overtaken(self):
    while self.waiting and self.waiting[0].id in self.pool.swapped:
        self.waiting.rotate(-1)
    return len(self.waiting) > 0 and len(self.running) < self.max_batch and self.pool.can_admit(self.waiting[0])


@in_place_of(ReservedPool, "claim")
def reserve_too_little(self, request):
    return request.prompt


@in_place_of(PagedPool, "can_admit")
def admit_below_the_watermark(self, request):
    return len(self.free) >= self.blocks_for(self.claim(request))


@in_place_of(Orca, "schedule")
def orca_cuts_prompts(self):
    batch = SCHEDULE(self)
    batch.prefills = [Chunk(r, min(n, 4), c) for r, n, c in batch.prefills]
    return batch


@in_place_of(Sarathi, "schedule")
def comes_back_in_the_same_breath(self):
    batch = Batch()
    for prompt in self._reserve_slots(batch):
        self._add_chunk(prompt, batch)
    self._swap_in(batch)
    while self._admissible() and not self._head_is_swapped() and self._room(batch) > 0:
        self._add_chunk(self._admit(), batch)
    return batch


@in_place_of(PreemptingScheduler, "_preempt")
def swap_half_a_prompt(self, request, batch):
    if self.preemption != "swap" or not self.pool.can_swap_out(request):
        return PREEMPT(self, request, batch)
    batch.copied_blocks += self.pool.swap_out(request)
    insort(self.waiting, request, key=age)
    batch.preempted.append((request, "swap"))


@in_place_of(loop, "iteration")
def decodes_do_not_see_their_newest_token(batch, *rest):
    event = iteration(batch, *rest)
    event.decode_context -= len(event.decodes)
    return event


def test_the_crowd_passes_without_a_bug():
    run_all()


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught(bug, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    # an assertion here, or the code's own checks (a block taken from an empty list, a key that is gone)
    with pytest.raises((AssertionError, RuntimeError, KeyError, IndexError)):
        run_all()


# ---- exact fits: what just fits is served, one more is refused


@pytest.mark.parametrize(("make", "fits"), [
    (lambda: VLLM(PagedPool(100, 2), 4, max_tokens=20), 20),  # an iteration of prompts
    (lambda: VLLM(PagedPool(10, 2, watermark=0.0), 4), 20),  # the pool
    (lambda: Sarathi(PagedPool(10, 2, watermark=0.1), 4, chunk=3), 18),  # the pool and its watermark
    (lambda: Sarathi(PublishedPool(10, 2, watermark=0.1), 4, chunk=3), 16),  # and a block for every token
    (lambda: Orca(ReservedPool(20, 20), 4), 20),  # what is reserved
    (lambda: Static(ReservedPool(40, 20), 4), 20),
    (lambda: SarathiV1(ReservedPool(20, 20), 4, chunk=4, tile=4), 20),
])  # fmt: skip
@pytest.mark.parametrize("output", [1, 7])
def test_what_just_fits_is_served_and_one_token_more_is_refused(make, fits, output):
    for prompt in (fits - output, fits - output + 1):
        lane = make()
        log = check_run([lane], [Request(0, prompt, output), Request(1, 1, 1)])
        assert list(log.refused) == ([0] if prompt + output > fits else [])


def test_the_context_of_a_model_may_be_filled_to_the_last_token():
    model = shape("llama-2-7b")
    assert problem([1] * 4000, 96, model, model.context) is None
    assert problem([1] * 4000, 97, model, model.context) == "4000 tokens and 97 to come, Llama-2-7B takes 4096 in all"


def test_whole_prompts_may_fill_the_budget_together():
    lane = VLLM(PagedPool(99, 2), 4, max_tokens=20)
    log = serve([Request(i, n, 2) for i, n in enumerate((12, 8, 1))], [lane], Ticks())
    assert [[chunk[0] for chunk in event.prefills] for event in log.iterations[:2]] == [[0, 1], [2]]


# ---- what the loop owes: nobody is forgotten


class Forgetful(Sarathi):
    """Lets whoever still waits wait for ever."""

    def schedule(self) -> Batch:
        return super().schedule() if self.waiting and self.waiting[0].id == 0 or self.running else Batch()


def test_a_run_in_which_somebody_starves_is_no_run():
    with pytest.raises(RuntimeError, match="^sarathi: forms no batch, but 2 requests wait, the first of them 1$"):
        serve([Request(i, 4, 3) for i in range(3)], [Forgetful(PagedPool(99), 1)], Ticks())


# ---- copies to the host and back take their time


def test_an_iteration_is_longer_by_the_bytes_that_it_swaps():
    setup = Setup(scheduler="vllm", preemption="swap", blocks=60, max_tokens=900, host="none")
    (lane,), cost = setup.lanes(), AnalyticalCost(shape(setup.model), A100, host="none")
    log = serve([Request(i, 200, 120) for i in range(6)], [lane], SimExecutor(cost))
    told, pages = {i: 200 for i in range(6)}, 0
    for event in log.iterations:
        held = [told[i] for i, how in event.preempted if how == "swap"] + [told[i] for i in event.swapped_in]
        copied = sum(-(-tokens // 16) for tokens in held)
        chunks = tuple((tokens, context) for _, tokens, context, _ in event.prefills)
        work = Work(chunks, len(event.decodes), event.decode_context)
        computing = cost.stage(work) + cost.head(work.requests)
        copying = copied * 16 * 128 * 1024 / cost.efficiency.swap_bytes_per_s  # 128 KiB a token
        assert event.seconds == pytest.approx(computing + copying, rel=1e-12)
        pages += copied
        told.update({i: told[i] + 1 for i in event.decodes})
    assert pages > 20 and any(e.swapped_in for e in log.iterations)

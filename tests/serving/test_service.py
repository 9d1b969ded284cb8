"""The engine as a service: who comes late, who leaves early, who asks for too much, and nobody else notices."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

for package in ("gguf", "tokenizers", "prometheus_client"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[serve]'")

from served import GREEDY, Listener, cancelled, held, nothing_is_kept, service, text, wait_until  # noqa: E402

from pod.serving.blocks import PagedPool, ReservedPool  # noqa: E402
from pod.serving.request import Request  # noqa: E402
from pod.serving.sampler import Sampling  # noqa: E402
from pod.serving.schedulers import SCHEDULERS, SWAP, VLLM, Batch, Sarathi  # noqa: E402
from pod.serving.service import Closed, Full  # noqa: E402


@pytest.fixture(params=[False, True], ids=["waits", "ahead"])
def start(model, file, request):
    """start(...) gives a service, which is closed at the end."""
    open_ones = []

    def start(**options):
        open_ones.append(service(model, file, ahead=request.param, **options))
        return open_ones[-1]

    yield start
    for one in open_ones:
        one.close()


def asked(file, count: int) -> list[tuple]:
    """Prompts of all lengths; greedy, drawn, and drawn among the likeliest."""
    ways = [GREEDY, Sampling(1.0, 1.0, 7), Sampling(0.8, 0.7, 8), Sampling(2.0, 1.0, 9)]
    words = [" page", " tile warp", "a", " the long prompt of a document"]
    prompts = [file.tokens(words[i % 4] * (1 + i % 3)) for i in range(count)]
    return [(prompt, 6 + 5 * i % 19, ways[i % 3 if i % 5 else 3]) for i, prompt in enumerate(prompts)]


def test_company_arrivals_and_preemptions_change_no_word(start, file):
    requests = asked(file, 24)
    quiet = start(batch=1)
    alone = [text(Listener(quiet, *request).rest()) for request in requests]
    assert len(set(alone)) > 12
    busy = start(pages=24, batch=8, chunk=12, pause=0.002)
    came, forward = [], busy.engine.run
    # two in three come before its first iteration ends: however quick it is, pages run out
    busy.engine.run = lambda step: wait_until(lambda: len(came) >= 16) or forward(step)

    def ask(request):
        threading.Event().wait(random.Random(str(request)).random() / 10)
        listener = Listener(busy, *request)
        came.append(listener)
        return listener.rest()

    with ThreadPoolExecutor(24) as people:
        answers = list(people.map(ask, requests))
    assert [text(pieces) for pieces in answers] == alone
    assert all([p.made for p in pieces] == list(range(1, len(pieces) + 1)) for pieces in answers), "a piece a token"
    assert busy.meters.preempted._value.get() > 0, "the pool was too small for all"
    assert nothing_is_kept(busy)


def test_a_seed_is_its_own_and_another_seed_says_something_else(start, file):
    one = start()
    prompt = file.tokens(" page")
    say = lambda seed: text(Listener(one, prompt, 12, Sampling(2.0, 1.0, seed)).rest())  # noqa: E731
    assert say(1) == say(1) != say(2)


def test_a_stop_string_across_tokens_ends_the_answer_before_it(start, file):
    one, prompt = start(), file.tokens(" page tile")
    whole = Listener(one, prompt, 20).rest()
    words = text(whole)
    stop = words.split()[4][-2:] + " " + words.split()[5][:2]  # the end of a word and the beginning of the next
    pieces = Listener(one, prompt, 20, GREEDY, ["nothing like this", stop]).rest()
    assert text(pieces) == words[: words.index(stop)] and pieces[-1].end == "stop"
    assert pieces[-1].made < 20 == whole[-1].made and whole[-1].end == "length"
    wait_until(lambda: nothing_is_kept(one))


def test_answers_that_stop_at_once_leave_nothing_behind(start, file):
    one, prompt = start(), file.tokens(" page tile")
    stop = text(Listener(one, prompt, 20).rest()).split()[4]
    one.scheduler.max_prefills = 2
    with held(one):  # the second and the third begin together
        here = [Listener(one, prompt, 20, GREEDY, [stop]) for _ in range(3)]
    assert {listener.rest()[-1].end for listener in here} == {"stop"}
    wait_until(lambda: nothing_is_kept(one))


def test_the_token_that_ends_an_answer_ends_it_and_is_no_text(start, file):
    one, prompt = start(), file.tokens(" page tile")
    whole = Listener(one, prompt, 20).rest()
    new = next(i for i in range(2, 20) if whole[i].text not in text(whole[:i]))
    one.engine.stop = frozenset(file.tokens(whole[new].text))
    pieces = Listener(one, prompt, 20).rest()
    assert text(pieces) == text(whole[:new]) and (pieces[-1].end, pieces[-1].made) == ("stop", new + 1)


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(start, file):
    one, prompt = start(), file.tokens(" page tile")
    words = text(Listener(one, prompt, 5).rest())
    pieces = Listener(one, prompt, 5, GREEDY, [words[-3:] + "?"]).rest()
    assert text(pieces) == words and pieces[-1].end == "length"


@pytest.mark.parametrize("heard", [0, 1, 5])
def test_who_leaves_gives_his_pages_back_and_the_others_go_on(heard, start, file):
    one, prompt = start(), file.tokens(" page tile")
    alone = text(Listener(start(), prompt, 60).rest())
    with held(one, after=12):
        with held(one):  # they come together
            stays, leaves = Listener(one, prompt, 60), Listener(one, prompt * 20, 200)
        for _ in range(heard):
            leaves.next()
        one.cancel(leaves.job)
        one.cancel(leaves.job)  # twice does no harm
    wait_until(lambda: leaves.job.request.id not in one.jobs)
    assert leaves.job.request.id not in one.scheduler.pool.tables and cancelled(one) == 1
    assert text(stays.rest()) == alone and nothing_is_kept(one)
    one.cancel(stays.job)
    assert text(Listener(one, prompt, 60).rest()) == alone, "to cancel what is complete changes nothing"


def test_who_leaves_between_the_launch_of_his_last_token_and_the_token(model, file):
    """To the scheduler he has ended by then."""
    one, prompt, launched = service(model, file, ahead=True), file.tokens(" page tile"), []
    hear, send = one._hear, one.engine.send
    one.engine.send = lambda *of: launched.append(send(*of)) or launched[-1]

    def leave_and_hear() -> bool:
        if launched and (job := one.jobs.get(1)) and job.request in launched[-1].requests:
            assert job.request not in one.scheduler.running
            one._leave(job)
        return hear()

    one._hear = leave_and_hear
    with held(one):
        stays, leaves = Listener(one, prompt, 9), Listener(one, prompt, 1)
    assert len(stays.rest()) == 9 and one.failure is None
    assert leaves.pieces.empty() and cancelled(one) == 1 and nothing_is_kept(one)
    one.close()


def test_who_waits_may_leave_too(start, file):
    one = start(batch=1)
    with held(one):
        first, second, third = (Listener(one, file.tokens(" page"), 30) for _ in range(3))
        one.cancel(second.job)
    assert [len(first.rest()), len(third.rest())] == [30, 30] and second.pieces.empty()
    assert nothing_is_kept(one)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_lets_go_of_whoever_leaves(name):
    """Running, waiting, or alone with others that are through: nothing stays behind, and the next one is served."""
    kind = SCHEDULERS[name]
    for leaver in (0, 1, 2):
        scheduler = kind(ReservedPool(80, 40) if kind.pool_type is ReservedPool else PagedPool(20, 4), 2)
        requests = [Request(i, 3, 9 if i == leaver else 2) for i in range(3)]
        for request in requests:
            scheduler.add(request)
        for _ in range(5):
            scheduler.complete(scheduler.schedule())
        if not requests[leaver].finished:
            scheduler.cancel(requests[leaver])
        for _ in range(9):
            scheduler.complete(scheduler.schedule())
        assert [r.finished for r in requests] == [i != leaver for i in range(3)]
        assert not (scheduler.running or scheduler.waiting or scheduler.pool.tables)
        assert sorted(scheduler.pool.free) == list(range(scheduler.pool.num_blocks))


@pytest.mark.parametrize("kind", [Sarathi, VLLM])
def test_who_leaves_while_swapped_out_frees_host_memory(kind):
    scheduler = kind(PagedPool(6, 4, 0.0, swap_blocks=6), 4, preemption=SWAP)
    old, young = Request(0, 8, 12), Request(1, 8, 12)
    for request in (old, young):
        scheduler.add(request)
    while young.id not in scheduler.pool.swapped:
        scheduler.complete(scheduler.schedule())
    scheduler.cancel(young)
    assert sorted(scheduler.pool.swap_free) == list(range(6)) and not scheduler.pool.swapped
    while scheduler.running:
        scheduler.complete(scheduler.schedule())
    assert old.finished and sorted(scheduler.pool.free) == list(range(6))


def test_the_line_has_an_end(start, file):
    one = start(batch=2, waiting=1)
    with held(one):
        here = [Listener(one, file.tokens(" page"), 20) for _ in range(3)]
        with pytest.raises(Full, match="3 requests are here, allowed are 3"):
            Listener(one, file.tokens(" page"), 20)
    assert all(len(listener.rest()) == 20 for listener in here)
    assert len(Listener(one, file.tokens(" page"), 20).rest()) == 20, "and there is room again"


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [([], 5, "the prompt is empty"), ([1] * 510, 5, "takes 512 in all"), ([10**9], 5, "outside of the vocabulary"),
     ([1] * 80, 5, "the pool has 20"), ([1], 0, "0 tokens to come")],
)  # fmt: skip
def test_what_can_never_be_answered_is_refused_at_once(prompt, output, words, start):
    one = start(pages=20)
    with pytest.raises(ValueError, match=words):
        Listener(one, prompt, output)
    assert one.longest == 76 and nothing_is_kept(one)


def test_closing_answers_who_is_here_and_refuses_who_comes(start, file):
    one = start()
    forward = one.engine.run
    one.engine.run = lambda step: wait_until(lambda: one.closing) or forward(step)
    here = [Listener(one, file.tokens(" page"), 40) for _ in range(10)]
    one.close()
    assert all(len(listener.rest()) == 40 for listener in here) and nothing_is_kept(one)
    with pytest.raises(Closed, match="shutting down"):
        Listener(one, file.tokens(" page"), 5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_scheduler_that_forms_no_batch(start, file):
    """He would wait for ever, beside an engine that turns for nobody."""
    one = start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.scheduler, "schedule", Batch)
        here = Listener(one, file.tokens("a page"), 10)
        wait_until(lambda: isinstance(one.failure, RuntimeError), seconds=10)
    assert here.next().end == "error" and "forms no batch, but 1 requests wait" in str(one.failure)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_engine_fails_everybody_hears_it(start, file):
    one = start(batch=1)
    with held(one, after=2):
        here = [Listener(one, file.tokens(" page"), 40) for _ in range(3)]
        here[0].next()
        one.engine.run = lambda step: 1 / 0
    assert [listener.rest()[-1].end for listener in here] == ["error"] * 3
    wait_until(lambda: isinstance(one.failure, ZeroDivisionError))
    with pytest.raises(Closed, match="the engine has failed"):
        Listener(one, file.tokens(" page"), 5)


def test_a_long_run_keeps_nothing(start, file):
    """Ten times as many requests, and not an object more."""
    import gc

    one, requests = start(pages=34, batch=8), asked(file, 20)

    def serve(rounds: int) -> int:
        for _ in range(rounds):
            for listener in [Listener(one, *request) for request in requests]:
                listener.rest()
        gc.collect()
        return len(gc.get_objects())

    serve(1)
    after_one = serve(1)
    assert serve(10) < after_one + 50 and nothing_is_kept(one)

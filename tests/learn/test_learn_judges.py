"""Every judge against its solution, against answers that are wrong in a plausible way, and against the stub."""

import re
import signal
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod import kernels, learn
from pod.hardware import H200
from pod.lab import notebooks
from pod.learn import changed, judge, progress, scores
from pod.learn.exercises import (
    concurrent_execution,
    continuous_batching,
    functions,
    lean_attention,
    profiling_an_engine,
    sm_aware_scheduling,
)
from pod.simulate import tensor_core_queue
from tests.solutions import named, solutions

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
WRONG = 4


def answered(name: str, language: str, text: str):
    if language == "cuda":
        return getattr(learn.cuda(text), name)
    names: dict = {}
    exec(compile(text, "<cell>", "exec"), names)
    return names[name]


WAYS = [(name, hint) for name, blocks in solutions().items() for hint, _, _ in blocks if hint]


def test_every_exercise_has_a_solution_and_every_solution_an_exercise():
    assert set(solutions()) == set(judge.exercises())


@pytest.mark.parametrize("name", judge.exercises())
def test_the_solution_passes_and_the_stub_is_not_yet(name):
    exercise, (hint, language, text) = judge.exercises()[name], solutions()[name][0]
    assert not hint
    verdict = judge.judge(exercise, answered(name, language, text))
    assert verdict.state == "right" and exercise.well_done in verdict.text, verdict
    assert judge.judge(exercise, answered(name, language, exercise.stub)).state == "not yet"


@pytest.mark.parametrize("name, hint", WAYS)
def test_a_wrong_answer_gets_its_own_hint(name, hint):
    (language, text), *more = [block[1:] for block in solutions()[name] if block[0] == hint]
    verdict = judge.judge(judge.exercises()[name], answered(name, language, text))
    assert not more and (verdict.state, verdict.hint) == ("wrong", hint), verdict
    assert all(word in verdict.text for word in ("tried", "expected", "got", "hint"))
    expected, got = re.search(r"^  expected +(.*)^  got +(.*?)^  [a-z]", verdict.text, re.M | re.S).groups()
    assert expected != got, "what is wrong must be seen"


@pytest.mark.parametrize("name", judge.exercises())
def test_there_are_enough_ways_to_be_wrong_and_each_hint_is_given(name):
    exercise = judge.exercises()[name]
    hints, tried = exercise.hints, [hint for hint, *_ in solutions()[name] if hint]
    assert len(tried) >= WRONG and len({hint.says for hint in hints.values()}) == len(hints)
    assert set(tried) == set(hints)


# ---------------------------------------------------------------- judges live through everything


def toy(try_one=None):
    try_one = try_one or (lambda f, case: judge.Outcome(f"f({case})", 2 * case, f(case), right=f(case) == 2 * case))
    return judge.Exercise("", [1, 2, 3], try_one, {}, "So it is.", name="toy")


def test_an_answer_that_raises_is_told_with_its_line():
    names: dict = {}
    exec(compile("def f(x):\n    y = x - 2\n    return 2 * x + 0 / y\n", "<cell>", "exec"), names)
    verdict = judge.judge(toy(), names["f"])
    assert verdict.state == "wrong" and "ZeroDivisionError: float division by zero" not in verdict.text
    assert "ZeroDivisionError: division by zero (line 3 of your cell)" in verdict.text


def misspelt(*arguments):
    return lenght(arguments)  # noqa: F821


@pytest.mark.parametrize("name", [n for n, blocks in solutions().items() if blocks[0][1] == "python"])
def test_a_slip_of_the_pen_gets_no_hint(name):
    verdict = judge.judge(judge.exercises()[name], misspelt)
    assert verdict.state == "wrong" and not verdict.hint
    assert "NameError" in verdict.text or "allowed is a text" in verdict.text


def test_the_line_is_the_readers_even_when_a_library_raises():
    names: dict = {}
    exec(compile("import numpy as np\n\ndef f(x):\n    return np.stack([])\n", "<cell>", "exec"), names)
    assert "need at least one array to stack (line 4 of your cell)" in judge.judge(toy(), names["f"]).text


def test_an_answer_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(judge, "MOST_SECONDS", 0.2)

    def f(x):
        while True:
            pass

    assert "TimeoutError: still going after 0.2 s" in judge.judge(toy(), f).text


def swallows(x):
    while True:
        try:
            while True:
                pass
        except:  # noqa: E722
            pass


def swallows_at_the_end(x):
    try:
        swallows(x)
    finally:
        swallows(x)


@pytest.mark.parametrize("answer", [swallows, swallows_at_the_end])
def test_an_answer_that_swallows_its_end_is_stopped(answer, monkeypatch):
    monkeypatch.setattr(judge, "MOST_SECONDS", 0.2)
    assert "TimeoutError: still going after 0.2 s" in judge.judge(toy(), answer).text


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux counts a process's memory as it grows")
def test_an_answer_that_takes_all_memory_is_stopped(monkeypatch):
    monkeypatch.setattr(judge, "MOST_BYTES", 1 << 28)
    assert "MemoryError" in judge.judge(toy(), lambda x: list(count())).text
    assert "MemoryError" in judge.judge(toy(), lambda x: [0] * 10**11).text


def test_what_an_answer_prints_is_told_and_a_flood_is_cut(capsys):
    def f(x):
        print("x is", x)
        for i in count() if x == 2 else ():
            print("again")
            if i == 1000:
                signal.raise_signal(signal.SIGALRM)  # as when its time is over
        return 2 * x

    said = judge.judge(toy(), f).text
    assert "printed   x is 1\n" in said and said.count("again") > 5 and len(said) < 900
    said = judge.judge(toy(), lambda x: print("x is", x) or 2 * x).text
    assert "printed   x is 3" in said.replace("            ", "  printed   ")
    assert not capsys.readouterr().out


def test_a_long_answer_is_not_cut_within_a_number():
    numbers = list(range(10**5, 10**5 + 100))
    outcome = judge.Outcome("many", numbers, [-n for n in numbers])
    said = judge.judge(toy(lambda f, case: outcome), len).text
    cut = [line.removesuffix(" ...").rstrip(", ") for line in said.splitlines() if line.endswith(" ...")]
    assert len(cut) == 2 and all(re.fullmatch(r"\D*(-?1\d{5}, )*-?1\d{5}", line) for line in cut), cut


NEARLY = {
    "reverse": ("past shared memory", "s[t] = x[i]; __syncthreads(); x[blockIdx.x * 64 + 64 - t] = s[t];"),
    "neighbour": ("a ring of 64",
                  "s[t] = t < n ? x[t] : 0; __syncthreads(); if (t < n) y[t] = s[t] + s[(t + 1) % 64];"),
    "softmax": ("one more walk",
                "for (int j = 0; j < n; ++j) m = fmaxf(m, x[r * n + j]);"
                "for (int j = 0; j < n; ++j) { y[r * n + j] = expf(x[r * n + j] - m); l += y[r * n + j]; }"
                "for (int j = 0; j < n; ++j) y[r * n + j] /= l;"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEARLY)
def test_other_ways_to_the_same_mistake_get_the_same_hint(name):
    (hint, body), stub = NEARLY[name], judge.exercises()[name].stub
    begin = "\n".join(line for line in stub.splitlines()[:3])
    verdict = judge.judge(judge.exercises()[name], answered(name, "cuda", f"{begin}\n{body}\n}}"))
    assert (verdict.state, verdict.hint) == ("wrong", hint), verdict


def test_whoever_goes_along_a_row_backwards_is_online_too():
    text = solutions()["softmax"][0][2].replace("int j = 0; j < n; ++j", "int j = n - 1; j >= 0; --j")
    assert judge.judge(judge.exercises()["softmax"], answered("softmax", "cuda", text)).state == "right"


def test_who_forgets_to_return_is_told_so():
    def f(x):
        y = 2 * x  # noqa: F841

    for answer in (f, partial(f)):
        verdict = judge.judge(toy(), answer)
        assert (verdict.state, verdict.hint) == ("wrong", "no return") and "a `return` is missing" in verdict.text


def test_an_answer_that_calls_itself_for_ever_is_told():
    def f(x):
        return f(x)

    assert "RecursionError" in judge.judge(toy(), f).text


LISTED = [n for n, e in judge.exercises().items() if isinstance(e.cases[0], functions.Call)]


@pytest.mark.parametrize("name", LISTED)
def test_whoever_lists_the_cases_is_not_right(name):
    exercise = judge.exercises()[name]
    known = {repr(case.arguments): case.wanted for case in exercise.cases}
    assert judge.judge(exercise, lambda *arguments: known.get(repr(arguments), 7)).state == "wrong"


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("answer", ["many", {}, object(), [[1], 2], float("nan"), len, (None, None, None)])
def test_what_is_no_answer_is_wrong_and_nothing_of_ours_is_told(name, answer):
    verdict = judge.judge(judge.exercises()[name], lambda *_: answer)
    assert verdict.state == "wrong" and not any(word in verdict.text for word in ("Error", "Call(", "pod/")), verdict


@pytest.mark.parametrize("name", LISTED)
def test_a_number_in_quotes_is_no_number(name):
    answer = solved(name)
    assert judge.judge(judge.exercises()[name], lambda *arguments: str(answer(*arguments))).state == "wrong"


SMUGGLED = {
    "numpy": "np.asarray(p), np.asarray(u)",
    "an array": "p.__array__(), u.__array__()",
    "a copy": "p.to('cpu').numpy(force=True), u.to(device='cpu').numpy(force=True)",
    "a mask": "p[p >= 0].view_as(p), u",
    "places": "p + 0 * torch.where(p >= 0)[0].sum(), u",
}


class Equal:
    """What says of itself that it is whatever is asked for."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = object.__hash__


@pytest.mark.parametrize("name", [n for n, blocks in solutions().items() if blocks[0][1] == "python"])
def test_an_answer_that_calls_itself_right_is_not(name):
    assert judge.judge(judge.exercises()[name], lambda *_: Equal()).state == "wrong"


@pytest.mark.parametrize("way", SMUGGLED)
def test_who_waits_for_the_gpu_by_another_door_is_told(way):
    line = f"P, U = {SMUGGLED[way]}; P, U = torch.as_tensor(P), torch.as_tensor(U)"
    code = f"import numpy as np, torch\ndef draw(p, u):\n    {line}\n    return (P.cumsum(-1) <= U[:, None]).sum(-1)\n"
    verdict = judge.judge(judge.exercises()["draw"], answered("draw", "python", code))
    assert (verdict.state, verdict.hint) == ("wrong", "a wait"), verdict


KERNELS = {
    "scale": "__global__ void scale(float* y, float* x, float a) {"
    " int i = blockIdx.x * blockDim.x + threadIdx.x; x[i] *= a; y[i] = x[i]; }",
    "reverse": "__global__ void reverse(float* x) {"
    " int i = blockIdx.x * 64; x[i + threadIdx.x] = i + 63 - threadIdx.x; }",
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_is_right_by_chance_or_spoils_what_it_reads_is_not_right(name):
    assert judge.judge(judge.exercises()[name], answered(name, "cuda", KERNELS[name])).state == "wrong"


def test_a_rule_that_fits_once_by_chance_is_no_hint():
    cases = [functions.Call(f"{x}", (x,), 2 * x) for x in (2, 3, 4)]
    square = judge.Hint("This is the square.", functions.gives(lambda x: x * x))
    exercise = judge.Exercise("", cases, functions.call, {"square": square}, "", lambda random: cases[1])
    assert judge.judge(exercise, lambda x: x * x).hint == "square"
    assert judge.judge(exercise, lambda x: 9).hint == ""


def passes(x):
    pass


@pytest.mark.parametrize("answer", [None, ..., lambda x: None, passes])
def test_nothing_is_not_yet(answer):
    assert judge.judge(toy(), answer).state == "not yet"


def test_not_implemented_is_not_yet():
    def f(x):
        raise NotImplementedError

    assert judge.judge(toy(), f).state == "not yet"


def test_a_kernel_with_other_parameters_is_told_so():
    verdict = judge.judge(judge.exercises()["scale"], learn.cuda("__global__ void scale(float* y) { y[0] = 1; }").scale)
    assert verdict.state == "wrong" and "scale: got 3 arguments, allowed are 1: float* y" in verdict.text


def test_a_hint_that_fails_is_no_hint():
    broken = judge.Hint("y", lambda o: 1 / 0)
    exercise = judge.Exercise("", [1], lambda f, c: judge.Outcome("1", 2, 3), {"x": broken}, "")
    assert judge.judge(exercise, len).hint == ""


def test_an_unknown_exercise_names_the_known():
    with pytest.raises(ValueError, match="exercise: got 'scael', allowed are place, merge, .*, scale, tail"):
        learn.check("scael", None)


# ---------------------------------------------------------------- progress


def test_progress_keeps_the_best_and_counts_tries():
    stub = judge.exercises()["scale"].stub
    assert learn.check("scale", learn.cuda(stub).scale).state == "not yet" and progress.read() == {}
    for _, _, text in (solutions()["scale"][1], solutions()["scale"][0], solutions()["scale"][2]):
        learn.check("scale", learn.cuda(text).scale)
    assert progress.read() == {"scale": {"tries": 3, "state": "right"}}
    assert "scale                    right, 3 tries" in scores.table()
    assert "1 of 7 exercises" in scores.table()
    sofar = scores.table("04")
    assert scores.table().startswith(f"{sofar}\n05 waves: ") and sofar.splitlines()[-1].split() == ["softmax", "-"]


def test_progress_that_is_no_json_is_forgotten(answers):
    for text in ("{", "[]", "3", '{"scale": 3}', '{"scale": {}}', '{"scale": {"tries": "x", "state": "right"}}'):
        answers.write_text(text)
        assert progress.read() == {} and "0 of 7 exercises" in scores.table()
    progress.note("scale", "wrong")
    assert progress.read() == {"scale": {"tries": 1, "state": "wrong"}}


def test_progress_that_cannot_be_kept_keeps_no_verdict_back(answers, capsys):
    answers.mkdir()
    for _ in range(2):
        assert learn.check("place", answered("place", *solutions()["place"][0][1:])).state == "right"
    assert progress.note_score("cuts", 3.5) == 3.5 and progress.read() == {}
    said = capsys.readouterr().err
    assert said.count("your progress is not kept: ") == 1 and "answers.json" in said


def test_the_verb_shows_it_and_forgets_it(capsys):
    from pod.__main__ import main

    progress.note("tail", "wrong")
    assert main(["progress"]) == 0 and "not right yet, 1 try" in capsys.readouterr().out
    assert main(["progress", "--forget"]) == 0 and "try" not in capsys.readouterr().out


# ---------------------------------------------------------------- in the chapters


@pytest.mark.parametrize("name", judge.exercises())
def test_the_chapter_has_the_stub_a_judge_and_a_link_to_the_solution(name):
    exercise = judge.exercises()[name]
    (path,) = (p for p in notebooks.find([]) if name in named("check", p))
    cells = notebooks.read(path).cells
    at = next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and cell.source.endswith(exercise.stub))
    at += cells[at + 1].source.startswith(f"{name}[") and ".watch(" in cells[at + 1].source  # first, what a run says
    told = cells[at + 1]
    assert told.source == f'learn.check("{name}", {name})'
    assert told.outputs[0].data["text/plain"] == repr(judge._not_yet(exercise))
    links = " ".join(cell.source for cell in cells[at - 1 : at + 3] if cell.cell_type == "markdown")
    assert f"solutions/{exercise.chapter}.md#{name})" in links


# ---------------------------------------------------------------- what holds for every case, hidden or not


def solved(name: str):
    return answered(name, *solutions()[name][0][1:])


def is_right(name: str, case) -> bool:
    outcome = judge.exercises()[name].try_one(solved(name), case)
    return outcome.right and outcome.error is None


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=9))
def test_shares_of_an_sm_leave_nothing_that_somebody_wants(wishes):
    got = solved("shares")(wishes)
    assert sum(got) == pytest.approx(min(1, sum(wishes)))
    assert all(0 <= g <= w + 1e-12 for g, w in zip(got, wishes, strict=True))
    served_less = [g for g, w in zip(got, wishes, strict=True) if g < w - 1e-9]
    assert all(g == pytest.approx(max(got)) for g in served_less)


COSTS = st.lists(st.integers(1, 3000), max_size=25)


@given(COSTS, COSTS)
def test_whoever_is_less_far_along_goes_next_keeps_both_close(prefill, decode):
    if prefill or decode:
        assert is_right("deal", sm_aware_scheduling.Work("", tuple(prefill), tuple(decode)))


@given(st.integers(0, 60), st.integers(0, 9))
def test_interleaving_hides_all_waits_that_can_be_hidden(multiplications, loads):
    if multiplications or loads:
        assert is_right("interleave", concurrent_execution.Loops(multiplications, loads))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(2, 9))
def test_rounds_of_each_kind_reach_the_oracle_on_any_gpu(rounds, sms):
    assert is_right("grid", concurrent_execution.Shape(rounds * sms, sms))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 20))
def test_the_last_cta_of_every_head_is_found_on_every_line(heads, tiles, ctas):
    assert is_right("last_cta", lean_attention.Heads(heads, tiles, ctas))


PARTS = st.tuples(st.floats(0, 1e12), st.floats(0, 1e12))


@given(PARTS, PARTS)
def test_the_bound_is_between_the_longer_part_and_the_sum(prefill, decode):
    found = solved("bound")(prefill, decode, 1e15, 4e12)
    alone = [max(flops / 1e15, moved / 4e12) for flops, moved in (prefill, decode)]
    assert max(alone) <= found * (1 + 1e-9) and found <= sum(alone) * (1 + 1e-9)


REQUESTS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=20)


@given(REQUESTS, st.integers(1, 6), st.integers(40, 120))
def test_the_schedule_keeps_every_promise_on_any_day(requests, slots, memory):
    assert is_right("schedule", continuous_batching.Day(tuple(sorted(requests)), slots, memory))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=2, max_size=9), st.integers(0, 3))
def test_whoever_gives_way_is_the_latest_and_the_oldest_goes_on(crowd, free):
    held, wants = map(list, zip(*crowd, strict=True))
    gone = solved("give_way")(held, wants, free)
    stay = range(len(held) - len(gone))
    assert gone == list(range(len(held)))[::-1][: len(gone)] and 0 in stay
    assert sum(wants[i] for i in stay) <= free + sum(held[i] for i in gone)
    assert not gone or sum(wants[: gone[-1] + 1]) > free + sum(held[i] for i in gone[:-1])


@given(st.integers(1, 2000), st.integers(0, 300), st.lists(st.integers(1, 5000), max_size=6))
def test_the_budget_is_spent_and_never_overdrawn(budget, decodes, prompts):
    taken = solved("fill")(budget, decodes, prompts)
    assert sum(taken) == min(sum(prompts), max(0, budget - decodes))
    assert all(0 <= t <= p for t, p in zip(taken, prompts, strict=True))
    assert all(later == 0 for t, p, later in zip(taken, prompts, taken[1:], strict=False) if t < p)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 6))
def test_the_longest_goes_through_all_stages_and_everybody_through_one(times, stages):
    assert solved("last_out")(times, stages) == sum(times) + (stages - 1) * max(times)


@given(st.data())
def test_the_step_is_that_of_the_engine(data):
    from pod.serving.request import Request
    from pod.serving.schedulers import Batch, Chunk
    from pod.serving.step import pack

    block, batch, parts, tables, texts = data.draw(st.integers(1, 5)), Batch(), [], {}, {}
    for name in range(data.draw(st.integers(1, 5))):
        before, new, more = (data.draw(st.integers(*ends)) for ends in ((0, 9), (1, 6), (0, 2)))
        request = Request(name, before + new + more, 3)
        batch.prefills.append(Chunk(request, new, before))
        parts.append((name, before, new, not more))
        tables[name] = data.draw(st.permutations(range(40)))[: -(-(before + new) // block)]
        texts[name] = [0] * (before + new)
    wanted = pack(batch, texts, tables, block)
    assert solved("step")(parts, tables, block) == (wanted.slots.tolist(), wanted.rows.tolist())


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=9))
def test_a_gpu_is_idle_or_busy(kernels):
    gaps, lengths = zip(*kernels, strict=True)
    launched = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    waited = solved("idle")(launched, lengths)
    ends = [max(begin + sum(lengths[i:]) for i, begin in enumerate(launched[: n + 1])) for n in range(len(lengths))]
    assert waited + sum(lengths) == ends[-1]


@given(st.floats(2e-3, 500))
def test_every_capacity_is_found_in_time(most):
    assert is_right("capacity", most)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(2, 30))
def test_together_all_rows_draw_what_each_draws_alone(rows, vocab):
    assert is_right("draw", profiling_an_engine.Rows(rows, vocab))


@given(st.integers(0, 4), st.sampled_from([1.4e9, 1.97e9]))
def test_turns_are_those_of_the_queue(queued, clock):
    served = tensor_core_queue.decode_bytes_per_s(H200, queued, clock)
    assert solved("kv_rate")(queued, clock, H200.sms) == pytest.approx(served, rel=1e-2)


# ---------------------------------------------------------------- lines in the production kernel

LINES = "DEV int first(int row) const {{ {} }}\nDEV bool all_see(int key) const {{ return false; }}"


def test_a_slip_in_the_production_kernel_is_told_with_the_readers_line():
    said = judge.judge(judge.exercises()["window"], LINES.format("return work.po;")).text
    assert "line 1: " in said and "has no member named" in said and "work.po" in said
    assert ".cuh" not in said and "csrc" not in said


def test_a_loop_without_an_end_in_the_production_kernel_is_stopped(monkeypatch):
    monkeypatch.setattr(changed, "MOST_SECONDS", 3)
    said = judge.judge(judge.exercises()["window"], LINES.format("while (true) {} return 0;")).text
    assert "time: did not end within 3 s: a loop without an end?" in said


def test_a_file_of_somebodys_does_not_come_into_the_production_kernel():
    said = judge.judge(judge.exercises()["window"], f'#include "/etc/hosts"\n{LINES.format("return 0;")}').text
    assert "line 1: got a line for the preprocessor" in said


def test_a_crash_in_the_production_kernel_leaves_the_notebook_alive():
    said = judge.judge(judge.exercises()["window"], LINES.format("return *(volatile int*)nullptr;")).text
    assert "crash: ended with" in said


def test_what_is_no_text_is_told_so():
    said = judge.judge(judge.exercises()["window"], len).text
    assert "window: got <built-in function len>, allowed is a text" in said

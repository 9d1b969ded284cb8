"""The smallest case: judges try seeded random ones, and tell the simplest that goes wrong in the same way."""

from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod import kernels
from pod.learn import judge
from pod.learn.exercises import functions
from pod.learn.exercises.functions import Call, fewer, shorter, smaller
from tests.solutions import solutions

pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
SEARCHED = [name for name, exercise in judge.exercises().items() if exercise.smaller]
TRIED = 60  # smaller cases of one


def summed(numbers: list) -> Call:
    return Call(f"{numbers}", (numbers,), sum(numbers))


def toy(cases, draw=None, hints=None):
    way = smaller(summed, shorter(0, fewer(0)))
    return judge.Exercise("", cases, functions.call, hints or {}, "So it is.", draw, way, "toy")


def solved(name: str):
    names: dict = {}
    _, language, text = solutions()[name][0]
    assert language == "python"
    exec(compile(text, "<cell>", "exec"), names)
    return names[name]


NUMBERS = st.lists(st.integers(0, 50), max_size=8)


@given(NUMBERS, st.integers(1, 40), st.integers(0, 4))
def test_the_smallest_list_that_goes_wrong_is_told(numbers, least, count):
    """Wrong where more than `count` numbers are at least so large: then `count + 1` of them are the smallest case."""
    several = sum(x >= least for x in numbers) > count
    verdict = judge.judge(toy([summed(numbers)]), lambda xs: -1 if sum(x >= least for x in xs) > count else sum(xs))
    assert verdict.state == ("wrong" if several else "right")
    if several:
        assert f"tried     <lambda>({[least] * (count + 1)})" in verdict.text
        assert (judge.SMALLEST in verdict.text) == (numbers != [least] * (count + 1))


@given(NUMBERS)
def test_smaller_cases_are_smaller_and_come_to_an_end(numbers):
    case, steps = summed(numbers), 0
    while (simpler := next(iter(toy([]).smaller(case)), None)) is not None:
        (xs,), (before,) = simpler.arguments, case.arguments
        assert (len(xs), sum(xs)) < (len(before), sum(before))
        case, steps = simpler, steps + 1
    assert case.arguments == ([],) and steps <= 1 + len(numbers).bit_length() + 1


def test_a_smaller_case_that_goes_wrong_in_another_way_is_not_told():
    def f(xs):
        return [] if len(xs) < 2 else sum(xs) + 1

    one_more = judge.Hint("There is one too many.", lambda o: o.values[1] == o.values[0] + 1)
    verdict = judge.judge(toy([summed([5, 7, 9])], hints={"one more": one_more}), f)
    assert verdict.hint == "one more" and "tried     f([0, 0])" in verdict.text and "expected  0" in verdict.text


def test_whoever_raises_gets_the_smallest_case_that_raises_the_same():
    def f(xs):
        return sum(xs) if max(xs, default=0) < 10 else xs[99]

    verdict = judge.judge(toy([summed([30, 4, 8])]), f)
    assert "tried     f([10])" in verdict.text and "IndexError" in verdict.text


def test_a_search_does_not_keep_anybody_waiting(monkeypatch):
    monkeypatch.setattr(judge, "A_TRY", 0.05)
    monkeypatch.setattr(judge, "SEARCHING", 0.2)

    def f(xs):
        while len(xs) < 8:
            pass
        return -1

    verdict = judge.judge(toy([summed(list(range(8)))]), f)
    assert verdict.state == "wrong" and "got       -1" in verdict.text and "printed" not in verdict.text


def test_what_is_printed_while_a_smaller_case_is_looked_for_is_not_told():
    verdict = judge.judge(toy([summed([1, 2])]), lambda xs: print("for", xs) or -1)
    assert verdict.text.count("for [") == 1 and "for [1, 2]" in verdict.text


def test_the_same_answer_gets_the_same_verdict():
    drawn = toy([], lambda random: summed([random.randint(0, 99) for _ in range(5)]))
    assert repr(drawn.all_cases()) == repr(drawn.all_cases())
    assert len({repr(case) for case in drawn.all_cases()}) == judge.DRAWN
    assert len({judge.judge(drawn, lambda xs: sum(xs) % 100).text for _ in range(4)}) == 1


def test_enough_judges_search():
    assert len(SEARCHED) >= 3 and {"last_end", "fill", "schedule", "swizzle"} <= set(SEARCHED)


@pytest.mark.parametrize("name", SEARCHED)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6))
def test_the_solution_is_right_in_every_smaller_case(name, seed):
    exercise, answer = judge.exercises()[name], solved(name)
    for case in [*exercise.cases[:2], exercise.draw(Random(seed))]:
        for simpler in islice(exercise.smaller(case), TRIED):
            outcome = exercise.try_one(answer, simpler)
            assert outcome.right and outcome.error is None, outcome


@pytest.mark.parametrize("name", SEARCHED)
def test_some_wrong_answer_gets_a_smaller_case_and_keeps_its_hint(name):
    told = []
    for hint, _, text in solutions()[name][1:]:
        names: dict = {}
        exec(compile(text, "<cell>", "exec"), names)
        verdict = judge.judge(judge.exercises()[name], names[name])
        assert verdict.hint == hint
        told.append(judge.SMALLEST in verdict.text)
    assert any(told)


@pytest.mark.parametrize("name", SEARCHED)
def test_whoever_forgets_to_return_is_told_so_by_all_that_search(name):
    def answer(*arguments):
        found = arguments  # noqa: F841

    verdict = judge.judge(judge.exercises()[name], answer)
    assert (verdict.state, verdict.hint) == ("wrong", "no return") and "got       None" in verdict.text


# ---------------------------------------------------------------- the swizzle


@given(st.sampled_from([2, 4, 8, 16]), st.integers(0, 1000), st.data())
def test_a_swizzled_piece_has_a_place_of_its_own_and_eight_rows_come_at_once(pieces, block, data):
    place, piece = solved("swizzle"), data.draw(st.integers(0, pieces - 1))
    rows = range(8 * block, 8 * block + 8)
    for row in rows:
        assert sorted(place(row, c, pieces) for c in range(pieces)) == list(range(pieces))
    banks = {(row * pieces + place(row, piece, pieces)) % 8 for row in rows}
    assert banks == set(range(8))

"""A reader's binding in the production kernel: what it promises, and what becomes of slips."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod import kernels
from pod.learn import changed, judge
from pod.learn.exercises import binding

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
SLOTS, SMS = st.tuples(st.integers(0, 20), st.integers(0, 20)), st.integers(1, 6)


def rule(slots: tuple[int, int], sms: int) -> list[tuple[int, int, int]]:
    """The solution, in Python: (CTA, kind, slot)."""
    rounds = min(slots) // sms
    given = [(op, r * sms + i) for r in range(rounds) for op in (0, 1) for i in range(sms)]
    given += [(op, slot) for op in (0, 1) for slot in range(rounds * sms, slots[op])]
    return [(cta, *x) for cta, x in enumerate(given)]


def case(slots: tuple[int, int], sms: int):
    return SimpleNamespace(slots=slots, sms=sms, in_rounds=min(slots) // sms * sms)


@given(SLOTS, SMS)
def test_rounds_in_turns_keep_all_promises(slots, sms):
    assert binding.broken(rule(slots, sms), case(slots, sms), ended=True) == ""


@given(SLOTS.filter(any), SMS, st.data())
def test_one_slot_that_is_another_is_noticed(slots, sms, data):
    right = rule(slots, sms)
    cta, op, slot = data.draw(st.sampled_from(right))
    op, other = data.draw(st.sampled_from([(op, n) for n in range(-1, slots[op] + 2) if n != slot]))
    wrong = [*right[:cta], (cta, op, other), *right[cta + 1 :]]
    said = binding.broken(wrong, case(slots, sms), ended=True)
    assert said.startswith("there is no") if not 0 <= other < slots[op] else said.endswith("twice")


@given(SMS.filter(lambda sms: sms > 1), st.integers(1, 3), st.integers(0, 3))
def test_two_ctas_of_a_round_that_change_kinds_are_noticed(sms, rounds, more):
    slots = (sms * rounds, sms * rounds + more)
    right = rule(slots, sms)
    (a, *first), (b, *second) = right[0], right[sms]
    right[0], right[sms] = (a, *second), (b, *first)
    assert binding.broken(right, case(slots, sms), ended=True) == "not in rounds"
    assert binding.broken(right, case(slots, sms), ended=False) == ""


ASSIGN = "DEV static Assignment assign(const Choice& c, sptr<Assignment>) {{\n    {}\n}}"


def judged(line: str) -> str:
    return judge.judge(judge.exercises()["binding"], ASSIGN.format(line)).text


def test_a_slip_is_told_with_the_readers_line():
    said = judged("return {kPrefil, 0, -1, 0};")
    assert "line 2: " in said and "kPrefil" in said and ".cuh" not in said


def test_a_loop_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(changed, "MOST_SECONDS", 3)
    assert "time: did not end within 3 s: a loop without an end?" in judged("while (c.sms) {} return {};")


def test_what_is_no_function_of_the_readers_is_told_so():
    said = judge.judge(judge.exercises()["binding"], '#include "/etc/hosts"').text
    assert "line 1: got a line for the preprocessor" in said
    assert "binding: got 7, allowed is a text with" in judge.judge(judge.exercises()["binding"], 7).text
    said = judge.judge(judge.exercises()["binding"], "int f() { return 1; }").text
    assert "got       line 1: 'assign' is not a member of 'Mine'" in said

"""Right answers in the forms in which readers write them, and wrong ones whose hints had been untrue, or that had shown
something of ours."""

import pytest

from pod.learn import judge
from pod.learn.exercises.functions import plain

pytest.importorskip("torch")

RING = "def ring(copy, stages):\n    turn, stage = divmod(copy, stages)\n"
GIVE_WAY = """
def give_way(held, wants, free):
    end = len(held)
    for place, wish in enumerate(wants):
        while place < end and wish and not free:
            end -= 1
            free += held[end]
            yield end
        free -= place < end and wish
"""
ROOM = """
def room(table, users, length, size):
    free = users.index(0)
    if length % size == 0:
        table.append(free)
        users[free] = 1
    elif users[table[-1]] > 1:
        users[table[-1]] -= 1
        table[-1] = free
        users[free] = 1
    return map(list, (table, users))
"""
FILL = """
def fill(budget, decodes, prompts):
    left = max(0, budget - decodes)
    for prompt in prompts:
        yield min(prompt, left)
        left -= min(prompt, left)
"""
ROOF = """
import numpy as np
import torch


def nearest_roof(work, a_second, a_cycle, mhz, ms):
    limits = a_second | {roof: most * mhz * 1e6 for roof, most in a_cycle.items()}
    share, roof = max((1e3 * work[roof] / ms / limits[roof], roof) for roof in work)
"""
SWIZZLE = """
import torch


def swizzle(row, piece, pieces):
    return torch.tensor(piece ^ row // max(1, 8 // pieces) % min(8, pieces))
"""
RIGHT = {
    "ring of an array": ("ring", f"import numpy as np\n\n\n{RING}    return np.array([stage, turn % 2, 1 - turn % 2])"),
    "ring of a tensor": ("ring", f"import torch\n\n\n{RING}    return torch.tensor([stage, turn % 2, 1 - turn % 2])"),
    "ring one by one": ("ring", f"{RING}    yield from (stage, turn % 2, 1 - turn % 2)"),
    "give_way one by one": ("give_way", GIVE_WAY),
    "room as a map": ("room", ROOM),
    "fill one by one": ("fill", FILL),
    "nearest_roof of 32 bits": ("nearest_roof", f"{ROOF}    return roof, np.float32(share)"),
    "nearest_roof of a tensor": ("nearest_roof", f"{ROOF}    return roof, torch.tensor(share, dtype=torch.float64)"),
    "nearest_roof one by one": ("nearest_roof", f"{ROOF}    return iter((roof, share))"),
    "swizzle of a tensor": ("swizzle", SWIZZLE),
}


def judged(name: str, text: str) -> judge.Verdict:
    names: dict = {}
    exec(compile(text, "<cell>", "exec"), names)
    return judge.judge(judge.exercises()[name], names[name])


@pytest.mark.parametrize("name, text", RIGHT.values(), ids=RIGHT)
def test_a_right_answer_may_come_in_any_form(name, text):
    assert judged(name, text).state == "right"


def test_only_where_several_values_are_wanted_an_array_is_a_list():
    import numpy as np

    array = np.arange(3)
    assert plain(array, 1.5) is array and plain(array, (0, 1, 2)) == [0, 1, 2]
    assert plain((x for x in "ab"), 1.5) == ["a", "b"] and plain({}, (1, 2)) == {}


SLOTS = {"slots": [], "rows": []}
PAIR = "def capacity(kept):\n    kept(1)\n    return {}"
WRONG = {
    "numbers as a text": ("place", "def place(f, p, d):\n    return str((p + d - f) / min(p, d))", "got       '0.5'"),
    "a length as a text": ("part_length", "def part_length(tiles, sms, price):\n    return '8'", "got       '8'"),
    "two ends": ("capacity", PAIR.format("(1, 2)"), "(1, 2), which is no number"),
    "a text": ("capacity", PAIR.format("'1.7'"), "'1.7', which is no number"),
    "many CTAs": ("last_cta", "def last_cta(*_):\n    return [0, 1]", "[0, 1], which is no CTA's number"),
    "half a CTA": ("last_cta", "def last_cta(end, tiles, cuts):\n    return end / tiles / 2", "0.5, which is no CTA's"),
    "half a place": ("swizzle", "def swizzle(row, piece, n):\n    return piece + row / 2", "0.5, which is no whole"),
    "one list": ("step", "def step(parts, tables, block):\n    return [1, 2]", "got       [1, 2]"),
    "a dictionary": ("step", f"def step(*_):\n    return {SLOTS}", f"got       {SLOTS}"),
}


@pytest.mark.parametrize("name, text, said", WRONG.values(), ids=WRONG)
def test_what_is_something_else_is_told_as_it_is(name, text, said):
    verdict = judged(name, text)
    assert verdict.state == "wrong" and said in verdict.text, verdict
    assert "Error" not in verdict.text


def test_a_rounded_answer_is_told_so():
    verdict = judged("place", "def place(f, p, d):\n    return round((p + d - f) / min(p, d), 2)")
    assert verdict.hint == "rounded" and "0.94" in verdict.text
    assert judged("place", "def place(f, p, d):\n    return 0.5").hint != "rounded"


UNTRUE = {
    "a slot left is not a full memory": ("schedule", """
def schedule(running, waiting, slots, memory):
    for request in waiting:
        if len(running) + 1 == slots or sum(r.need for r in running) + request.need > memory:
            break
        running = [*running, request]
    return running
""", "full is not too full"),
    "the smaller of both times forgets neither machine": (
        "bound", "def bound(p, d, flops, rate):\n    return min((p[0] + d[0]) / flops, (p[1] + d[1]) / rate)",
        "bytes forgotten"),
    "over the longer part is right for neither": (
        "place", "def place(f, p, d):\n    return (p + d - f) / max(p, d)", "one part is the longer"),
    "places from 1 on leave the first rows, too": (
        "swizzle", "def swizzle(row, piece, pieces):\n    return pieces - piece", "the whole row number"),
    "SM 0 begins with both kinds": ("grid", """
def grid(tiles, sms):
    half = sms // 2
    return (["c", "m"] * half + ["m", "c"] * half)[:2 * tiles] * (tiles // sms) if sms % 2 == 0 else ["c"] * tiles
""", "alternating"),
    "a block too soon is not one for each token": ("room", """
def room(table, users, length, size):
    free = users.index(0)
    if length + 1 >= len(table) * size:
        table.append(free)
        users[free] = 1
    elif users[table[-1]] > 1:
        users[table[-1]] -= 1
        table[-1] = free
        users[free] = 1
    return table, users
""", "a block for each token"),
    "right numbers in another order": (
        "ring", f"{RING}    return turn % 2, 1 - turn % 2, stage", "the other way round"),
    "two numbers": ("ring", f"{RING}    return stage, turn % 2", "stage and turn"),
    "shuffled tickets follow no counts": ("deal", """
from random import Random


def deal(prefill, decode):
    tickets = ["prefill"] * len(prefill) + ["decode"] * len(decode)
    Random(1).shuffle(tickets)
    return tickets
""", "counts, not work"),
    "other words than asked for": (
        "interleave", "def interleave(m, n):\n    return ['load', 'use'] * n + ['mul'] * m", "some are missing"),
}  # fmt: skip


@pytest.mark.parametrize("name, text, untrue", UNTRUE.values(), ids=UNTRUE)
def test_no_hint_says_what_is_not_so(name, text, untrue):
    verdict = judged(name, text)
    assert untrue in judge.exercises()[name].hints
    assert verdict.state == "wrong" and verdict.hint != untrue, verdict


def test_a_case_that_raises_does_not_hide_what_the_others_say():
    """The first case has an answer, a later one has none, and the rule behind both is told."""
    text = """
def room(table, users, length, size):
    free = users.index(0)
    if (length + 1) % size == 0:
        return [*table, free], [u + (b == free) for b, u in enumerate(users)]
    if users[table[-1]] > 1:
        users[table[-1]] -= 1
        users[free] = 1
        table[-1] = free
    return table, users
"""
    verdict = judged("room", text)
    assert verdict.hint == "a token too soon" and "IndexError" not in verdict.text
    crashes = judged("room", "def room(table, users, length, size):\n    return table[9]").text
    assert "tried     room(table=[0, 1]" in crashes and "IndexError" in crashes


def test_what_is_just_too_much_does_not_look_as_what_is_allowed():
    text = """
def deal(prefill, decode):
    p = d = 0
    while p < len(prefill) or d < len(decode):
        if d == len(decode) or p < len(prefill) and p * len(decode) <= d * len(prefill):
            p += 1
            yield "prefill"
        else:
            d += 1
            yield "decode"
"""
    verdict = judged("deal", text)
    expected, got = (line.split("%")[0].split()[-1] for line in verdict.text.splitlines()[2:4])
    assert verdict.hint == "counts, not work" and float(expected) < float(got)

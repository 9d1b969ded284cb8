"""A reader plays the whole course in one live kernel: predictions are chosen, stubs run, wrong answers get their hint,
and right ones are right. Nothing that a reader writes ends the kernel."""

import time

import pytest

from pod import kernels
from pod.lab import notebooks
from pod.learn import judge, questions
from tests.live import Live
from tests.solutions import named, solutions

pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
CHAPTERS = notebooks.find([])
PATIENCE = 20.0  # seconds of a processor that a judge may take


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("play")
    live = Live(folder / "kernel.log")
    live.say(f"""
from pathlib import Path
from pod import learn
from pod.learn import progress
progress.path = lambda: Path({str(folder)!r}) / "answers.json"
%load_ext pod.learn
""")
    yield live
    live.close()


def written(name: str, language: str, text: str) -> str:
    return f"%%cuda\n{text}" if language == "cuda" else text


def judged(live: Live, name: str, cell: str) -> str:
    begin = live.spent()
    said = live.say(cell) + live.say(f'learn.check("{name}", {name})')
    assert live.spent() - begin < PATIENCE, said
    return said


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_predictions_are_chosen_and_answered(live, chapter):
    for name in named("ask", chapter):
        question = questions.find(name)
        live.say(f'learn.ask("{name}")')
        for option, sentence in question.options.items():
            live.click(option)
            verdict = "Right." if option == question.right else f"Not {option}, but {question.right}."
            assert live.say(f'learn.answer("{name}")').startswith(f"**{verdict}** {sentence}"), name
    assert not live.wrong


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_stubs_are_not_yet_wrong_answers_get_a_hint_and_right_ones_are_right(live, chapter):
    cells = [cell.source for cell in notebooks.read(chapter).cells]
    for name in named("check", chapter):
        exercise = judge.exercises()[name]
        (stub,) = (cell for cell in cells if cell.endswith(exercise.stub))
        (_, *right), (hint, *wrong), *_ = solutions()[name]
        assert f"{name}: not yet." in judged(live, name, stub)
        assert exercise.hints[hint].says[:60] in judged(live, name, written(name, *wrong))
        assert f"{name}: right, in" in judged(live, name, written(name, *right))
    assert not live.wrong


# ---------------------------------------------------------------- whatever a reader writes, the notebook lives on

KERNEL = "%%cuda\n__global__ void scale(float* y, const float* x, float a) {{ {} }}"
BAD_CUDA = {
    "a loop without an end": ("while (a == a) {} y[0] = x[0];", "endless: line 1 still goes round"),
    "a stack of a gigabyte": (
        "float big[1 << 28]; for (int i = 0; i < 1 << 28; ++i) big[i] = a; y[0] = big[(int)x[0]];",
        "stack: got 1,073,"),
    "a syntax error": ("y[0] = x[0] * a", "CompileError: line 1: "),
    "an index far outside": ("y[0] = x[threadIdx.x + (1 << 30)];", "out of bounds"),
    "a write behind the end": ("y[threadIdx.x + 1] = a * x[0];", "out of bounds: thread 31 of CTA 0 writes y[32]"),
    "memory without an end": (
        "for (;;) { float* p = new float[1 << 24]; p[0] = a; y[0] = p[0]; }", "memory: the kernel"),
    "words without an end": ('for (;;) printf("again\\n"); y[0] = a;', "endless: line 1 still goes round"),
    "another instruction": ('asm("bar.sync 0;"); y[0] = a;', "got other asm, allowed is asm("),
    "a kernel that calls itself": ("scale(y, x, a + 1); y[0] = a;", "stack: `scale` in line 1 calls itself"),
    "the host's exit": ("exit(0); y[0] = a;", "`exit` is for the host"),
}  # fmt: skip
LIFTED = "import sys; sys.setrecursionlimit(10**9)"
BAD_CELLS = {
    "a file of somebody's": ('#include "mine.h"', "line 1: got #include"),
    "a file of the machine's": ("#include </etc/hosts>", "line 1: got #include"),
    "no kernel": ("int f() { return 1; }", "no kernel here"),
    "nothing but words": ("what shall I write?", "CompileError: line "),
}
FORGIVES = "while True:\n        try:\n            while True: pass\n        {}: pass"
BAD_PYTHON = {
    "an exception": ("raise KeyError('x')", "KeyError: 'x' (line 2 of your cell)"),
    "an end": ("import sys; sys.exit(3)", "SystemExit: 3 (line 2 of your cell)"),
    "a loop without an end": ("while True: pass", "still going after 1 s"),
    "a loop that forgives": (FORGIVES.format("except Exception"), "still going after 1 s"),
    "a loop that forgives everything": (FORGIVES.format("except"), "still going after 1 s"),
    "words without an end": ("while True: print('again')", "still going after 1 s"),
    "a list that is made": ("import itertools; return list(itertools.count())", "Error"),
    "a list without an end": ("import itertools; return itertools.repeat('c')", "got"),
    "a list of a million": ("return ['c'] * 10**6", "got"),
    "more than there is": ("return [0] * 10**15", "MemoryError"),
    "what cannot be said": ("return type('X', (), {'__repr__': lambda self: 1 / 0})()", "X, which is no list"),
    "calls without an end": ("return grid(tiles, sms)", "RecursionError"),
    "calls that leave the stack": (f"{LIFTED}; return sorted([1], key=lambda _: grid(tiles, sms))", "RecursionError"),
    "what is too deep to be said": ("x = []\n    for _ in range(10**5): x = [x]\n    return x * 10**5", "got"),
}


def lives_on(live: Live) -> bool:
    live.wrong.clear()
    return live.say("print('here')") == "" and live.manager.is_alive() and not live.wrong


@pytest.mark.parametrize("name", BAD_CUDA)
def test_bad_cuda_is_one_clear_message(live, name):
    body, message = BAD_CUDA[name]
    said = live.say(KERNEL.format(body))
    said = said or live.say('learn.check("scale", scale)')
    assert message in said and len(said) < 1500, said
    assert lives_on(live)


@pytest.mark.parametrize("name", BAD_CELLS)
def test_a_bad_cell_is_one_clear_message(live, name):
    text, message = BAD_CELLS[name]
    said = live.say(f"%%cuda\n{text}")
    assert message in said and len(said) < 1500, said
    assert lives_on(live)


@pytest.mark.parametrize("name", BAD_PYTHON)
def test_bad_python_is_one_clear_message(live, name):
    body, message = BAD_PYTHON[name]
    seconds = 1 if "still going" in message else 20  # a busy machine may stop anything that long
    live.say(f"from pod.learn import judge\njudge.MOST_SECONDS = {seconds}")
    said = live.say(f"def grid(tiles, sms):\n    {body}\n") + live.say('learn.check("grid", grid)')
    live.say("judge.MOST_SECONDS = 20")
    assert said.startswith("grid: not right yet.") and message in said and len(said) < 1500, said[:3000]
    assert lives_on(live)


BAD_ENTRIES = {
    "a loop": ("while True: pass", "scheduler: TimeoutError: still going after 1 s (line 3 of your cell)"),
    "an exception": ("return self.nothing", "scheduler: AttributeError: 'Mine' object has no attribute 'nothing'"),
    "another type": ("return 7", "schedule: got 7, allowed is a Batch with Chunks to prefill"),
    "no batch": ("return type(super().schedule())()", "scheduler: RuntimeError: sarathi: forms no batch"),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_bad_entry_is_one_clear_line(live, name):
    body, message = BAD_ENTRIES[name]
    seconds = 1 if "still going" in message else 20
    live.say(f"from pod.learn import contests\ncontests.MOST_SECONDS = {seconds}")
    live.say("from pod.serving.schedulers import Sarathi")
    mine = f"class Mine(Sarathi):\n    def schedule(self):\n        {body}\n"
    said = live.say(f'{mine}\nlearn.contest("scheduler", Mine)').strip()
    live.say("contests.MOST_SECONDS = 20")
    assert message in said and "\n" not in said, said
    assert lives_on(live)


LONG = {
    "a launch": "scale[1, 32](torch.zeros(32), torch.zeros(32), 1.0)",
    "a judge of a kernel": 'learn.check("scale", scale)',
    "a judge of Python": 'def grid(tiles, sms):\n    while True: pass\n\nlearn.check("grid", grid)',
    "a contest": 'def policy(*work):\n    while True: pass\n\nlearn.contest("tickets", policy)',
    "a compiler": KERNEL.format("y[0] = 0" + " + 1" * 20_000 + ";").replace("scale", "long_sum"),
}


@pytest.mark.parametrize("name", LONG)
def test_whoever_presses_stop_gets_the_notebook_back(live, name):
    live.say(KERNEL.format("\n#define AGAIN while (\nAGAIN x[0] < 9) y[0] += a;\n"))  # its rounds are not counted
    live.say('import torch\nlearn.check("scale", ...)')  # half a torch would not come back
    begin = time.monotonic()
    assert "KeyboardInterrupt" in live.interrupt(LONG[name], after=2)
    assert time.monotonic() - begin < 45, "it ended by itself"
    assert lives_on(live)
    signals = "import resource, signal\nsignal.getsignal(signal.SIGALRM), resource.getrlimit(resource.RLIMIT_AS)[0]"
    assert live.say(signals).split() == ["(<Handlers.SIG_DFL:", "0>,", "-1)"], "the limits of the judge are gone"


def test_a_syntax_error_in_python_is_told_by_the_notebook(live):
    assert "SyntaxError" in live.say("def grid(tiles, sms) return []")
    assert lives_on(live)

"""The plan on the device: the same names on both sides of the boundary, and lists that arrive as they were made."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import pod
from pod import kernels
from pod.batch import HybridBatch
from pod.files import PACKAGE, ROOT
from pod.kernels import build, fusion, launch, sm90
from pod.kernels.build import CSRC
from pod.kernels.launch import flat, write

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "header, file, struct",
    [(launch.Header, "include/hybrid.h", "Header"), (fusion.Header, "micro/fusion.h", "FusionHeader")],
)
def test_python_and_cpp_call_the_numbers_the_same(header, file, struct):
    text = (CSRC / file).read_text(encoding="utf-8")
    body = re.sub(r"//.*", "", re.search(rf"struct {struct} \{{(.*?)\n\}};", text, re.DOTALL)[1])
    lines = [line.split(maxsplit=1) for line in body.split(";") if line.strip()]
    assert {kind for kind, _ in lines} == {"int"}
    assert tuple(name.strip() for _, names in lines for name in names.split(",")) == header._fields


def test_lists_lie_one_after_the_other_and_zeros_behind_them():
    records = tuple(np.array([i, 100 + i]) for i in range(12))
    lists = (records, np.array([7, 8, 9]), np.zeros(0, int))
    want = [*range(12), *range(100, 112), 7, 8, 9]
    assert flat(lists).tolist() == want
    assert write(lists, np.full(30, -1, np.int32)).tolist() == [*want, 0, 0, 0]


# ---------------------------------------------------------------- streams, as a card has them


class Stream:
    def __init__(self, capturing: bool = False):
        self.waited, self.capturing = [], capturing

    def wait_stream(self, other) -> None:
        self.waited.append(other)


class Told:
    """A tensor on a card that notes which streams the allocator was told of."""

    device = "cuda:0"

    def __init__(self):
        self.streams = []

    def record_stream(self, stream) -> None:
        self.streams.append(stream)


@pytest.fixture
def on(monkeypatch):
    """follow() on a stream."""
    monkeypatch.setattr(launch, "is_capturing", lambda stream: stream.capturing)
    work = launch.Placed(None, [], Told(), Told(), Told())

    def follow(stream):
        monkeypatch.setattr("torch.cuda.current_stream", lambda device: stream)
        work.follow()
        return work

    return follow


def test_a_run_waits_for_the_one_before_it_on_another_stream_and_for_no_other(on):
    first, second = Stream(), Stream()
    for stream in (first, first, second, second, first):
        work = on(stream)
    assert second.waited == [first] and first.waited == [second]
    for x in (work.lists, work.counters, work.partials):
        assert x.streams == [first, second, first], "or what is dropped is handed out while a kernel still runs"


def test_a_capture_waits_for_nothing_outside_and_nothing_outside_for_it(on):
    first, graph, second = Stream(), Stream(capturing=True), Stream()
    assert on(first).stream is first
    assert on(graph).stream is first and graph.waited == []
    first.capturing = True
    assert on(second).stream is second and second.waited == []


def test_a_plan_in_a_capture_is_refused_before_anything_is_laid_out(monkeypatch):
    monkeypatch.setattr(launch, "is_capturing", lambda stream: True)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: None)
    with pytest.raises(RuntimeError, match="^plan: got a stream that captures a CUDA graph, allowed are a plan made"):
        launch.place(None, lambda schedule: pytest.fail("laid out"), torch.device("cuda", 0))


PADDED = HybridBatch((1, 1, 1), (0, 20, 0), 4, 2, 64)


def test_the_allocator_is_told_of_the_rows_of_padding_as_well(monkeypatch):
    """Or those of a plan that was dropped are others' by the time they are to be filled with zeros."""
    plan, told = pod.plan(PADDED, device="cpu", method="pod"), []
    q, k, v, _ = PADDED.tensors()
    plan.device = torch.device("cuda", 0)
    monkeypatch.setattr(launch.Placed, "follow", lambda self, *others: told.extend(others))
    monkeypatch.setattr(launch.Plan, "operator", lambda *_: lambda *_: (torch.ones_like(q), None, None))
    out = plan.run(q, k, v)
    assert [x is plan.padding for x in told] == [True]
    assert out.abs().sum((1, 2)).tolist() == [0, 4 * 64, 0]


def test_what_else_a_run_reads_is_told_with_the_lists(on, monkeypatch):
    rows, first, second = Told(), Stream(), Stream()
    work = on(first)
    for stream in (second, second, first):
        monkeypatch.setattr("torch.cuda.current_stream", lambda device, now=stream: now)
        work.follow(rows)
    assert rows.streams == [second, first]


def test_rows_of_padding_go_up_as_lists_do_and_after_them(monkeypatch):
    """They waited for all kernels of the current stream, and broke a capture before it was refused."""
    gone_up = []

    class Staged:
        def upload(self, lists, size, floats):
            gone_up.append("padding")
            return torch.from_numpy(launch.write(lists, np.empty(size, np.int32))), None

    monkeypatch.setattr(launch, "_staging", lambda device: Staged())
    plan = pod.plan(PADDED, device="cpu", method="pod")
    monkeypatch.setattr(plan, "device", torch.device("cuda", 0))
    monkeypatch.setattr(launch.Plan, "placed", lambda self: gone_up.append("lists"))
    monkeypatch.setattr(launch, "Allowed", lambda *_: None)
    plan.__post_init__()
    assert gone_up == ["lists", "padding"]
    assert plan.padding.tolist() == [0, 2]


# ---------------------------------------------------------------- how far a reader goes who follows a call


def entered(call) -> list[str]:
    """The files of pod that a call enters, one after the other."""
    files: list[str] = []

    def note(frame, event, _) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)) and files[-1:] != [file]:
            files.append(file)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


BATCH = HybridBatch((64, 1, 1, 1), (128, 90, 70, 300), 8, 2, 64, 16)


@pytest.mark.parametrize("hopper, most, moves", [(False, 13, 32), (True, 11, 45)])
def test_a_plan_is_made_in_few_files_with_few_moves_between_them(hopper, most, moves, monkeypatch):
    """On a Hopper more costs are asked. Not more than today: whoever leads a reader further says here why."""
    if hopper:
        monkeypatch.setattr(sm90, "available", lambda device: True)
    monkeypatch.setattr(build, "operator", lambda *_: None)
    plan = lambda: pod.plan([64, 1, 1, 1], [128, 90, 70, 300], 8, 2, 64, 16, device="cpu")  # noqa: E731
    plan()  # what is kept from plan to plan is there
    files = entered(plan)
    assert len(set(files)) <= most and len(files) - 1 <= moves, files


def test_a_call_goes_from_the_front_door_by_the_check_to_the_launch(monkeypatch):
    monkeypatch.setattr(build, "operator", lambda *_: lambda q, *_: (torch.empty_like(q), None, None))
    plan, tensors = pod.plan(BATCH, device="cpu", method="pod"), BATCH.tensors()
    plan.allowed.debug = False  # as on a GPU
    call = lambda: pod.hybrid_attention(*tensors[:3], plan, tensors[3])  # noqa: E731
    call()
    rooms = [file.rpartition("/")[2] for file in entered(call)]
    assert rooms == ["attention.py", "allowed.py", "launch.py"]


# ---------------------------------------------------------------- processes

FORKED = """
import os, signal, threading
import torch
import pod
from pod.batch import HybridBatch

batch = HybridBatch((3, 1), (20, 33), 2, 1, 64, page_size=16)
plan, (q, k, v, table) = pod.plan(batch, device="cpu"), batch.tensors()
want, real, running = pod.hybrid_attention(q, k, v, plan, table), plan.operator(), threading.Event()

def slow(*arguments):
    running.set()
    threading.Event().wait(0.5)
    return real(*arguments)

plan._operators[False, True] = slow
threading.Thread(target=pod.hybrid_attention, args=(q, k, v, plan, table)).start()
running.wait()
child = os.fork()
if not child:
    signal.alarm(20)  # who hangs is ended
    plan._operators[False, True] = real
    os._exit(0 if torch.equal(pod.hybrid_attention(q, k, v, plan, table), want) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


# Who calls a kernel without a plan is alone with the machine's own lock.
FORKED_WITHOUT_A_PLAN = """
import os, signal, threading, time
import torch
from pod.kernels import fusion

long, short = (fusion.Work(2 * n, n, multiplications=16, tiles=(8, 8)) for n in (3000, 8))  # 1.5 s and more
runs = {work: fusion.prepare(work, "cta", fusion.arrays(work)) for work in (long, short)}
runs[short]()
thread = threading.Thread(target=runs[long])
thread.start()
time.sleep(0.2)
assert thread.is_alive()
child = os.fork()
if not child:
    signal.alarm(20)  # who hangs is ended
    runs[short]()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(kernels.mode().name == "recorded", reason="needs the emulator")
@pytest.mark.parametrize("script", [FORKED, FORKED_WITHOUT_A_PLAN], ids=["plan", "no plan"])
def test_a_fork_while_another_thread_computes_leaves_nothing_busy_for_ever(script):
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("0\n", "")

"""The same function over many things: here, on all cores, on a cluster."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from pod import sweep as kept
from pod.files import ROOT
from pod.simulate.run import Run, Setup
from pod.simulate.workload import Workload
from pod.sweep import meaning, sweep


def square(n: int) -> int:
    return n * n


def fails(n: int) -> int:
    if n == 3:
        raise ValueError("n: got 3, allowed are others")
    return n


def dies(n: int) -> int:
    os._exit(1)


@pytest.mark.parametrize("cores", [1, 2])
def test_results_come_in_order_and_what_a_call_raises_is_raised(cores):
    assert sweep(square, range(7), cores) == [n * n for n in range(7)]
    assert sweep(square, [], cores) == []
    with pytest.raises(ValueError, match="n: got 3"):
        sweep(fails, range(7), cores)


def test_a_process_that_dies_is_one_line():
    with pytest.raises(ValueError, match="^sweep: a process of 3 runs ended, did the memory suffice"):
        sweep(dies, range(3), cores=2)


def test_workers_end_with_whoever_wants_their_answers(tmp_path):
    """Killed, a parent cannot stop them; they must see it, in the middle of a run too, and fail at nothing."""
    (tmp_path / "slow.py").write_text(
        "import sys, time\ndef slow(n):\n    print('at work', file=sys.stderr, flush=True)\n    time.sleep(600)\n"
    )
    code = "from pod.sweep import sweep; from slow import slow; sweep(slow, [1, 2], cores=2)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    parent = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
    assert [parent.stderr.readline() for _ in range(2)] == ["at work\n"] * 2
    parent.kill()
    said = parent.communicate(timeout=60)[1]  # ends when the last of them has ended
    assert "Traceback" not in said, "joblib's tracker may say what it cleaned up"


def test_a_script_without_a_main_guard_is_run_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from pod.sweep import sweep\nprint('once')\nprint(sweep(abs, [-1, -2], cores=2))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout == "once\n[1, 2]\n", done.stderr


def test_a_cluster_takes_the_runs():
    """Dask's local cluster stands for a real one: only the address differs."""
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    from joblib import parallel_config

    runs = [Run(Setup(tp=2, chunk=chunk), Workload("arxiv", 20, qps=1.0)) for chunk in (512, 1024, 2048)]
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client, parallel_config(backend="dask"):
            there = sweep(Run.metrics, runs, quiet=True)
            pids = client.run(os.getpid)
            where = set(sweep(process, range(20)))
    assert there == [run.metrics() for run in runs], "to the last bit"
    assert where <= set(pids.values()) and os.getpid() not in where, "and the runs were made by the workers"


def process(n: int) -> int:
    return os.getpid()


def test_ctrl_c_while_processes_start_is_heard_afterwards_and_not_by_them():
    """It used to be lost: the run went on as if nobody had said anything."""
    child = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('deaf')"
    with pytest.raises(KeyboardInterrupt):
        with kept._deaf():
            done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
    assert done.stdout == "deaf\n"
    with pytest.raises(KeyboardInterrupt):  # and from here on at once
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_ctrl_c_that_another_thread_takes_waits_too():
    """Any thread may be the one that the system gives it to, and this one heard of it in the middle of joblib."""
    other, through = threading.Thread(target=time.sleep, args=[1]), False
    other.start()
    with pytest.raises(KeyboardInterrupt):
        with kept._deaf():
            signal.pthread_kill(other.ident, signal.SIGINT)
            time.sleep(0.1)
            through = True
    other.join()
    assert through and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nobody_who_interrupts_a_beginning_sweep_is_told_how_to_write_it(monkeypatch, recwarn):
    @contextmanager
    def interrupted():
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr(kept, "_deaf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(time.sleep, [0.3, 0.3], cores=2)
    gc.collect()
    assert not recwarn.list


def test_these_tests_hear_ctrl_c_where_a_script_started_them_in_the_background():
    """Such processes ignore it, and so does whatever they start: a run that was to be interrupted never ended."""
    one = f"{__file__}::test_ctrl_c_while_processes_start_is_heard_afterwards_and_not_by_them"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one]
    deaf = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=deaf)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("other, same", [
    ('"""Other words."""\n\n\ndef f(x):\n    return x + 1  # why', True),
    ('def f(x):\n    """What it does."""\n    return (x\n            + 1)', True),
    ("def f(x):\n    return x + 2", False), ("def g(x):\n    return x + 1", False),
])  # fmt: skip
def test_prose_and_layout_mean_nothing(other, same):
    assert (meaning(other) == meaning('"""Words."""\ndef f(x):\n    return x + 1')) == same


def test_a_meaning_is_the_same_in_every_python():
    """Or every recording of a model in Python would be stale elsewhere. This is what Python 3.11's ast.dump says."""
    assert meaning("class A:\n    def f(self, *, x=None): return [], -x") == (
        "Module(body=[ClassDef(name='A', bases=[], keywords=[], body=[FunctionDef(name='f', "
        "args=arguments(posonlyargs=[], args=[arg(arg='self')], kwonlyargs=[arg(arg='x')], "
        "kw_defaults=[Constant(value=None)], defaults=[]), body=[Return(value=Tuple(elts=[List(elts=[], ctx=Load()), "
        "UnaryOp(op=USub(), operand=Name(id='x', ctx=Load()))], ctx=Load()))], decorator_list=[])], "
        "decorator_list=[])], type_ignores=[])"
    )


def test_a_kernel_that_changes_is_compiled_again(tmp_path, monkeypatch):
    """What was kept for the table of registers must not be recalled for other kernels."""
    monkeypatch.setattr(kept, "CSRC", tmp_path)
    (tmp_path / "hybrid.cu").write_text("int a;")
    before = kept.state.__wrapped__()
    assert before == kept.state.__wrapped__()
    (tmp_path / "hybrid.cu").write_text("int b;")
    assert before != kept.state.__wrapped__()

"""The same function over many things: here, on all cores, on a cluster."""

import os
import subprocess
import sys

import pytest

from pod.serving.simulate import Run, Setup
from pod.serving.workload import Workload
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


@pytest.mark.parametrize("other, same", [
    ('"""Other words."""\n\n\ndef f(x):\n    return x + 1  # why', True),
    ('def f(x):\n    """What it does."""\n    return (x\n            + 1)', True),
    ("def f(x):\n    return x + 2", False), ("def g(x):\n    return x + 1", False),
])  # fmt: skip
def test_prose_and_layout_mean_nothing(other, same):
    assert (meaning(other) == meaning('"""Words."""\ndef f(x):\n    return x + 1')) == same

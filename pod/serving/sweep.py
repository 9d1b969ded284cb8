"""Many runs on all cores.

Workers are plain child processes that take runs over a pipe. multiprocessing would either fork (unsafe in a notebook,
which has threads) or import the caller's script again (which surprises a script without a main guard).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from pod.serving.simulate import Run

ROOT = Path(__file__).parents[2]


def sweep(runs: Sequence[Run], cores: int | None = None, quiet: bool = False) -> list[dict[str, float]]:
    """Metrics of every run, in order, with a progress bar on a terminal."""
    cores = min(cores or os.cpu_count() or 1, len(runs))
    if cores <= 1:
        return [run.metrics() for run in runs]
    from tqdm import tqdm

    done: list = [None] * len(runs)
    next_run = count()  # shared by the threads; taking from it is atomic
    with tqdm(total=len(runs), disable=quiet or None, leave=False, unit="run") as bar:
        with ThreadPoolExecutor(cores) as pool:
            for worker in [pool.submit(_feed, runs, next_run, done, bar) for _ in range(cores)]:
                worker.result()
    return done


def _feed(runs: Sequence[Run], next_run, done: list, bar) -> None:
    """Give runs to one worker until there are no more."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen([sys.executable, "-m", "pod.serving.sweep"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": path}) as worker:  # fmt: skip
        while (i := next(next_run)) < len(runs):
            pickle.dump(runs[i], worker.stdin)
            worker.stdin.flush()
            done[i] = pickle.load(worker.stdout)
            if isinstance(done[i], Exception):
                raise done[i]
            bar.update()
        worker.stdin.close()


def _work() -> None:
    answers = sys.stdout.buffer
    while True:
        try:
            run = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = run.metrics()
        except Exception as error:  # the parent raises it
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _work()

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
from contextlib import ExitStack, nullcontext
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace

from pod.serving.simulate import Run

ROOT = Path(__file__).parents[2]


def progress(total: int, unit: str, quiet: bool = False):
    """A bar on a terminal. Whoever only wants the kernels has no tqdm, and simulates without."""
    if find_spec("tqdm") is None:
        return nullcontext(SimpleNamespace(update=lambda done=1: None))
    from tqdm import tqdm

    return tqdm(total=total, disable=quiet or None, leave=False, unit=unit)


def sweep(runs: Sequence[Run], cores: int | None = None, quiet: bool = False) -> list[dict[str, float]]:
    """Metrics of every run, in order, with a progress bar on a terminal."""
    cores = min(cores or os.cpu_count() or 1, len(runs))
    done: list = [None] * len(runs)
    with progress(len(runs), "run", quiet) as bar:
        if cores > 1:
            _feed_all(cores, runs, done, bar)
        else:
            for i, run in enumerate(runs):
                done[i] = run.metrics()
                bar.update()
    return done


def _feed_all(cores: int, runs: Sequence[Run], done: list, bar) -> None:
    next_run = count()  # shared by the threads; taking from it is atomic
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker()) for _ in range(cores)]
        pool = stack.enter_context(ThreadPoolExecutor(cores))
        try:
            for fed in [pool.submit(_feed, worker, runs, next_run, done, bar) for worker in workers]:
                fed.result()
        except BaseException:  # a run failed, or somebody pressed Ctrl-C: nobody waits for the others
            for worker in workers:
                worker.kill()
            raise


def _worker() -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "pod.serving.sweep"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the parent, who says so once
    )  # fmt: skip


def _feed(worker: subprocess.Popen, runs: Sequence[Run], next_run, done: list, bar) -> None:
    """Give runs to one worker until there are no more."""
    while (i := next(next_run)) < len(runs):
        try:
            pickle.dump(runs[i], worker.stdin)
            worker.stdin.flush()
            done[i] = pickle.load(worker.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            ended = f"sweep: the process of run {i + 1} of {len(runs)} ended"
            raise ValueError(f"{ended}, did the memory suffice?") from None
        if isinstance(done[i], Exception):
            raise done[i]
        bar.update()


def _work() -> None:
    runs: SimpleQueue = SimpleQueue()
    Thread(target=_read, args=[runs], daemon=True).start()
    while True:
        try:
            answer = runs.get().metrics()
        except Exception as error:  # the parent raises it
            answer = error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _read(runs: SimpleQueue) -> None:
    try:
        while True:
            runs.put(pickle.load(sys.stdin.buffer))
    finally:
        os._exit(0)  # the parent is gone, maybe in the middle of a run: nobody waits for it


if __name__ == "__main__":
    _work()

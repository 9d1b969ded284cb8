"""The same function over many things: on all cores, remembered where asked, or on a cluster.

joblib does both. Its workers are processes of their own kind, which need no main guard in the caller's script and take
no threads along. Where they run is the caller's choice:

    with joblib.parallel_config(backend="dask"):  # after distributed.Client(address); or "ray", see joblib's pages
        sweep(Run.metrics, runs)
"""

from __future__ import annotations

import ast
import hashlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from multiprocessing import resource_tracker
from types import SimpleNamespace
from typing import TypeVar

from pod import files
from pod.data import DATA
from pod.files import CSRC, PACKAGE

In, Out = TypeVar("In"), TypeVar("Out")


def progress(total: int, unit: str, quiet: bool = False):
    """A bar on a terminal. Whoever only wants the kernels has no tqdm, and simulates without."""
    if find_spec("tqdm") is None:
        return nullcontext(SimpleNamespace(update=lambda done=1: None))
    from tqdm import tqdm

    return tqdm(total=total, disable=quiet or None, leave=False, unit=unit)


def sweep(call: Callable[[In], Out], items: Iterable[In], cores: int | None = None, quiet: bool = False) -> list[Out]:
    """[call(item) for item in items], with a progress bar on a terminal. Whoever only wants the kernels has no joblib
    either, and waits for one core."""
    items = list(items)
    cores = min(cores or os.cpu_count() or 1, len(items))
    done = []
    with progress(len(items), "run", quiet) as bar:
        for result in _spread(call, items, cores) if cores > 1 and find_spec("joblib") else map(call, items):
            done.append(result)
            bar.update()
    return done


def _spread(call: Callable, items: list, cores: int):
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    warnings.filterwarnings("ignore", ".*adjusting the input task", UserWarning)  # said to whoever has interrupted it
    try:
        with _deaf():
            results = Parallel(n_jobs=cores, return_as="generator")(
                delayed(_there)(call, item, os.getpid()) for item in items
            )
        yield from results
    except TerminatedWorkerError:
        raise ValueError(f"sweep: a process of {len(items)} runs ended, did the memory suffice?") from None


def _there(call: Callable, item, caller: int):
    """A process of the caller's looks whether he is still there: who was killed cannot stop it."""
    if os.getppid() == caller:
        _end_with(caller)
    return call(item)


@cache
def _end_with(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start_trackers() -> None:
    """Before Ctrl-C is masked, which they unmask as they start. Joblib's warns of a folder that is gone when it comes
    to remove it: an interrupted sweep may have been first."""
    from joblib.externals.loky.backend.resource_tracker import ensure_running

    resource_tracker.ensure_running()
    with files.environment("PYTHONWARNINGS", "ignore:resource_tracker"):
        ensure_running()


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that start here do not hear Ctrl-C: it is for the parent, who hears it afterwards and says so once.
    Processes inherit the mask, and it is this thread's alone: what another one takes is noted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _start_trackers()
    noted = []
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if noted:
            signal.raise_signal(signal.SIGINT)


# ---------------------------------------------------------------- results that are kept


def remember(call: Callable) -> Callable:
    """`call`, which recalls what it gave for the same arguments while code and data are the same: an interrupted sweep
    goes on where it was. A folder that cannot be written costs nothing but time."""
    return _memory().cache(call)


@cache
def _memory():
    from joblib import Memory

    return Memory(files.folder("simulated") / state(), verbose=0)


@cache
def state() -> str:
    """Digest of all code of this package, prose left out, of the kernels, which some tables compile or emulate, and of
    all data that was not computed from it."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(meaning(path.read_text(encoding="utf-8")).encode())
    kernels = (path for path in CSRC.rglob("*") if path.is_file())
    tables = (path for folder in ("recorded", "workloads", "paper") for path in (DATA / folder).rglob("*.csv"))
    for path in sorted([*kernels, *tables]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def meaning(code: str) -> str:
    """What Python makes of a source: comments, docstrings and layout are gone."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
    return _dump(tree)


def _dump(node) -> str:
    """ast.dump of Python 3.10 and 3.11, whichever runs: 3.12 has a field more, and 3.13 leaves out what is empty."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, getattr(node, name)) for name in node._fields if name != "type_params" or node.type_params)
    shown = (f"{name}={_dump(x)}" for name, x in fields if x is not None or getattr(type(node), name, ...) is not None)
    return f"{type(node).__name__}({', '.join(shown)})"

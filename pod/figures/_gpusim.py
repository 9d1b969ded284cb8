"""Predictions of pod/gpusim.py, many at a time: on all cores, and each only once (they are kept in .cache)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pod import files
from pod.batch import HybridBatch

ROOT = Path(__file__).parents[2]
SOURCES = ("pod/gpusim.py", "pod/batch.py", "pod/hardware.py", "pod/schedule/*.py",
           "data/recorded/h200/gpusim-calibrate.csv")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A batch on a GPU by a method; `choice`: further arguments of pod.plan, as pairs."""

    batch: HybridBatch
    gpu: str
    method: str = "serial"
    kernel: str = "ours"
    choice: tuple[tuple[str, str | int], ...] = ()

    def metrics(self) -> float:
        """Milliseconds."""
        from pod import gpusim
        from pod.hardware import gpu

        return 1e3 * gpusim.seconds(self.batch, gpu(self.gpu), self.method, kernel=self.kernel, **dict(self.choice))


def milliseconds(cases: Iterable[Case]) -> list[float]:
    """What the model predicts, in order."""
    from pod.serving.sweep import sweep

    cases, known = list(cases), _read()
    todo = [case for case in dict.fromkeys(cases) if repr(case) not in known]
    known |= {repr(case): ms for case, ms in zip(todo, sweep(todo), strict=True)}
    if todo:
        _write(known)
    return [known[repr(case)] for case in cases]


@cache
def _file() -> Path:
    """Where predictions of this code lie."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.name.encode() + path.read_bytes())
    return files.folder("simulated") / f"gpusim-{digest.hexdigest()[:24]}.json"


def _read() -> dict[str, float]:
    try:
        return json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _write(known: dict[str, float]) -> None:
    """A folder that cannot be written costs nothing but time."""
    try:
        mine = _file().with_suffix(".new")
        mine.write_text(json.dumps(known), encoding="utf-8")
        mine.replace(_file())  # in one step, for another process may be reading
    except OSError:
        pass

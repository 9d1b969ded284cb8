"""What the planner gave the kernels of a recording, as one sum of the work lists of its cases.

With the sums of the kernels (sources.py) it says whether a recording still tells of what lies here: a change of
pod/schedule of which other lists come makes it stale, and one that only moves code does not. A page says
`planned(case, gpu)`, the schedules of what it runs. Three kinds have none, and are judged by their kernels alone: whose
batches come out of a run, as the engine's do; whose lists a device makes; and who lets pod.plan choose the method,
which asks a device (hopper-any and lean, with their kin).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import astuple

import numpy as np

from pod.hardware import GPUS
from pod.lab import registry
from pod.schedule.work import Schedule

UNITS = {"hopper": "hopper", "lean": "lean"}  # kernels of a method; all others' are of sm_80
MOST = 48  # cases that are planned: all would take half a minute


def sum_of(table: str, gpu: str, most: int | None = MOST) -> str:
    """Of a recording on this GPU, as far as it is judged by those kernels at all; "" where its page plans nothing
    beforehand. most: cases, evenly spread over all."""
    page = registry.maker(table) if table in registry.measured() else None
    if not hasattr(page, "planned") or gpu not in GPUS:
        return ""
    cases, digest = page.cases(), hashlib.sha256()
    for case in cases[:: -(-len(cases) // (most or len(cases)))]:
        for schedule in page.planned(case, GPUS[gpu]):
            if UNITS.get(schedule.method, "hybrid") in page.UNITS:
                digest.update(_content(schedule))
    return digest.hexdigest()[:16]


def _content(s: Schedule) -> bytes:
    """All that a kernel is told, by value: another type of integers is no other list."""
    parts = [*_columns(s.prefill), *_columns(s.decode), s.deal]
    told = (s.method, s.sms, s.ctas_per_sm, s.causal, bool(s.yields), astuple(s.shape), tuple(s.pack))
    return repr((told, [len(x) for x in parts])).encode() + b"".join(np.asarray(x, np.int64).tobytes() for x in parts)


def _columns(work) -> Iterator[np.ndarray]:
    yield from (*work.columns.values(), work.pieces, [work.partials, work.groups])

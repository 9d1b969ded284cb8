"""Is the simulator right about the real engine? Recorded runs against it, gate by gate.

    batches      the recorded times fed back: the scheduler makes the recorded batches, without exception
    operators    points between the grid's, which no table contains
    iterations   each recorded batch, its time against the cost model's
    run          the whole window simulated, of which only the conditions are known
    gain         the ratio of two systems, recorded against simulated
    P50, P99     what the users of an online window felt, recorded against simulated

Operators were timed one by one, on a GPU that rested in between. A run has a host, and stands at the power limit. What
both cost is learned (`Conditions`): from the first half of a run itself; or from whole other runs, and then nothing of
the run that is judged was seen. Iterations are judged on the second half, or on all; the last three gates on the whole
window.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pod import data, files
from pod.data import RECORDED, path_of
from pod.hardware import H200
from pod.serving.events import Iteration, Log
from pod.serving.loop import Ahead, Loop, SimClock
from pod.serving.shapes import shape
from pod.simulate.cost import OPERATORS, MeasuredCost, Work
from pod.simulate.energy import Energy, amounts
from pod.simulate.metrics import Requests, requests
from pod.simulate.windows import RUNS, began, digest, window

LOG = RECORDED / "h200" / "engine-runs.csv"
SIZES = ("rows", "chunk", "context", "requests", "decode_context")
METHODS = {"fa3": ("serial", "fa3"), "hopper-serial": ("serial", "hopper"), "hopper": ("pod", "hopper")}
IDLE = 0.002  # seconds between tokens and the next decision that only waiting for a request explains
TIMES = ("scheduled_ms", "planned_ms", "launched_ms", "end_ms", "gpu_ms")


def log() -> Path:
    """The runs that figures show; where there are none, those of the H200, to which everything here is fitted."""
    shown = path_of("engine-runs")
    return shown if shown.is_file() and LOG.is_relative_to(RECORDED) else LOG


kept = data.kept(log)


@kept
def recorded() -> dict[str, list[dict]]:
    return read(log())


def read(log: Path) -> dict[str, list[dict]]:
    """The iterations of each run, times in seconds."""
    runs: dict[str, list[dict]] = {}
    for row in files.rows(log):
        times = {name.removesuffix("_ms"): float(row[name]) / 1e3 for name in TIMES}
        runs.setdefault(row["run"], []).append(times | {"digest": row["digest"]})
    return runs


class Recorded:
    """An executor that is ready for the next iteration when the recorded run was."""

    def __init__(self, rows: list[dict]):
        self._times = iter([row["scheduled"] for row in rows[1:]] + [rows[-1]["end"]])

    def submit(self, batch, event: Iteration) -> float:
        return next(self._times)


@kept
def batches(run: str) -> list[Iteration]:
    """The batches that the scheduler makes at the recorded times."""
    load, _ = RUNS[run]
    return window(load, Recorded(recorded()[run]), load.scheduler())


def differing(run: str) -> int:
    """Iterations whose batch is another than the recorded one."""
    return sum(digest(event) != row["digest"] for event, row in zip(batches(run), recorded()[run], strict=True))


def cost(run: str) -> MeasuredCost:
    load, attention = RUNS[run]
    method, kernels = METHODS[attention]
    return MeasuredCost(shape(load.model), H200, attention=method, host="none", kernels=kernels)


def work_of(event: Iteration) -> Work:
    return Work(tuple((new, before) for _, new, before, _ in event.prefills), len(event.decodes), event.decode_context)


@dataclass(frozen=True)
class Conditions:
    """Under which a run runs, for batches with prompts (True) and without (False).

    host      seconds that the GPU waits for the host, mean
    launch    seconds that the host needs to launch everything, each time: no iteration is shorter
    pace      time on the GPU over that of the operators one by one. At the power limit clocks are lower, the lower the
              more power the kernels take; and in a row they start a little sooner than alone
    """

    host: dict[bool, float]
    launch: dict[bool, np.ndarray]
    pace: dict[bool, float]


ITSELF, KIND, ALL = "itself", "kind", "all"  # who teaches


def others(run: str, by: str) -> list[str]:
    """The recorded runs with the same attention as this one; by KIND: of those that are offline or online, as it is."""
    load, attention = RUNS[run]
    return [name for name in recorded() if name != run and RUNS[name][1] == attention
            and (by == ALL or (RUNS[name][0].qps is None) == (load.qps is None))]  # fmt: skip


def _seen(run: str) -> list[tuple]:
    """Of each batch: whether it has prompts, and seconds of its operators one by one, on the GPU, in all, to launch."""
    rows = zip(batches(run), alone(run), iteration_seconds(run), recorded()[run], strict=True)
    return [(bool(event.prefills), seconds, row["gpu"], time, row["launched"] - row["planned"])
            for event, seconds, time, row in rows]  # fmt: skip


@kept
def conditions(run: str, by: str = ITSELF) -> Conditions:
    """by: ITSELF, from its first half; KIND or ALL, from other runs, whole."""
    rows = _seen(run) if by == ITSELF else [row for name in others(run, by) for row in _seen(name)]
    early, host, launch, pace = rows[: len(rows) // 2] if by == ITSELF else rows, {}, {}, {}
    for kind in (True, False):
        mine = [row[1:] for row in early if row[0] == kind]
        mine = mine or [row[1:] for row in early]  # a kind that comes later only
        alone, gpu, times, launch[kind] = np.array(mine).T
        free = alone > launch[kind]  # elsewhere the GPU waited for launches
        host[kind] = float(np.mean(times - gpu))
        pace[kind] = float(gpu[free].sum() / alone[free].sum()) if free.any() else 1.0
    return Conditions(host, launch, pace)


def _alone(event: Iteration, model: MeasuredCost) -> float:
    """Seconds of all operators of a batch, one by one."""
    return sum(model.parts(work_of(event)).values())


@kept
def alone(run: str) -> list[float]:
    """The same of every recorded batch."""
    model = cost(run)
    return [_alone(event, model) for event in batches(run)]


def expected(event: Iteration, seconds: float, at: Conditions) -> float:
    """Seconds of a batch whose operators take `seconds` one by one, the mean over the launches seen."""
    kind = bool(event.prefills)
    return at.host[kind] + float(np.mean(np.maximum(at.pace[kind] * seconds, at.launch[kind])))


def predicted(run: str, by: str = ITSELF) -> np.ndarray:
    """Seconds of every recorded batch by the cost model, under the run's conditions."""
    at = conditions(run, by)
    return np.array([expected(event, seconds, at) for event, seconds in zip(batches(run), alone(run), strict=True)])


def iteration_error(run: str, by: str = ITSELF) -> float:
    """Median relative error over what was not seen: the second half, or all."""
    errors = abs(predicted(run, by) / iteration_seconds(run) - 1)
    return float(np.median(errors[len(errors) // 2 if by == ITSELF else 0 :]))


def iteration_seconds(run: str) -> np.ndarray:
    """Seconds from where an iteration begins to where the next one does, or to the last token. Where the engine waited
    for a request to arrive, to the tokens."""
    rows = recorded()[run]
    ends = np.array([row["end"] for row in rows])
    begins = began([row["scheduled"] for row in rows], ends)
    after = np.append(begins[1:], ends[-1])
    return np.where(after - ends > IDLE, ends, after) - begins


def operator_errors(operator: str) -> np.ndarray:
    """Relative errors at the points that were held out, for an operator such as linear or decode_fa3, all models."""
    return np.array(list(_operator_errors(operator)))


def _operator_errors(operator: str) -> Iterator[float]:
    for row in (r for r in files.rows(OPERATORS) if r["operator"] == operator and r["split"] == "held out"):
        count, chunk, before, requests, each = (int(row[name]) for name in SIZES)
        part, _, kernels = operator.partition("_")
        method = "pod" if part == "attention" else "serial"
        model = MeasuredCost(shape(row["model"]), H200, attention=method, kernels=kernels or "fa3")
        parts = Work(((chunk, before),) * (chunk > 0), requests, requests * each)
        ours = model.linear(count) if part == "linear" else model.attention(parts)
        yield ours / (1e-6 * float(row["us"])) - 1


class Costed:
    """An executor that takes as long as the cost model says for the conditions of a run, and runs ahead as it did."""

    def __init__(self, run: str, by: str):
        self.at, self.model = conditions(run, by), cost(run)
        self.clock, self.loop, self.free = SimClock(), Ahead if ran_ahead(run) else Loop, 0.0

    def submit(self, batch, event: Iteration) -> float:
        return event.scheduled + self._seconds(event)

    def send(self, batch, event: Iteration) -> SimpleNamespace:
        event.end = self.free = max(event.scheduled, self.free) + self._seconds(event)
        return SimpleNamespace(event=event)

    def land(self, flight: SimpleNamespace) -> list:
        self.clock.advance(flight.event.end)
        return []

    def _seconds(self, event: Iteration) -> float:
        return expected(event, _alone(event, self.model), self.at)


def ran_ahead(run: str) -> bool:
    """Whether iterations of a recorded run were decided while the ones before ran."""
    rows = recorded()[run]
    return 2 * sum(after["scheduled"] < row["end"] for row, after in pairwise(rows)) > len(rows)


@kept
def simulated(run: str, by: str = ITSELF) -> list[Iteration]:
    """The window without a look at the recorded times, but for the conditions."""
    load, executor = RUNS[run][0], Costed(run, by)
    return window(load, executor, load.scheduler(), executor.clock)


def seconds(run: str, by: str = ITSELF) -> tuple[float, float]:
    """How long the window took, recorded and simulated."""
    return recorded()[run][-1]["end"] - recorded()[run][0]["scheduled"], simulated(run, by)[-1].end


@kept
def hybrid_slowdown(load: str, method: str, kernels: str) -> float:
    """How many times longer the hybrid batches of a recorded run took than their operators one by one: what
    calibrates a simulation. The host is in it, and clocks that are lower at the power limit."""
    name = next(name for name, what in METHODS.items() if what == (method, kernels))
    times, alone = _against_operators(f"{load}, {name}", decodes=True)
    return round(float(times.sum() / alone.sum()), 3)


@kept
def prompt_slowdown() -> float:
    """The same of prompts alone, with which the online runs begin. There are few, so it is the median of all."""
    ratios = [times / alone for times, alone in (_against_operators(run, decodes=False) for run in recorded()
                                                 if RUNS[run][0].qps)]  # fmt: skip
    return round(float(np.median(np.concatenate(ratios))), 3)


def _against_operators(run: str, decodes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a run's batches with prompts, as recorded and of their operators; those with decodes or without."""
    rows = zip(batches(run), iteration_seconds(run), alone(run), strict=True)
    pairs = [(time, seconds) for event, time, seconds in rows if event.prefills and bool(event.decodes) == decodes]
    return tuple(np.array(pairs).T)


def gain(load: str, over: str = "fa3", by: str = ITSELF) -> tuple[float, float]:
    """Time with other attention over time with ours, recorded and simulated."""
    serial, pod = (seconds(f"{load}, {name}", by) for name in (over, "hopper"))
    return serial[0] / pod[0], serial[1] / pod[1]


def latencies(run: str, by: str = ITSELF) -> tuple[dict[str, float], dict[str, float]]:
    """What the users of an online window felt, recorded and simulated: P50 and P99 of TTFT and TBT in seconds. Only
    those who saw their first token in both: where a window ends is chance."""
    real, load = batches(run), RUNS[run][0]
    ends = [replace(event, end=row["end"]) for event, row in zip(real, recorded()[run], strict=True)]
    asked = [(r.id, r.arrival, r.prompt, r.output) for r in load.requests()]
    served = [requests(Log(requests=asked, iterations=events)) for events in (ends, simulated(run, by))]
    common = np.intersect1d(served[0].id, served[1].id)
    return tuple(_percentiles(each, common) for each in served)


def _percentiles(served: Requests, ids: np.ndarray) -> dict[str, float]:
    mine = np.isin(served.id, ids)
    values = {"ttft": served.ttft[mine], "tbt": served.gaps[mine[served.owner]]}
    return {f"{name}_p{p}": float(np.percentile(times, p)) for name, times in values.items() for p in (50, 99)}


def drawn(run: str) -> float:
    """Joules of a recorded run, by its median power."""
    return _watts()[run] * seconds(run)[0]


@kept
def _watts() -> dict[str, float]:
    return {row["run"]: float(row["power_w"]) for row in files.rows(log())}


@kept
def spent(run: str) -> tuple[float, float, float]:
    """What a recorded run asked for: FLOPs, bytes, and seconds."""
    each = [amounts(shape(RUNS[run][0].model), event) for event in batches(run)]
    return *map(float, np.sum(each, axis=0)), seconds(run)[0]


def energy(kernels: str) -> Energy:
    """Fitted to the runs of Llama-3-8B, all equal in weight."""
    mine = [run for run in recorded() if RUNS[run][0].model == "llama-3-8b" and METHODS[RUNS[run][1]][1] == kernels]
    shares = np.array([spent(run) for run in mine]) / np.array([[drawn(run)] for run in mine])
    scale = shares.max(axis=0)
    return Energy(*(float(x) for x in np.linalg.lstsq(shares / scale, np.ones(len(mine)), rcond=None)[0] / scale))

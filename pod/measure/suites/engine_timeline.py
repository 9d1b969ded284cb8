"""One iteration of the engine, piece by piece: when the host launched it and when the GPU ran it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pod.measure.suites import HOPPER_CSRC
from pod.measure.suites.engine_runs import LOADS, ready, window

DOC = "one hybrid iteration of Llama-3-8B: start and end of every piece on the host and on the GPU."
KEYS = ("run", "layer", "piece")
CSRC = (*HOPPER_CSRC, "pod/serving/model.py")
REPEATS = 1
RUNS = ("fa3", "hopper")
PIECES = ("before", "attention", "after")
LAYERS, ITERATION = 32, 20
LOAD = replace(LOADS["llama-3-8b"], iterations=ITERATION + 1)


def cases() -> list[dict]:
    layers = [(layer, piece) for layer in range(LAYERS) for piece in PIECES]
    whole = [(-1, piece) for piece in ("plan", "head", "wait")]
    return [{"run": run, "layer": layer, "piece": piece} for run in RUNS for layer, piece in (*layers, *whole)]


def measure(case: dict) -> dict:
    return _timeline(case["run"])[int(case["layer"]), case["piece"]]


class Stopwatch:
    """Wraps a call so that it notes, by name, when the host entered and left it, with an event on the GPU at each."""

    def __init__(self, clock):
        self.clock, self.notes = clock, []

    def around(self, piece: str, call):
        import torch

        def timed(*arguments):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            begin = self.clock.now
            events[0].record()
            out = call(*arguments)
            events[1].record()
            self.notes.append((piece, begin, self.clock.now, *events))
            return out

        return timed


@lru_cache
def _timeline(run: str) -> dict:
    """Milliseconds since the iteration was scheduled. The GPU was idle when its first event was recorded, so that one
    is taken to be at the host's time."""
    import gc

    import torch

    engine, scheduler = ready(LOAD, run)
    watch = Stopwatch(engine.clock)
    model, attention = engine.model, engine.attention
    kept = {"before": model.before, "after": model.after, "logits": model.logits}
    model.before, model.after = watch.around("before", model.before), watch.around("after", model.after)
    model.logits, attention.run = watch.around("head", model.logits), watch.around("attention", attention.run)
    events = window(LOAD, engine, scheduler, engine.clock)
    event, (planned, launched) = events[ITERATION], engine.marks[ITERATION]
    each = LAYERS * len(PIECES) + 1
    notes = watch.notes[ITERATION * each : (ITERATION + 1) * each]
    first, zero, begin = notes[0][3], notes[0][1], event.scheduled
    rows, place = {}, iter([*(i for i in range(LAYERS) for _ in PIECES), -1])
    for piece, host_begin, host_end, start, end in notes:
        gpu = [zero - begin + first.elapsed_time(e) / 1000 for e in (start, end)]
        rows[next(place), piece] = _row(host_begin - begin, host_end - begin, *gpu)
    rows[-1, "plan"] = _row(0.0, planned - begin, 0.0, 0.0)
    rows[-1, "wait"] = _row(launched - begin, event.end - begin, 0.0, 0.0)
    for name, call in kept.items():
        setattr(model, name, call)
    del engine, attention
    gc.collect()
    torch.cuda.empty_cache()
    return rows


def _row(*seconds: float) -> dict:
    names = ("host_start_ms", "host_end_ms", "gpu_start_ms", "gpu_end_ms")
    return {name: round(1e3 * t, 4) for name, t in zip(names, seconds, strict=True)}

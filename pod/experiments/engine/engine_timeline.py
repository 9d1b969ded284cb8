"""One hybrid iteration of the real engine on an H200: what the host does, what the GPU does, and who waits.

Measured: hybrid and decode-only iterations of Llama-3-8B: start and end of every piece on the host and on the GPU.
"""

from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

from pod.data import read
from pod.experiments.engine.running import ready
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show.engine import timeline
from pod.serving.engine import PIECES
from pod.serving.engine import WHOLE as IN_ONE
from pod.serving.loop import serve
from pod.simulate.windows import LOADS, Enough, K, Load, Window

FIGURE = Figure(
    title="One hybrid iteration of Llama-3-8B on the host and on the GPU",
    chapter="14",
    method="CUDA events around every piece; a chunk of 967 tokens beside 57 chats of 12K tokens, random weights, "
    "on a host that was not quiet",
    data=("engine-timeline",),
)
RECORDING = "engine-timeline"
KEYS, WHOLE = ("run", "layer", "piece"), ("run",)
UNITS = ("hopper", "model")
REPEATS = 1
TIMER = "host clock and a CUDA event at the start and the end of every piece"
L2 = "warm"
LAYERS, FIRST, LAST = 32, 15, 35  # of these iterations the one of median length is shown
HOST = ("plan", "expect", "wait", "finish")  # what only the host does: before, while and after the GPU works


@dataclass(frozen=True)
class Run:
    load: Load
    attention: str
    pieces: tuple[str, ...] = ("before", "attention", "after")  # of a layer, in order
    arrivals: bool = True
    graphs: str = PIECES  # between which a stopwatch can stand


RUNS = {
    "fa3": Run(LOADS["llama-3-8b"], "fa3"),
    "hopper": Run(LOADS["llama-3-8b"], "hopper"),
    # 32 chats of 2K to 4K tokens; a graph holds all that lies between two attentions
    "decodes": Run(Load("llama-3-8b", 1, 64, 4 * K, LAST), "hopper", ("graph", "attention"), arrivals=False),
    "whole": Run(LOADS["llama-3-8b"], "hopper", (), graphs=IN_ONE),  # the hybrid iterations once more
}


def cases() -> list[dict]:
    return [{"run": name, "layer": layer, "piece": piece} for name, run in RUNS.items() for layer, piece in places(run)]


def places(run: Run) -> list[tuple[int, str]]:
    """(layer, piece) of an iteration, in the order of their launch; layer -1 is around the layers."""
    layers = [(layer, piece) for layer in range(LAYERS) for piece in run.pieces] or [(-1, "graph")]
    return [*layers, (-1, "head"), *((-1, piece) for piece in HOST if not run.arrivals or piece != "expect")]


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

    def on(self, engine, run: Run) -> None:
        model, attention = engine.model, engine.attention
        attention.run = self.around("attention", attention.run)
        if run.graphs == IN_ONE:
            model.logits = self.around("head", model.logits)
            for made in engine.whole.made.values():
                made.replay = self.around("graph", made.replay)
        elif run.arrivals:
            model.before, model.after = self.around("before", model.before), self.around("after", model.after)
            model.logits = self.around("head", model.logits)
        else:
            attention.expect = self.around("expect", attention.expect)
            graphs = engine.graphs.recorded_for(run.load.running)
            names = ["graph"] * LAYERS + ["head"]
            graphs.graphs = [SimpleNamespace(replay=self.around(name, graph.replay))
                             for name, graph in zip(names, graphs.graphs, strict=True)]  # fmt: skip

    def off(self, engine) -> None:
        """The model outlives its engine."""
        for name in ("before", "after", "logits"):
            vars(engine.model).pop(name, None)


@lru_cache
def _timeline(name: str) -> dict:
    """Milliseconds since the iteration was scheduled. The GPU was idle when its first event was recorded, so that one
    is taken to be at the host's time."""
    import torch

    run = RUNS[name]
    engine, scheduler = ready(run.load, run.attention, run.graphs)
    watch = Stopwatch(engine.clock)
    watch.on(engine, run)
    events, notes = _serve(run, engine, scheduler, watch)
    watch.off(engine)
    torch.cuda.synchronize()
    by_length = sorted(range(FIRST, LAST), key=lambda i: events[i + 1].scheduled - events[i].scheduled)
    chosen = by_length[(LAST - FIRST) // 2]
    rows = _rows(run, notes[chosen], engine.marks[chosen], *events[chosen : chosen + 2])
    del engine, scheduler, notes
    timing.free_memory()
    return rows


def _serve(run: Run, engine, scheduler, watch: Stopwatch):
    """The first iterations, and what the stopwatch noted in each."""
    notes = []

    def submit(batch, event) -> float:
        watch.notes = []
        notes.append(watch.notes)
        return engine.submit(batch, event)

    watched = Window(SimpleNamespace(submit=submit), LAST + 1)
    try:
        serve(run.load.requests() if run.arrivals else [], [scheduler], watched, engine.clock)
    except Enough:
        pass
    return watched.events, notes


def _rows(run: Run, notes: list, marks: tuple[float, float], event, after) -> dict:
    (planned, launched), begin = marks, event.scheduled
    rows = dict(_pieces(run, notes, begin))
    for piece, start, end in (("plan", begin, planned), ("wait", launched, event.end),
                              ("finish", event.end, after.scheduled)):  # fmt: skip
        rows[-1, piece] = _row(start - begin, end - begin, 0.0, 0.0)
    if not run.arrivals:
        rows[-1, "wait"]["host_start_ms"] = rows[-1, "expect"]["host_end_ms"]
    return rows


def _pieces(run: Run, notes: list, begin: float):
    names = [(layer, piece) for layer, piece in places(run) if piece not in ("plan", "wait", "finish")]
    first, zero = notes[0][3], notes[0][1]
    for (layer, piece), (noted, host_begin, host_end, *events) in zip(names, notes, strict=True):
        if piece != noted:
            raise RuntimeError(f"notes: got {noted} where {piece} was to come")
        gpu = [zero - begin + first.elapsed_time(e) / 1000 for e in events] if piece not in HOST else (0.0, 0.0)
        yield (layer, piece), _row(host_begin - begin, host_end - begin, *gpu)


def _row(*seconds: float) -> dict:
    names = ("host_start_ms", "host_end_ms", "gpu_start_ms", "gpu_end_ms")
    return {name: round(1e3 * t, 4) for name, t in zip(names, seconds, strict=True)}


# ---------------------------------------------------------------- what it shows

NAMES = {"fa3": "attention by FlashAttention-3, two calls", "hopper": "attention by our kernel, one call"}


def table():
    """Milliseconds since the scheduler was asked, one row a piece; layer -1 is around the layers."""
    df = read("engine-timeline")
    return df[df.run.isin(NAMES)].assign(run=df.run.map(NAMES))


def draw(df):
    return timeline(df)

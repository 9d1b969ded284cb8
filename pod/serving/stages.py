"""Pipeline parallelism: the layers of a model in stages, a process each, and several micro-batches on their way.

    a lane's scheduler -> Step -> process 0: embedding, layers -> x -> process 1: layers -> ... -> head, tokens
            ^-------------- tokens, and when each stage had the micro-batch ---------------------------'

What was computed goes from each process to the next through torch.distributed. What is small goes between process 0
and each other one through sockets, which also say at once when somebody is gone. Times are the host's: all processes
of a machine read one clock.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from multiprocessing.connection import Client, Listener, Pipe, wait
from queue import SimpleQueue
from threading import Lock, Thread

from pod.serving.backends import backend
from pod.serving.captured import LARGEST, Whole, possible
from pod.serving.engine import Answer, Cache, answer_on, greedy
from pod.serving.events import Iteration, Log
from pod.serving.loop import Pipelined, WallClock
from pod.serving.model import Llama, Weights
from pod.serving.request import Request
from pod.serving.schedulers import Batch, Scheduler
from pod.serving.shapes import Shape
from pod.serving.step import Arrays, Step, fill, pack, predicting, promise

GRACE = 10  # seconds for an answer that must be there, and for the end of a process that failed


class Broken(RuntimeError):
    """A pipeline that has lost a stage, and why."""


class Line:
    """The processes of a pipeline and how they talk. Alone unless torch.distributed says otherwise.

    with Line(rank, size) as line: ...  # who fails inside takes all others along, and says why
    """

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.stages = []  # where process 0 hears each of them, and tells all but itself
        if rank:
            self.home = self._join()
        else:
            heard, self.home = Pipe(duplex=False)
            self.stages = [heard, *self._gather()]
        self._readings, self._lock = SimpleQueue(), Lock()
        Thread(target=self._report, daemon=True).start()

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1

    def _gather(self) -> list:
        if self.size == 1:
            return []
        import torch.distributed as dist

        with Listener(family="AF_UNIX", backlog=self.size) as door:
            dist.broadcast_object_list([door.address], 0)
            ends = [door.accept() for _ in range(1, self.size)]
        ends = {end.recv(): end for end in ends}
        return [ends[stage] for stage in range(1, self.size)]

    def _join(self):
        import torch.distributed as dist

        door = [None]
        dist.broadcast_object_list(door, 0)
        end = Client(door[0])
        end.send(self.rank)
        return end

    # ------------------------------------------------------------ what is small

    def tell(self, word) -> None:
        """Process 0 to all others; None sends them home."""
        for stage, end in enumerate(self.stages[1:], 1):
            try:
                end.send(word)
            except OSError:
                raise self.why(stage) from None

    def orders(self) -> Iterator:
        """What process 0 tells this one."""
        while (word := self._heard(0, self.home)) is not None:
            yield word

    def report(self, reading: Callable) -> None:
        """reading() to process 0. A thread waits for it, and the next work can be launched meanwhile."""
        self._readings.put(reading)

    def hear(self, seconds: float | None) -> list:
        """(stage, its next report) of all who have one, after waiting up to so long for the first."""
        ready = wait(self.stages, seconds)
        return [(stage, self._heard(stage, end)) for stage, end in enumerate(self.stages) if end in ready]

    def why(self, stage: int) -> Broken:
        """Why a neighbour is gone. A stage that fails tells process 0 before it ends, and process 0 all others."""
        end = self.home if self.rank else self.stages[stage]
        try:
            while end.poll(GRACE):
                self._heard(0 if self.rank else stage, end)
        except Broken as broken:
            return broken
        return self._broken(stage, "it does not answer")

    def _report(self) -> None:
        while reading := self._readings.get():
            try:
                word = reading()
            except Exception as error:
                word = self._failure(error)
            del reading  # it has a stage, with its cache
            self._say(word)

    def _say(self, word) -> None:
        with suppress(OSError), self._lock:  # where process 0 is gone, orders() says so
            self.home.send(word)

    def _heard(self, stage: int, end):
        try:
            word = end.recv()
        except (EOFError, OSError):
            raise self._broken(stage, "its process is gone") from None
        if isinstance(word, Broken):
            raise word
        return word

    # ------------------------------------------------------------ one for all

    def _broken(self, stage: int, words: str) -> Broken:
        return Broken(f"stage {stage} of {self.size}: {words}")

    def _failure(self, error: BaseException) -> Broken:
        if isinstance(error, Broken):
            return error
        first = next(iter(str(error).splitlines()), "")
        return self._broken(self.rank, f"{type(error).__name__}: {first}")

    def _end_soon(self) -> None:
        """What is left on a GPU may wait for others for ever, and a process at its end for that."""
        import torch.distributed as dist

        if dist.get_backend() == "nccl":
            signal.alarm(GRACE)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._readings.put(None)
        if error and self.rank:
            self._say(self._failure(error))
            self._end_soon()
        for end in self.stages[1:] if error else ():
            with suppress(OSError):
                end.send(self._failure(error))


class Part(Llama):
    """The layers of one stage. What comes in is what the stage before made of the tokens, what goes out is for the next
    one; only the first stage has an embedding, and only the last a head."""

    def __init__(self, shape: Shape, weights: Weights, line: Line, device="cpu", dtype=None,
                 context: int | None = None):  # fmt: skip
        import torch

        if line.size > shape.layers:
            raise ValueError(f"stages: got {line.size}, {shape.name} allows up to its {shape.layers} layers")
        self.line = line
        first, end = (-(-shape.layers * i // line.size) for i in (line.rank, line.rank + 1))
        mine = replace(shape, layers=end - first)
        super().__init__(mine, partial(_behind, weights, first), device, dtype, context=context)
        self.entry = torch.zeros(LARGEST, shape.hidden, dtype=self.dtype, device=self.device)

    def _load(self, weights: Weights, name: str, size: tuple[int, ...]):
        """None for what another stage has."""
        ends = {"embed": not self.line.rank or self.line.last and self.shape.tied}
        ends |= {"norm": self.line.last, "head": self.line.last}
        return super()._load(weights, name, size) if ends.get(name, True) else None

    def _share(self, tensor, kind: str):
        return tensor if tensor is None else super()._share(tensor, kind)

    def room(self, tokens: int):
        """Where x [tokens, hidden] is to come in: for graphs always the same place."""
        if tokens > LARGEST:
            self.longer = self.entry.new_empty(tokens, self.shape.hidden)
        return self._entered(tokens)

    def _entered(self, tokens: int):
        return self.entry[:tokens] if tokens <= LARGEST else self.longer

    def embed(self, tokens):
        return self._entered(len(tokens)) if self.line.rank else super().embed(tokens)

    def logits(self, x):
        return super().logits(x) if self.line.last else x


def _behind(weights: Weights, first: int, name: str, size: tuple[int, ...]):
    """Weights of a model that begins with layer `first` of another."""
    group, *rest = name.split(".")
    return weights(".".join([group, str(int(rest[0]) + first), rest[1]]) if rest else name, size)


class Stopwatch:
    """When the work of a stage began and ended. A GPU's clock drifts from the host's, and the host always reads a mark
    a little late, so what counts is the difference when it was last least late."""

    def __init__(self, device):
        self.device, self.on_gpu = device, device.type == "cuda"
        self.late = deque(maxlen=64)
        self.first = self.mark()

    def mark(self):
        if not self.on_gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, begin, end) -> tuple[float, float]:
        """Both marks in seconds of time.perf_counter(); waits for the second, in a thread that has no device yet."""
        if not self.on_gpu:
            return begin, end
        import torch

        with torch.cuda.device(self.device):
            end.synchronize()
            self.late.append(time.perf_counter() - self._since(end))
            return tuple(self._since(mark) + min(self.late) for mark in (begin, end))

    def _since(self, mark) -> float:
        return self.first.elapsed_time(mark) / 1000


class Stage:
    """One process's part of every micro-batch: take it over, compute, pass it on, and report. `blocks` are those of all
    lanes together. Whole iterations are CUDA graphs where the GPU plans by itself, unless `graphs` is False."""

    def __init__(self, model: Part, blocks: int, block_size: int, attention: str = "auto", graphs: bool | None = None):
        self.model, self.line = model, model.line
        self.attention = backend(attention, model.q_heads, model.kv_heads, model.shape.head_dim, block_size,
                                 model.dtype, model.device)  # fmt: skip
        self.cache = Cache(model, blocks, block_size)
        able = graphs is not False and possible(self.attention, model)
        self.whole = Whole(model, self.cache, self.attention) if able else None
        self.watch = Stopwatch(model.device)
        self._leaving: dict[int, tuple] = {}  # by lane; kept until it has left

    def warm(self, tokens: int) -> None:
        """Capture iterations of up to so many tokens, each stage for itself."""
        import torch

        with torch.inference_mode():
            if self.whole:
                self.whole.warm(tokens)

    def follow(self) -> None:
        """What processes 1, 2, ... do, until process 0 sends them home."""
        for lane, flat in self.line.orders():
            self.take(lane, Step.view(flat))

    def take(self, lane: int, step: Step) -> None:
        import torch
        import torch.distributed as dist

        before, after = self.line.rank - 1, self.line.rank + 1
        with torch.inference_mode():
            work = self._planned(step)
            if self.line.rank:
                self._with(before, dist.recv, self.model.room(len(step.tokens)), before)
            begin = self.watch.mark()
            out = work()
            tokens = greedy(out, ()).to("cpu", non_blocking=True) if self.line.last else None
            self.line.report(partial(self._read, begin, self.watch.mark(), tokens))
            if not self.line.last:
                self._with(after, self._pass_on, lane, out, after)

    def _planned(self, step: Step) -> Callable:
        """What computes logits of the rows that predict on the last stage, on the others all rows for the next one."""
        last = self.line.last
        if self.whole and (captured := self.whole.ready(step)):
            return partial(captured.run, len(step.rows)) if last else partial(captured.pass_on, len(step.tokens))
        device = step.to(self.model.device)
        self.attention.plan(step, device)
        device = device if last else replace(device, rows=slice(None))
        return partial(self.model.forward, device, self.cache, self.attention.run)

    def _pass_on(self, lane: int, x, to: int) -> None:
        import torch.distributed as dist

        if lane in self._leaving:
            self._leaving[lane][0].wait()  # its tokens have been out since, so it has arrived
        self._leaving[lane] = dist.isend(x, to), x

    def _with(self, neighbour: int, talk: Callable, *arguments) -> None:
        try:
            talk(*arguments)
        except RuntimeError:
            raise self.line.why(neighbour) from None

    def _read(self, begin, end, tokens) -> tuple:
        return *self.watch.read(begin, end), [] if tokens is None else tokens.tolist()


class Pipeline:
    """Process 0: an executor with as many micro-batches on their way as there are lanes. Each lane's scheduler has a
    pool of its own, or all have the same; `texts` holds all tokens of each request, `stop` ends an answer early."""

    def __init__(self, stage: Stage, lanes: Sequence[Scheduler], stop: Sequence[int] = ()):
        self.stage, self.model, self.line = stage, stage.model, stage.line
        self.lanes, self.stop = lanes, frozenset(stop)
        self.texts: dict[int, list[int]] = {}
        self.clock = WallClock()
        self.tables = self._tables()
        self.flying: deque[tuple[Iteration, list[Request], list[int]]] = deque()
        self.heard = [deque() for _ in self.line.stages]

    def _tables(self) -> list[Arrays]:
        """Of each lane: its pool's blocks are the next ones of the cache."""
        cache, firsts, blocks = self.stage.cache, {}, 0
        for pool in (lane.pool for lane in self.lanes):
            if pool.swap_blocks or pool.block_size != cache.block_size:
                raise ValueError(f"lanes: got a pool of {pool.block_size} tokens a block and {pool.swap_blocks} blocks "
                                 f"to swap, allowed are {cache.block_size} and 0")  # fmt: skip
            if id(pool) not in firsts:
                firsts[id(pool)], blocks = blocks, blocks + pool.num_blocks
        if blocks > cache.blocks:
            raise ValueError(f"lanes: got pools of {blocks} blocks, allowed are up to {cache.blocks}")
        return [Arrays(lane.pool.tables, firsts[id(lane.pool)]) for lane in self.lanes]

    def submit(self, batch: Batch, event: Iteration) -> None:
        tables = self.tables[event.lane]
        tables.sweep()
        step = pack(batch, self.texts, tables, self.stage.cache.block_size)
        requests = predicting(batch)
        self.flying.append((event, requests, promise(requests, self.texts)))
        self.line.tell((event.lane, step.flat))
        self.stage.take(event.lane, step)

    def wait(self, until: float) -> Iteration | None:
        while not all(self.heard):
            reports = self.line.hear(None if until == inf else max(0.0, until - self.clock.now))
            for stage, report in reports:
                self.heard[stage].append(report)
            if not reports:
                return None
        event, requests, places = self.flying.popleft()
        reports = [each.popleft() for each in self.heard]
        event.stages = [(self.clock.at(begin), self.clock.at(end)) for begin, end, _ in reports]
        fill(places, reports[-1][2], requests, self.texts, self.stop)
        event.end = self.clock.now
        return event

    def close(self) -> None:
        self.line.tell(None)


def answer(pipeline: Pipeline, prompts: Sequence[Sequence[int]], output: int | Sequence[int],
           arrivals: Sequence[float] | None = None, **run) -> tuple[list[Answer], Log]:  # fmt: skip
    """Serve token lists, as engine.answer does."""
    return answer_on(pipeline, pipeline.lanes, Pipelined, prompts, output, arrivals, **run)

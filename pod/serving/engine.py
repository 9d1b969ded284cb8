"""The real engine: an executor of the same loop that the simulator runs in. It owns the texts, the cache and the model.

    scheduler -> Batch -> pack -> Step -> model and attention -> logits -> sampler -> tokens

The schedulers decide with lengths and blocks alone, so they cannot tell this executor from the simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from numbers import Integral

import numpy as np

from pod.serving.backends import Backend, backend
from pod.serving.blocks import PagedPool
from pod.serving.captured import Whole, possible
from pod.serving.events import Iteration, Log
from pod.serving.loop import Ahead, Loop, WallClock, serve
from pod.serving.model import Llama
from pod.serving.request import Request
from pod.serving.schedulers import SWAP, Batch, Scheduler
from pod.serving.shapes import Shape
from pod.serving.step import HEADER, Arrays, Step, fill, pack, predicting, promise

GRAPH_ROWS = (1, 2, 4, *range(8, 64, 8), *range(64, 257, 16))  # decode batches are padded to the next of these
WHOLE, PIECES = "whole", "pieces"
GO, WARM = 0, -1  # in place of a step's sequences: other processes go home, or capture graphs


def greedy(logits, requests: Sequence[Request]):
    """The likeliest token of every row [n, vocab] -> [n], still on the GPU."""
    return logits.argmax(-1)


class Cache:
    """Keys and values of all layers in blocks [layers, 2, blocks + 1, block_size, kv_heads, head_dim].

    The last block is nobody's: rows that only fill up a graph write there.
    """

    def __init__(self, model: Llama, blocks: int, block_size: int, swap_blocks: int = 0):
        import torch

        self.blocks, self.block_size = blocks, block_size
        size = (len(model.layers), 2, blocks + 1, block_size, model.kv_heads, model.shape.head_dim)
        try:
            self.data = torch.zeros(size, dtype=model.dtype, device=model.device)  # a kernel may read what it masks
            self.host = torch.zeros((*size[:2], swap_blocks, *size[3:]), dtype=model.dtype) if swap_blocks else None
        except RuntimeError as error:  # out of memory: torch has a type for it on a GPU, not on a CPU
            raise ValueError(f"blocks: got {blocks} of {block_size} tokens, the memory of {model.device} has no room "
                             f"({str(error).splitlines()[0]})") from None  # fmt: skip

    def __iter__(self):
        """(k_cache, v_cache) of each layer."""
        return iter(self.data.unbind())

    @property
    def spare_slot(self) -> int:
        return self.blocks * self.block_size

    def swap_out(self, blocks: Sequence[int], to: Sequence[int]) -> None:
        self.host[:, :, list(to)] = self.data[:, :, list(blocks)].cpu()

    def swap_in(self, blocks: Sequence[int], source: Sequence[int]) -> None:
        self.data[:, :, list(blocks)] = self.host[:, :, list(source)].to(self.data.device)


@dataclass(eq=False)
class Flight:
    """An iteration on its way: whose its tokens are, where they go, and the tokens themselves, once they are here."""

    event: Iteration
    requests: list[Request]
    places: list[int]
    tokens: Tokens
    meter: Meter | None
    marks: tuple[float, float]


class Engine:
    """Runs batches on a model. Times are those of `clock`, which the loop must share.

    `texts` holds all tokens of each request, prompt first. `stop` are the tokens that end an answer early. `marks` has,
    for every iteration, when the host had planned it and when it had launched everything. `graphs` are of whole
    iterations (WHOLE) where the GPU plans by itself, elsewhere of the pieces between the attentions of decodes alone
    (PIECES); None uses them on a GPU, False nowhere. Several GPUs, which meet in every layer, have whole iterations
    only where WHOLE says so. `attention` is the name of a backend, or one that is made already. `ahead`: whether its
    loop launches the next iteration while one runs; None, where iterations are whole, on one GPU.
    """

    owners = staticmethod(predicting)  # whose is each row of the logits

    def __init__(self, model: Llama, pool: PagedPool, attention: str | Backend = "auto", sample: Callable = greedy,
                 stop: Sequence[int] = (), graphs: bool | str | None = None, ahead: bool | None = None):  # fmt: skip
        self.model, self.pool, self.sample, self.stop = model, pool, sample, frozenset(stop)
        sizes = (model.q_heads, model.kv_heads, model.shape.head_dim, pool.block_size, model.dtype, model.device)
        self.attention = attention if isinstance(attention, Backend) else backend(attention, *sizes)
        self.cache = self._everywhere(lambda: Cache(model, pool.num_blocks, pool.block_size, pool.swap_blocks))
        self.clock = WallClock()
        self.texts: dict[int, list[int]] = {}
        self.tables = Arrays(pool.tables)
        self.held: dict[int, list[int]] = {}  # blocks of each request when it last ran
        self.on_host: dict[int, list[int]] = {}
        self.marks: list[tuple[float, float]] = []
        self.on_gpu = model.device.type == "cuda"
        self.whole, self.graphs = self._graphs(self.on_gpu if graphs is None else graphs)
        self.ahead = self._runs_ahead(ahead)
        self.newest = None  # tokens of the newest iteration, on the device

    @property
    def loop(self) -> type[Loop]:
        return Ahead if self.ahead else Loop

    def submit(self, batch: Batch, event: Iteration) -> float:
        """Run one iteration; each request that gets a token finds it at the end of its text."""
        self.land(self.send(batch, event))
        return event.end

    def send(self, batch: Batch, event: Iteration) -> Flight:
        """Launch an iteration, behind the one that may still run."""
        self._swap(batch)
        self.tables.sweep()
        step = pack(batch, self.texts, self.tables, self.pool.block_size)
        self._tell(step.flat)
        logits = self.run(step)
        requests = self.owners(batch)
        self.newest = self.sample(logits, requests)
        return Flight(event, requests, promise(requests, self.texts), Tokens(self.newest), self._meter,
                      (self.planned, self.launched))  # fmt: skip

    def land(self, flight: Flight) -> list[Request]:
        """Wait for the tokens of an iteration. Returns who ends with them, sooner than his length says."""
        stopped = fill(flight.places, flight.tokens.read(), flight.requests, self.texts, self.stop)
        busy = flight.meter.seconds() if flight.meter else None  # waits, also where no token comes out
        event, event.end = flight.event, self.clock.now
        self.marks.append(flight.marks)
        event.stages = [(event.end - busy, event.end)] if busy else []
        return stopped

    def forget(self, request: Request) -> None:
        """Its answer has been read, or nobody wants it any more."""
        for kept in (self.texts, self.held, self.on_host):
            kept.pop(request.id, None)

    def run(self, step: Step):
        """Logits of the rows that predict, on the device."""
        import torch

        with torch.inference_mode():
            if self.whole and (captured := self.whole.ready(step)):
                self._feed(step, captured.staged.device)
                return self._launch(partial(captured.run, len(step.rows)))
            device = step.to(self.model.device)
            self._feed(step, device)
            self.attention.plan(step, device)
            if self.graphs and not step.chunks:
                logits = self._launch(partial(self.graphs.run, device))
            else:
                logits = self._launch(partial(self.model.forward, device, self.cache, self.attention.run))
            if not step.chunks and not self.whole:
                self.attention.expect(step)
            return logits

    def _feed(self, host: Step, device: Step) -> None:
        """A token that the host does not know yet goes from the iteration that made it to the one that reads it."""
        import torch

        if host.tokens.min() < 0:
            tokens = device.tokens
            tokens.copy_(torch.where(tokens < 0, self.newest[(~tokens).clamp(min=0)], tokens))

    def _launch(self, work: Callable):
        self._meter = Meter() if self.on_gpu else None
        self.planned = self.clock.now
        with self._meter or nullcontext():
            out = work()
        self.launched = self.clock.now
        return out

    def warm(self, rows: int, tokens: int = 0) -> None:
        """Capture the graphs of up to `rows` decodes, and whole iterations of up to `tokens`, now, so that no measured
        iteration has to: every process, since they meet in what is captured."""
        self._tell(np.array([WARM, rows, tokens, *[0] * (HEADER - 3)], np.int32))
        self._warm(rows, tokens)

    def _warm(self, rows: int, tokens: int) -> None:
        import torch

        with torch.inference_mode():
            if self.whole:
                self.whole.warm(max(rows, tokens))
                x = torch.zeros(rows, self.model.shape.hidden, dtype=self.model.dtype, device=self.model.device)
                for n in range(1, rows + 1):  # the head is outside; to load a kernel of it would hold up an iteration
                    self.model.logits(x[:n])
            for padded in (r for r in GRAPH_ROWS if self.graphs and rows and r < rows + 16):
                self.graphs.recorded_for(padded)

    def _graphs(self, wanted: bool | str) -> tuple[Whole | None, Graphs | None]:
        if wanted not in (True, False, WHOLE, PIECES):
            raise ValueError(f"graphs: got {wanted!r}, allowed are True, False, None, {WHOLE!r} and {PIECES!r}")
        able = possible(self.attention, self.model)
        if wanted == WHOLE and not able:
            raise ValueError(f"graphs: got {WHOLE!r}, allowed without compute capability 9.0 and a kernel for "
                             f"it are {PIECES!r}, True and False")  # fmt: skip
        if able and (wanted == WHOLE or wanted is True and self.model.group.size == 1):
            return Whole(self.model, self.cache, self.attention), None
        return None, Graphs(self) if wanted else None

    def _runs_ahead(self, wanted: bool | None) -> bool:
        able = self.model.group.size == 1 and bool(self.whole or not self.on_gpu)
        if wanted and not able:
            raise ValueError("ahead: got True, allowed with whole iterations on one GPU, and on a CPU alone")
        return bool(self.whole and able) if wanted is None else bool(wanted)

    def _swap(self, batch: Batch) -> None:
        """Copy the blocks of preempted requests to the host before anybody writes there, and of the returned back."""
        for request, how in batch.preempted:
            blocks = self.held.pop(request.id)
            if how == SWAP:
                self.on_host[request.id] = self.pool.swapped[request.id]
                self.cache.swap_out(blocks, self.on_host[request.id])
        for request in batch.swapped_in:
            source = self.on_host.pop(request.id)
            self.cache.swap_in(self.pool.tables[request.id][: len(source)], source)
        for request in chain((c.request for c in batch.prefills), batch.decodes):
            self.held[request.id] = self.pool.tables[request.id]  # who is sent away leaves the list itself behind

    # ------------------------------------------------------------ tensor parallelism: process 0 decides, all compute

    def _everywhere(self, make: Callable):
        """make() on every process, or an error on every process: nobody is left waiting for one that gave up."""
        try:
            made, error = make(), None
        except ValueError as problem:
            made, error = None, problem
        if self.model.group.size > 1:
            import torch

            failures = self.model.group.sum(torch.tensor([float(error is not None)], device=self.model.device))
            if failures and error is None:
                raise ValueError(f"blocks: got {self.pool.num_blocks}, another process has no room for them")
        if error is not None:
            raise error
        return made

    def _tell(self, flat: np.ndarray) -> None:
        """What the other processes do next: a step, or what its first number says."""
        if self.model.group.size > 1:
            import torch
            import torch.distributed as dist

            flat = torch.from_numpy(flat)
            dist.broadcast(torch.tensor([len(flat)]).to(self.model.device), 0)
            dist.broadcast(flat.to(self.model.device), 0)

    def follow(self) -> None:
        """What processes 1, 2, ... do: compute the steps that process 0 sends, until it sends none."""
        import torch
        import torch.distributed as dist

        while True:
            size = torch.zeros(1, dtype=torch.int64, device=self.model.device)
            dist.broadcast(size, 0)
            flat = torch.zeros(int(size), dtype=torch.int32, device=self.model.device)
            dist.broadcast(flat, 0)
            flat = flat.cpu().numpy()
            if flat[0] == GO:
                return
            if flat[0] == WARM:
                self._warm(*flat[1:3].tolist())
            else:
                self.run(Step.view(flat))

    def close(self) -> None:
        self._tell(np.full(HEADER, GO, np.int32))


class Meter:
    """Seconds that the GPU works on an iteration, by two events around it."""

    def __init__(self) -> None:
        import torch

        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def __enter__(self):
        self.events[0].record()

    def __exit__(self, *error) -> None:
        self.events[1].record()

    def seconds(self) -> float:
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) / 1000


class Tokens:
    """What was sampled, on its way to the host: the GPU may have the next iteration before it is read."""

    def __init__(self, sampled):
        self.sampled, self.here = sampled, None
        if getattr(sampled, "is_cuda", False):
            import torch

            self.sampled, self.here = sampled.to("cpu", non_blocking=True), torch.cuda.Event()
            self.here.record()

    def read(self) -> list[int]:
        if self.here:
            self.here.synchronize()
        return self.sampled.tolist()


class Graphs:
    """Decode-only iterations as CUDA graphs: a few hundred small launches become one a layer.

    Attention stays outside, because its work list changes from iteration to iteration; between two attentions all
    shapes are fixed once the rows are padded. Each padded number of rows has its graphs, captured when first needed.
    """

    def __init__(self, engine: Engine):
        self.model, self.cache, self.attention = engine.model, engine.cache, engine.attention
        self.recorded: dict[int, Recorded] = {}

    def run(self, step: Step):
        rows = next((r for r in GRAPH_ROWS if r >= len(step.tokens)), None)
        if rows is None:
            return self.model.forward(step, self.cache, self.attention.run)
        return self.recorded_for(rows).replay(step, self.attention.run)

    def recorded_for(self, rows: int) -> Recorded:
        if rows not in self.recorded:
            self.recorded[rows] = Recorded(self.model, self.cache, rows)
        return self.recorded[rows]


class Recorded:
    """The pieces between the attentions of one padded number of rows, as graphs over fixed buffers."""

    def __init__(self, model: Llama, cache: Cache, rows: int):
        import torch

        self.model, self.cache, layers = model, list(cache), len(model.layers)
        whole = lambda fill: torch.full((rows,), fill, dtype=torch.int64, device=model.device)  # noqa: E731
        self.tokens, self.positions, self.slots = whole(0), whole(0), whole(cache.spare_slot)
        self.spare = cache.spare_slot
        self.attended = torch.zeros(rows, model.q_heads, model.shape.head_dim, dtype=model.dtype, device=model.device)
        self.x, self.q = [None] * (layers + 1), [None] * layers
        self.graphs, self.pool = [], torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once for real, so that libraries have set up what a capture must not
            for piece in range(layers + 1):
                self._piece(piece)
        torch.cuda.current_stream().wait_stream(stream)
        for piece in range(layers + 1):
            self.graphs.append(torch.cuda.CUDAGraph())
            # NCCL's watchdog asks for events from a thread of its own, which must not spoil the capture
            with torch.cuda.graph(self.graphs[-1], pool=self.pool, capture_error_mode="thread_local"):
                self._piece(piece)

    def _piece(self, i: int) -> None:
        """From after the attention of layer i - 1 to before that of layer i."""
        model = self.model
        x = model.embed(self.tokens) if i == 0 else model.after(i - 1, self.x[i - 1], self.attended)
        if i == len(model.layers):
            self.out = model.logits(x)
        else:
            self.q[i] = model.before(i, x, self.positions, self.slots, *self.cache[i])
        self.x[i] = x

    def replay(self, step: Step, attend):
        count = len(step.tokens)
        self.slots.fill_(self.spare)
        for buffer, new in ((self.tokens, step.tokens), (self.positions, step.positions), (self.slots, step.slots)):
            buffer[:count].copy_(new)
        for i, (k_cache, v_cache) in enumerate(self.cache):
            self.graphs[i].replay()
            self.attended[:count].copy_(attend(self.q[i][:count], k_cache, v_cache))
        self.graphs[-1].replay()
        return self.out[:count]


# ---------------------------------------------------------------- prompts in, answers out


@dataclass
class Answer:
    """The tokens that came out, or why none did."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    error: str | None = None


def problem(prompt: Sequence[int], output: int, shape: Shape, context: int) -> str | None:
    """Why the model cannot answer this prompt; None when it can."""
    if not len(prompt):
        return "the prompt is empty, allowed is at least one token"
    if not isinstance(output, Integral) or output < 1:
        return f"{output!r} tokens to come, allowed is at least one"
    if len(prompt) + output > context:
        return f"{len(prompt)} tokens and {output} to come, {shape.name} takes {context} in all"
    if wrong := next((token for token in prompt if not isinstance(token, Integral)), None):
        return f"a token {wrong!r}, allowed are integers"
    if not all(0 <= token < shape.vocab for token in prompt):
        return f"a token outside of the vocabulary, allowed are 0 to {shape.vocab - 1}"
    return None


def answer(engine: Engine, scheduler: Scheduler, prompts: Sequence[Sequence[int]], output: int | Sequence[int],
           arrivals: Sequence[float] | None = None, **run) -> tuple[list[Answer], Log]:  # fmt: skip
    """Serve token lists; `output` tokens each, or fewer when a stop token comes. A bad prompt stops nobody else."""
    if scheduler.pool is not engine.pool:
        raise ValueError("scheduler: got one with a pool of its own, allowed is one that has the engine's")
    answered = answer_on(engine, [scheduler], engine.loop, prompts, output, arrivals, **run)
    engine.held.clear()
    return answered


def answer_on(engine, lanes: Sequence[Scheduler], kind: type[Loop], prompts: Sequence[Sequence[int]],
              output: int | Sequence[int], arrivals: Sequence[float] | None = None,
              **run) -> tuple[list[Answer], Log]:  # fmt: skip
    """The same on any executor that has a model, texts and a clock."""
    outputs = list(output) if isinstance(output, Iterable) else [output] * len(prompts)
    times = arrivals or [0.0] * len(prompts)
    if not len(prompts) == len(outputs) == len(times):
        raise ValueError(f"prompts: got {len(prompts)}, with {len(outputs)} outputs and {len(times)} arrivals, allowed "
                         "are equally many")  # fmt: skip
    answers, requests = [Answer(list(p)) for p in prompts], []
    for i, (prompt, count, time) in enumerate(zip(prompts, outputs, times, strict=True)):
        answers[i].error = problem(prompt, count, engine.model.shape, engine.model.context)
        if answers[i].error is None:
            request = Request(i, len(prompt), count, time, lanes[0].pool.names(prompt))
            answers[i].error = lanes[0].refusal(request)  # known now: nobody need wait to hear it
        if answers[i].error is None:
            engine.texts[i] = list(prompt)
            requests.append(request)
    engine.clock = WallClock()
    log = serve(requests, lanes, engine, engine.clock, kind=kind, **run)
    for i in engine.texts.keys() & set(range(len(prompts))):
        answers[i].tokens = engine.texts.pop(i)[len(prompts[i]) :]
    return answers, log

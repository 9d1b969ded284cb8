"""Serving on a GPU that is not here: the schedulers are real, the time comes from a cost model."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from pod.hardware import gpu
from pod.serving.blocks import MOST_BLOCKS, PagedPool, ReservedPool
from pod.serving.events import Iteration, Log
from pod.serving.loop import Foreseeing, Watcher, serve
from pod.serving.prefix import TRACE, PrefixPool
from pod.serving.request import Request
from pod.serving.schedulers import RECOMPUTE, SCHEDULERS, SWAP, Batch, Scheduler
from pod.serving.schedulers.decoder import Decoder
from pod.serving.schedulers.published import PublishedPool, published
from pod.simulate import cluster
from pod.simulate.cluster import ROUTERS
from pod.simulate.cost import AnalyticalCost, Cost, Efficiency, MeasuredCost, Work
from pod.simulate.energy import Meter, lacking
from pod.simulate.host_time import HOSTS
from pod.simulate.jitter import Jitter
from pod.simulate.models import shape_of
from pod.simulate.pipeline import PIPELINES, Microbatch, reformed
from pod.simulate.summary import Summary

MOST_REPLICAS = 256  # each has a list of its blocks


class SimExecutor:
    """Stages that take one batch at a time, first come first served, each as long as the cost model says.

    A batch leaves for the next stage when it is done and has been sent; the host works before the first stage, the
    output head is on the last.
    """

    def __init__(self, cost: Cost, block_size: int = 16, slowdown: float = 1.0, calibration=(1.0, 1.0),
                 jitter: Jitter | None = None):  # fmt: skip
        if not 1e-3 <= slowdown <= 1e3:
            raise ValueError(f"slowdown: got {slowdown!r}, allowed are numbers from 0.001 to 1000")
        if not all(1e-3 <= longer <= 1e3 for longer in calibration):
            raise ValueError(f"calibration: got {calibration!r}, allowed are two numbers from 0.001 to 1000")
        self.cost, self.block_size, self.slowdown = cost, block_size, slowdown
        self.hybrid, self.prompts = calibration
        self.jitter = jitter if jitter and jitter.scale else None
        self.free_at = [0.0] * cost.pp

    def submit(self, batch: Batch, event: Iteration) -> float:
        cost, work = self.cost, Work.of(batch, event.decode_context)
        slow, requests = self.slowdown, work.requests
        if batch.prefills:
            slow *= self.hybrid if batch.decodes else self.prompts
        before = cost.host(requests)
        if self.jitter:
            before = max(0.0, before + self.jitter())
        if batch.copied_blocks:
            before += cost.swap(batch.copied_blocks, self.block_size)
        stage, head = cost.stage(work), cost.head(requests)
        at = event.scheduled + slow * before
        if cost.pp == 1:
            return at + slow * (stage + head)
        middle, last = slow * (stage + cost.send(work.tokens)), slow * (stage + head)
        for i, free in enumerate(self.free_at):
            start = max(at, free)
            at = start + (middle if i < cost.pp - 1 else last)
            self.free_at[i] = at
            event.stages.append((start, at))
        return at


@dataclass(frozen=True)
class Setup:
    """One system under test; the names are those of the command line."""

    model: str = "llama-3-8b"
    gpu: str = "a100"
    tp: int = 1
    pp: int = 1
    scheduler: str = "sarathi"
    attention: str = "serial"
    chunk: int = 1024
    max_batch: int = 256
    max_tokens: int = 32768  # longest request; also the budget of a prompt iteration and what reserving pools set aside
    max_prefills: int = 1
    preemption: str = RECOMPUTE
    block_size: int = 16
    blocks: int | None = None  # size of the pool; None: what the GPU's memory leaves
    memory_share: float = 0.9
    host: str = HOSTS[0]
    machine: str | None = None  # whose all-reduce; None: a pair of A100s, or the DGX of the generation
    slowdown: float = 1.0  # of every iteration: near capacity a percent of it moves the queue by tens
    # how many times longer than their operators real iterations took: hybrid ones, and those of prompts alone
    calibration: tuple[float, float] = (1.0, 1.0)
    jitter: float = 0.0  # of the host, over what our engine's was
    seed: int = 1  # of the jitter
    efficiency: Efficiency = Efficiency()
    measured: bool = False  # times from the recorded operators of this GPU, instead of a roofline
    # whose attention; None: fa2-2024 on Ampere and fa3 on Hopper; measured, fa3 for serial and ours for pod
    kernels: str | None = None
    replicas: int = 1
    router: str = "round-robin"
    prompt_replicas: int = 0  # of them: they compute prompts only, and the others only decode
    prefix_cache: bool = False  # prompts that begin alike share blocks
    pipeline: str = "kept"  # whether micro-batches keep their requests, or are reformed
    like: str | None = None  # a system of schedulers/published.py, whose decisions count where they differ from ours

    def cost(self) -> Cost:
        kind = MeasuredCost if self.measured else AnalyticalCost
        return kind(shape_of(self.model), gpu(self.gpu), self.tp, self.pp, self.attention, self.host, self.efficiency,
                    self.machine, self.kernels)  # fmt: skip

    def executor(self, server: int = 0) -> SimExecutor:
        jitter = Jitter(self.jitter, self.seed, server)
        return SimExecutor(self.cost(), self.block_size, self.slowdown, self.calibration, jitter)

    def meter(self) -> Meter | None:
        """Of energy, where it was recorded."""
        cost = self.cost()
        return None if lacking(cost) else Meter(cost, self.replicas)

    def check_cluster(self) -> None:
        for name, ok, allowed in (
            ("replicas", 1 <= self.replicas <= MOST_REPLICAS, f"integers from 1 to {MOST_REPLICAS}"),
            ("router", self.router in ROUTERS, ", ".join(ROUTERS)),
            ("prompt_replicas", 0 <= self.prompt_replicas < self.replicas or not self.prompt_replicas,
             f"integers from 0 to below replicas = {self.replicas}"),
            ("scheduler", not self.prompt_replicas or (self.scheduler, self.like) == ("sarathi", None),
             "sarathi where some replicas compute prompts only, and no --like"),
            ("pipeline", self.pipeline in PIPELINES, ", ".join(PIPELINES)),
            ("pipeline", self.pipeline == PIPELINES[0] or self.replicas == 1, f"{PIPELINES[0]} where servers are many"),
            ("prefix_cache", not self.prefix_cache or self._may_share,
             "False, and True beside --pp 1, no --prompt-replicas, recompute, and sarathi or vllm without --like"),
            ("replicas", self.replicas == 1 or self.replicas * self.num_blocks() <= MOST_BLOCKS,
             f"so many that all have {MOST_BLOCKS} blocks at most, here of {self.num_blocks()} each"),
        ):  # fmt: skip
            if not ok:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, allowed are {allowed}")

    @property
    def _may_share(self) -> bool:
        here = self.scheduler in ("sarathi", "vllm") and self.like is None and self.preemption == RECOMPUTE
        return here and self.pp == 1 and not self.prompt_replicas

    def lanes(self, decodes: bool = False) -> list[Scheduler | Microbatch]:
        """One scheduler for each micro-batch in flight, with its share of the memory; they share the queue. `decodes`:
        of a replica that gets its prompts computed."""
        if self.scheduler not in SCHEDULERS:
            raise ValueError(f"scheduler: got {self.scheduler!r}, allowed are {', '.join(SCHEDULERS)}")
        if self.pp > 1 and self.preemption == SWAP:
            raise ValueError("preemption: got swap with a pipeline, allowed is recompute")
        kind = published(self.like, self.scheduler) if self.like else SCHEDULERS[self.scheduler]
        kind = Decoder if decodes else kind
        waiting: deque[Request] = deque()
        options = {name: getattr(self, name) for name in kind.decisions}
        if self.pipeline == "reformed" and self.pp > 1:
            return reformed(kind(self._pool(kind), self.max_batch, waiting, **options), self.pp)
        return [kind(self._pool(kind, self.pp), self.max_batch, waiting, **options) for _ in range(self.pp)]

    def _pool(self, kind: type[Scheduler], share: int = 1) -> PagedPool:
        blocks = self.num_blocks() // share
        if blocks < 1:
            raise ValueError(f"blocks: got {self.num_blocks()}, allowed are integers >= {self.pp}, one for every stage")
        if kind.pool_type is ReservedPool:
            return ReservedPool(blocks, self.max_tokens, self.block_size)
        if self.prefix_cache:
            return PrefixPool(blocks, self.block_size, grain=TRACE)
        paged = PublishedPool if self.like else PagedPool
        return paged(blocks, self.block_size, swap_blocks=4 * blocks if self.preemption == SWAP else 0)

    def num_blocks(self) -> int:
        if self.block_size < 1:
            raise ValueError(f"block_size: got {self.block_size}, allowed are integers >= 1")
        if self.blocks is not None:
            return self.blocks
        tokens = kv_tokens(self.model, self.gpu, self.tp, self.pp, self.memory_share)
        if not tokens:
            raise ValueError(f"tp: got {self.tp}, the weights of {self.model} leave no room for keys and values, "
                             "allowed are more GPUs (--tp, --pp), larger ones or a smaller model")  # fmt: skip
        if tokens < self.block_size:
            raise ValueError(f"block_size: got {self.block_size}, allowed are integers from 1 to {tokens}")
        if (blocks := tokens // self.block_size) > MOST_BLOCKS:
            raise ValueError(f"block_size: got {self.block_size}, of which the memory holds {blocks}, allowed are "
                             f"sizes of which it holds up to {MOST_BLOCKS}, or fewer by --blocks")  # fmt: skip
        return blocks


def kv_tokens(model: str, gpu_key: str, tp: int = 1, pp: int = 1, memory_share: float = 0.9,
              memory_bytes: float | None = None) -> int:  # fmt: skip
    """Tokens whose keys and values fit beside the weights: the usable memory of all GPUs less one copy of the model."""
    if not 0 < memory_share <= 1:
        raise ValueError(f"memory_share: got {memory_share!r}, allowed are shares above 0 up to 1")
    s, gpus = shape_of(model), tp * pp
    usable = memory_share * (memory_bytes or gpu(gpu_key).memory_bytes) * gpus
    return max(0, int((usable - s.parameters * s.dtype_bytes) / s.kv_bytes_per_token))


def simulate(setup: Setup, requests: Iterable[Request], progress: Callable[[int], object] | None = None,
             into: Watcher | None = None, **run):  # fmt: skip
    """Serve `requests` (which are used up) on `setup`; further keywords are written into the log. `progress` hears how
    many have been answered since it last did, and `into` all, instead of a log."""
    setup.check_cluster()
    if not isinstance(requests, Iterator):
        _check_new(requests := list(requests))
    collecting = gc.isenabled()
    gc.disable()  # the log grows and nothing in it is garbage; looking through it again and again took 40 % of the time
    try:
        if setup.replicas > 1:
            into = Log(description(setup, run)) if into is None else into
            return cluster.serve(setup, requests, into, progress)
        return serve(
            requests, setup.lanes(), setup.executor(), None, progress, into, Foreseeing, **description(setup, run)
        )
    finally:
        if collecting:
            gc.enable()


def _check_new(requests: list[Request]) -> None:
    """Whoever compares two setups may give the second one what the first has used up, and would see it end at once."""
    known: set[int] = set()
    for request in requests:
        if request.generated or request.computed:
            raise ValueError(f"request {request.id}: got one that has been served, allowed are new ones")
        if request.id in known:
            raise ValueError(f"request {request.id}: got two with this id, allowed is one")
        known.add(request.id)


def description(setup: Setup, run: dict) -> dict:
    """What a log says of its run."""
    return asdict(setup) | {"cost": setup.cost().label} | run


class Both:
    """Two that hear the same."""

    def __init__(self, *watchers: Watcher):
        self.watchers = watchers

    def arrived(self, request: Request, refusal: str | None) -> None:
        for watcher in self.watchers:
            watcher.arrived(request, refusal)

    def started(self, event: Iteration) -> None:
        for watcher in self.watchers:
            watcher.started(event)

    def ended(self, event: Iteration) -> None:
        for watcher in self.watchers:
            watcher.ended(event)


@dataclass(frozen=True)
class Run:
    """A setup and the workload that it gets: `workload` makes the requests, so that it can travel to another core."""

    setup: Setup
    workload: object  # pod.simulate.workload.Workload
    definition: str = "user"

    def metrics(self) -> dict[str, float]:
        return simulate(self.setup, self.workload.stream(), into=Summary(self.definition)).metrics()

    def full(self) -> dict[str, float]:
        """The metrics, and what they cost."""
        return simulate(self.setup, self.workload.stream(), into=self.summary()).full()

    def summary(self) -> Summary:
        return Summary(self.definition, self.setup.meter())

    def but(self, **changes) -> Run:
        return replace(self, setup=replace(self.setup, **changes))

"""The microbenchmark of POD-Attention's Figure 7: a loop bound by arithmetic and one bound by memory, run in every way.

Compute multiplies numbers over and over, memory adds three arrays; compute stands for prefill, memory for decode. Both
are cut into tiles, one CTA's worth each, and go row by row with barriers. csrc/micro/fusion.cu has the kernels.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pod.kernels import build
from pod.kernels.sm80 import TRACE_FIELDS, that_ran
from pod.schedule import binding

ALONE = ("compute", "memory")
ONE_LAUNCH = ("cta", "alternate", "warp", "in turn", "interleaved", "sm-aware")
METHODS = ("serial", "streams", *ONE_LAUNCH)
NAMES = {"serial": "serial", "streams": "two streams", "cta": "CTAs by index", "alternate": "CTAs alternating",
         "in turn": "intra-thread, in turn", "interleaved": "intra-thread, interleaved", "warp": "halves of a CTA",
         "sm-aware": "SM-aware CTAs"}  # fmt: skip
OPS = (*ALONE, "both")  # "both": every thread of the CTA does both
THREADS, STEPS = 256, 4  # of a CTA; of a compute row, a barrier after each
FACTOR = 1.0001
LEAST_SMEM = 3 * 16 * THREADS  # what the memory loop fetches in one step


@dataclass(frozen=True)
class Work:
    """How much there is to do, and how it is cut.

    compute: rows of 256 numbers, each multiplied `multiplications` times in each of its four steps.
    memory: rows of 256 x 4 numbers of three arrays.
    tiles: how many tiles each is cut into, one CTA's worth each.
    """

    compute: int
    memory: int
    multiplications: int
    tiles: tuple[int, int]

    def __post_init__(self) -> None:
        for name in ("compute", "memory", "multiplications"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, allowed is at least 1")
        rows = (self.compute, self.memory)
        if any(not 1 <= tiles <= most for tiles, most in zip(self.tiles, rows, strict=True)):
            raise ValueError(f"tiles: got {self.tiles!r}, allowed are 1 up to the rows of each side, {rows!r}")


def arrays(work: Work, device="cpu", seed: int = 0) -> tuple:
    """a, b, c [memory x 1024] and d [compute x 256], random float32."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    sizes = [4 * THREADS * work.memory] * 3 + [THREADS * work.compute]
    return tuple(torch.rand(n, device=device, generator=generator) for n in sizes)


def expected(work: Work, a, b, c, d) -> tuple:
    """What c and d hold after one run, bit by bit: the GPU and the emulator round as numpy does."""
    for _ in range(STEPS * work.multiplications):
        d = d * np.float32(FACTOR)
    return c + (a + b), d


class Header(NamedTuple):
    """The numbers of a run, by name and in this order: `FusionHeader` of csrc/micro/fusion.h."""

    method: int
    multiplications: int
    compute_tiles: int
    memory_tiles: int
    sms: int
    smem_bytes: int
    trace_rows: int


def _fake(kind, a, b, c, d, deal, counters, header, factor):
    import torch

    return a.new_empty((Header(*header).trace_rows, len(TRACE_FIELDS)), dtype=torch.int64)


FUSION = build.Family("fusion", bindings="micro/fusion_bindings.cpp", kernels="micro/fusion.cu", fake=_fake)


def prepare(work: Work, method: str, data: tuple, ctas_per_sm: int | None = None, trace: bool = False,
            policy: str = "integer ratio") -> Callable:  # fmt: skip
    """A function that runs `work` once on `data` (see `arrays`), in place, and returns the trace, or no rows.

    ctas_per_sm: how many CTAs an SM shall hold; as many as fit when left out.
    policy: in which order SM-aware CTAs take what, see pod.schedule.binding; the default is the paper's.
    """
    import torch

    known = (*ALONE, *METHODS)
    if method not in known:
        raise ValueError(f"method: got {method!r}, allowed are {', '.join(known)}")
    if policy not in binding.POLICIES:
        raise ValueError(f"policy: got {policy!r}, allowed are {', '.join(binding.POLICIES)}")
    device = data[0].device
    sms, (compute, memory) = build.sm_count(device), work.tiles
    costs = [np.full(tiles, rows / tiles) for tiles, rows in zip(work.tiles, (work.compute, work.memory), strict=True)]
    deal = torch.from_numpy(binding.deal(policy, *costs, sms)).to(device)
    counters = torch.zeros(sms + 3, dtype=torch.int32, device=device)
    trace_rows = 2 * max(compute, memory) if method in ("warp", "in turn") else compute + memory
    header = list(Header(known.index(method), work.multiplications, compute, memory, sms, _smem(device, ctas_per_sm),
                         trace_rows if trace else 0))  # fmt: skip
    operator = build.operator(FUSION, "", device)
    return lambda: operator(*data, deal, counters, header, FACTOR)


def _smem(device, ctas_per_sm: int | None) -> int:
    """Bytes of shared memory to ask for, so that no more CTAs fit on an SM."""
    import torch

    if ctas_per_sm is None:
        return LEAST_SMEM
    if not 1 <= ctas_per_sm <= 8:
        raise ValueError(f"ctas_per_sm: got {ctas_per_sm!r}, allowed are 1 to 8")
    capability = (8, 0) if device.type == "cpu" else torch.cuda.get_device_capability(device)
    return max(LEAST_SMEM, build.smem_per_sm(capability) // ctas_per_sm - 1024)


# ---------------------------------------------------------------- what ran where, and when


def record(work: Work, method: str, ctas_per_sm: int | None = 2, data: tuple | None = None, policy="integer ratio"):
    """One run's trace as a table, one row a CTA (a half of one, or one of its two loops): see pod.kernels.trace.frame.

    On the emulator, unless `data` lies on a GPU.
    """
    from pod.kernels.trace import frame

    return frame(that_ran(prepare(work, method, data or arrays(work), ctas_per_sm, trace=True, policy=policy)()), OPS)


def oracle(work: Work, ctas_per_sm: int | None = 2) -> float:
    """Microseconds on the emulator if both loops ran side by side and never met: the longer of the two alone."""
    return max(float(record(work, side, ctas_per_sm).end.max()) for side in ALONE)


def compare(work: Work, methods: Iterable[str] = METHODS, ctas_per_sm: int | None = 2):
    """One row a method on the emulator: microseconds, over the oracle, and the share of time with both on an SM."""
    import pandas as pd

    from pod.kernels.trace import both_share

    best, rows = oracle(work, ctas_per_sm), []
    for method in methods:
        trace = record(work, method, ctas_per_sm)
        rows.append((method, trace.end.max(), trace.end.max() / best, both_share(trace, ALONE)))
    return pd.DataFrame(rows, columns=["method", "us", "over_oracle", "together"])


def spans(work: Work, method: str, data: tuple) -> dict[str, np.ndarray]:
    """One run on a GPU: op, sm, start and end of what `record` has in its rows, as plain arrays."""
    rows = dict(zip(TRACE_FIELDS, that_ran(prepare(work, method, data, trace=True)()).cpu().numpy().T, strict=True))
    start, end = ((rows[name] - rows["start"].min()) / 1e3 for name in ("start", "end"))
    return {"op": np.array(OPS)[rows["op"]], "sm": rows["sm"], "start": start, "end": end}


def bars(table) -> list[tuple]:
    """The rows that pod.lab.show.gantt draws: (SM, start, end, operation)."""
    return [(r.sm, r.start, r.end, r.op) for r in table.itertuples()]


# ---------------------------------------------------------------- equal halves


def balanced(work: Work, seconds: Callable[[Work, str], float], rounds: int = 2) -> Work:
    """The same work with as many multiplications as make both loops take equally long alone.

    seconds(work, "compute" or "memory") is the time of one of them, in any unit.
    """
    for _ in range(rounds):
        scale = seconds(work, "memory") / seconds(work, "compute")
        work = replace(work, multiplications=max(1, round(work.multiplications * scale)))
    return work

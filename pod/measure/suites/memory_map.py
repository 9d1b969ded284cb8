"""The map of the machine: how long one load waits in each place where data can lie, and how much each place gives."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_uint64
from statistics import median

from pod.measure.bare import checked, library, pointer, stream

DOC = "one load's wait and all loads' bytes a second: registers, shared memory, L1, L2, DRAM."
KEYS = ("probe", "place", "kib")
UNITS = ("memory",)
ROUNDS, REPEATS = 5, 15
TIMER = "chase: clock64 and globaltimer within the kernel; stream: CUDA events around one call after a 256 MB fill"
LINE, HOPS, THREADS = 128, 1 << 15, 512
RINGS = tuple(16 << i for i in range(14))  # KiB of the ring that is chased through: 16 KiB to 128 MiB, twice an L2
SPANS = tuple(4096 << i for i in range(11))  # KiB that all threads together read: 4 MiB to 4 GiB
TOTAL = 8 << 20  # KiB that a stream reads in all, so that a first, cold round is little
FMA_BYTES = 16  # the operands of a multiply-add: three registers read, one written


def cases() -> list[dict]:
    """`kib`: how much memory is gone through; 0 where it is what one SM has."""
    rows = [("chase", "registers", 0), ("chase", "shared", 0), *(("chase", "global", kib) for kib in RINGS)]
    rows += [("stream", place, 0) for place in ("registers", "shared", "L1")]
    return [dict(zip(KEYS, row, strict=True)) for row in rows + [("stream", "global", kib) for kib in SPANS]]


def measure(case: dict) -> dict:
    """Cycles and nanoseconds of a hop, or gigabytes a second of the whole GPU; the other stays empty."""
    empty = dict.fromkeys(("cycles", "ns", "ns_p10", "ns_p90", "gbs", "gbs_p10", "gbs_p90"), "")
    return empty | (_chase if case["probe"] == "chase" else _stream)(case["place"], case["kib"])


# ---------------------------------------------------------------- one load


def _chase(place: str, kib: int) -> dict:
    import torch

    out, seen = torch.zeros(3, dtype=torch.int64, device="cuda"), []
    call = {"registers": _in_registers, "shared": _in_shared}.get(place) or _in_ring(kib)
    for _ in range(REPEATS):
        checked(call(pointer(out), stream()))
        assert out[2] != 0  # where the chase ended
        seen.append([x / HOPS for x in out.tolist()[:2]])
    cycles, ns = (sorted(column) for column in zip(*seen, strict=True))
    low, high = (ns[round(share * (REPEATS - 1))] for share in (0.1, 0.9))
    row = {"cycles": median(cycles), "ns": median(ns), "ns_p10": low, "ns_p90": high}
    return {name: round(x, 2) for name, x in row.items()}


def _in_registers(out, stream) -> int:
    return library("memory").pod_chase_registers(HOPS, out, stream)


def _in_shared(out, stream) -> int:
    return library("memory").pod_chase_shared(64, HOPS, out, stream)


def _in_ring(kib: int) -> Callable:
    """Through lines in random order, each with the address of the next."""
    import torch

    lines = kib * 1024 // LINE
    ring = torch.zeros(lines, LINE // 8, dtype=torch.int64, device="cuda")
    order = torch.randperm(lines, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    ring[order, 0] = ring.data_ptr() + order.roll(-1) * LINE
    return lambda out, stream: library("memory").pod_chase(c_uint64(ring.data_ptr()), lines, HOPS, out, stream)


# ---------------------------------------------------------------- all loads


def _stream(place: str, kib: int) -> dict:
    import torch

    from pod.measure import timing

    ctas = 2 * torch.cuda.get_device_properties("cuda").multi_processor_count
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    name, given, nbytes = _reads(place, kib, THREADS * ctas)
    function = getattr(library("memory"), name)
    call = lambda: checked(function(*given(), ctas, THREADS, pointer(sink), stream()))  # noqa: E731
    time = timing.shuffled({"x": call}, ROUNDS, 8.0)["x"]
    rates = {"gbs": time.ms, "gbs_p10": time.p90, "gbs_p90": time.p10}
    return {column: round(nbytes / ms / 1e6, 1) for column, ms in rates.items()}


def _reads(place: str, kib: int, threads: int) -> tuple[str, Callable, int]:
    """The function, its first arguments, and the bytes that it reads."""
    import torch

    many = 1 << 14
    if place == "registers":
        return "pod_stream_registers", lambda: (many,), many * 8 * FMA_BYTES * threads
    if place == "shared":
        return "pod_stream_shared", lambda: (many,), many * 16 * threads
    data = torch.zeros(max(kib << 10, 16 * threads), dtype=torch.uint8, device="cuda")
    if place == "L1":
        return "pod_stream_l1", lambda: (pointer(data), many), many * 16 * threads
    rounds = max(2, TOTAL // kib)
    return "pod_stream", lambda: (pointer(data), c_int64(kib << 10), rounds), rounds * (kib << 10)

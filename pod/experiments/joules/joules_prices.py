"""What each instruction of attention costs an H200 in energy: bytes, products, exponentials, multiply-adds, waiting.

Measured: one kind of work on every SM at a time, by the energy counter.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64
from functools import cache, partial

from pod.lab.measure import meter
from pod.lab.measure.bare import checked, library, pointer, stream

RECORDING = "joules-prices"
KEYS = ("work", "how", "data", "ctas")
UNITS = ("energy",)
WHOLE = ()  # all of them in the same rounds
ROUNDS = REPEATS = 2
TIMER, L2 = meter.TIMER, "warm"
SMS, LAUNCH_MS = 132, 10
MIB = 1 << 20
BYTES = {"dram": 4096 * MIB, "l2": 16 * MIB}
KV_ROW = 2048  # bytes from a token to the next: 8 heads of 128
PANEL, THREADS, VALUES, DEPTH = 128 * 128, 512, 16, 128  # csrc/micro/energy.cu
SHAPES = (8, 16, 64, 128, 256)
WAITS = ("test", "try", "hint", "barrier", "alone")  # Wait of csrc/micro/energy.cu
OPS = ("fma", "exp", "exp packed")  # likewise Op
# Where from, bytes a row, L2 promotion, evict first, CTAs that share
COPIES = {
    "dram": ("dram", 128, 256, 0, 1),
    "dram, KV": ("dram", KV_ROW, 256, 0, 1),
    "dram, KV, 128 B": ("dram", KV_ROW, 128, 0, 1),
    "dram, KV, 128 B, first": ("dram", KV_ROW, 128, 1, 1),
    "dram, KV, first": ("dram", KV_ROW, 256, 1, 1),
    "dram, pairs": ("dram", 128, 256, 0, 2),
    "l2": ("l2", 128, 256, 0, 1),
    "l2, KV": ("l2", KV_ROW, 256, 0, 1),
    "l2, 128 B": ("l2", 128, 128, 0, 1),
    "l2, pairs": ("l2", 128, 256, 0, 2),
}
PARTS = (33, 66, 99)  # CTAs: with fewer the clock is higher


def cases() -> list[dict]:
    rows = [("copy", how, "random", SMS) for how in COPIES]
    rows += [("copy", how, "zeros", SMS) for how in ("dram", "l2")]
    rows += [("copy", "l2", "random", ctas) for ctas in PARTS]
    rows += [("shared", "read", data, SMS) for data in ("random", "zeros")]
    rows += [("product", f"n{n} {place}", "random", SMS) for n in SHAPES for place in ("shared", "registers")]
    rows += [("product", f"n128 {place}", "zeros", SMS) for place in ("shared", "registers")]
    rows += [("product", "n128 shared", "random", ctas) for ctas in PARTS]
    rows += [("compute", how, "random", SMS) for how in OPS]
    rows += [("wait", how, "", SMS) for how in WAITS]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    return _all()[tuple(case[key] for key in KEYS)]


@cache
def _all() -> dict[tuple, dict]:
    works = {tuple(case.values()): _work(case) for case in cases()}
    found = meter.metered({name: call for name, (call, _) in works.items()}, ROUNDS)
    rows = {}
    for name, (_, counted) in works.items():
        spent = found.ways[name].columns("launch")
        rows[name] = dict.fromkeys(("bytes", "flops", "ops", "tries"), 0) | counted() | spent | found.columns()
    return rows


# ---------------------------------------------------------------- one kind of work


def _work(case: dict) -> tuple[Callable, Callable]:
    """A launch of about LAUNCH_MS, and what it counts."""
    make = {"copy": _copy, "shared": _shared, "product": _product, "compute": _compute, "wait": _wait}[case["work"]]
    return make(case["how"], case["data"], case["ctas"])


def _enough(launch: Callable[[int], None], a_round: dict, ctas: int) -> tuple[Callable, Callable]:
    """As many rounds as take LAUNCH_MS, and what they count, of what a CTA counts in one."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rounds, took = 64, 0.0
    while took < 1.0:
        rounds *= 4
        begin.record()
        launch(rounds)
        end.record()
        torch.cuda.synchronize()
        took = begin.elapsed_time(end)
    rounds = round(rounds * LAUNCH_MS / took)
    return partial(launch, rounds), lambda: {name: rounds * ctas * n for name, n in a_round.items()}


@cache
def _bits(nbytes: int, data: str, dtype: str = "bfloat16"):
    import torch

    kind = getattr(torch, dtype)
    values = torch.empty(nbytes // kind.itemsize, dtype=kind, device="cuda")
    return values.normal_() if data == "random" else values.zero_()


@cache
def _sink():
    import torch

    return torch.zeros(1, dtype=torch.int64, device="cuda")


def _copy(how: str, data: str, ctas: int):
    place, *rest, pair = COPIES[how]
    nbytes = BYTES[place]
    source = _bits(BYTES["dram"], data)
    lib = library("energy")

    def launch(rounds: int) -> None:
        checked(lib.pod_copy(pointer(source), c_int64(nbytes), *rest, pair, rounds, ctas, stream()))

    return _enough(launch, {"bytes": PANEL}, ctas)


def _shared(how: str, data: str, ctas: int):
    source, lib = _bits(MIB, data), library("energy")

    def launch(rounds: int) -> None:
        checked(lib.pod_read_shared(pointer(source), rounds, ctas, pointer(_sink()), stream()))

    return _enough(launch, {"bytes": THREADS * VALUES * 16}, ctas)


def _product(how: str, data: str, ctas: int):
    n, place = how[1:].split()
    source, lib = _bits(MIB, data), library("energy")
    kind = (int(n), int(place == "registers"))

    def launch(rounds: int) -> None:
        checked(lib.pod_multiply(pointer(source), *kind, rounds, ctas, pointer(_sink()), stream()))

    return _enough(launch, {"flops": lib.pod_groups(int(n)) * 2 * 64 * int(n) * DEPTH}, ctas)


def _compute(how: str, data: str, ctas: int):
    source, lib = _bits(MIB, data, "float32"), library("energy")

    def launch(rounds: int) -> None:
        checked(lib.pod_compute(pointer(source), OPS.index(how), rounds, ctas, pointer(_sink()), stream()))

    each = 2 if how == "exp packed" else 1
    return _enough(launch, {"ops": THREADS * VALUES * each}, ctas)


def _wait(how: str, data: str, ctas: int):
    """Tries: of one launch, counted by a warp's first lane."""
    import torch

    tries, launches, lib = torch.zeros(1, dtype=torch.int64, device="cuda"), [0], library("energy")

    def launch() -> None:
        launches[0] += 1
        checked(lib.pod_wait(WAITS.index(how), c_int64(LAUNCH_MS * 10**6), ctas, pointer(tries), stream()))

    return launch, lambda: {"tries": round(tries.item() / launches[0])}

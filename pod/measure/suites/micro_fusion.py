"""POD-Attention's Figure 7 on this GPU: two loops, one bound by arithmetic and one by memory, fused in every way."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pod import kernels, micro
from pod.micro import ALONE, METHODS, Work
from pod.trace import both_share

DOC = "a compute-bound and a memory-bound loop: alone, in turn, and fused in every way (Figure 7)."
KEYS = ("case", "iterations")
UNITS = ("fusion",)
ROUNDS, REPEATS = 5, 15

FIGURE7, EQUAL, LONG_COMPUTE, LONG_MEMORY = "figure 7", "equal tiles", "long compute tiles", "long memory tiles"
WAVE, WAVE_AND = "a full wave", "4 tiles more"
UNROLL = 16
BALANCE = 100  # iterations at which both loops take equally long alone
ITERATIONS = range(20, 201, 20)
CTAS_PER_SM = 2048 // micro.THREADS
ARTIFACT_CTAS, ARTIFACT_SLOTS = 2048, 108 * 8  # the paper's artifact on its A100
ROWS = (26, 105)  # of compute and memory in one of as many tiles as the artifact has CTAs: a millisecond on an H200
HALF_EACH = ("cta", "alternate", "sm-aware")  # CTAs are compute or memory, so each side gets half of them


def cases() -> list[dict]:
    rows = [(FIGURE7, n) for n in ITERATIONS]
    rows += [(case, BALANCE) for case in (EQUAL, LONG_COMPUTE, LONG_MEMORY, WAVE, WAVE_AND)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


@lru_cache
def slots() -> int:
    """CTAs that this GPU holds at once."""
    import torch

    return CTAS_PER_SM * kernels.sm_count(torch.device("cuda"))


def ctas() -> int:
    """As many CTAs a slot as the artifact launches, an even number."""
    return 2 * round(slots() * ARTIFACT_CTAS / ARTIFACT_SLOTS / 2)


def work(case: str, method: str) -> Work:
    """The work of a case, cut as this method cuts it, with one multiplication a step."""
    n = ctas()
    if case in (WAVE, WAVE_AND):  # tiles of one size
        n = slots() + (4 if case == WAVE_AND else 0)
        return Work(64 * n, 256 * n, 1, (n, n))
    tiles = {
        FIGURE7: (n // 2, n // 2) if method in HALF_EACH else (n, n),
        EQUAL: (8 * slots(), 8 * slots()),
        LONG_COMPUTE: (slots(), 8 * slots()),
        LONG_MEMORY: (8 * slots(), slots()),
    }
    return Work(ROWS[0] * n, ROWS[1] * n, 1, tiles[case])


@lru_cache(maxsize=1)
def data(compute: int, memory: int) -> tuple:
    return micro.arrays(Work(compute, memory, 1, (1, 1)), "cuda")


@lru_cache
def multiplications(case: str) -> int:
    """Of a step, so that both loops take equally long alone."""
    from statistics import median

    from pod.measure import timing

    if case == WAVE_AND:  # the same tiles as in the full wave
        return multiplications(WAVE)

    def ms(work: Work, side: str) -> float:
        work = replace(work, multiplications=unrolled(work.multiplications))
        return median(timing.samples(micro.prepare(work, side, data(work.compute, work.memory)), 9))

    return micro.balanced(replace(work(case, "serial"), multiplications=512), ms, rounds=4).multiplications


def unrolled(times: float) -> int:
    """As the kernel unrolls its loop: a remainder would cost more than it counts."""
    return UNROLL * max(1, round(times / UNROLL))


def measure(case: dict) -> dict:
    from pod.measure import timing

    name, iterations = case["case"], int(case["iterations"])
    whole = work(name, "serial")
    arrays, times = data(whole.compute, whole.memory), unrolled(multiplications(name) * iterations / BALANCE)
    works = {m: replace(work(name, m), multiplications=times) for m in (*ALONE, *METHODS)}
    calls = {m: micro.prepare(w, m, arrays) for m, w in works.items()}
    row = {"multiplications": times}
    for method, time in timing.shuffled(calls, ROUNDS, ms=6.0).items():
        row |= time.columns(method)
    for method in METHODS:
        row[f"{method} together"] = round(both_share(micro.spans(works[method], method, arrays), ALONE), 4)
    return row

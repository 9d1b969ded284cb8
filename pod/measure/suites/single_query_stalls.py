"""Where in vLLM's first decode kernel warps stand and wait: the instructions at which the sampler finds them most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from pod.measure import counters, peers
from pod.measure.suites import single_query

DOC = "the instructions at which warps wait most (ncu): query in registers, the same with keys in turn, query shared."
KEYS, WHOLE = ("kernel", "rank"), ()
UNITS = ("single-query",)
REPEATS = 1
BATCH, KERNELS, RANKS = "144 chats", ("registers", "registers_in_turn", "shared"), 40


def cases() -> list[dict]:
    return [{"kernel": kernel, "rank": rank} for kernel in KERNELS for rank in range(1, RANKS + 1)]


def measure(case: dict) -> dict:
    """Place in the program, share of all samples in percent, and the instruction as the GPU has it.

    `loads` and `barriers` count the global loads and the barriers that come before it in the program.
    """
    program = _programs()[KERNELS.index(case["kernel"])]
    total = sum(i["samples"] for i in program)
    place = sorted(range(len(program)), key=lambda i: -program[i]["samples"])[int(case["rank"]) - 1]
    before = [i["sass"] for i in program[:place]]
    return {
        "place": place, "instructions": len(program), "share": round(100 * program[place]["samples"] / total, 3),
        "loads": sum("LDG" in sass for sass in before), "barriers": sum("BAR.SYNC" in sass for sass in before),
        "sass": program[place]["sass"],
    }  # fmt: skip


@lru_cache
def _programs() -> list[list[dict]]:
    return counters.stalls(__name__)


def calls() -> Iterator[Callable]:
    for kernel in KERNELS:
        yield single_query.IDEAS[kernel](peers.Setting(single_query.batch(BATCH)))

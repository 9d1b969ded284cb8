"""The "+34 %" ladder run whole: no iteration is estimated.

Measured: every iteration of the ladder's run on LLaMA-13B, by each rung of the post in turn.
"""

import time

from pod.data import read
from pod.experiments.plus34 import vllm_ladder
from pod.serving import vllm2023

RECORDING = "vllm-run"
KEYS = ("rung",)
UNITS = vllm_ladder.UNITS
TIMER, L2 = "host clock from the first batch of the run to the last answer", "warm"
REPEATS = 1


def cases() -> list[dict]:
    return [{"rung": rung} for rung in vllm2023.LADDER]


def measure(case: dict) -> dict:
    place = vllm_ladder.lab()
    place.write_texts(vllm2023.chats())
    begin = time.perf_counter()
    log = vllm_ladder.plan(place.engines[vllm2023.LADDER[case["rung"]]])
    seconds = time.perf_counter() - begin
    tokens = sum(r.output for r in vllm2023.chats())
    return {"seconds": round(seconds, 3), "iterations": len(log.iterations), "requests": len(log.requests),
            "tokens": tokens, "requests_s": round(len(log.requests) / seconds, 3)}  # fmt: skip


def table():
    """A row a rung: requests a second, and their ratio to the first rung's."""
    df = read(RECORDING)
    return df.assign(gain=df.requests_s / df.requests_s.iloc[0])


def gain(rung: str = "one copy", over: str = "clean") -> float:
    rates = table().set_index("rung").requests_s
    return float(rates[rung] / rates[over])

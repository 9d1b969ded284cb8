"""LeanAttention, Figure 12: end to end, Phi-3 Medium, one request.

Measured: the operations of a Phi-3-Medium layer: linear ones by tokens, attention by context and by its kernel.
"""

from functools import cache, partial

import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.lean import lean, phi3
from pod.experiments.lean.shared import in_k
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers, timing
from pod.lab.show import style

FIGURE = Figure(
    title="End-to-end speed-up of stream-K decode attention, Phi-3 Medium, one request, P:D 8",
    chapter="11",
    method=f"Lines: operations of one layer measured on {a_card()}, summed over 40 layers and all steps; no host time. "
    "Open marks: whole answers of our engine on random weights, host and all.",
    data=("lean-layers", "lean-served"),
    composed=True,
)
RECORDING = "lean-layers"
KEYS = ("operation", "phase", "tokens")
UNITS = lean.UNITS
ROUNDS, REPEATS = 3, 9
K = lean.K
Q_HEADS, KV_HEADS, HEAD_DIM, MODEL, HIDDEN = 40, 10, 128, 5120, 17920
LINEAR = {"qkv": ((Q_HEADS + 2 * KV_HEADS) * HEAD_DIM, MODEL), "o": (MODEL, MODEL), "gate_up": (2 * HIDDEN, MODEL),
          "down": (MODEL, HIDDEN)}  # fmt: skip
CHUNK = 8 * K  # rows of prefill in one linear operation: enough for full speed
WAYS = ("lean", "rule_256", "single")


def cases() -> list[dict]:
    rows = [(name, phase, n) for name in LINEAR for phase, n in (("prefill", CHUNK), ("decode", 1))]
    rows += [("attention", "prefill", n * K) for n in (1, 4, 16, 64)]
    rows += [("attention", "decode", n * K) for n in (1, 2, 4, 8, 16, 32, 64, 96, 144)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


@cache
def _weights(name: str):
    import torch

    return torch.randn(LINEAR[name], device="cuda", dtype=torch.bfloat16) * 0.02


def measure(case: dict) -> dict:
    name, tokens = case["operation"], int(case["tokens"])
    if name in LINEAR:
        return _linear(name, tokens)
    prefill = case["phase"] == "prefill"
    batch = HybridBatch((tokens if prefill else 1,), (tokens,), Q_HEADS, KV_HEADS, HEAD_DIM)
    setting = peers.Setting(batch)
    if prefill:
        calls = {"ms": peers.fa3_prefill_exact(setting)}
    else:
        parts = lean.chosen_splits(batch) | {"lean": "stream-k"}
        calls = {"fa3": peers.fa3_decode(setting)} | {way: lean.lean(setting, parts[way]) for way in WAYS}
    return _columns(timing.shuffled(calls, ROUNDS, 2.0))


def _linear(name: str, tokens: int) -> dict:
    import torch

    weight = _weights(name)
    x = torch.randn(tokens, weight.shape[1], device="cuda", dtype=torch.bfloat16)
    return _columns(timing.shuffled({"ms": lambda: torch.nn.functional.linear(x, weight)}, ROUNDS, 2.0))


def _columns(times: dict) -> dict:
    return {column: value for name, time in times.items() for column, value in time.columns(name).items()}


# ---------------------------------------------------------------- what it shows

RULE, FA3, UNCUT = "the rule of 2.5.6", "FlashAttention-3", "no split (FlashAttention-2)"
BASES = {RULE: "rule_256", FA3: "fa3", UNCUT: "single"}


def table():
    """One row a prompt and base: the whole answer's time with that attention over the time with stream-K, put together
    from operations, and `served` by the engine where it was."""
    rows = []
    for prompt in phi3.PROMPTS:
        equal = sum(phi3.phases(prompt, "lean").values())
        for name, way in BASES.items():
            speedup = sum(phi3.phases(prompt, way).values()) / equal
            rows.append((prompt, prompt // phi3.RATIO, name, speedup, _served(way).get(prompt)))
    return pd.DataFrame(rows, columns=["prompt", "outputs", "base", "speedup", "served"])


def _answers():
    """Seconds of whole answers: one row a prompt and reading, one column a way."""
    return read("lean-served").pivot(index=["prompt", "reading"], columns="way", values="seconds")


def _served(way: str):
    """By prompt, the median over the readings of a way's time over stream-K's in the same reading."""
    df = _answers()
    return (df[way] / df.lean).dropna().groupby("prompt").median()


def draw(df):
    ax = style.axes(8.5, 3.4)
    for (name, part), colour in zip(df.groupby("base", sort=False), style.WORKERS[:3], strict=True):
        ax.plot(range(len(part)), part.speedup, "o-", color=colour, markersize=4, label=f"over {name}")
        ax.plot(range(len(part)), part.served, "D", color=colour, markersize=8, markerfacecolor="none")
        above = {RULE: 3, FA3: -9, UNCUT: -3}[name]
        ax.annotate(f"{part.speedup.iloc[-1]:.2f}", (len(part) - 1, part.speedup.iloc[-1]), (8, above),
                    textcoords="offset points", fontsize=9, color=colour)  # fmt: skip
    outputs = df.outputs.unique()
    stated = {1024: "lean.f12.first_1k", 16 << 10: "lean.f12.beyond_16k"}
    x = [list(outputs).index(n) for n in stated]
    ax.plot(x, [paper.value(i) for i in stated.values()], "*", color=style.INK, markersize=11,
            label="the paper, ONNX Runtime")  # fmt: skip
    ax.plot([], "D", color=style.INK, markersize=8, markerfacecolor="none", label="served by our engine")
    ax.axhline(1, color=style.FRAME, zorder=0)
    ax.set_xticks(range(len(outputs)), [f"{n}\n({in_k(8 * n)})" for n in outputs])
    ax.set(xlabel="output tokens (prompt)", ylabel="end-to-end speed-up", yscale="log", ylim=(0.9, 7))
    style.ticks(ax, (1, 1.5, 2, 3, 5), axis="y")
    style.legend(ax, loc="upper left")
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def at(outputs: int, column: str = "speedup", base: str = RULE) -> float:
    return float(table().set_index(["base", "outputs"])[column][base, outputs])


served = partial(at, column="served")
served_uncut = partial(at, column="served", base=UNCUT)


def composed_off() -> float:
    """Largest distance of a speed-up that was put together from the one that was served, %."""
    df = table().dropna()
    return float(100 * (df.speedup / df.served - 1).abs().max())


def missing_time():
    """Of a served answer under stream-K, the percent that the sum of its operations lacks, by prompt."""
    seconds = _answers().lean.groupby("prompt").median()
    composed = [1e-3 * sum(phi3.phases(prompt, "lean").values()) for prompt in seconds.index]
    return 100 * (1 - composed / seconds)


beyond_16k = partial(at, 16 << 10)  # at 16K outputs, the longest that was measured

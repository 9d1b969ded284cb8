"""What one kernel's gain becomes on its way from a layer to a user: Llama-3-8B on one H200, step by step."""

import pandas as pd

from pod.experiments.engine import (
    engine_best,
    engine_load,
    engine_parts,
    engine_runs,
    engine_served,
    engine_sm80,
    engine_windows,
)
from pod.experiments.pod import pod_12
from pod.lab import paper
from pod.lab.show import style
from pod.serving.shapes import SHAPES

MODEL, RATE = "llama-3-8b", 1.6  # requests a second, near capacity


def table() -> pd.DataFrame:
    """A row a step: how many times better ours at once is than two calls of FlashAttention-3, and than its own halves
    in turn."""
    parts, runs = (df[df.model == MODEL] for df in (engine_parts.table(), engine_runs.table()))
    offline = ("Sarathi, fa3", "Sarathi, hopper-serial")
    servers = engine_load.table(), engine_load.beside_our_halves()
    steps = {
        "attention of a batch, operators": _over_the_last(parts.attention),
        "an iteration, operators": _over_the_last(parts.ms),
        "an iteration's GPU time, real run": _over_the_last(runs.gpu_ms),
        "requests a minute, real run": [1 + engine_windows.gain(MODEL, system) / 100 for system in offline],
        f"load for a wait of {engine_load.SECONDS} s, simulated": [1 + engine_load.shift(df) / 100 for df in servers],
        f"wait at {RATE} requests a second, simulated": [engine_load.ratios(df)[RATE] for df in servers],
    }
    return pd.DataFrame.from_dict(steps, orient="index", columns=["over two calls", "by overlap alone"])


def by_base() -> pd.DataFrame:
    """The same with the faster call of FlashAttention-3 between the two, where that was run."""
    parts = engine_parts.table().query("model == @MODEL")
    two, _, once = parts.ms
    saved = two * engine_best.saved(MODEL) / 100
    faster = {
        "attention of a batch, operators": (parts.attention.iloc[0] - saved) / parts.attention.iloc[-1],
        "an iteration, operators": (two - saved) / once,
        "requests a minute, real run": 1 + engine_windows.gain(MODEL) / 100,
    }
    steps = table().rename(columns={"by overlap alone": "over ours in turn"})
    steps.insert(1, "over the faster call", pd.Series(faster, dtype=float).reindex(steps.index))
    return pd.concat([steps, served().reindex(columns=steps.columns)])


def fusing() -> pd.DataFrame:
    """A row a way to ask, a column a model: throughput that computing both halves at once adds to Sarathi with the same
    kernels, percent."""
    asked = {
        "the paper, A100s": lambda model: paper.value(f"pod.f12.over_sarathi_{pod_12.MODELS[model][2]}"),
        "simulated, A100s": lambda model: pod_12.gain(model, "Sarathi"),
        "measured, H200, an A100's instructions": engine_sm80.gain,
        "measured, H200, Hopper's instructions": engine_windows.fused,
    }
    models = engine_sm80.table().model
    rows = [[gain(model) for model in models] for gain in asked.values()]
    return pd.DataFrame(rows, index=list(asked), columns=[SHAPES[model].name for model in models])


FASTER = "beside it: over FlashAttention-3's faster call"


def draw_fusing(df):
    """A panel a model, a bar a way to ask. Below, pale: the last way with another kernel as its base."""
    ways = [*df.index, FASTER]
    axes = style.axes(9.5, 2.9, columns=len(df.columns), sharey=True)
    tones = [style.INK, *[style.colour("hybrid")] * (len(df) - 1), style.FRAME]
    for ax, model in zip(axes, engine_sm80.table().model, strict=True):
        name = SHAPES[model].name
        gains = [*df[name], engine_windows.gain(model)]
        ax.barh(range(len(ways)), gains, color=tones, height=0.62)
        for y, gain in enumerate(gains):
            ax.text(gain + 0.4, y, f"{gain:.1f}", va="center", fontsize=9)
        ax.axhline(len(df) - 0.5, color=style.INK, linewidth=0.8, linestyle=":")
        ax.set(yticks=range(len(ways)), ylim=(len(ways) - 0.5, -0.5), xlim=(0, 26), xlabel="more requests a minute, %")
        ax.set_title(name, fontsize=10)
    axes[0].set_yticklabels(ways)
    return axes[0].figure


def served() -> pd.DataFrame:
    """What users of a real server felt, at its two loads: FlashAttention-3's one call, its faster one there, and our
    halves in turn, over ours at once."""
    bases = {"over the faster call": "Sarathi", "over ours in turn": engine_served.TURN}
    felt = {"ttft_p50": "median wait", "ttft_p99": "P99 wait", "tbt_p99": "P99 gap"}
    rows = {f"{name}, real server, {load.split()[0]}": {
                base: engine_served.times(metric, system, engine_served.POD, load) for base, system in bases.items()}
            for metric, name in felt.items() for load in reversed(engine_served.LOADS)}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index").astype(float)


def _over_the_last(times: pd.Series) -> list[float]:
    """The pages have two calls, then the halves in turn, then both at once."""
    two, turn, once = times
    return [two / once, turn / once]

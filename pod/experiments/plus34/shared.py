"""What the figures of the "+34 %" post share: recordings, kernels by name, the ladder's seconds, timelines."""

from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from pod.data import hardware, kept, read
from pod.experiments.plus34 import vllm_timeline
from pod.lab.show import style
from pod.serving.vllm2023 import LADDER

CHATS = "144 chats"  # the batch that is like the run's: its mean size, ragged lengths
KERNELS = {
    "registers": "query in registers",
    "shared": "query in shared memory",
    "table_batch": "… and page numbers in batches",
    "atomics": "… and sums by atomicAdd",
    "registers_in_turn": "registers, keys in turn",
    "shared_in_turn": "shared memory, keys in turn",
    "lean": "lean (stream-K)",
    "hopper": "Hopper decode",
    "fa3": "FlashAttention-3",
}
COLOURS = {"registers": "#9aa7b4", "shared": style.WORKERS[2], "table_batch": "#ef9bb8", "atomics": "#c26a8c",
           "registers_in_turn": "#5c6b7a", "shared_in_turn": "#8f1f49", "lean": style.WORKERS[1],
           "hopper": style.WORKERS[0], "fa3": "#22303c"}  # fmt: skip


def share_of_dram(kv_bytes, ms):
    """Percent of the GPU's DRAM rate at which keys and values were read."""
    return 100e3 * hardware().memory_time(kv_bytes) / ms


def draw_sectors(starts: dict[str, np.ndarray], size: int = 8, sector: int = 32):
    """What one load of a warp fetches: by layout, the first byte that each lane asks for, `size` bytes from there on.
    Boxes are the sectors that are touched, in the order of their addresses; the number is the key, a cell a lane."""
    most = max(len(np.unique(first // sector)) for first in starts.values())
    axes = style.axes(9.5, 2.3, rows=len(starts))
    for ax, (layout, first) in zip(axes, starts.items(), strict=True):
        touched = np.unique(first // sector)
        for lane, byte in enumerate(first):
            x = list(touched).index(byte // sector) + byte % sector / sector
            ax.barh(0, size / sector, left=x, height=1, align="edge", color=style.BUSY["dram"], edgecolor="white")
            if lane % 2:
                ax.text(x, 0.5, lane // 2, ha="center", va="center", fontsize=9)
        for x in range(len(touched)):
            ax.add_patch(Rectangle((x, 0), 1, 1, facecolor="none", edgecolor=style.INK, linewidth=1.4))
        used = 100 * size * len(first) / (sector * len(touched))
        ax.text(len(touched) + 0.15, 0.5, f"{len(touched)} sectors, {used:.0f} % used", va="center", fontsize=10)
        ax.set_title(layout, loc="left", fontsize=10)
        ax.set(xlim=(-0.02, most + 3.2), ylim=(-0.08, 1.08))
        ax.axis("off")
    return axes[0].figure


# ---------------------------------------------------------------- the ladder


@lru_cache
def iterations():
    """Every iteration of the ladder's run: whether it has prompts, its tokens, and how many requests get one."""
    df = read("vllm-plan")
    return pd.DataFrame({"prompts": df.prompts > 0, "tokens": df.tokens, "batch": df.prompts + df.decodes})


def draw_run():
    """How many requests get a token in each iteration of the run, one of decodes or one of prompts."""
    every, ax = iterations(), style.axes(9.5, 2.4)
    for words, which, tone, height in (("decodes", ~every.prompts, style.DECODE, 225),
                                       ("prompts, a few at a time", every.prompts, style.PREFILL, 22)):  # fmt: skip
        ax.plot(every.index[which], every.batch[which], ".", color=tone, markersize=3)
        ax.text(60, height, words, color=tone, fontsize=9.5, va="center")
    ax.set(xlabel="iteration", ylabel="requests in the batch")
    return ax.figure


def whole_run(sample):
    """One variant's executed iterations, a table by iteration -> milliseconds of every iteration of the run.

    Decodes change slowly, so one that was not executed is taken to last as long as its neighbours. An iteration of
    prompts is as long as its tokens say, on the straight line that fits those that were executed.
    """
    every = iterations()
    out = every[[]].assign(**{column: 0.0 for column in sample.columns})
    prompts = every.prompts[sample.index].to_numpy()
    for column in sample.columns:
        known = sample[column][prompts]
        line = np.polyfit(every.tokens[known.index], known, 1)
        out.loc[every.prompts, column] = np.polyval(line, every.tokens[every.prompts])
        known = sample[column][~prompts]
        out.loc[~every.prompts, column] = np.interp(every.index[~every.prompts], known.index, known)
    return out


def ladder():
    """The executed iterations. The first is left out: it also loads kernels."""
    df = read("vllm-ladder")
    return df[df.iteration > 0]


@kept("vllm-ladder")
def totals():
    """Seconds of the whole run by (kernel, sampler): all, until the model is done, after that, and between batches."""
    rows = {}
    for variant, sample in ladder().groupby(["kernel", "sampler"]):
        parts = whole_run(sample.set_index("iteration")[["model_ms", "sampler_ms", "loop_ms"]]).sum() / 1e3
        rows[variant] = {"s": parts.sum(), "model_s": parts.model_ms, "sampler_s": parts.sampler_ms,
                         "loop_s": parts.loop_ms}  # fmt: skip
    return pd.DataFrame(rows).T


# ---------------------------------------------------------------- timelines

MODEL, SAMPLER, WAITS = style.colour("linear"), style.WORKERS[1], style.colour("host")
RUNGS = ("clean", "query in shared memory", "one multinomial", "one copy")


def profile(*rungs: str, view: str = "iteration"):
    """Bins of the profiled iteration of these rungs."""
    df = read("vllm-timeline")
    return df[df.rung.isin(rungs) & (df["view"] == view)].reset_index(drop=True)


def summary(df):
    """By rung: milliseconds of the iteration by the clock and of the GPU at work in it, and how much began.

    The clock is the ladder's, at this iteration of the run: a profiler slows the host down.
    """
    rows, samples = {}, dict(list(ladder().groupby(["kernel", "sampler"])))
    at = vllm_timeline.nearest_to_mean(iterations().batch.mask(iterations().prompts, 0))
    for rung, part in df.groupby("rung", sort=False):
        width = part.width_us.iloc[0] / 1e3
        sample = samples[LADDER[rung]].set_index("iteration")[["ms"]]
        ms, busy = whole_run(sample).ms[at], (part.model.sum() + part["sampler"].sum()) * width
        rows[rung] = {"ms": ms, "profiled_ms": len(part) * width, "idle": 100 * max(0.0, 1 - busy / ms),
                      "sampler_kernels": part.sampler_begun.sum(), "copies": part.copies_begun.sum()}  # fmt: skip
    return pd.DataFrame(rows).T


def strip(ax, part, title: str) -> None:
    """The GPU's work above, the host's waiting below."""
    edges = (part.start_us / 1e3).to_list() + [(part.start_us.iloc[-1] + part.width_us.iloc[-1]) / 1e3]
    shares = {"model": (part.model, MODEL), "sampler": (part["sampler"], SAMPLER), "host waits": (-part.waits, WAITS)}
    for name, (share, tone) in shares.items():
        floor = part.model.to_numpy() if name == "sampler" else 0
        ax.stairs(floor + share.to_numpy(), edges, baseline=floor, fill=True, color=tone, label=name)
    ax.axhline(0, color=style.INK, linewidth=0.8)
    ax.set(xlim=(0, edges[-1]), ylim=(-1.05, 1.05))
    ax.set_yticks([0.5, -0.5], ["GPU", "host"], fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.set_title(title, fontsize=10, loc="left")

"""PagedAttention post: how much of the memory that is held holds something."""

from functools import cache

import numpy as np
import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.metrics import memory, metrics
from pod.simulate.run import Setup, simulate
from pod.simulate.workload import Workload

FIGURE = Figure(
    id="vllm-02",
    title="Reserved against used memory: reserve-max and paging",
    chapter="12",
    method="Llama-3-8B on one A100 (analytical times), 400 requests of the conversation workload, limit 32K tokens",
    state="simulated",
)
SYSTEMS = {"reserve the maximum (Orca)": "orca", "paging (vLLM)": "vllm"}


@cache
def runs() -> dict:
    """Per system: seconds, tokens in the cache, tokens that the held blocks could take, pool size, metrics."""
    work, out = Workload("conversation", 400, seed=1), {}
    for name, scheduler in SYSTEMS.items():
        setup = Setup(scheduler=scheduler, max_tokens=32768, kernels="fa2")
        log = simulate(setup, work.requests())
        out[name] = *memory(log, setup.num_blocks(), setup.block_size), setup.num_blocks() * 16, metrics(log)
    return out


def table():
    """Time-weighted shares of the pool, the mean batch, and what it does to throughput."""
    rows = []
    for name, (end, used, held, pool, m) in runs().items():
        busy = end < 0.8 * end[-1]  # the last requests leave a pool empty that nobody fills again
        weight = np.diff(end, prepend=0.0)[busy]
        share = [100 * np.average(x[busy], weights=weight) / pool for x in (used, held)]
        rows.append((name, share[0], share[1] - share[0], 100 - share[1], m["requests_per_minute"]))
    columns = ["memory", "used_percent", "held_but_empty_percent", "free_percent", "requests_per_minute"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    axes = style.axes(9.5, 2.9, len(runs()), sharey=True)
    for ax, (name, (end, used, held, pool, _)), row in zip(axes, runs().items(), df.itertuples(), strict=True):
        minutes = end / 60
        ax.fill_between(minutes, 100 * held / pool, color=style.FRAME, label="held", linewidth=0)
        ax.fill_between(minutes, 100 * used / pool, color=style.WORKERS[0], label="used", linewidth=0)
        ax.axhline(100, color=style.INK, linestyle="--", linewidth=1)
        ax.set(xlim=(0, minutes[-1]), ylim=(0, 108), xlabel="minutes")
        ax.set_title(f"{name}\n{row.used_percent:.0f} % used, {row.requests_per_minute:.1f} requests/min", fontsize=10)
        ax.legend(loc="lower right", fontsize=9, framealpha=1)
    axes[0].set_ylabel("% of the pool")
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def unused_percent() -> float:
    """Share of the memory held under reserve-max that holds no token."""
    row = table().iloc[0]
    return float(100 * row.held_but_empty_percent / (row.held_but_empty_percent + row.used_percent))

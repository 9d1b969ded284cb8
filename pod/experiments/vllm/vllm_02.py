"""PagedAttention post: how much of the memory that is held holds something."""

import numpy as np
import pandas as pd

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.loop import serve
from pod.serving.schedulers import VLLM, Orca, Sarathi
from pod.simulate.metrics import memory, metrics
from pod.simulate.run import Setup, description, simulate
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Reserved against used memory: the server's limit for each, and paging",
    chapter="12",
    method="Llama-3-8B on one A100 (analytical times), 400 requests of the conversation workload, limit 32K tokens",
    data=("vllm-02",),
)
COMPUTED = "vllm-02"
KEYS = ("scheduler", "iteration")
SYSTEMS = {"reserve the server's limit for each": "orca", "paging (vLLM)": "vllm"}


LIMIT, OWN = 32768, 2048  # tokens that the server allows a request; that one with a limit of its own may answer
WORK = Workload("conversation", 400, seed=1)


class OwnLimit(ReservedPool):
    """Reserves for each request its own prompt and OWN tokens."""

    def claim(self, request) -> int:
        return request.prompt + OWN


def setup(scheduler: str) -> Setup:
    return Setup(scheduler=scheduler, max_tokens=LIMIT, kernels="fa2")


def cases() -> list[dict]:
    return [{"scheduler": scheduler} for scheduler in SYSTEMS.values()]


def measure(case: dict) -> list[dict]:
    """Of every iteration its end, tokens in the cache and tokens that the held blocks could take, and who is done."""
    on = setup(**case)
    log = simulate(on, WORK.requests())
    rows = zip(*memory(log, on.num_blocks(), on.block_size), log.iterations, strict=True)
    return [{"iteration": i, "end_s": float(end), "used": int(used), "held": int(held),
             "answered": len(event.finished)} for i, (end, used, held, event) in enumerate(rows)]  # fmt: skip


def runs() -> dict[str, tuple]:
    """Per system: its iterations, and the tokens that its pool could take."""
    df = read("vllm-02")
    return {name: (df[df.scheduler == scheduler], setup(scheduler).num_blocks() * setup(scheduler).block_size)
            for name, scheduler in SYSTEMS.items()}  # fmt: skip


def table():
    """Time-weighted shares of the pool, the mean batch, and what it does to throughput."""
    rows = []
    for name, (run, pool) in runs().items():
        end = run.end_s.to_numpy()
        busy = end < 0.8 * end[-1]  # the last requests leave a pool empty that nobody fills again
        weight = np.diff(end, prepend=0.0)[busy]
        used, held = (100 * np.average(tokens[busy], weights=weight) / pool for tokens in (run.used, run.held))
        rows.append((name, used, held - used, 100 - held, run.answered.sum() / (end[-1] / 60)))
    columns = ["memory", "used_percent", "held_but_empty_percent", "free_percent", "requests_per_minute"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    axes = style.axes(9.5, 2.9, len(df), sharey=True)
    longest = max(run.end_s.max() for run, _ in runs().values()) / 60
    for ax, (name, (run, pool)), row in zip(axes, runs().items(), df.itertuples(), strict=True):
        minutes = run.end_s.to_numpy() / 60
        ax.fill_between(minutes, 100 * run.held / pool, color=style.FRAME, linewidth=0)
        ax.fill_between(minutes, 100 * run.used / pool, color=style.WORKERS[0], linewidth=0)
        words = {"used": (row.used_percent / 2, style.letters_on(style.WORKERS[0]))}
        if row.held_but_empty_percent > 10:
            words["held, still empty"] = (row.used_percent + row.held_but_empty_percent / 2, style.INK)
        for text, (height, tone) in words.items():
            ax.text(0.5 * minutes[-1], height, text, color=tone, fontsize=10, ha="center", va="center")
        ax.axhline(100, color=style.INK, linestyle="--", linewidth=1)
        ax.set(xlim=(0, longest), ylim=(0, 108), xlabel="minutes")
        ax.set_title(f"{name}\n{row.used_percent:.0f} % used, {row.requests_per_minute:.1f} requests/min", fontsize=10)
    axes[0].set_ylabel("% of the pool")
    return axes[0].figure


def orca_over_pages(on: Setup) -> Sarathi:
    """Orca's policy where memory may run out, for which Orca has no rule: Sarathi, with every prompt in one chunk."""
    pages = PagedPool(on.num_blocks(), on.block_size)
    return Sarathi(pages, on.max_batch, chunk=LIMIT * on.max_batch, max_prefills=on.max_batch)


def apart() -> pd.DataFrame:
    """Requests a minute by policy and memory: Orca and vLLM as table() has them, and one step of the way at a time."""
    on, (orca, vllm) = setup("vllm"), table().itertuples()
    limit, own = (pool(on.num_blocks(), LIMIT, on.block_size) for pool in (ReservedPool, OwnLimit))

    def run(lane) -> float:
        return metrics(serve(WORK.requests(), [lane], on.executor(), **description(on, {})))["requests_per_minute"]

    words = f"reserve each one's prompt and {OWN:,} tokens"
    rows = [("Orca's", orca.memory, orca.requests_per_minute),
            ("vLLM's", orca.memory, run(VLLM(limit, on.max_batch, max_tokens=LIMIT))),
            ("Orca's", words, run(Orca(own, on.max_batch))),
            ("Orca's", vllm.memory, run(orca_over_pages(on))),
            ("vLLM's", vllm.memory, vllm.requests_per_minute)]  # fmt: skip
    return pd.DataFrame(rows, columns=["policy", "memory", "requests a minute"]).set_index("policy")


def unused_percent() -> float:
    """Share of the memory held under reserve-max that holds no token."""
    row = table().iloc[0]
    return float(100 * row.held_but_empty_percent / (row.held_but_empty_percent + row.used_percent))

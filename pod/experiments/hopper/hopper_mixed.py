"""Mixed reality: several chunks, ragged decodes, pages; beside a uniform batch, at the same work.

Measured: several chunks and ragged decodes in pages, beside one chunk and equal decodes of the same work.
"""

from random import Random

import pandas as pd

from pod.batch import HybridBatch
from pod.data import hardware, read
from pod.hardware import GPU
from pod.kernels import sm90
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.schedule import decide
from pod.schedule.work import Schedule

FIGURE = Figure(
    title="Several chunks, ragged decodes and pages cost little more than a uniform batch",
    says="Three chunks and small pages cost most, together 8 %; ragged chats at most 1 %",
    chapter="17",
    method="Time over the uniform contiguous batch of the same heads, less what more work explains (roofline sum).",
    data=("hopper-mixed",),
)
RECORDING = "hopper-mixed"
KEYS = ("batch", "page")
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
K = 1024


def _ragged(seed: int, count: int, total: int) -> list[int]:
    """`count` lengths from 1K to 64K, log-uniform, scaled to `total` tokens."""
    draw = Random(seed)
    lengths = [K * 2 ** draw.uniform(0, 6) for _ in range(count)]
    return [max(K, round(x * total / sum(lengths))) for x in lengths]


BATCHES = {
    "uniform 32/8": ([2 * K], [8 * K], [4 * K] * 128, 32, 8),
    "ragged decodes 32/8": ([2 * K], [8 * K], _ragged(1, 64, 512 * K), 32, 8),
    "three chunks 32/8": ([700, 1000, 348], [8 * K + 300, 8 * K - 100, 8 * K], [4 * K] * 128, 32, 8),
    "three chunks, ragged 32/8": ([700, 1000, 348], [8 * K + 300, 8 * K - 100, 8 * K], _ragged(1, 64, 512 * K), 32, 8),
    "uniform 32/4": ([1 * K], [16 * K], [16 * K] * 64, 32, 4),
    "three chunks, ragged 32/4": ([400, 200, 424], [16 * K - 77, 16 * K, 16 * K + 60], _ragged(2, 64, 1024 * K), 32, 4),
}


def cases() -> list[dict]:
    return [{"batch": name, "page": page} for name in BATCHES for page in (0, 16, 64, 256)]


def measure(case: dict) -> dict:
    """The batch, and in the same rounds the uniform one of its heads: alone they would meet different clocks."""
    batch, uniform = both(case)
    times = timing.shuffled({"ours": _call(batch), "uniform": _call(uniform)}, ROUNDS, 4.0)
    row = {"flops": batch.prefill.flops, "kv_bytes": batch.decode.kv_bytes}
    for name, time in times.items():
        row |= time.columns(name)
    return row


def both(case: dict) -> tuple[HybridBatch, HybridBatch]:
    return batch_of(case["batch"], case["page"]), batch_of(f"uniform {case['batch'].split()[-1]}", 0)


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    return [decide.hopper(batch, gpu.sms) for batch in both(case)]


def batch_of(name: str, page: int) -> HybridBatch:
    chunks, contexts, decodes, q_heads, kv_heads = BATCHES[name]
    q_lens, kv_lens = (*chunks, *[1] * len(decodes)), (*contexts, *decodes)
    return HybridBatch(q_lens, kv_lens, q_heads, kv_heads, 128, page_size=page or None)


def _call(batch: HybridBatch):
    plan, tensors = sm90.plan(batch), batch.tensors(device="cuda")
    return lambda: plan.run(*tensors)


# ---------------------------------------------------------------- what it shows

PAGES = {0: "contiguous", 256: "pages of 256", 64: "pages of 64", 16: "pages of 16"}


def table():
    """One row a batch and page size: work and time over those of the uniform batch, and what is left over, %."""
    df = read("hopper-mixed")
    kind, heads = (df.batch.str.rsplit(" ", n=1).str[i] for i in (0, 1))
    gpu = hardware()
    cost = gpu.compute_time(df.flops) + gpu.memory_time(df.kv_bytes)
    plain = df.assign(cost=cost, heads=heads)[(kind == "uniform") & (df.page == 0)].set_index("heads")
    beside = df.uniform if "uniform" in df else heads.map(plain.ours)  # timed in the same rounds, where recorded
    work, time = cost / heads.map(plain.cost), df.ours / beside
    return pd.DataFrame({"heads": heads, "batch": kind, "page": df.page, "ms": df.ours, "work": work, "time": time,
                         "excess_percent": 100 * (time / work - 1)})  # fmt: skip


def draw(df):
    ax = style.axes(9.5, 3.6)
    groups = list(dict.fromkeys(zip(df.batch, df.heads, strict=True)))
    tones = style.WORKERS[:4]
    for p, (page, name) in enumerate(PAGES.items()):
        part = df[df.page == page].set_index(["batch", "heads"]).excess_percent
        for g, key in enumerate(groups):
            x = g + 0.2 * (p - 1.5)
            ax.bar(x, part[key], 0.18, color=tones[p], label=name)
            up = part[key] >= 0
            label = f"{part[key]:.1f}" if part[key] else "0"
            at, side = (0.15, "bottom") if up else (-0.15, "top")
            ax.text(x, part[key] + at, label, ha="center", va=side, fontsize=8)
    ax.axhline(0, color=style.INK, linewidth=1)
    ax.axhline(10, color=style.INK, linewidth=1, linestyle="--")
    ax.text(len(groups) - 0.45, 10.1, "what we allow: 10 %", ha="right", va="bottom", fontsize=9)
    ax.set_xticks(range(len(groups)), [_label(kind, heads) for kind, heads in groups])
    ax.set(ylabel="% longer than uniform,\nsame work", xlim=(-0.6, len(groups) - 0.4))
    ax.set_ylim(min(-0.2, df.excess_percent.min() - 1), 12)
    ax.tick_params(axis="x", length=0)
    style.legend(ax, loc="upper left", ncols=4)
    return ax.figure


def _label(kind: str, heads: str) -> str:
    return kind.replace(", ", ",\n").replace("ragged decodes", "ragged\ndecodes") + f"\n{heads} heads"


# ---------------------------------------------------------------- what claims ask for


def worst() -> float:
    """Largest time over the uniform batch at the same work, %."""
    return float(table().excess_percent.max())

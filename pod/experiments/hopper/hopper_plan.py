"""What a plan costs, made by the host and made by the GPU, and whether the kernel is as fast with either.

Measured: updates of a workspace inside a CUDA graph, and the host's time for each way of planning, by sequences.
"""

import random
import time
from statistics import median

import numpy as np

from pod.batch import HybridBatch
from pod.data import hardware, read
from pod.experiments.hopper import hopper_any
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.schedule.decide import hopper

FIGURE = Figure(
    title="The GPU plans an iteration in 7 to 14 µs, up to 1,024 sequences",
    says="The GPU plans in some ten microseconds, the host in hundreds and more",
    chapter="17",
    method="Medians; Llama-3-8B's heads, pages of 16. On the GPU: 20 updates in a graph. On the host: until the call "
    "returns, the upload included.",
)
RECORDING = "hopper-plan"
KEYS = ("kind", "sequences")
UNITS = ("hopper", "plan")
HEADS = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16}
SEQUENCES, TOKENS = (16, 64, 256, 1024), 3_200_000  # of KV at most
KINDS = {"decodes": lambda n: [1] * n, "drafts": lambda n: [4] * n, "mixed": lambda n: [1000, 900] + [1] * (n - 2)}
COLOURS = style.WORKERS[:3]
UPDATES, ROUNDS, REPEATS = 20, 15, 1
TIMER = "CUDA events around 20 updates in a graph; the host's clock around a call, the GPU idle"
L2 = "warm"


def cases() -> list[dict]:
    return [{"kind": kind, "sequences": n} for kind in KINDS for n in SEQUENCES]


def lengths(kind: str, sequences: int) -> tuple[list[int], list[int]]:
    draw, q_lens = random.Random(sequences), KINDS[kind](sequences)
    most = min(12_000, TOKENS // sequences)
    return q_lens, [max(q, draw.randint(500, most)) for q in q_lens]


def measure(case: dict) -> dict:
    import torch

    import pod

    q_lens, kv_lens = lengths(**case)
    batch = HybridBatch(q_lens, kv_lens, **HEADS)
    draft = 4 if case["kind"] == "drafts" else 1
    work = pod.workspace(sum(q_lens), len(q_lens), max(kv_lens), **HEADS, draft=draft)
    lens = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in (q_lens, kv_lens)]
    row = {"update_us": round(_in_graph_us(lambda: work.update(*lens)), 2)}
    row["update_call_us"] = round(_host_us(lambda: work.update(*lens)), 1)
    row["update_from_host_us"] = round(_host_us(lambda: work.update(q_lens, kv_lens)), 1)
    row["plan_us"] = round(_host_us(lambda: pod.plan(q_lens, kv_lens, **HEADS, method="hopper")), 1)
    plan, (q, k, v, table) = pod.plan(batch, method="hopper"), batch.tensors(device="cuda")
    work.update(*lens)
    ways = {"planned": plan, "workspace": work}
    times = timing.shuffled({n: lambda p=p: pod.hybrid_attention(q, k, v, p, table) for n, p in ways.items()}, 5)
    return row | {name: round(t.ms, 5) for name, t in times.items()}


def _in_graph_us(update) -> float:
    import torch

    update()
    graph, marks = torch.cuda.CUDAGraph(), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with torch.cuda.graph(graph):
        for _ in range(UPDATES):
            update()
    taken = []
    for _ in range(ROUNDS):
        marks[0].record()
        graph.replay()
        marks[1].record()
        torch.cuda.synchronize()
        taken.append(1e3 * marks[0].elapsed_time(marks[1]) / UPDATES)
    return median(taken)


def _host_us(call) -> float:
    """Until the call returns, with nothing waiting on the GPU."""
    import torch

    taken = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        taken.append(1e6 * (time.perf_counter() - start))
    return median(taken)


# ---------------------------------------------------------------- what it shows
def table():
    df = read(RECORDING)
    return df.assign(over_planned=df.planned / df.workspace)


def draw(df):
    ax = style.axes(7.5, 3.2)
    lines = {"plan_us": ("the host plans and uploads", "-"), "update_us": ("the GPU plans", "--")}
    for colour, (kind, part) in zip(COLOURS, df.groupby("kind", sort=False), strict=True):
        for column, (name, dash) in lines.items():
            ax.plot(part.sequences, part[column], dash, color=colour, marker="o", markersize=4, label=f"{name}: {kind}")
    ax.set(xscale="log", yscale="log", xlabel="sequences of a batch", ylabel="µs")
    style.ticks(ax, SEQUENCES, SEQUENCES)
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax.figure


def shorter_layers() -> list[tuple[str, float]]:
    """Of the 300 batches of hopper-any, the kind and the microseconds of those whose attention, in one layer, does not
    take longer than the largest plan of their sort that was timed, with chunks or without."""
    most, found = table().groupby("kind").update_us.max(), []
    for mix, us in zip(hopper_any.drawn(), 1e3 * hopper_any.table().ours, strict=True):
        drafts = max(mix.batch.q_lens) > 1
        chunks = us < most.max() and drafts and len(hopper(mix.batch, hardware().sms).prefill)
        if us < (most.mixed if chunks else most.drafts if drafts else most.decodes):
            found.append((mix.kind, float(us)))
    return found


def layers_in_words() -> str:
    short, many = sorted(us for _, us in shorter_layers()), len(hopper_any.drawn())
    words = f"one layer's attention takes longer than a plan in {many - len(short)} of {many} batches like a server's"
    return words + (f", and {short[0]:.1f} to {short[-1]:.1f} µs in the others" if short else "")


def slowdown() -> float:
    """Time of the kernel with the GPU's plan over that with the host's: geometric mean over the cases."""
    df = table()
    return float(np.exp(-np.log(df.over_planned).mean()))

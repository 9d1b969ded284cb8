"""LeanAttention, Figure 9: the heads shared by several GPUs, one process a GPU.

Measured: decode with the heads shared by every GPU here (tensor parallelism); the time is that of the slowest GPU.
"""

import time
from functools import cache, partial
from statistics import quantiles

from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.lean import lean, shared
from pod.lab.figure import Figure
from pod.lab.measure import peers, ranks, timing
from pod.lab.show import style

FIGURE = Figure(
    title="Heads shared by several GPUs: stream-K over FlashDecoding by context, heads and batch",
    chapter="11",
    method="As many heads a GPU as in the paper, head dimension 64, fp16; the time is that of the slowest GPU.",
    data=("lean-parallel",),
    says="Two GPUs show the picture of one: nothing is sent",
)
RECORDING = "lean-parallel"
KEYS = ("panel", "gpus", "heads", "batch", "context")
UNITS = lean.UNITS
REPEATS = 12
K = lean.K
PEERS = {"fa3": peers.fa3_decode} | lean.FLASHINFER
WAYS = ("lean", "auto", "rule_256", "rule_now", *PEERS, "paper_lean", "paper_rule_256")
PER_GPU = 32  # heads of the paper's model on each of its eight GPUs


def cases() -> list[dict]:
    """Heads a GPU are the paper's: 256 and 64 to 512 on eight."""
    import torch

    gpus = max(1, torch.cuda.device_count())
    rows = [("9a", PER_GPU, 4, n * K) for n in (1, 4, 16, 64, 256, 1024)]
    rows += [("9b", heads, 4, 256 * K) for heads in (8, 20, 32, 64)]
    rows += [("9c", PER_GPU, b, 64 * K) for b in (1, 2, 4, 8, 16, 32)]
    return [dict(zip(KEYS, (panel, gpus, gpus * heads, b, n), strict=True)) for panel, heads, b, n in rows]


def measure(case: dict) -> dict:
    return _measured(int(case["gpus"]))[tuple(case[key] for key in KEYS)]


@cache
def _measured(gpus: int) -> dict[tuple, dict]:
    """All cases at once: the processes start only once."""
    rows = cases()
    return {tuple(case[key] for key in KEYS): row for case, row in zip(rows, run(rows, gpus), strict=True)}


# ---------------------------------------------------------------- one process a GPU
def run(rows: list[dict], world: int, device: str = "cuda", repeats: int = REPEATS, ways=WAYS) -> list[dict]:
    """Measure `rows` on `world` processes, one a GPU; on "cpu" they run the emulator."""
    return ranks.run(_rows, world, device, rows, repeats, ways)


def _rows(rank: int, world: int, device: str, rows: list[dict], repeats: int, ways) -> list[dict]:
    return [_row(case, world, device, repeats, ways) for case in rows]


def _row(case: dict, world: int, device: str, repeats: int, ways) -> dict:
    """Median, p10 and p90 over the repeats of the slowest rank's milliseconds; a way that fails is left empty."""
    import torch

    batch = _shard(case, world)
    setting = peers.Setting(batch, device=device)
    calls, _ = peers.ready(setting, {way: partial(_maker, way) for way in ways})
    row = {"kv_bytes_per_gpu": batch.kv_bytes}
    for way in ways:
        if not _everyone(way in calls, device):
            continue
        slowest = sorted(_slowest(calls[way], device, repeats))
        low, *_, high = quantiles(slowest, n=10, method="inclusive")
        times = {"": slowest[len(slowest) // 2], "_p10": low, "_p90": high}
        row |= {f"{way}{end}": round(ms, 5) for end, ms in times.items()}
    del setting, calls
    if device == "cuda":
        torch.cuda.empty_cache()
    return row


def _shard(case: dict, world: int) -> HybridBatch:
    """This process's heads. Attention of a head needs no other head, so nothing is sent before the next layer's sum."""
    heads, requests = int(case["heads"]) // world, int(case["batch"])
    return HybridBatch((1,) * requests, (int(case["context"]),) * requests, heads, heads, 64, dtype="float16")


def _maker(way: str, s):
    if way in PEERS:
        return PEERS[way](s)
    sms = 4 if s.device == "cpu" else lean.SMS
    paper = {"worker": "cta128"} if way.startswith("paper") else {}
    cuts = lean.chosen_splits(s.batch, sms) | {"lean": "stream-k", "auto": "auto"}
    return lean.lean(s, cuts[way.removeprefix("paper_")], **paper)


def _everyone(yes: bool, device: str) -> bool:
    import torch
    import torch.distributed as dist

    vote = torch.tensor([int(yes)], device=device)
    dist.all_reduce(vote, dist.ReduceOp.MIN)
    return bool(vote.item())


def _slowest(call, device: str, repeats: int) -> list[float]:
    """Milliseconds of each repeat on the rank that took longest; all ranks start together."""
    import torch
    import torch.distributed as dist

    times = []
    for _ in range(repeats):
        dist.barrier()
        times.append(timing.samples(call, 1)[0] if device == "cuda" else _wall_ms(call))
    longest = torch.tensor(times, device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.tolist()


def _wall_ms(call) -> float:
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


# ---------------------------------------------------------------- what it shows

PANELS = {"9a": ("context", "context, 32 heads a GPU, batch 4"), "9b": ("heads", "heads of all GPUs, batch 4, 256K"),
          "9c": ("batch", "batch, 32 heads a GPU, 64K")}  # fmt: skip


TONES = style.WORKERS[3], style.WORKERS[0], style.INK, style.WORKERS[4]


def table():
    """One row a batch: the rebuilt tile's time under FlashDecoding's split over that under equal ranges; of the Hopper
    kernel the same, also over the faster of FlashInfer's two decodes."""
    df = read("lean-parallel")
    keys = ["panel", "gpus", "heads", "batch", "context", "lean", "paper_lean"]
    gains = {"paper's tile over the rule of 2.5.6": df.paper_rule_256 / df.paper_lean}
    gains |= {"Hopper kernel over the rule of 2.5.6": df.rule_256 / df.lean}
    gains |= {"Hopper kernel over today's rule": df.rule_now / df.lean}
    gains |= {"Hopper kernel over FlashInfer": shared.with_faster_flashinfer(df).flashinfer / df.lean}
    return df[keys].assign(**gains)


def draw(df):
    axes = style.axes(9.5, 3.5, columns=3, sharey=True)
    for ax, (panel, (x, words)) in zip(axes, PANELS.items(), strict=True):
        part = df[df.panel == panel].sort_values(x, kind="stable")
        for name, colour in zip(df.columns[-len(TONES) :], TONES, strict=True):
            ax.plot(part[x], part[name], "o-", color=colour, markersize=4, label=name)
        ax.axhline(1, color=style.FRAME, zorder=0)
        if x == "context":
            ax.set_xscale("log", base=2)
            ax.set_xticks(part[x], [shared.in_k(n) for n in part[x]], fontsize=8)
        ax.set(xlabel=words)
    axes[0].set_ylabel(f"speed-up on {df.gpus.iloc[0]} GPUs")
    return style.legend_outside(axes[0], "upper", 4)


# ---------------------------------------------------------------- what claims ask for


def least_gain() -> float:
    df = table()
    return float(df[df.panel == "9a"]["paper's tile over the rule of 2.5.6"].min())

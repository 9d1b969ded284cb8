"""LeanAttention's figure 9: heads shared by all GPUs here, one process a GPU, as long as the slowest one takes."""

from __future__ import annotations

import time
from functools import cache, partial
from statistics import quantiles

from pod.batch import HybridBatch
from pod.measure import peers, ranks, timing
from pod.measure.suites import lean

DOC = "decode with the heads shared by every GPU here (tensor parallelism); the time is that of the slowest GPU."
KEYS = ("panel", "gpus", "heads", "batch", "context")
UNITS = lean.UNITS
REPEATS = 12
K = lean.K
PEER = "fa3"
WAYS = ("lean", "auto", "rule_256", "rule_now", PEER, "paper_lean", "paper_rule_256")
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
    if way == PEER:
        return peers.fa3_decode(s)
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

"""Speed of the kernels of csrc/hybrid.cu on this GPU: `python -m pod.measure.bench_kernels [SECTION ...]`.

prefill: against torch's FlashAttention-2. decode: against the DRAM rate that a torch reduction reads at. methods: all
methods and choices on the batches of the POD paper. sweep: pod as it chooses, over serial, on a sample of the paper's
sweep. Cold L2, medians of shuffled rounds; a table and its provenance go to data/fresh/.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

from pod.batch import TABLE1, HybridBatch
from pod.measure import provenance
from pod.measure.suites import hopper_sweep
from pod.measure.timing import TIMER, shuffled

CSRC = ("csrc/hybrid.cu", "csrc/bindings.cpp")
ROUNDS, K = 5, 1024
KEYS = ("section", "batch", "candidate")
FLASH = "torch FlashAttention-2"


def call_of(batch: HybridBatch, seed: int = 0, **choice) -> Callable:
    """A call of our kernel on this batch: made once, timed often."""
    import torch

    import pod

    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, dtype=getattr(torch, batch.dtype), **choice)
    q, k, v = tensors(batch)
    return lambda: pod.hybrid_attention(q, k, v, plan)


_held: dict = {}


def tensors(batch: HybridBatch):
    """q and a contiguous cache; only those of the batch at hand are kept."""
    import torch

    if _held.get("batch") != batch:
        _held.clear()
        torch.cuda.empty_cache()
        dtype = getattr(torch, batch.dtype)
        shape = (len(batch.kv_lens), max(batch.kv_lens), batch.num_kv_heads, batch.head_dim)
        q = torch.randn(sum(batch.q_lens), batch.num_q_heads, batch.head_dim, device="cuda", dtype=dtype)
        _held.update(batch=batch, x=(q, *(torch.empty(shape, device="cuda", dtype=dtype).normal_() for _ in "kv")))
    return _held["x"]


def rows_of(section: str, name: str, batch: HybridBatch, candidates: dict[str, Callable], base: str) -> Iterator[dict]:
    times = shuffled(candidates, ROUNDS)
    for candidate, t in times.items():
        yield {
            "section": section, "batch": name, "candidate": candidate, "ms": f"{t.ms:.5f}", "ms_p10": f"{t.p10:.5f}",
            "ms_p90": f"{t.p90:.5f}", "tflops": f"{batch.flops / t.ms / 1e9:.1f}",
            "kv_gb_per_s": f"{batch.kv_bytes / t.ms / 1e6:.0f}", "base": base,
            "base_over_this": f"{times[base].ms / t.ms:.4f}",
        }  # fmt: skip


def alone(batch: HybridBatch) -> dict[str, Callable]:
    return {f"{side} alone": call_of(getattr(batch, side), method="serial") for side in ("prefill", "decode")}


# ---------------------------------------------------------------- sections


def prefill() -> Iterator[dict]:
    import torch

    for length in (2 * K, 4 * K, 8 * K, 16 * K):
        for heads in ((32, 32), (32, 8)):
            batch = HybridBatch.of(length, length, 0, 1, *heads)
            q, k, v = tensors(batch)
            group = batch.group
            fa = [q[None], *(x.repeat_interleave(group, 2) if group > 1 else x for x in (k, v))]

            def flash(fa=fa, n=length):
                return torch.ops.aten._flash_attention_forward(*fa, None, None, n, n, 0.0, True, False)

            candidates = {FLASH: flash}
            candidates |= {f"ours, {c} CTAs an SM": call_of(batch, method="serial", ctas_per_sm=c) for c in (2, 4)}
            yield from rows_of("prefill", f"{length} {heads[0]}/{heads[1]}", batch, candidates, FLASH)


DECODES = {
    "64 x 16K, 32/4": HybridBatch.of(0, 1, 64, 16 * K, 32, 4),
    "66 x 16K, 32/4": HybridBatch.of(0, 1, 66, 16 * K, 32, 4),
    "67 x 16K, 32/4": HybridBatch.of(0, 1, 67, 16 * K, 32, 4),
    "80 x 12K, 16/4": HybridBatch.of(0, 1, 80, 12 * K, 16, 4),
    "32 x 8K, 16/16": HybridBatch.of(0, 1, 32, 8 * K, 16, 16),
    "128 x 4K, 32/8": HybridBatch.of(0, 1, 128, 4 * K, 32, 8),
    "1 x 128K, 32/8": HybridBatch.of(0, 1, 1, 128 * K, 32, 8),
    "64 ragged 1K-64K, 32/8": HybridBatch(
        [1] * 64, [random.Random(i).randint(1, 64) * K for i in range(64)], 32, 8, 128
    ),
}


def decode() -> Iterator[dict]:
    import torch

    for name, batch in DECODES.items():
        _, k, v = tensors(batch)
        flat = [x.view(torch.float32).flatten() for x in (k, v)]  # reads as many bytes as the caches have
        candidates = {"torch sum of the caches": lambda flat=flat: [x.sum() for x in flat]}
        candidates |= {
            f"ours, {splits}, {c} CTAs an SM": call_of(batch, method="serial", ctas_per_sm=c, decode_splits=splits)
            for splits in ("auto", "stream-k")
            for c in (2, 4)
        }
        yield from rows_of("decode", name, batch, candidates, "torch sum of the caches")


BATCHES = {
    "16/4, 1K@12K + 80 x 12K (C0)": TABLE1["C0"],
    "16/4, 12K@12K + 220 x 12K (C1)": TABLE1["C1"],
    "16/4, 16K@16K + 250 x 12K (C2)": TABLE1["C2"],
    "32/4, 512@16K + 66 x 16K": HybridBatch.of(512, 16 * K, 66, 16 * K, 32, 4),
    "32/4, 512@16K + 67 x 16K": HybridBatch.of(512, 16 * K, 67, 16 * K, 32, 4),
    "16/16, 1K@8K + 32 x 8K": HybridBatch.of(1 * K, 8 * K, 32, 8 * K, 16, 16),
    "32/8, 2K@8K + 128 x 4K": HybridBatch.of(2 * K, 8 * K, 128, 4 * K, 32, 8),
    "32/8, 2K@32K + 64 x 32K": HybridBatch.of(2 * K, 32 * K, 64, 32 * K, 32, 8),
}


def methods() -> Iterator[dict]:
    for name, batch in BATCHES.items():
        choices = {m: {"method": m} for m in ("serial", "streams", "cta", "warp", "pod")}
        for c in (2, 4):
            for policy in ("50:50", "proportional", "integer ratio"):
                choices[f"pod, {c} CTAs an SM, {policy}"] = {"method": "pod", "ctas_per_sm": c, "policy": policy}
            choices[f"pod, {c} CTAs an SM, stream-k"] = {"method": "pod", "ctas_per_sm": c, "decode_splits": "stream-k"}
            choices[f"pod, {c} CTAs an SM, whole decodes"] = {"method": "pod", "ctas_per_sm": c, "decode_splits": 1}
        candidates = {label: call_of(batch, **choice) for label, choice in choices.items()}
        candidates |= alone(batch)
        yield from rows_of("methods", name, batch, candidates, "serial")


def sweep(count: int = 60) -> Iterator[dict]:
    for case in random.Random(0).sample(hopper_sweep.cases(), count):
        batch = hopper_sweep.batch_of(case)
        chunk, decodes = f"{batch.q_lens[0]}@{batch.kv_lens[0]}", f"{case['decodes']} x {case['context']}"
        name = f"{case['model']} TP{case['tp']}, {chunk} + {decodes}"
        candidates = {m: call_of(batch, method=m) for m in ("serial", "pod")}
        candidates |= alone(batch)
        yield from rows_of("sweep", name, batch, candidates, "serial")


SECTIONS = {"prefill": prefill, "decode": decode, "methods": methods, "sweep": sweep}


# ---------------------------------------------------------------- the bars


def verdicts(rows: list[dict]) -> Iterator[str]:
    """The bars of this family, one line each."""

    def gains(section: str, starts: str) -> dict[str, float]:
        best: dict[str, float] = {}
        for r in rows:
            if r["section"] == section and r["candidate"].startswith(starts):
                best[r["batch"]] = max(best.get(r["batch"], 0.0), float(r["base_over_this"]))
        return best

    for section, starts, bar in (("prefill", "ours, 2", 1.0), ("decode", "ours, auto, 2", 0.85)):
        if got := gains(section, starts):
            worst = min(got, key=got.get)
            yield f"{section}: at least {bar} of the base everywhere? {got[worst] >= bar} ({worst}: {got[worst]:.3f})"
    pods = [float(r["base_over_this"]) for r in rows if r["section"] == "sweep" and r["candidate"] == "pod"]
    if pods:
        yield f"pod over serial: mean {mean(pods):.3f} (bar 1.28), least {min(pods):.3f} (bar 0.99), of {len(pods)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="*", help=f"any of {', '.join(SECTIONS)}; all when left out")
    parser.add_argument("--out", type=Path, default=provenance.ROOT / "data" / "fresh" / "kernels.csv")
    args = parser.parse_args()
    if unknown := set(args.section) - SECTIONS.keys():
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    rows: list[dict] = []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with provenance.watch() as watched:
        for section in args.section or SECTIONS:
            for row in SECTIONS[section]():
                rows.append(row)
                print(f"{row['section']:8} {row['batch']:42} {row['candidate']:38} {float(row['ms']):8.4f} ms "
                      f"{float(row['tflops']):6.0f} TFLOP/s {float(row['kv_gb_per_s']):6.0f} GB/s "
                      f"{float(row['base_over_this']):6.3f} x", flush=True)  # fmt: skip
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    command = " ".join(["python -m pod.measure.bench_kernels", *args.section])
    provenance.write(args.out, watched, keys=KEYS, timer=TIMER, l2="cold", repeats=ROUNDS, csrc=CSRC, command=command)
    print("\n".join(verdicts(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What happens when one side runs dry: ever more decodes beside a chunk, and longer chunks beside some decodes."""

from __future__ import annotations

from statistics import median

from pod.batch import HybridBatch
from pod.measure import timing

DOC = "fused and each half alone while one side grows, and when each side of every SM ended (32/8 heads, bf16)."
KEYS = ("grows", "chunk", "decodes")
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
K = 1024
CONTEXT, DECODE_CONTEXT, Q_HEADS, KV_HEADS = 8 * K, 4 * K, 32, 8
MORE_DECODES = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)  # beside 2K @ 8K
LONGER_CHUNKS = (512, 1 * K, 1536, 2 * K, 2560, 3 * K, 4 * K, 5 * K, 6 * K, 7 * K, 8 * K)  # beside 96 decodes
LAUNCHES = 5  # with a trace


def cases() -> list[dict]:
    rows = [("decode", 2 * K, n) for n in MORE_DECODES] + [("prefill", chunk, 96) for chunk in LONGER_CHUNKS]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    from pod import hopper

    batch = HybridBatch.of(case["chunk"], CONTEXT, case["decodes"], DECODE_CONTEXT, Q_HEADS, KV_HEADS)
    parts = {"ours": batch, "prefill": batch.prefill, "decode": batch.decode}
    calls = {name: _call(part) for name, part in parts.items()}
    times = timing.shuffled(calls, ROUNDS)
    row = {"flops": batch.prefill.flops, "kv_bytes": batch.decode.kv_bytes, "yields": hopper.prefill_yields(batch)}
    row |= {name: round(time.ms, 5) for name, time in times.items()}
    return row | _ends(calls["ours"])


def _call(batch: HybridBatch):
    from pod import hopper

    plan, tensors = hopper.make_plan(batch), batch.tensors(device="cuda")
    return lambda **options: hopper.run(plan, *tensors, **options)


def _ends(call) -> dict:
    """Microseconds from the first stamp to the end of each side: the first SM, the mean of the SMs, the last; and how
    long an SM waits on average with both sides done. Medians over some launches with a cold L2."""
    launches = []
    for _ in range(LAUNCHES):
        timing.samples(lambda: None, 1)  # empties L2
        _, stamps = call(trace=True)
        stamps = stamps.double().cpu() / 1e3
        ends = stamps[:, :, 1] - stamps[stamps > 0].min()
        sides = {"prefill": ends[:, 2:4].amax(1), "decode": ends[:, 4]}
        row = {f"{side}_{name}_us": float(f(x)) for side, x in sides.items()
               for name, f in (("first", min), ("mean", lambda x: x.mean()), ("last", max))}  # fmt: skip
        done = ends[:, 2:].amax(1)
        launches.append(row | {"idle_us": float((done.max() - done).mean())})
    return {name: round(median(row[name] for row in launches), 2) for name in launches[0]}

"""What eleven hybrid batches cost an H200 in energy, back to back at the power limit and rested at the full clock.

Measured: two calls of FlashAttention-3, this kernel's halves in turn and both at once, by the energy counter.
"""

from __future__ import annotations

from pod.batch import HybridBatch
from pod.experiments.hopper import hopper_peers
from pod.lab.measure import meter, peers

RECORDING = "joules"
KEYS = hopper_peers.KEYS
UNITS = ("hopper",)
ROUNDS = REPEATS = 2
TIMER = f"{meter.TIMER}; cold: {peers.timing.TIMER}"
WAYS = {"fa3_serial": peers.fa3_serial, "ours_serial": peers.ours_serial, "ours": peers.ours}
REST = 3.0  # times the call: so the power limit is far away
CYCLES_A_MS = 1.98e6  # at the highest clock


def cases() -> list[dict]:
    return hopper_peers.cases()


def measure(case: dict) -> dict:
    """Of every way: milliseconds with a cold L2; back to back; and rested, less what the rest takes."""
    heads = (case["q_heads"], case["kv_heads"])
    batch = HybridBatch.of(case["chunk"], case["context"], case["decodes"], case["decode_context"], *heads)
    calls, holes = peers.ready(peers.Setting(batch), WAYS)
    cold = peers.timing.shuffled(calls, 3, 4.0)
    cycles = int(REST * max(time.ms for time in cold.values()) * CYCLES_A_MS)
    trains = {f"{name}_rested": meter.rested(call, cycles) for name, call in calls.items()}
    found = meter.metered(calls | trains | {"rest": meter.rested(None, cycles)}, ROUNDS, seconds=0.35, warm=0.15)
    row = {"flops": batch.prefill.flops, "kv_bytes": batch.decode.kv_bytes} | found.columns()
    for name, time in cold.items():
        row |= time.columns(name) | found.ways[name].columns(f"{name}_steady")
        row |= _less(found.ways[f"{name}_rested"], found.ways["rest"], f"{name}_rested")
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}


def _less(train: meter.Energy, rest: meter.Energy, name: str) -> dict[str, float]:
    """What one call of a train takes over the rest alone, and the clock and power of the train."""
    ms, millijoules = train.ms - rest.ms, train.millijoules - rest.millijoules
    seen = {"ms": ms, "mj": millijoules, "rest_watts": rest.watts, "mhz": train.sm_clock_mhz}
    return {f"{name}_{column}": round(value, 5) for column, value in seen.items()}

"""Figure 6: every chunk of a 16K prompt beside decodes that fill whole waves, and beside one request more."""

from __future__ import annotations

from pod.batch import MODELS, HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row

DOC = "the 32 chunks of a 16K prompt beside 54 and 55 decodes (full waves of 108 SMs) and 66 and 67 (of 132 SMs)."
KEYS = ("decodes", "chunk")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 3, 9
PROMPT, CHUNK, DECODES = 16384, 512, (66, 67, 54, 55)

WAYS = peers.HALVES | peers.FAMILY
WAYS |= {"fa2_prefill": peers.fa2_prefill, "fa2_decode": peers.fa2_decode}
WAYS |= {name: peers.TORCH_PEERS[name] for name in ("fa2_serial", "fa2_streams")}
WAYS |= {"fa3_serial": peers.fa3_serial, "hopper": peers.ours}


def cases() -> list[dict]:
    return [{"decodes": n, "chunk": i} for n in DECODES for i in range(PROMPT // CHUNK)]


def measure(case: dict) -> dict:
    heads = MODELS["yi-6b"].heads()
    batch = HybridBatch.of(CHUNK, CHUNK * (case["chunk"] + 1), case["decodes"], PROMPT, **heads)
    return table_row(peers.Setting(batch), WAYS, ROUNDS, ms=1.0)

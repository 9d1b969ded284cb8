"""Table 3 and the bars of Figure 1: every method and every peer on the same eleven batches, in one run."""

from __future__ import annotations

from pod.batch import HybridBatch
from pod.measure import peers
from pod.measure.suites import hopper_peers, table_row

DOC = "the batches of Table 1 and eight more, all our methods beside all peers."
KEYS = hopper_peers.KEYS
UNITS = ("hybrid", "hopper")
ROUNDS, REPEATS = 10, 30  # twice the usual: two equal plans differ by 3 % otherwise, and peers come as close as that
WAYS = peers.HALVES | peers.FAMILY | peers.CONFIGURATIONS | {"hopper": peers.ours}
WAYS |= {"fa2_prefill": peers.fa2_prefill, "fa2_decode": peers.fa2_decode} | peers.TORCH_PEERS | peers.PEERS

cases = hopper_peers.cases


def measure(case: dict) -> dict:
    heads = (case["q_heads"], case["kv_heads"])
    batch = HybridBatch.of(case["chunk"], case["context"], case["decodes"], case["decode_context"], *heads)
    return table_row(peers.Setting(batch), WAYS, ROUNDS)

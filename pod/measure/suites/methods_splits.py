"""Table 7: how many parts a prefill tile's keys are cut into, for the last chunks of a long prompt."""

from __future__ import annotations

from functools import partial

from pod.batch import MODELS, HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row

DOC = "POD with each rule for splitting prefill; the last four chunks of a 16K prompt, Llama-3-8B on two GPUs."
KEYS = ("decodes", "chunk")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 7, 21
CONTEXT, CHUNK = 16384, 512
DECODES = (64, 66)  # the paper's, and a full wave of 132 SMs
RULES = ("none", "vanilla", "limited")
WAYS = peers.HALVES | {"serial": peers.FAMILY["serial"], "fa2_serial": peers.fa2_serial}
WAYS |= {rule: partial(peers.family, method="pod", prefill_splits=rule) for rule in RULES}


def cases() -> list[dict]:
    return [{"decodes": n, "chunk": i} for n in DECODES for i in range(28, 32)]


def measure(case: dict) -> dict:
    context, heads = CHUNK * (case["chunk"] + 1), MODELS["llama-3-8b"].heads()
    batch = HybridBatch.of(CHUNK, context, case["decodes"], CONTEXT, **heads)
    return table_row(peers.Setting(batch), WAYS, ROUNDS, ms=1.0) | {
        f"{rule}_parts": _parts(batch, rule) for rule in RULES
    }


def _parts(batch: HybridBatch, rule: str) -> int:
    """Parts of the prefill tile that is cut most."""
    import pod

    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, method="pod", prefill_splits=rule)
    return int(plan.work.lists(True).prefill.column("parts").max())

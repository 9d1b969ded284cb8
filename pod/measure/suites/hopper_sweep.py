"""Figure 11's sweep on a Hopper GPU: our kernel against FlashAttention-3 on every hybrid batch of the paper."""

from __future__ import annotations

from pod.batch import MODELS, HybridBatch
from pod.measure import peers
from pod.measure.suites import table_row

DOC = "the paper's hybrid batches (Figure 11), ours beside FlashAttention-3 serial, on two streams and in one call."
KEYS = ("model", "tp", "chunk", "context", "decodes", "seen")
UNITS = ("hopper",)
ROUNDS, REPEATS = 3, 9
SHARDS = (("llama-3-8b", (1, 2, 4, 8)), ("yi-6b", (1, 2, 4)), ("llama-2-7b", (1, 2)))
CHUNKS, CONTEXTS = (512, 1024, 2048), (4096, 8192, 12288, 16384, 20480)
WEIGHTS_GIB = {"yi-6b": 12, "llama-2-7b": 14, "llama-3-8b": 16}


def largest_batch(model: str, tp: int, context: int) -> int:
    """Decodes of this context that fit an A100-80GB beside the weights, as the paper's artifact counts them."""
    per_request = MODELS[model].num_kv_heads // tp * 128 * 2 * 2 * MODELS[model].layers * context
    return int(0.9 * ((80 - WEIGHTS_GIB[model] / tp) * 2**30) // per_request)


def cases() -> list[dict]:
    """`seen` tokens of the prompt come before the chunk. Decode loads are 90, 95 and 100 % of what fits.

    Of the chunks of one prompt the first, every fourth and the last are measured: times change smoothly along it.
    """
    rows = []
    for model, shards in SHARDS:
        for tp in shards:
            for context in CONTEXTS:
                most = largest_batch(model, tp, context)
                for decodes in sorted({int(0.9 * most), int(0.95 * most), most}):
                    for chunk in CHUNKS:
                        starts = range(0, context, chunk)
                        for seen in sorted({*starts[::4], starts[-1]}):
                            keys = (model, tp, chunk, context, decodes, seen)
                            rows.append(dict(zip(KEYS, keys, strict=True)))
    return rows


def batch_of(case: dict) -> HybridBatch:
    chunk = min(case["chunk"], case["context"] - case["seen"])
    heads = MODELS[case["model"]].heads(case["tp"])
    return HybridBatch.of(chunk, case["seen"] + chunk, case["decodes"], case["context"], **heads)


def measure(case: dict) -> dict:
    makers = {"prefill": peers.fa3_prefill, "prefill_exact": peers.fa3_prefill_exact, "decode": peers.fa3_decode}
    makers |= {name: peers.PEERS[name] for name in ("fa3_serial", "fa3_streams", "fa3_varlen")} | {"ours": peers.ours}
    return table_row(peers.Setting(batch_of(case)), makers, ROUNDS)

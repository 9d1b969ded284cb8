"""Figure 11's sweep on an H200: what each way of running a hybrid batch gains over two calls of FlashAttention-3.

Measured: the paper's hybrid batches (Figure 11), ours beside FlashAttention-3 serial, on two streams and in one call.
"""

from functools import partial

import numpy as np
import pandas as pd

from pod.batch import MODELS, HybridBatch
from pod.data import a_card, read
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style, violins

FIGURE = Figure(
    title=f"The paper's hybrid batches on {a_card()}: speed-up over FlashAttention-3, prefill then decode",
    chapter="17",
    method="1,811 batches of Figure 11's models, chunks, contexts and loads, bf16; cold L2, shuffled rounds. Medians; "
    "of a part alone the p10, because a short call of FA3 alone may wait for the host that launches it.",
    data=("hopper-sweep",),
)
RECORDING = "hopper-sweep"
KEYS = ("model", "tp", "chunk", "context", "decodes", "seen")
UNITS = ("hopper",)
ROUNDS, REPEATS = 3, 9
SHARDS = (("llama-3-8b", (1, 2, 4, 8)), ("yi-6b", (1, 2, 4)), ("llama-2-7b", (1, 2)))
CHUNKS, CONTEXTS = (512, 1024, 2048), (4096, 8192, 12288, 16384, 20480)
ALONE = {"prefill": peers.fa3_prefill, "prefill_exact": peers.fa3_prefill_exact, "decode": peers.fa3_decode}
WAYS = ALONE | {name: peers.PEERS[name] for name in ("fa3_serial", "fa3_streams", "fa3_varlen")}
# Of ragged sequences it knows only the longest, and cuts keys as if that one were alone.
WAYS["fa3_whole"] = partial(peers.fa3_varlen, num_splits=1)
WAYS |= {"ours_serial": peers.ours_serial, "ours": peers.ours}
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


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS)

# ---------------------------------------------------------------- what it shows

FA3_SERIAL, STREAMS, VARLEN, OURS = "one after the other", "two streams", "one call", "this kernel"
UNCUT = "one call, uncut"
PEERS = {FA3_SERIAL: "fa3_serial", STREAMS: "fa3_streams", VARLEN: "fa3_varlen", UNCUT: "fa3_whole"}
METHODS = {STREAMS: "fa3_streams", VARLEN: "fa3_varlen", UNCUT: "fa3_whole", OURS: "ours"}
BALANCED = (0.7, 1.4)  # prefill over decode, each alone


def table():
    """One row a batch: milliseconds of each way, of both parts alone (the faster FlashAttention-3 call), their larger
    part, the share of the smaller one, and the best peer."""
    df = read("hopper-sweep")
    alone = parts(df)
    keys = df[["model", "tp", "chunk", "context", "decodes", "seen"]]
    times = df.reindex(columns=[*PEERS.values(), "ours_serial", "ours"])  # older repeats have fewer: no best
    return keys.join(alone).join(times).assign(
        ratio=alone.prefill / alone.decode,
        share=alone.min(axis=1) / alone.sum(axis=1),
        larger=alone.max(axis=1),
        best_peer=times[list(PEERS.values())].min(axis=1, skipna=False),
    )  # fmt: skip


def parts(df):
    """Milliseconds of prefill alone and of decode alone: of the faster FlashAttention-3 call the p10, because a short
    call alone may wait for the host that launches it."""
    return pd.DataFrame({"prefill": df[["prefill_p10", "prefill_exact_p10"]].min(axis=1), "decode": df.decode_p10})


def filtered(df):
    """The paper's filter: both parts take at least a fifth of serial time."""
    return df[df.share >= paper.value("pod.f11.share_min") / 100]


def balanced(df):
    return df[df.ratio.between(*BALANCED)]


SOME = {"filtered": filtered, "balanced": balanced, "all": lambda df: df}


def geomean(values) -> float:
    return float(np.exp(np.log(values).mean()))


def near_larger(df) -> float:
    """Share of the batches within 10 % of the longer part alone, %."""
    margin = 1 + paper.value("pod.f11.near_peak_margin") / 100
    return 100 * float((df.ours <= margin * df.larger).mean())


# ---------------------------------------------------------------- the picture


def summary(df):
    """One row a set of batches: how many, and the geometric means of this kernel's speed-ups."""
    sets = {"at least 20 % each": filtered(df), f"ratio {BALANCED[0]} to {BALANCED[1]}": balanced(df), "all": df}
    rows = []
    for name, part in sets.items():
        gains = part.fa3_serial / part.ours
        means = map(geomean, (gains, part.fa3_serial / part.ours_serial, part.ours_serial / part.ours))
        rows.append((name, len(part), *means, gains.min(), gains.max(), geomean(part.best_peer / part.ours)))
    columns = ["batches", "count", "over serial", "better halves", "fusing", "least", "most", "over its best way"]
    return pd.DataFrame(rows, columns=columns).set_index("batches").round(2)


def draw(df):
    axes = style.axes(9.5, 3.9, columns=2, sharey=True)
    some = filtered(df)
    words = f"{len(some):,} batches with both parts ≥ 20 %"
    for ax, part, title in ((axes[0], some, words), (axes[1], df, f"all {len(df):,} batches")):
        _violins(ax, part)
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("speed-up over two calls in turn")
    return axes[0].figure


def _violins(ax, df) -> None:
    gains = {name.replace(" ", "\n", 1): df.fa3_serial / df[column] for name, column in METHODS.items()}
    tones = [style.WORKERS[4], style.WORKERS[3], style.WORKERS[5], style.colour("hybrid")]
    violins(ax, gains, tones, geomean)
    ax.text(0.01, 0.99, "serial", transform=ax.get_yaxis_transform(), va="top", fontsize=8.5, color=style.INK)
    ax.set(ylim=(0.4, 2.15))


# ---------------------------------------------------------------- what stands beside a number


def kept() -> int:
    """Batches that pass the paper's filter."""
    return len(filtered(table()))


def swept() -> int:
    return len(table())


def near_equal() -> int:
    """Batches with parts of about equal length."""
    return len(balanced(table()))


# ---------------------------------------------------------------- what we state


def _over(peer: str, some: str = "filtered", ours: str = "ours") -> float:
    """Geometric mean of another way's time over ours, of some batches."""
    df = SOME[some](table())
    return geomean(df[peer] / df[ours])


over_serial, over_best_peer = partial(_over, "fa3_serial"), partial(_over, "best_peer")
all_over_serial, all_over_best = partial(over_serial, "all"), partial(over_best_peer, "all")
when_balanced = partial(over_serial, "balanced")
halves = partial(over_serial, ours="ours_serial")  # what of it is there when ours, too, computes a half at a time
fusing = partial(_over, "ours_serial")  # our halves in turn over ours at once


def least() -> float:
    df = table()
    return float((df.fa3_serial / df.ours).min())

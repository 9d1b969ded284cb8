"""Is each half fast alone? Both beside torch's FlashAttention-2, and decode beside a bare read of DRAM.

Measured: prefill alone and decode alone, ours beside torch's FlashAttention-2 and a bare read of as many bytes.
"""

from functools import partial

import numpy as np

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.gpu.gpu_calibration import bare_read
from pod.hardware import GPU
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style
from pod.schedule.work import Schedule

FIGURE = Figure(
    title=f"Each half of the kernel alone, on {a_card()}: prefill beside FlashAttention-2, decode beside a bare read",
    chapter="08",
    method="bf16, head dimension 128, medians, cold L2. Bare read: as many bytes, copied to the SMs and thrown away.",
    data=("methods-halves",),
)
RECORDING = "methods-halves"
KEYS = ("side", "q_heads", "kv_heads", "sequences", "tokens")
UNITS = ("hybrid", "rates")
ROUNDS, REPEATS = 5, 15
K = 1024
PREFILLS = [(*heads, 1, tokens * K) for tokens in (2, 4, 8, 16) for heads in ((32, 32), (32, 8))]
DECODES = [(32, 4, 64, 16 * K), (32, 4, 66, 16 * K), (32, 4, 67, 16 * K), (16, 4, 80, 12 * K), (16, 16, 32, 8 * K),
           (32, 8, 128, 4 * K), (32, 8, 1, 128 * K)]  # fmt: skip


def read_caches(s: peers.Setting):
    """As many bytes as the batch has in its caches, read and thrown away: what DRAM gives."""
    call = bare_read(s.batch.kv_bytes)

    def run():
        call()
        return None, None

    return run


ours = partial(peers.family, method="serial")
WAYS = {
    "prefill": {"ours": partial(ours, ctas_per_sm=2), "ours_4": partial(ours, ctas_per_sm=4), "fa2": peers.fa2_prefill},
    "decode": {"ours": partial(ours, ctas_per_sm=2), "ours_4": partial(ours, ctas_per_sm=4),
               "stream_k": partial(ours, decode_splits="stream-k"), "fa2": peers.fa2_decode, "read": read_caches},
}  # fmt: skip


def cases() -> list[dict]:
    rows = [("prefill", *row) for row in PREFILLS] + [("decode", *row) for row in DECODES]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def batch_of(case: dict) -> HybridBatch:
    heads, tokens = (case["q_heads"], case["kv_heads"]), case["tokens"]
    if case["side"] == "prefill":
        return HybridBatch.of(tokens, tokens, 0, 1, *heads)
    return HybridBatch.of(0, 1, case["sequences"], tokens, *heads)


def measure(case: dict) -> dict:
    return peers.table_row(peers.Setting(batch_of(case)), WAYS[case["side"]], ROUNDS, ms=4.0)


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    return peers.planned(batch_of(case), WAYS[case["side"]], gpu)


# ---------------------------------------------------------------- what it shows

NAMES = {"fa2": "torch's FlashAttention-2", "ours": "ours, 2 CTAs an SM", "ours_4": "ours, 4 CTAs an SM",
        "stream_k": "ours, equal ranges", "read": "bare read"}  # fmt: skip


def table():
    """One row a batch and way: milliseconds, TFLOP/s, and GB/s of keys and values."""
    df = read("methods-halves")
    keys = ["side", "q_heads", "kv_heads", "sequences", "tokens", "flops", "kv_bytes"]
    rows = df.melt(keys, [way for way in NAMES if way in df], "way", "ms").dropna(subset="ms")
    rows = rows.assign(tflops=rows.flops / rows.ms / 1e9, gb_per_s=rows.kv_bytes / rows.ms / 1e6)
    return rows.drop(columns=["flops", "kv_bytes"]).sort_values(keys[:5], kind="stable").reset_index(drop=True)


def draw(df):
    left, right = style.axes(9.5, 3.3, columns=2)
    prefill = df[(df.side == "prefill") & (df.kv_heads == 8)].pivot(index="tokens", columns="way", values="tflops")
    colours = {"fa2": style.INK, "ours": style.PREFILL, "ours_4": style.WORKERS[6]}
    for i, (way, colour) in enumerate(colours.items()):
        x = np.arange(len(prefill)) + 0.28 * (i - 1)
        left.bar(x, prefill[way], 0.26, color=colour, label=NAMES[way])
        for at, rate in zip(x, prefill[way], strict=True):
            left.text(at, rate + 5, f"{rate:.0f}", ha="center", fontsize=8)
    left.set_xticks(range(len(prefill)), [f"{tokens // 1024}K" for tokens in prefill.index])
    left.set(xlabel="tokens of the prompt", ylabel="prefill, TFLOP/s", ylim=(0, 1.12 * prefill.max().max()))
    left.set_title("prefill, two CTAs an SM: ahead of FlashAttention-2", fontsize=10, pad=40)
    style.legend(left, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    decode = df[df.side == "decode"].sort_values("sequences", ascending=False, kind="stable")
    read, ours, fa2 = (decode[decode.way == way] for way in ("read", "ours", "fa2"))
    for rows, colour, width in ((read, style.FRAME, 0.8), (ours, style.DECODE, 0.5)):
        right.barh(range(len(rows)), rows.gb_per_s / 1000, width, color=colour, label=NAMES[rows.way.iloc[0]])
    right.plot(fa2.gb_per_s / 1000, range(len(fa2)), "D", color=style.INK, markersize=6, label=NAMES["fa2"])
    shares = 100 * ours.gb_per_s.to_numpy() / read.gb_per_s.to_numpy()
    for y, (share, mine, bare) in enumerate(zip(shares, ours.gb_per_s, read.gb_per_s, strict=True)):
        right.text(max(mine, bare) / 1000 + 0.06, y, f"{share:.0f} %", va="center", fontsize=9)
    right.set_yticks(range(len(ours)), [f"{r.sequences} × {r.tokens // 1024}K" for r in ours.itertuples()])
    right.invert_yaxis()
    right.set(xlabel="decode, TB/s", xlim=(0, 5.6))
    right.set_title(f"decode: {min(shares):.0f} to {max(shares):.0f} % of a bare read", fontsize=10, pad=40)
    style.legend(right, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return left.figure


# ---------------------------------------------------------------- what claims ask for


def _times(side: str):
    """Milliseconds by batch and way."""
    df = table()
    batch = ["q_heads", "kv_heads", "sequences", "tokens"]
    return df[df.side == side].pivot(index=batch, columns="way", values="ms")


def prefill_over_fa2() -> float:
    """The least of FlashAttention-2's time over ours, prefill alone."""
    times = _times("prefill")
    return float((times.fa2 / times.ours).min())


def decode_of_read() -> float:
    """Percent of the rate of a bare read that decode reaches at 64 requests of 16K tokens."""
    times = _times("decode").xs((64, 16384), level=("sequences", "tokens")).iloc[0]
    return float(100 * times.read / times.ours)

"""POD-Attention, Table 3: the methods that are compared, ours and other people's, and where one has a hole.

Measured: the batches of Table 1 and eight more, all our methods beside all peers.
"""

import re

import pandas as pd

from pod.data import a_card
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_sweep import geomean
from pod.experiments.methods.shared import METHODS, PEERS, TONES, recorded
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title=f"The attention methods that are compared, and what each takes on eleven hybrid batches of {a_card()}",
    says="POD is ahead of all with Ampere's instructions; FlashAttention-3 and our Hopper kernel are faster",
    chapter="09",
    method="Geometric mean of our serial's time over each way's, on the batches that it can take; bf16, cold L2.",
    data=("methods-peers",),
)
RECORDING = "methods-peers"
KEYS = hopper_peers.KEYS
UNITS = ("hybrid", "hopper")
ROUNDS, REPEATS = 10, 30  # twice the usual: two equal plans differ by 3 % otherwise, and peers come as close as that
WAYS = peers.HALVES | peers.FAMILY | peers.CONFIGURATIONS | {"hopper": peers.ours}
WAYS |= {"fa2_prefill": peers.fa2_prefill, "fa2_decode": peers.fa2_decode} | peers.TORCH_PEERS | peers.PEERS

cases = hopper_peers.cases


measure, planned = peers.on_batches(hopper_peers.batch_of, WAYS, ROUNDS)

# ---------------------------------------------------------------- what it shows

PAPER = {"serial": "fa_serial", "streams": "fa_streams", "warp": "fa_hfuse", "pod": "pod"}
WHAT = {
    "serial": "prefill kernel, then decode kernel",
    "streams": "the same kernels on two CUDA streams",
    "cta": "one kernel; a CTA's number says which operation",
    "warp": "one kernel; half of a CTA's warps do prefill, half decode",
    "pod": "one kernel; a CTA asks its SM which operation is due",
    "fa2_serial": "FlashAttention-2 as torch carries it; the paper patched its decode tile",
    "fa2_streams": "the same on two CUDA streams",
    "cudnn_serial": "torch's cuDNN attention",
    "fa3_serial": "FlashAttention-3, for Hopper",
    "fa3_streams": "the same on two CUDA streams",
    "fa3_varlen": "one FlashAttention-3 call for the whole batch",
    "fi_fa2_serial": "FlashInfer, its prefill made of FlashAttention-2's ideas",
    "fi_fa3_serial": "FlashInfer, its prefill made of FlashAttention-3's ideas",
    "fi_fa2_batched": "one FlashInfer prefill call for the whole batch, as in the paper",
    "fi_batched": "the same with FlashInfer's kernel for Hopper",
    "fi_pod": "FlashInfer's own POD kernel",
    "fi_persistent": "FlashInfer's persistent kernel for mixed batches",
    "hopper": "POD rebuilt for Hopper (chapter 17)",
}
NAMES = METHODS | PEERS
OURS = len(METHODS)  # the first rows: made of the same device functions
FAMILIES = {"fa2": TONES["fa2_serial"], "fa3": TONES["fa3_serial"], "fi_": TONES["fi_pod"]}
TEXTS = 2.15  # where in the picture it says what runs: right of the longest bar
# Query and KV heads, chunk, its context, decodes and theirs.
NAMED = (
    (16, 4, 1024, 12288, 80, 12288),
    (32, 4, 512, 16384, 66, 16384),
    (16, 16, 1024, 8192, 32, 8192),
    (32, 8, 2048, 8192, 128, 4096),
)


def table():
    """One row a method: the paper's words for it, what runs here, on how many batches, its mean speed-up over serial,
    and why it has no time on the others."""
    df = recorded("methods-peers")
    rows = []
    for way, what in WHAT.items():
        there = df[df[way].notna()]
        stated = paper.value(f"pod.t3.{PAPER[way]}") if way in PAPER else ""
        mean = geomean(there.serial / there[way]) if len(there) else None
        rows.append((NAMES[way], what, stated, len(there), mean, _holes(df, way)))
    columns = ["method", "what runs", "paper", "batches", "speed-up over serial", "holes"]
    return pd.DataFrame(rows, columns=columns)


def _holes(df, way: str) -> str:
    """The reasons that the recording gives for a way, each once."""
    pattern = re.compile(rf"(?:^|; ){way}: (.*?)(?=; \w+: |$)")
    reasons = (reason for holes in df.holes.fillna("") for reason in pattern.findall(holes))
    return ", ".join(dict.fromkeys(reasons))


def draw(df):
    """A bar for each method in its colour, its speed-up, and what runs; a line before what is not made of our parts."""
    ax = style.axes(9.5, 0.3 * len(df) + 0.7)
    ways, most = {name: way for way, name in NAMES.items()}, df.batches.max()
    for y, (method, what, _, batches, speed, _) in enumerate(df.itertuples(index=False)):
        way = ways[method]
        ax.barh(y, speed if batches else 0, 0.7, color=FAMILIES.get(way[:3]) or TONES.get(way, style.FRAME))
        partly = f", on {batches} of {most}" if 0 < batches < most else ""
        ax.text((speed if batches else 0) + 0.03, y, f"{speed:.2f}{partly}" if batches else "no time", va="center",
                fontsize=9, fontweight="bold" if way == "pod" else "normal",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
        ax.text(TEXTS, y, what, va="center", fontsize=8.5)
    ax.axvline(1, color=style.INK, linewidth=0.8, zorder=2)
    for border in (OURS - 0.5, len(df) - 1.5):
        ax.axhline(border, color=style.FRAME, linewidth=1)
    ax.set_yticks(range(len(df)), df.method)
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(len(df) - 0.4, -0.6), xlim=(0, 2.3 * TEXTS), xticks=(0, 0.5, 1, 1.5, 2))
    ax.set_xlabel(f"speed-up over our serial, geometric mean of {most} batches", loc="left")
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def least_over_flashinfer() -> float:
    """The least of FlashInfer's POD's time over ours, on the four batches of NAMED."""
    df = recorded("methods-peers").set_index(["q_heads", "kv_heads", "chunk", "context", "decodes", "decode_context"])
    named = df.loc[list(NAMED)]
    return float((named.fi_pod / named.pod).min())


def least_of_all() -> float:
    """The same on all batches of the recording."""
    df = recorded("methods-peers")
    return float((df.fi_pod / df["pod"]).min())


def batches() -> int:
    return len(recorded("methods-peers"))

"""POD-Attention, Table 7: into how many parts to cut the keys of a prefill tile.

Measured: POD with each rule for splitting prefill; the last four chunks of a 16K prompt, Llama-3-8B on two GPUs.
"""

from functools import partial

import pod
from pod.batch import MODELS, HybridBatch
from pod.data import a_card
from pod.experiments.methods.shared import recorded
from pod.hardware import GPU
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style
from pod.schedule.work import Schedule

FIGURE = Figure(
    title=f"Limiting the splits of a prefill chunk, on {a_card()}",
    chapter="09",
    method="Llama-3-8B on two GPUs, chunks of 512, decodes of 16K, bf16. Time over our serial; medians, cold L2.",
    data=("methods-splits",),
)
RECORDING = "methods-splits"
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


def batch_of(case: dict) -> HybridBatch:
    context, heads = CHUNK * (case["chunk"] + 1), MODELS["llama-3-8b"].heads()
    return HybridBatch.of(CHUNK, context, case["decodes"], CONTEXT, **heads)


def measure(case: dict) -> dict:
    batch = batch_of(case)
    row = peers.table_row(peers.Setting(batch), WAYS, ROUNDS, ms=1.0)
    return row | {f"{rule}_parts": _parts(batch, rule) for rule in RULES}


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    return peers.planned(batch_of(case), WAYS, gpu)


def _parts(batch: HybridBatch, rule: str) -> int:
    """Parts of the prefill tile that is cut most."""
    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, method="pod", prefill_splits=rule)
    return int(plan.schedule().prefill.parts.max())


# ---------------------------------------------------------------- what it shows

NAMES = {"none": "no split", "vanilla": "FlashDecoding's rule", "limited": "limited"}
TONES = {"none": style.WORKERS[6], "vanilla": style.SMS[0], "limited": style.WORKERS[0]}  # all three are POD
FILLING = int(paper.value("pod.t7.decodes"))


def table():
    """One row a batch: milliseconds, parts of a tile and time over serial of each rule; `paper_*` as printed."""
    df = recorded("methods-splits")
    out = df[["decodes", "chunk", "prefill", "decode", "serial", "fa2_serial"]].copy()
    for rule in NAMES:
        out[rule], out[f"{rule}_parts"], out[f"{rule}_ratio"] = df[rule], df[f"{rule}_parts"], df[rule] / df.serial
    stated = {f"paper_{rule}": [paper.value(f"pod.t7.{chunk}.{rule}_ratio") for chunk in df.chunk]
              for rule in ("vanilla", "limited")}  # fmt: skip
    return out.assign(**stated)


def draw(df):
    axes = style.axes(9.5, 3.7, columns=2, sharey=True)
    for ax, (decodes, part) in zip(axes, df.groupby("decodes"), strict=True):
        for shift, (rule, name) in zip((-0.27, 0, 0.27), NAMES.items(), strict=True):
            at = [i + shift for i in range(len(part))]
            ax.bar(at, part[f"{rule}_ratio"], 0.25, color=TONES[rule], label=name)
            ink = style.letters_on(TONES[rule])
            for x, ratio, parts in zip(at, part[f"{rule}_ratio"], part[f"{rule}_parts"], strict=True):
                ax.text(x, 0.45, f"{ratio:.2f}", ha="center", fontsize=9, color=ink, rotation=90)
                ax.text(x, 0.02, parts, ha="center", fontsize=9, color=ink, fontweight="bold")
            if f"paper_{rule}" in df:
                ends = [x - 0.125 for x in at], [x + 0.125 for x in at]
                ax.hlines(part[f"paper_{rule}"], *ends, color=style.INK, linewidth=2.5, label="paper, A100")
        ax.axhline(1, color=style.INK, linewidth=0.8)
        ax.set_xticks(range(len(part)), part.chunk)
        ax.set(xlabel="chunk of the prompt (in the bars: parts of a tile's keys)", ylim=(0, 1.35))
        ax.set_title(f"{decodes} decodes of 16K", fontsize=10)
        ax.tick_params(axis="x", length=0)
    axes[0].set_ylabel("time / our serial")
    style.legend(axes[1], loc="upper right", ncols=2)
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def at_31(column: str) -> float:
    return float(table().set_index(["decodes", "chunk"])[column][FILLING, 31])


def limited_gain() -> float:
    """How much faster the limit is than FlashDecoding's rule, %."""
    return 100 * (at_31("vanilla") / at_31("limited") - 1)


def paper_gain() -> float:
    """The same as printed, %."""
    return 100 * (paper.value("pod.t7.31.vanilla") / paper.value("pod.t7.31.limited") - 1)


def saved_ratio() -> float:
    """Time saved over serial with limited splits over that with vanilla ones, sum of the four chunks."""
    df = table()
    saved = {rule: (df.serial - df[rule])[df.decodes == FILLING].sum() for rule in NAMES}
    return float(saved["limited"] / saved["vanilla"])

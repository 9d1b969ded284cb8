"""POD-Attention, Figure 6: the 32 chunks of one prompt beside decodes, with and without one request too many.

Measured: the 32 chunks of a 16K prompt beside 54 and 55 decodes (full waves of 108 SMs) and 66 and 67 (of 132 SMs).
"""

import pandas as pd

from pod.batch import MODELS, HybridBatch
from pod.data import a_card
from pod.experiments.basics import wave_step
from pod.experiments.methods.shared import METHODS, TONES, gain, recorded, with_parts
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title=f"Attention time of the 32 hybrid batches of a 16K prompt, with and without wave quantization, on {a_card()}",
    chapter="09",
    method="Yi-6B, chunks of 512, decodes of 16K, bf16; FlashAttention-2 as torch carries it. Medians, cold L2, "
    "shuffled rounds.",
    data=("methods-chunks",),
)
RECORDING = "methods-chunks"
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


def batch_of(case: dict) -> HybridBatch:
    heads = MODELS["yi-6b"].heads()
    return HybridBatch.of(CHUNK, CHUNK * (case["chunk"] + 1), case["decodes"], PROMPT, **heads)


measure, planned = peers.on_batches(batch_of, WAYS, ROUNDS, ms=1.0)

# ---------------------------------------------------------------- what it shows

STEPS = ((66, 67), (54, 55))  # a full wave and one request more: on 132 SMs, on the paper's 108
FA2 = {"fa2_serial": "FA2, two calls", "fa2_streams": "FA2, two streams"}
NAMES = FA2 | METHODS
OTHERS = [way for way in NAMES if way != "pod"]


def table():
    """One row a batch: milliseconds of each way, of both parts alone, and the larger of them."""
    df = with_parts(recorded("methods-chunks"))
    parts = ["prefill", "decode", "larger", "fa2_prefill", "fa2_decode"]
    return df[["decodes", "chunk", *parts, *NAMES, "fa3_serial", "hopper"]].sort_values(["decodes", "chunk"])


def of(df, decodes: int):
    """The 32 batches with so many decodes, by chunk."""
    return df[df.decodes == decodes].set_index("chunk")


def rises(df):
    """One row a way: mean rise of its time when one request more comes, %, on a full wave of 132 SMs and of 108."""
    rise = lambda way, full, more: 100 * float((of(df, more)[way] / of(df, full)[way]).mean() - 1)  # noqa: E731
    return pd.DataFrame({f"{full} to {more}": {name: rise(way, full, more) for way, name in NAMES.items()}
                         for full, more in STEPS})  # fmt: skip


# ---------------------------------------------------------------- the picture


def draw(df):
    axes = style.axes(9.5, 4.3, columns=3, width_ratios=(3, 3, 2))
    for ax, decodes in zip(axes, STEPS[0], strict=False):
        _lines(ax, of(df, decodes))
        ax.set(xlabel="chunk of the prompt", ylim=(0, 1.04 * df[list(NAMES)].max().max()))
        ax.set_title(f"{decodes} decodes: {4 * decodes} CTAs of decode", fontsize=10)
    axes[0].set_ylabel("attention of one layer, ms")
    _rises(axes[2], rises(df), total_step_max())
    return style.legend_outside(axes[0], "lower", 4)


def _lines(ax, df) -> None:
    ax.fill_between(df.index, df.larger, df.prefill + df.decode, color=style.IDLE, zorder=0,
                    label="between our longer part and the sum")  # fmt: skip
    for way, name in NAMES.items():
        line = "--" if way in FA2 else "-"
        ax.plot(df.index, df[way], line, color=TONES[way], linewidth=2.8 if way == "pod" else 1.5, label=name)


def _rises(ax, rise, largest: float) -> None:
    """Means over the chunks; of FlashAttention-2's two calls also the largest, which is what the paper states."""
    for (column, values), shift, tone in zip(rise.items(), (-0.19, 0.19), (style.INK, style.FRAME), strict=True):
        at = [i + shift for i in range(len(values))]
        ax.barh(at, values, 0.36, color=tone, label=column)
        for y, value in zip(at, values, strict=True):
            ax.text(max(value, 0) + 0.8, y, f"{round(value)}", va="center", fontsize=9)
    row = list(NAMES).index("fa2_serial") - 0.19
    ax.plot(largest, row, "o", color=style.INK, markersize=5, label="largest")
    ax.plot(paper.value("pod.f06.total_step_max"), row, "X", color=style.ALARM, markeredgecolor="white", markersize=8,
            label="paper's largest")  # fmt: skip
    ax.axvline(0, color=style.INK, linewidth=0.8)
    ax.set_yticks(range(len(rise)), list(rise.index))
    ax.invert_yaxis()
    ax.set(xlabel="mean rise, %", xlim=(0, 1.12 * max(largest, rise.max().max())))
    ax.set_title("one request more", fontsize=10)
    style.legend(ax, loc="lower right")


# ---------------------------------------------------------------- what the paper states, at the step of this GPU


def _step(way: str, full: int, more: int):
    df = table()
    return 100 * (of(df, more)[way] / of(df, full)[way] - 1)


def decode_step() -> float:
    """Of FlashAttention-2 as torch carries it, which is nearest to the paper's FA_Serial."""
    return float(_step("fa2_decode", *STEPS[0]).median())


def decode_step_own() -> float:
    """Of the decode kernel in our serial."""
    return float(_step("decode", *STEPS[0]).median())


def decode_step_fa3() -> float:
    return wave_step.step()


def total_step_max() -> float:
    return float(_step("fa2_serial", *STEPS[0]).max())


def streams_gain_max() -> float:
    df = of(table(), STEPS[0][1])
    return float(gain(df.fa2_serial, df.fa2_streams).max())


def streams_flat() -> float:
    return 1 + float(_step("fa2_streams", *STEPS[0]).mean()) / 100


def warp_late() -> float:
    """Halves of a CTA over serial in the last eight batches, over the same in the first eight."""
    df = of(table(), STEPS[0][0])
    ratio = df.warp / df.serial
    return float(ratio.tail(8).mean() / ratio.head(8).mean())


def orderings() -> float:
    """Of three: POD beats streams and halves of a CTA, streams beat serial, halves of a CTA beat serial."""
    df = table()
    total = df[df.decodes.isin(STEPS[0])][list(METHODS)].sum()
    return float((total["pod"] < total[["streams", "warp"]].min()) + (total[["streams", "warp"]] < total.serial).sum())


def over_next_best() -> float:
    df = table()
    df = df[df.decodes.isin(STEPS[0])]
    return float(gain(df[OTHERS].min(axis=1), df["pod"]).max())


# ---------------------------------------------------------------- what we state


def step_place() -> float:
    """Rise of FlashAttention-2's decode at this GPU's wave less that at the A100's, percentage points."""
    return float(_step("fa2_decode", *STEPS[0]).median() - _step("fa2_decode", *STEPS[1]).median())


def pod_flat() -> float:
    return 1 + float(_step("pod", *STEPS[0]).mean()) / 100

"""Prefill and decode attention under the roofs of two GPUs."""

import pandas as pd

from pod.batch import MODELS, TABLE1, HybridBatch
from pod.hardware import A100, H200
from pod.lab.figure import Figure
from pod.lab.show import roofline, style

FIGURE = Figure(
    title="Decodes lie far down the slope, chunks of 256 and more far along the flat roof, C0 to C2 between",
    chapter="03",
    method="FLOPs and minimal bytes counted for each batch; peaks from the data sheets.",
)
K = 1024


def batches():
    """{label: (kind, batch)}: decodes of three models, chunks of a prompt, and the hybrid batches of Table 1."""
    decodes = {f"decode, {m.name}": HybridBatch.of(0, 0, 80, 12 * K, **m.heads()) for m in MODELS.values()}
    heads = MODELS["llama-3-8b"].heads()
    chunks = {f"chunk of {n:,}": HybridBatch.of(n, 12 * K, 0, 0, **heads) for n in (16, 256, 12 * K)}
    kinds = {"decode": decodes, "prefill": chunks, "hybrid": TABLE1}
    return {label: (kind, batch) for kind, group in kinds.items() for label, batch in group.items()}


def table():
    """One row a batch and GPU: FLOPs, bytes, their ratio, the ridge and the attainable TFLOP/s."""
    rows = []
    for label, (kind, batch) in batches().items():
        intensity = batch.flops / batch.bytes
        for gpu in (A100, H200):
            rows.append({"batch": label, "kind": kind, "gpu": gpu.key, "gflop": batch.flops / 1e9,
                         "mbyte": batch.bytes / 1e6, "flops_per_byte": intensity, "ridge": gpu.ridge,
                         "attainable_tflops": gpu.attainable(intensity) / 1e12})  # fmt: skip
    return pd.DataFrame(rows)


def draw(df):
    once = df[df.gpu == A100.key]
    points = [(row.batch, row.flops_per_byte, row.kind) for row in once.itertuples()]
    ax = roofline((A100, H200), points)
    ax.set_title(FIGURE.title, fontsize=10, loc="left")
    return ax.figure


def draw_chunks():
    """FLOPs per byte of a chunk's attention against its tokens, for three models, beside the ridges."""
    ax, sizes = style.axes(9.5, 3.4), [2**i for i in range(12)]
    for model, tone in zip(("yi-6b", "llama-3-8b", "llama-2-7b"), style.SMS, strict=False):
        chunks = [HybridBatch.of(n, 12 * K, 0, 0, **MODELS[model].heads()) for n in sizes]
        y = [chunk.flops / chunk.bytes for chunk in chunks]
        ax.loglog(sizes, y, "o-", color=tone, markersize=4)
        ax.loglog(1, y[0], "o", color=style.DECODE, markersize=9)
        side = "bottom" if model == "yi-6b" else "top"
        ax.text(2300, y[-1], f"{MODELS[model].name}, group {chunks[0].group}", color=tone, fontsize=9, va=side)
    for gpu, line, side, away in ((A100, "-", "top", -3), (H200, "--", "bottom", 3)):
        ax.axhline(gpu.ridge, color=style.INK, linewidth=1, linestyle=line)
        ax.annotate(f"ridge of {gpu.key.upper()}, {gpu.ridge:.0f}", (15_000, gpu.ridge), (0, away), fontsize=9,
                    textcoords="offset points", ha="right", va=side)  # fmt: skip
    ax.text(1.25, 1, "orange: a decode", color=style.INK, fontsize=9, va="top")
    style.ticks(ax, [1, 8, 64, 512])
    style.ticks(ax, [1, 10, 100, 1000], ["1", "10", "100", "1,000"], axis="y")
    ax.set(xlabel="tokens in the chunk", ylabel="FLOPs per byte", xlim=(0.75, 16_000))
    return ax.figure

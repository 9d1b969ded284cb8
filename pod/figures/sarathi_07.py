"""SARATHI post, Figure 7: one GPU, decode-maximal batches against Orca at three lengths."""

from __future__ import annotations

from pod import paper
from pod.figures import Figure

FIGURE = Figure(
    id="sarathi-07",
    source="SARATHI post, Figure 7",
    title="Single-GPU throughput over Orca",
    chapter="12",
    method="analytical A6000, LLaMA-13B, no host time, 300 requests at each length's best P:D for chunks of 256",
    state="simulated",
)
LENGTHS, CHUNK, REQUESTS = {1024: "batch_1k", 2048: "batch_2k", 3072: "batch_3k"}, 256, 300


def runs(length: int, batch: int, pd: float, chunk: int = CHUNK, requests: int = REQUESTS) -> dict:
    """Orca and SARATHI on requests of one length; the memory is reserved, so the batch is what fits."""
    from pod.serving.simulate import Run, Setup
    from pod.serving.workload import Workload

    base = {"model": "llama-13b", "gpu": "a6000", "max_batch": batch, "max_tokens": length, "blocks": batch * length,
            "block_size": 1, "host": "none", "chunk": chunk}  # fmt: skip
    work = Workload("uniform", requests, low=length, high=length, pd=pd)
    return {name: Run(Setup(scheduler=name, **base), work) for name in ("orca", "sarathi_v1")}


def table():
    import pandas as pd

    from pod.serving.experiments import results

    rows = []
    for length, key in LENGTHS.items():
        batch = int(paper.value(f"sarathi.f07.{key}"))
        ratio = CHUNK / (batch - 1)
        both = runs(length, batch, ratio)
        minute = dict(zip(both, (m["requests_per_minute"] for m in results(tuple(both.values()))), strict=True))
        rows.append((length, batch, ratio, minute["orca"], minute["sarathi_v1"], minute["sarathi_v1"] / minute["orca"]))
    columns = ["length", "batch", "pd", "orca_requests_per_minute", "sarathi_requests_per_minute", "gain"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    from pod.show import style

    ax = style.axes(6.5, 3.0)
    ax.bar(range(len(df)), df.gain, 0.5, color=style.PREFILL, label="ours, analytical A6000")
    for i, gain in enumerate(df.gain):
        ax.text(i, gain + 0.02, f"{gain:.2f}x", ha="center", fontsize=9)
    ax.axhline(paper.value("sarathi.f07.gain"), color=style.INK, linestyle="--", linewidth=1, label="post: 1.3x")
    ax.set_xticks(range(len(df)), [f"{n:,} tokens\nbatch {b}, P:D {r:.0f}" for n, b, r in
                                   zip(df.length, df.batch, df.pd, strict=True)])  # fmt: skip
    ax.set(ylabel="throughput over Orca", ylim=(0, 1.6))
    style.legend(ax, loc="upper right", ncols=2)
    return ax.figure


def gain() -> float:
    """Largest gain over Orca."""
    return float(table().gain.max())

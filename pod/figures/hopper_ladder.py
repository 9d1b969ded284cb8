"""What each idea of the Hopper kernel's schedule is worth, on a batch for which it matters."""

from __future__ import annotations

from pod.data import hardware, read
from pod.figures import Figure

FIGURE = Figure(
    id="hopper-ladder",
    source="This repository",
    title="The Hopper kernel with each idea of its schedule, and without it",
    chapter="16",
    method="bf16, head dimension 128; medians, cold L2, shuffled rounds. % of the roofline: the larger of FLOPs over "
    "the peak rate and bytes of keys and values over the bandwidth of DRAM.",
    state="recorded",
    data=("hopper-ladder",),
)


def table():
    """One row an idea: its batch, TFLOP/s and TB/s and % of the roofline with it, and what it gains, %."""
    import numpy as np
    import pandas as pd

    from pod.measure.suites.hopper_ladder import WITHOUT

    df = read("hopper-ladder")
    gpu = hardware()
    roof = 1e3 * np.maximum(gpu.compute_time(df.flops), gpu.memory_time(df.kv_bytes))
    return pd.DataFrame({
        "idea": df.idea, "batch": [name(WITHOUT[idea][0]) for idea in df.idea], "flops": df.flops,
        "kv_bytes": df.kv_bytes, "ms": df.ours, "without": df.without, "roof_percent": 100 * roof / df.ours,
        "roof_percent_without": 100 * roof / df.without, "gain_percent": 100 * (df.without / df.ours - 1),
    })  # fmt: skip


def name(batch) -> str:
    """A batch in words: chunk @ context + decodes x context, query / KV heads."""
    parts, (prefill, decode) = [], (batch.prefill, batch.decode)
    if prefill:
        one = f"{_short(prefill.q_lens[0])} @ {_short(prefill.kv_lens[0])}"
        parts.append(one if len(prefill.q_lens) == 1 else f"{len(prefill.q_lens)} chunks")
    if decode:
        many = f"{len(decode.kv_lens)} x {_short(decode.kv_lens[0])}"
        parts.append(many if len(set(decode.kv_lens)) == 1 else f"{len(decode.kv_lens)} ragged")
    return f"{' + '.join(parts)}, {batch.num_q_heads}/{batch.num_kv_heads}"


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def words(df):
    """The table for reading: rates with the idea, % of the roofline with and without, and the gain."""
    rates = [" + ".join(f"{work / ms:.3g} {unit}" for work, unit in ((flops / 1e9, "TFLOP/s"), (nbytes / 1e9, "TB/s"))
                        if work) for flops, nbytes, ms in zip(df.flops, df.kv_bytes, df.ms, strict=True)]  # fmt: skip
    roof = [f"{a:.0f} % → {b:.0f} %" for a, b in zip(df.roof_percent_without, df.roof_percent, strict=True)]
    shown = df[["idea", "batch"]].assign(**{
        "with it": rates, "of the roofline": roof, "gain": [f"{x:+.1f} %" for x in df.gain_percent]
    })  # fmt: skip
    return shown.set_index("idea")


def draw(df):
    from pod.show import style

    df = df.sort_values("gain_percent")
    ax = style.axes(9.5, 3.9)
    y = range(len(df))
    ax.barh(y, df.gain_percent, color=style.colour("both"), height=0.6)
    for i, row in zip(y, df.itertuples(), strict=True):
        label = f"{row.gain_percent:+.1f} %   {row.batch}"
        ax.text(max(row.gain_percent, 0) + 0.6, i, label, va="center", fontsize=8.5)
    ax.axvline(0, color=style.INK, linewidth=1)
    ax.set_yticks(y, df.idea, fontsize=9)
    ax.set(xlim=(min(-2, 1.2 * df.gain_percent.min()), 1.45 * df.gain_percent.max()))
    ax.set_xlabel("% longer without the idea")
    ax.tick_params(axis="y", length=0)
    return ax.figure

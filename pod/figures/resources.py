"""What every kernel of the sm_80 family takes of an SM: registers and shared memory, as the compiler reports them."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure

FIGURE = Figure(
    id="resources",
    source="This repository",
    title="Registers and shared memory of every binding, and the CTAs that an SM holds",
    chapter="07",
    method="nvcc's report (python -m pod compute resources); bf16, head dimension 128.",
    data=("resources",),
)
BINDINGS = {
    "OnlyPrefill": "prefill alone",
    "OnlyDecode": "decode alone",
    "ByBlock": "by block (CTA-parallel)",
    "ByWarp": "by warp (HFuse)",
    "ByTicket": "by ticket (SM-aware)",
}
ARCHITECTURES = {"sm_80": "a100", "sm_90": "h200"}


def table():
    """One row an architecture, CTAs an SM and binding; percentages are of the SM, with as many CTAs as are meant."""
    import pandas as pd

    from pod.hardware import GPUS, KIB

    df = read("resources")
    df = df[(df.dtype == "bfloat16") & (df.head_dim == 128)].reset_index(drop=True)
    sm = [GPUS[ARCHITECTURES[arch]] for arch in df.arch]
    ctas = df.ctas_per_sm // (1 + (df.binding == "ByWarp"))  # a CTA of two halves counts twice
    return pd.DataFrame(
        {
            "arch": df.arch,
            "ctas_per_sm": df.ctas_per_sm,
            "binding": df.binding.map(BINDINGS),
            "threads": df.threads,
            "registers": df.registers,
            "smem_kb": df.smem_bytes / KIB,
            "spill_bytes": df.spill_bytes,
            "ctas_that_fit": df.resident_ctas,
            "registers_percent": 100 * df.registers * df.threads * ctas / [g.registers_per_sm for g in sm],
            "smem_percent": 100 * (df.smem_bytes + KIB) * ctas / [g.smem_per_sm for g in sm],
        }
    )


def draw(df):
    """Both resources of an SM, side by side, for two CTAs of each kernel on an SM."""
    import numpy as np

    from pod.show import style

    mine = df[df.ctas_per_sm == 2]
    panels = style.axes(10, 2.9, columns=2, sharey=True)
    for ax, (arch, rows) in zip(panels, mine.groupby("arch", sort=False), strict=True):
        y = np.arange(len(rows))
        for name, column, offset, colour in (("registers", "registers_percent", -0.2, style.WORKERS[3]),
                                             ("shared memory", "smem_percent", 0.2, style.WORKERS[5])):  # fmt: skip
            ax.barh(y + offset, rows[column], height=0.36, color=colour, label=name)
        ax.axvline(100, color=style.INK, linewidth=1, linestyle="--")
        ax.set_yticks(y, rows.binding)
        ax.set(xlim=(0, 112), ylim=(len(rows) - 0.5, -0.5), xlabel="% of an SM, two CTAs")
        ax.set_title(f"{arch} ({ARCHITECTURES[arch].upper()})", fontsize=10, loc="left")
    style.legend(panels[1], loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.1)
    return panels[0].figure

"""POD-Attention, Table 1: are C0, C1 and C2 what their labels say?"""

import pandas as pd

from pod.batch import TABLE1
from pod.hardware import A100, GPUS, H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="The hybrid batches C0 to C2, and which roof each one leans on",
    chapter="03",
    method="Roofline times of each part alone, from counted FLOPs and bytes and the data sheets' peaks.",
)


def table():
    """One row a batch and GPU: microseconds of each part, and prefill over decode."""
    rows = []
    for name, batch in TABLE1.items():
        for gpu in (A100, H200):
            prefill, decode = batch.times(gpu)
            rows.append({"batch": name, "gpu": gpu.key, "chunk": batch.prefill.q_lens[0],
                         "context": batch.prefill.kv_lens[0], "decodes": len(batch.decode.q_lens),
                         "decode_context": batch.decode.kv_lens[0], "prefill_us": 1e6 * prefill,
                         "decode_us": 1e6 * decode, "prefill_over_decode": prefill / decode,
                         "paper": paper.value(f"pod.t1.{name.lower()}.requirement")})  # fmt: skip
    return pd.DataFrame(rows)


SAID = {
    "a100": "A100: C0's label fits; C1 and C2 both pass as balanced",
    "h200": "H200: in all three decode is the longer part",
}


def draw(df):
    """Both parts as bars, one GPU a panel; the ratio is the number to watch. Each panel has its own time axis."""
    axes = style.axes(9.5, 2.9, columns=2)
    for ax, gpu in zip(axes, (A100, H200), strict=True):
        part = df[df.gpu == gpu.key].reset_index()
        longest = part[["prefill_us", "decode_us"]].max().max()
        for y, row in part.iterrows():
            ax.barh(y - 0.19, row.prefill_us, 0.34, color=style.PREFILL, label="prefill: compute" if y == 0 else None)
            ax.barh(y + 0.19, row.decode_us, 0.34, color=style.DECODE, label="decode: memory" if y == 0 else None)
            end = max(row.prefill_us, row.decode_us)
            ax.text(end + 0.03 * longest, y, f"{row.prefill_over_decode:.2f}", va="center", fontweight="bold")
        names = [f"{r.batch}\n{r.paper}" if gpu is A100 else r.batch for r in part.itertuples()]
        ax.set_yticks(range(len(part)), names)
        ax.set(xlim=(0, 1.2 * longest), ylim=(len(part) - 0.4, -0.6))
        ax.set_xlabel("roofline time alone, µs (bold: prefill / decode)")
        ax.set_title(SAID[gpu.key], fontsize=10, loc="left")
        ax.tick_params(axis="y", length=0)
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    return axes[0].figure


def ratio(name: str, on: str = "a100") -> float:
    prefill, decode = TABLE1[name].times(GPUS[on])
    return prefill / decode

"""The step, measured: 66 and 67 requests on the 132 SMs of an H200."""

import pandas as pd

from pod.data import a_card, read
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"One request more on {a_card()}: FlashAttention-3 takes a step, ranges of equal length do not",
    chapter="05",
    method="Yi-6B's heads, 16K tokens a request, bf16. Median, p10 and p90 of decode attention alone, cold L2. "
    "FlashAttention-3 has one CTA on an SM: 66 requests are two full waves of 132.",
    data=("hopper-halves",),
)
SERIAL, RANGES = "FlashAttention-3", "equal ranges (chapters 11, 17)"
COLUMNS = {SERIAL: "fa3", RANGES: "ours"}
REQUESTS = (64, 66, 67)


def table():
    """One row a method and batch: milliseconds, and the rise against 66 requests in percent."""
    df = read("hopper-halves")
    yi = df[(df.side == "decode") & (df.q_heads == 32) & (df.kv_heads == 4) & (df.head_dim == 128)]
    yi = yi[yi.dtype == "bfloat16"].set_index("batch")
    rows = []
    for method, column in COLUMNS.items():
        full = yi.loc["66 x 16K", column]
        for n in REQUESTS:
            times = [yi.loc[f"{n} x 16K", f"{column}{end}"] for end in ("", "_p10", "_p90")]
            rows.append((method, n, 4 * n, *times, 100 * (times[0] / full - 1)))
    return pd.DataFrame(rows, columns=["method", "requests", "ctas", "ms", "ms_p10", "ms_p90", "rise_percent"])


def draw(df):
    ax = style.axes(7.5, 3.4)
    for m, (_, part) in enumerate(df.groupby("method", sort=False)):
        for i, row in enumerate(part.itertuples()):
            x = m * 4 + i
            ax.bar(x, row.ms, 0.8, color=style.DECODE)
            ax.vlines(x, row.ms_p10, row.ms_p90, color=style.INK, linewidth=2)
            words = f"{row.ms:.3f}" if row.requests != 67 else f"{row.ms:.3f}\n{row.rise_percent:+.0f} %"
            ax.text(x, row.ms_p90 + 0.012, words, ha="center", fontsize=9,
                    fontweight="bold" if row.requests == 67 else "normal")  # fmt: skip
    ticks = [m * 4 + i for m in range(len(COLUMNS)) for i in range(len(REQUESTS))]
    ax.set_xticks(ticks, REQUESTS * len(COLUMNS))
    for m, method in enumerate(COLUMNS):
        ax.text(m * 4 + 1, -0.13, method, ha="center", fontsize=10, transform=ax.get_xaxis_transform(), va="top")
    ax.set(ylim=(0, 1.16 * df.ms_p90.max()), ylabel="decode attention, ms")
    ax.set_xlabel("requests of 16K tokens", labelpad=30)
    ax.tick_params(axis="x", length=0)
    return ax.figure


def step(method: str = SERIAL) -> float:
    """Rise of decode time from 66 to 67 requests, %."""
    return float(table().set_index(["method", "requests"]).rise_percent[method, 67])

"""LeanAttention, Figure 3: how busy the SMs are under each cut, and what they read."""

from __future__ import annotations

from pod.data import a_card, read
from pod.figures import Figure

FIGURE = Figure(
    id="lean-03",
    source="LeanAttention, Figure 3",
    title="SMs at work under each cut: 56 heads, one request of 64K tokens",
    chapter="10",
    method=f"Time stamps of every SM's decode warps in one launch on {a_card()}, head dimension 64; no counters.",
    state="recorded",
    data=("lean-trace",),
)
RUNS = {"single": "no split", "rule_256": "rule of 2.5.6", "rule_now": "today's rule", "lean": "stream-K"}


def table():
    """One row a cut and SM: when its decode began and ended, microseconds after the first."""
    df = read("lean-trace")
    df = df[df.run.isin(RUNS)]
    return df[["run", "sm", "start_us", "end_us"]].astype({"sm": int}).reset_index(drop=True)


def busy(df):
    """Share of all SMs' time until the last end in which they decode, by cut, %."""
    spans = df.assign(span=df.end_us - df.start_us).groupby("run")
    return 100 * spans.span.sum() / (spans.sm.nunique() * (spans.end_us.max() - spans.start_us.min()))


def busy_under_stream_k() -> float:
    return float(busy(table())["lean"])


def draw(df):
    from pod.show import style

    axes = style.axes(9.8, 3.4, columns=4, sharey=True, sharex=True)
    shares = busy(df)
    gigabytes = 2 * 2 * 56 * 64 * (64 << 10) / 1e9
    for ax, (run, words) in zip(axes, RUNS.items(), strict=True):
        part = df[df.run == run].sort_values("end_us", ascending=False).reset_index()
        ax.barh(part.index, part.end_us - part.start_us, 1.0, left=part.start_us, color=style.DECODE, linewidth=0)
        end = part.end_us.max()
        ax.axvline(end, color=style.INK, linestyle="--", linewidth=1)
        title = f"{words}: {end:.0f} µs\nbusy {shares[run]:.0f} %, {gigabytes / end * 1e3:.1f} TB/s"
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.set(xlabel="time, µs", ylim=(132, 0))
    axes[0].set_ylabel("SMs, longest first")
    return axes[0].figure

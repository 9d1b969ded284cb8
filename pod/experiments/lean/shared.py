"""What the figures of LeanAttention share: recordings, and speed-ups of stream-K over other ways to cut the line."""

from pod.lab.show import style

PAPER = {"over the rule of 2.5.6": "paper_rule_256", "over today's rule": "paper_rule_now"}  # of the rebuilt tile
HOPPER = {"over the best fixed split": "best_split", "over FlashAttention-3": "fa3",
          "over FlashInfer": "flashinfer"}  # of the Hopper kernel under equal ranges  # fmt: skip
FLASHINFER = ["flashinfer", "flashinfer_plain"]  # its prefill's tile with one row a query, and its decode kernel


def with_faster_flashinfer(df):
    """Who uses FlashInfer may take the faster of its two decodes, so its column is that one. (A repeat has one.)"""
    return df.assign(flashinfer=df[df.columns.intersection(FLASHINFER)].min(axis=1))


def speedups(df):
    """Columns of speed-ups: the rebuilt tile over FlashDecoding's rules, the Hopper kernel over its best split and the
    peers."""
    df = with_faster_flashinfer(df)
    out = {name: df[column] / df.paper_lean for name, column in PAPER.items()} if "paper_lean" in df else {}
    out |= {name: df[column] / df.lean for name, column in HOPPER.items()}
    return df.assign(**out)


def lines(ax, df, x: str, columns) -> None:
    """One line a column of speed-ups against x; the rebuilt tile is full, the Hopper kernel dashed."""
    tones = (style.WORKERS[3], style.INK, *style.WORKERS[:2], style.WORKERS[4])
    looks = dict(zip([*PAPER, *HOPPER], zip(tones, ("-", "-", "--", "--", "--"), "oosss", strict=True), strict=True))
    for name in columns:
        colour, dash, marker = looks[name]
        whose = "paper's tile" if name in PAPER else "Hopper kernel"
        width = 3 if name == "over the rule of 2.5.6" else 1.5  # seen also where both rules choose the same
        ax.plot(df[x], df[name], color=colour, linestyle=dash, marker=marker, markersize=4, linewidth=width,
                label=f"{whose} {name}")  # fmt: skip
    ax.axhline(1, color=style.FRAME, zorder=0)


def in_k(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens < 1 << 20 else f"{tokens >> 20}M"

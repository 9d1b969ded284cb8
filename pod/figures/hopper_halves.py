"""Each half of the Hopper kernel alone, against the faster FlashAttention-3 call."""

from __future__ import annotations

from pod.data import a_card, read
from pod.figures import Figure

FIGURE = Figure(
    id="hopper-halves",
    source="This repository",
    title=f"Prefill alone and decode alone on {a_card()}, beside FlashAttention-3",
    chapter="16",
    method="Time of the faster FlashAttention-3 call over ours, %. Cold L2. Picture: bf16, head dimension 128.",
    state="recorded",
    data=("hopper-halves",),
)
CACHES = {
    "contiguous": "ours",
    "pages of 256": "ours_page256",
    "pages of 64": "ours_page64",
    "pages of 16": "ours_page16",
}
TITLES = {"prefill": "prefill: chunk @ context, query / KV heads", "decode": "decode: requests x context"}
RIGHT = 130  # of the picture, %; what is faster still is written
BAR = {"prefill": 97, "decode": 100}  # what we set out to reach with a contiguous cache, %


def table():
    """One row a shape: rate (TFLOP/s of prefill, GB/s of decode) and percent of FlashAttention-3 with a contiguous
    cache, cache by cache, and with what method `auto` takes; `same_pages`: of FlashAttention-3 in pages of 16, too."""
    df = read("hopper-halves")
    prefill = df.side == "prefill"
    fa3 = df.fa3.where(~prefill, df[["fa3", "fa3_exact"]].min(axis=1))  # decode has one call
    work = (df.flops / 1e9).where(prefill, df.kv_bytes / 1e6)  # per millisecond: TFLOP/s, GB/s
    out = df[["side", "batch", "q_heads", "kv_heads", "head_dim", "dtype"]].assign(
        unit=prefill.map({True: "TFLOP/s", False: "GB/s"}), fa3=work / fa3, ours=work / df.ours
    )
    auto = 100 * fa3 / df.auto.where(~prefill, df.ours)  # prefill alone is this kernel in any case
    return out.assign(**{name: 100 * fa3 / df[column] for name, column in CACHES.items()}, auto=auto,
                      same_pages=100 * df.fa3_page16 / df.ours_page16)  # fmt: skip


def _worst(side: str, head_dim: int = 128, column: str = "contiguous") -> float:
    """Least share of FlashAttention-3's speed with a contiguous cache in bf16."""
    df = table()
    return float(df[(df.side == side) & (df.dtype == "bfloat16") & (df.head_dim == head_dim)][column].min()) / 100


def prefill_least() -> float:
    return _worst("prefill")


def prefill_64_least() -> float:
    return _worst("prefill", head_dim=64)


def decode_least() -> float:
    return _worst("decode")


def prefill_pages_least() -> float:
    """Both in pages of 16 tokens."""
    return _worst("prefill", column="same_pages")


def decode_pages_least() -> float:
    return _worst("decode", column="same_pages")


def decode_auto_least() -> float:
    """The same with the method that `auto` takes for decodes alone."""
    return _worst("decode", column="auto")


def draw(df):
    from pod.show import style

    shown = df[(df.dtype == "bfloat16") & (df.head_dim == 128)]
    axes = style.axes(9.5, 4.9, columns=2)
    for ax, side in zip(axes, ("prefill", "decode"), strict=True):
        _rows(ax, shown[shown.side == side], style.colour(side), BAR[side])
        ax.set_title(TITLES[side], fontsize=10, loc="left")
    style.legend(axes[0], loc="lower right")
    axes[1].legend(*[x[-1:] for x in axes[1].get_legend_handles_labels()], loc="lower right", frameon=False, fontsize=9)
    return axes[0].figure


def _rows(ax, df, tone: str, bar: float) -> None:
    from pod.show import style

    y = range(len(df))
    ax.axvspan(bar, RIGHT, color=style.IDLE, zorder=0)
    ax.axvline(100, color=style.INK, linewidth=1, zorder=1)
    marks = dict(zip(CACHES, "o>sD", strict=True))
    for name, marker in marks.items():
        full = name == "contiguous"
        ax.plot(df[name], y, marker, color=tone, markersize=7 if full else 4, markerfacecolor=tone if full else "white",
                zorder=4 if full else 3, label=name)  # fmt: skip
    other = (df.auto - df.contiguous).abs() > 2  # for decodes alone another method may be the default
    if other.any():
        at = [i for i, differs in zip(y, other, strict=True) if differs]
        ax.plot(df.auto[other], at, "*", color=style.INK, markersize=8, zorder=5, label="what auto takes")
    for i, row in zip(y, df.itertuples(), strict=True):
        if row.contiguous > RIGHT:
            ax.text(RIGHT - 0.5, i, f"{row.contiguous:.0f} →", ha="right", va="center", fontsize=8.5, color=tone)
        ax.text(1.01, i, f"{row.ours:,.0f}", transform=ax.get_yaxis_transform(), fontsize=8.5, va="center")
    ax.text(1.01, -0.9, df.unit.iloc[0], transform=ax.get_yaxis_transform(), fontsize=8.5, va="center")
    ax.set_yticks(y, [_name(row) for row in df.itertuples()], fontsize=8.5)
    ax.set(xlim=(84, RIGHT), ylim=(len(df) - 0.4, -0.6), xlabel="% of FlashAttention-3's speed")


def _name(row) -> str:
    short = " ".join(f"{int(word) // 1024}K" if word.isdigit() and int(word) % 1024 == 0 else word
                     for word in row.batch.split())  # fmt: skip
    return f"{short}, {row.q_heads}/{row.kv_heads}" if row.side == "prefill" else short

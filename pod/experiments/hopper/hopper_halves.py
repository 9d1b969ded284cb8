"""Each half of the Hopper kernel alone, against the faster FlashAttention-3 call.

Measured: prefill alone and decode alone, ours (contiguous, and in pages of 16, 64 and 256) beside FlashAttention-3.
"""

from functools import partial
from random import Random

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title=f"Prefill alone and decode alone on {a_card()}, beside FlashAttention-3",
    chapter="17",
    method="Time of the faster FlashAttention-3 call over ours, %. Cold L2. Picture: bf16, head dimension 128.",
    data=("hopper-halves",),
)
RECORDING = "hopper-halves"
KEYS = ("side", "batch", "q_heads", "kv_heads", "head_dim", "dtype")
UNITS = ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
K = 1024
RAGGED = Random(1)

PREFILL = [
    (2 * K, 2 * K, 32, 8), (4 * K, 4 * K, 32, 8), (8 * K, 8 * K, 32, 8), (16 * K, 16 * K, 32, 8), (2 * K, 8 * K, 32, 8),
    (512, 16 * K, 16, 4), (1 * K, 16 * K, 16, 4), (2 * K, 16 * K, 16, 4), (512, 32 * K, 16, 4), (1 * K, 32 * K, 16, 4),
    (2 * K, 32 * K, 16, 4), (1 * K, 12 * K, 16, 4), (512, 16 * K, 32, 4), (2 * K, 16 * K, 32, 4),
    (2 * K, 8 * K, 16, 16),
]  # fmt: skip
DECODE = {
    "64 x 16K": ([16 * K] * 64, 32, 4), "66 x 16K": ([16 * K] * 66, 32, 4), "67 x 16K": ([16 * K] * 67, 32, 4),
    "80 x 12K": ([12 * K] * 80, 16, 4), "32 x 8K": ([8 * K] * 32, 16, 16), "128 x 4K": ([4 * K] * 128, 32, 8),
    "256 x 1K": ([1 * K] * 256, 32, 8), "16 x 2K": ([2 * K] * 16, 32, 8), "4 x 8K": ([8 * K] * 4, 32, 8),
    "1 x 4K": ([4 * K], 32, 8), "1 x 16K": ([16 * K], 32, 8), "1 x 64K": ([64 * K], 32, 8),
    "1 x 128K": ([128 * K], 32, 8),
    "64 ragged 1K to 64K": ([RAGGED.randint(1 * K, 64 * K) for _ in range(64)], 32, 4),
}  # fmt: skip
VARIANTS = [(128, "bfloat16"), (128, "float16"), (64, "bfloat16")]


def cases() -> list[dict]:
    rows = []
    for head_dim, dtype in VARIANTS:
        for chunk, context, q_heads, kv_heads in PREFILL:
            rows.append(("prefill", f"{chunk} @ {context}", q_heads, kv_heads, head_dim, dtype))
        for name, (_, q_heads, kv_heads) in DECODE.items():
            rows.append(("decode", name, q_heads, kv_heads, head_dim, dtype))
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    heads = (case["q_heads"], case["kv_heads"], case["head_dim"])
    if case["side"] == "prefill":
        chunk, context = (int(x) for x in case["batch"].split(" @ "))
        batch = HybridBatch((chunk,), (context,), *heads, dtype=case["dtype"])
        makers = {"fa3": peers.fa3_prefill, "fa3_exact": peers.fa3_prefill_exact}
    else:
        lens, _, _ = DECODE[case["batch"]]
        batch = HybridBatch((1,) * len(lens), tuple(lens), *heads, dtype=case["dtype"])
        makers = {"fa3": peers.fa3_decode, "auto": lambda s: peers.family(s, "auto")}
    makers |= {"fa3_page16": lambda s: peers.fa3_paged(s, 16), "ours": peers.ours}
    for page in (16, 64, 256):
        makers[f"ours_page{page}"] = lambda s, page=page: peers.ours_paged(s, page)
    return peers.table_row(peers.Setting(batch), makers, ROUNDS, ms=4.0)


# ---------------------------------------------------------------- what it shows

CACHES = {
    "contiguous": "ours",
    "pages of 256": "ours_page256",
    "pages of 64": "ours_page64",
    "pages of 16": "ours_page16",
}
TITLES = {"prefill": "prefill: chunk @ context, heads", "decode": "decode: requests x context, heads"}
RIGHT = 133  # of the picture, %; what is faster still is written
BAR = {"prefill": 97, "decode": 100}  # what we set out to reach with a contiguous cache, %


def table():
    """One row a shape: rate (TFLOP/s of prefill, GB/s of decode) and percent of FlashAttention-3 with a contiguous
    cache, cache by cache, and with what method `auto` takes; `same_pages`: of FlashAttention-3 in pages of 16, too."""
    df = read("hopper-halves")
    prefill = df.side == "prefill"
    fa3 = df.fa3.where(~prefill, df[["fa3", "fa3_exact"]].min(axis=1))  # decode has one call
    work = (df.flops / 1e9).where(prefill, df.kv_bytes / 1e6)  # per millisecond: TFLOP/s, GB/s
    unit = prefill.map({True: "TFLOP/s", False: "GB/s"})
    out = df[list(KEYS)].assign(unit=unit, fa3=work / fa3, ours=work / df.ours)
    auto = 100 * fa3 / df.auto.where(~prefill, df.ours)  # prefill alone is this kernel in any case
    return out.assign(**{name: 100 * fa3 / df[column] for name, column in CACHES.items()}, auto=auto,
                      same_pages=100 * df.fa3_page16 / df.ours_page16)  # fmt: skip


def draw(df):
    shown = df[(df.dtype == "bfloat16") & (df.head_dim == 128)]
    axes = style.axes(9.5, 4.9, columns=2)
    for ax, side in zip(axes, ("prefill", "decode"), strict=True):
        _rows(ax, shown[shown.side == side], style.colour(side), BAR[side])
        ax.set_title(TITLES[side], fontsize=10, loc="left")
    marks, stars = axes[0].get_legend_handles_labels(), [x[-1:] for x in axes[1].get_legend_handles_labels()]
    for ax, shown_there in zip(axes, (marks, stars), strict=True):  # below: inside, a mark would pass for a shape's
        ax.legend(*shown_there, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, frameon=False, fontsize=9,
                  columnspacing=1, handletextpad=0.3)  # fmt: skip
    return axes[0].figure


def _rows(ax, df, tone: str, bar: float) -> None:
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
    return f"{short}, {row.q_heads}/{row.kv_heads}"


# ---------------------------------------------------------------- what claims ask for


def worst(side: str, head_dim: int = 128, column: str = "contiguous") -> float:
    """Least share of FlashAttention-3's speed with a contiguous cache in bf16."""
    df = table()
    return float(df[(df.side == side) & (df.dtype == "bfloat16") & (df.head_dim == head_dim)][column].min()) / 100


def mean(side: str, column: str = "contiguous") -> float:
    """Geometric mean of FlashAttention-3's time over ours, bf16, head dimension 128."""
    df = table()
    return geomean(df[(df.side == side) & (df.dtype == "bfloat16") & (df.head_dim == 128)][column] / 100)


prefill_64_least = partial(worst, "prefill", head_dim=64)
decode_least = partial(worst, "decode")
prefill_pages_least = partial(worst, "prefill", column="same_pages")  # both in pages of 16 tokens
decode_pages_least = partial(worst, "decode", column="same_pages")
# The same with the method that `auto` takes for decodes alone
decode_auto_least = partial(worst, "decode", column="auto")

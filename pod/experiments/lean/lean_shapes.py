"""Decode as the planner chooses it on an H200, shape by shape, beside the peers and a plain read."""

from pod.data import a_card, hardware, read
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"Decode on {a_card()}, shape by shape: ours, FlashAttention-3, FlashInfer, a plain read",
    chapter="11",
    method="Ours: what the planner takes. Microseconds, and % of the data sheet's "
    f"{hardware().dram_bytes_per_s / 1e12:.1f} TB/s. Medians of shuffled rounds, cold L2.",
    data=("lean",),
)
WAYS = {"ours": "auto", "equal ranges": "lean", "FlashAttention-3": "fa3", "FlashInfer": "flashinfer",
        "best fixed split": "best_split", "no split": "single", "a plain read": "read"}  # fmt: skip
LABELS = {"FlashInfer": "FlashInfer, tensor cores"}  # one of its two decode kernels
LARGE = 1e9  # bytes of keys and values
SINGLE = r"1 x \d+K$"


def table():
    """One row a batch: gigabytes, microseconds of each way, and the share of the DRAM rate that each reaches, %."""
    df = read("lean")
    rate = df.kv_bytes / 1e9 / hardware().dram_bytes_per_s * 1e14  # % of the peak, by milliseconds
    out = df[["batch", "q_heads", "kv_heads", "head_dim"]].assign(gigabytes=df.kv_bytes / 1e9)
    out = out.assign(**{f"{name}, µs": 1e3 * df[column] for name, column in WAYS.items()})
    return out.assign(**{f"{name}, %": rate / df[column] for name, column in WAYS.items()})


# ---------------------------------------------------------------- what we state
def least_of_peers() -> float:
    """Least speed-up over the faster of FlashAttention-3 and FlashInfer."""
    df = table()
    best = df[["FlashAttention-3, µs", "FlashInfer, µs"]].min(axis=1)
    return float((best / df["ours, µs"]).min())


def least_of_read() -> float:
    """Least share of a plain read's rate that ours reaches on batches over 1 GB, %."""
    df = table()
    return float((100 * df["a plain read, µs"] / df["ours, µs"])[df.gigabytes > LARGE / 1e9].min())


def least_of_small() -> float:
    """Least speed-up over FlashAttention-3 for one request with 8 KV heads, over both recordings that have such."""
    df = table()
    small = df[(df.kv_heads == 8) & df.batch.str.match(SINGLE)]
    here = (small["FlashAttention-3, µs"] / small["ours, µs"]).min()
    return float(min(here, singles().speedup.min()))


def lags():
    """One request with 8 KV heads: by how many µs FlashAttention-3, which plans inside the call, is behind ours."""
    df = table()
    df = df[(df.kv_heads == 8) & df.batch.str.match(SINGLE)].set_index("batch")
    return df["FlashAttention-3, µs"] - df["ours, µs"]


def saved_ahead():
    """Microseconds that FlashAttention-3 is faster with its plan made ahead: chapter 17's batches that only decode."""
    df = read("hopper-any")
    df = df[df.kind == "decode"]
    return 1e3 * (df.fa3_two - df.fa3_two_ahead)


def singles():
    """One request with 8 KV heads, as chapter 17 records it: microseconds of ours and of FlashAttention-3."""
    df = read("hopper-halves")
    df = df[(df.side == "decode") & (df.head_dim == 128) & (df.dtype == "bfloat16") & df.batch.str.match(SINGLE)]
    out = df[["batch"]].assign(ours=1e3 * df.auto, fa3=1e3 * df.fa3)
    return out.assign(speedup=out.fa3 / out.ours).reset_index(drop=True)


def in_pages():
    """The batches that are also measured in pages of 16 in random order: what pages cost us, the gain over
    FlashAttention-3 in the same pages, and over FlashInfer, whose pages lie in order."""
    df = read("lean").dropna(subset="auto_page16")
    return df[["batch", "kv_heads"]].assign(cost=df.auto_page16 / df.auto, gain=df.fa3_page16 / df.auto_page16,
                                            flashinfer=df.flashinfer / df.auto_page16)  # fmt: skip


def least_in_pages() -> float:
    return float(in_pages().gain.min())


def draw(df):
    ax = style.axes(9.5, 7.2)
    looks = {"ours": (style.WORKERS[0], "o", 8), "FlashAttention-3": (style.WORKERS[1], "s", 5)}
    looks |= {"FlashInfer": (style.WORKERS[4], "D", 5), "a plain read": (style.INK, "|", 12)}
    y = range(len(df))
    for name, (colour, marker, size) in looks.items():
        zorder = 2 if name == "ours" else 3
        ax.plot(df[f"{name}, %"], y, marker, color=colour, markersize=size, linestyle="", label=LABELS.get(name, name),
                zorder=zorder)  # fmt: skip
    words = [f"{r.batch}, {r.q_heads}/{r.kv_heads}, d {r.head_dim}" for r in df.itertuples()]
    ax.set_yticks(y, words, fontsize=8.5)
    for i, (time, size) in enumerate(zip(df["ours, µs"], df.gigabytes, strict=True)):
        words = f"{time:,.0f} µs, {size:.2g} GB"
        ax.text(1.01, i, words, transform=ax.get_yaxis_transform(), fontsize=8.5, va="center")
    kinds = list(zip(df.head_dim, df.batch.str.contains("ratio|1M"), df.batch.str.match(SINGLE), strict=True))
    for i in range(1, len(df)):
        if kinds[i] != kinds[i - 1] and df.head_dim[i] != 64:  # head dimension 64; 128; ragged; one request
            ax.axhline(i - 0.5, color=style.FRAME, linewidth=1)
    ax.grid(axis="x", color=style.IDLE)
    ax.set_axisbelow(True)
    ax.set(xlim=(0, 100), ylim=(len(df) - 0.4, -0.6), xlabel="% of the data sheet's DRAM rate, 4.8 TB/s")
    style.legend(ax, loc="lower center", ncols=6, bbox_to_anchor=(0.42, 1.0))
    return ax.figure

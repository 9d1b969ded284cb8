"""How large a tile that is never cut should be, for the warps of csrc/lean.cu, beside the Hopper kernel and a read."""

from __future__ import annotations

from pod.data import read
from pod.figures import Figure, _lean

FIGURE = Figure(
    id="lean-tiles",
    source="This repository",
    title="Stream-K decode by tile size and kernel, beside a plain read",
    chapter="10",
    method="The Hopper kernel's equal ranges over each, in time. The read: torch's float32 sum of as many bytes.",
    state="recorded",
    data=("lean-tiles",),
)
TILES = (64, 128, 256, 512, 1024)


def table():
    """One row a batch: microseconds of the Hopper kernel, of each tile of the warps, and of a plain read."""
    df = read("lean-tiles")
    names = [_name(row) for row in df.itertuples()]
    out = df[["kv_heads", "q_heads", "head_dim", "kv_bytes"]].assign(batch=names, hopper=1e3 * df.hopper)
    return out.assign(read=1e3 * df.read, **{f"tile {n}": 1e3 * df[f"tile_{n}"] for n in TILES})


def _name(row) -> str:
    return f"{row.batch} x {_lean.in_k(row.context)}, {row.q_heads}/{row.kv_heads}, d {row.head_dim}"


def orders():
    """GB/s on batches over 1 GB, one row each: the Hopper kernel's ranges; the warps' ranges with one head after the
    other and with neighbouring heads side by side; the warps as planned; a plain read."""
    df = read("lean-tiles").query("kv_bytes > 1e9")
    ways = {"Hopper kernel": "hopper", "head after head": "head_by_head", "side by side": "tile_64",
            "as planned": "warps", "a plain read": "read"}  # fmt: skip
    out = {name: df.kv_bytes / df[column] / 1e6 for name, column in ways.items()}
    return df[["kv_bytes"]].assign(batch=[_name(row) for row in df.itertuples()], **out).drop(columns="kv_bytes")


def draw(df):
    from pod.show import style

    ax = style.axes(9.2, 4.6)
    ax.axvline(1, color=style.INK, linewidth=1, zorder=0)
    looks = {f"tile {n}": (tone, "o") for n, tone in zip(TILES, ("#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c"),
                                                         strict=True)} | {"read": (style.DECODE, "|")}  # fmt: skip
    for name, (tone, marker) in looks.items():
        size = 12 if name == "read" else 6
        label = "a plain read" if name == "read" else f"{name[5:]} tokens"
        ax.plot(df.hopper / df[name], range(len(df)), marker, color=tone, markersize=size, linestyle="", label=label,
                markeredgewidth=2 if name == "read" else 0)  # fmt: skip
    ax.set_yticks(range(len(df)), df.batch, fontsize=8.5)
    for i, us in enumerate(df.hopper):
        ax.text(1.01, i, f"{us:,.0f} µs", transform=ax.get_yaxis_transform(), fontsize=8.5, va="center")
    ax.set(ylim=(len(df) - 0.4, -0.6), xlabel="speed-up over the Hopper kernel's decode (its time at the right)")
    style.legend(ax, loc="lower center", ncols=6, bbox_to_anchor=(0.45, 1.0))
    return ax.figure

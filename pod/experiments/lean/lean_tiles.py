"""How large a tile that is never cut should be, for the warps of lean.cu, beside the Hopper kernel and a read.

The size of a LeanTile: how many keys lean.cu never cuts apart, beside the Hopper kernel's decode half. What it brings
to read neighbouring heads side by side, and whole parts where they fill the warps. And whether a tail of small ranges,
for whoever is free first, ends sooner than equal ranges.
Measured: decode by stream-K with tiles of 64 to 1,024 keys, by warps (lean.cu), beside the Hopper kernel's decode.
"""

from dataclasses import replace
from functools import partial
from math import gcd

from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.lean import lean, shared
from pod.kernels import sm90
from pod.kernels.launch import Plan
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style
from pod.schedule import decide, work
from pod.schedule.work import pass_count

FIGURE = Figure(
    title="Stream-K decode by tile size and kernel, beside a plain read",
    chapter="11",
    method="The Hopper kernel's equal ranges over each, in time. The read: torch's float32 sum of as many bytes.",
    data=("lean-tiles",),
    says="Warps read large batches faster than the Hopper kernel, small ones slower",
)
RECORDING = "lean-tiles"
KEYS = ("q_heads", "kv_heads", "head_dim", "batch", "context")
UNITS = lean.UNITS
ROUNDS, REPEATS = 5, 15
K = lean.K
TAIL, ROUNDS_OF_TAIL = 0.12, 2  # share of the tiles that are left for small ranges, and how many of them an SM may take


def cases() -> list[dict]:
    rows = [(32, 8, 128, 1, n * K) for n in (2, 4, 16, 64, 128)]
    rows += [(32, 32, 128, 1, 64 * K), (32, 32, 128, 1, 128 * K), (16, 16, 128, 32, 8 * K), (32, 8, 128, 128, 4 * K)]
    rows += [(32, 4, 128, b, 16 * K) for b in (64, 67)]
    rows += [(56, 56, 64, 1, 64 * K), (48, 48, 64, 6, 16 * K), (48, 48, 64, 6, 64 * K), (32, 32, 64, 4, 4 * K)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    heads, requests = (case["q_heads"], case["kv_heads"], case["head_dim"]), case["batch"]
    dtype = "float16" if case["head_dim"] == 64 else "bfloat16"
    batch = HybridBatch((1,) * requests, (case["context"],) * requests, *heads, dtype=dtype)
    makers = {"fa3": peers.fa3_decode, "read": lean.read}
    makers |= {"hopper": partial(lean.lean, splits="stream-k", worker="hopper"), "tail": tail}
    makers |= {f"tile_{n}": partial(lean.lean, splits="stream-k", worker="warp", block=n) for n in TILES}
    makers |= {"head_by_head": partial(lean.lean, splits="stream-k", worker="warp", alike=1),
               "warps": partial(lean.lean, worker="warp")}  # fmt: skip
    return peers.table_row(peers.Setting(batch), makers, ROUNDS)


def with_tail(batch: HybridBatch, causal: bool = True) -> work.Schedule:
    """One equal range for each SM, and then small ones, which the SMs draw as they become free."""
    _, singles = work.sides(batch)
    passes, workers = pass_count(singles, 8), lean.SMS * (1 + ROUNDS_OF_TAIL)
    ranges = lean.SMS // gcd(passes & -passes, workers)
    weights = [1 - TAIL] * ranges + [TAIL / ROUNDS_OF_TAIL] * ranges * ROUNDS_OF_TAIL
    ranges = decide.hopper_ranges(singles, workers, weights, least=1)
    return replace(decide.hopper(batch, lean.SMS, causal=causal), decode=ranges)


def tail(s):
    plan = Plan(s.batch, "lean", s.k.device, sm90.KERNEL, partial(with_tail, s.batch))
    return lambda: (None, plan.run(s.q, s.k, s.v))


# ---------------------------------------------------------------- what it shows

TILES = (64, 128, 256, 512, 1024)


def table():
    """One row a batch: microseconds of the Hopper kernel, of each tile of the warps, and of a plain read."""
    df = read("lean-tiles")
    names = [_name(row) for row in df.itertuples()]
    out = df[["kv_heads", "q_heads", "head_dim", "kv_bytes"]].assign(batch=names, hopper=1e3 * df.hopper)
    return out.assign(read=1e3 * df.read, **{f"tile {n}": 1e3 * df[f"tile_{n}"] for n in TILES})


def _name(row) -> str:
    return f"{row.batch} x {shared.in_k(row.context)}, {row.q_heads}/{row.kv_heads}, d {row.head_dim}"


def draw(df):
    ax = style.axes(9.2, 4.6)
    ax.axvline(1, color=style.INK, linewidth=1, zorder=0)
    looks = {f"tile {n}": (tone, "o") for n, tone in zip(TILES, ("#c7e9c0", "#a1d99b", "#74c476", "#31a354", "#006d2c"),
                                                         strict=True)} | {"read": (style.INK, "|")}  # fmt: skip
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


def orders():
    """GB/s on batches over 1 GB, one row each: the Hopper kernel's ranges; the warps' ranges with one head after the
    other and with neighbouring heads side by side; the warps as planned; a plain read."""
    df = read("lean-tiles").query("kv_bytes > 1e9")
    ways = {"Hopper kernel": "hopper", "head after head": "head_by_head", "side by side": "tile_64",
            "as planned": "warps", "a plain read": "read"}  # fmt: skip
    out = {name: df.kv_bytes / df[column] / 1e6 for name, column in ways.items()}
    return df[["kv_bytes"]].assign(batch=[_name(row) for row in df.itertuples()], **out).drop(columns="kv_bytes")

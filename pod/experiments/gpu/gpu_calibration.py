"""What pod/simulate/gpusim.py is fitted to: bare reads, and prefill and decode alone, over the number of CTAs.

Measured: bare reads and products, and prefill or decode alone with 1 to k equal CTAs an SM, which fix the GPU model.
"""

import pandas as pd

import pod
from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.gpu.shared import Case, milliseconds
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.measure.bare import checked, library, pointer, stream
from pod.lab.show import style
from pod.schedule.decide import METHODS
from pod.schedule.work import SHAPES
from pod.simulate import gpusim

FIGURE = Figure(
    title="The microbenchmarks behind the model: reads, prefill alone and decode alone, from one CTA on",
    chapter="10",
    method="Dots: equal CTAs, cold L2, medians. Lines: pod/simulate/gpusim.py, which is fitted to a few of the dots.",
    data=("gpusim-calibrate", "gpusim"),
    fitted=True,
)
RECORDING = "gpusim-calibrate"
KEYS = ("probe", "shape", "ctas", "size")
UNITS = ("hybrid", "rates")
ROUNDS, REPEATS = 5, 15
GROUP = 4  # KB that a CTA of csrc/micro/rates.cu asks for at a time
AGAIN = 16  # groups that "read again" goes round: of 396 CTAs together 26 MB, which L2 keeps
MANY = 132 * 16  # CTAs that do nothing: the price of starting one
PARTS = 4  # of the probes that end in "split"


def cases() -> list[dict]:
    """`shape`: warps of multiply, groups of read under way, CTAs an SM of ours; `size`: rounds, KB or keys of a CTA."""
    rows = [("multiply", warps, 132, 20000) for warps in (4, 8, 16)]
    for probe in ("read", "read again"):  # each CTA new bytes, from DRAM; or the same 64 KB all the time, from L2
        rows += [(probe, ahead, ctas, 4096) for ahead in (1, 4, 16) for ctas in (1, 132, 264)]
        rows += [(probe, ahead, 396, 4096) for ahead in (8, 16)]
    rows += [("read", 1, ctas, 0) for ctas in (1, MANY)]
    # Prefill without a mask, so that all tiles are equal: on few SMs, one on each, several on each, and short ones.
    for shape, counts in ((2, (1, 33, 66, 132, 264, 528)), (4, (1, 66, 132, 264, 396, 528, 1056))):
        rows += [("prefill", shape, ctas, 4224) for ctas in counts]
        rows += [("prefill", shape, 132 * shape, size) for size in (256, 1024)]
        rows += [("prefill own", shape, ctas, 2048) for ctas in (66, 132, 132 * shape)]
    for shape, counts in ((2, (1, 33, 66, 132, 198, 264, 528)), (4, (1, 33, 66, 132, 264, 528, 1056))):
        rows += [("decode", shape, ctas, 4096) for ctas in counts]
        rows += [("decode", shape, 132 * shape, size) for size in (256, 1024)]
        rows += [("decode shared", shape, ctas, 4096) for ctas in (1, 132, 132 * shape)]
    rows += [(f"{side} split", shape, 132 * shape, 4224) for side in ("prefill", "decode") for shape in (2, 4)]
    # FlashAttention-2, as torch carries it: prefill tiles as ours, and decodes of 64 rows where it cuts the keys.
    rows += [("fa2 prefill", 2, ctas, 4224) for ctas in (132, 264)]
    rows += [("fa2 decode", 2, tiles, 16384) for tiles in (32, 64, 132, 264)]
    rows += [("empty", method, 2, 16) for method in METHODS]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    makers = {"multiply": _multiply, "read": _read, "read again": _read, "empty": _empty}
    makers |= {"fa2 prefill": _flash, "fa2 decode": _flash}
    call, counts = makers.get(case["probe"], _ours)(**case)
    time = timing.shuffled({"x": call}, ROUNDS, 3.0)["x"]
    counts = {name: count() if callable(count) else count for name, count in counts.items()}
    return counts | time.columns(digits=6)


def _row(flops=0, nbytes=0, cycles=0) -> dict:
    return {"flops": flops, "bytes": nbytes, "cycles": cycles}


# ---------------------------------------------------------------- bare reads and products


def _multiply(probe: str, shape: int, ctas: int, size: int):
    import torch

    cycles = torch.zeros(1, dtype=torch.int64, device="cuda")
    call = lambda: checked(library("rates").pod_multiply(pointer(cycles), size, shape, ctas, stream()))  # noqa: E731
    return call, _row(flops=size * 8 * shape * ctas * 2 * 16 * 8 * 16, cycles=lambda: int(cycles))


def _read(probe: str, shape: int, ctas: int, size: int):
    import torch

    groups = size // GROUP
    own = max(1, AGAIN if probe == "read again" else groups)
    data = torch.ones(own * GROUP * 1024 * ctas, dtype=torch.uint8, device="cuda")
    call = lambda: checked(library("rates").pod_read(pointer(data), own, groups, shape, ctas, stream()))  # noqa: E731
    return call, _row(nbytes=size * 1024 * ctas)


def bare_read(nbytes: int):
    """A call that reads about so many bytes from DRAM, as many at a time as an SM can ask for, and drops them."""
    import torch

    ctas = 3 * torch.cuda.get_device_properties("cuda").multi_processor_count
    return _read("read", 16, ctas, GROUP * round(nbytes / ctas / 1024 / GROUP))[0]


# ---------------------------------------------------------------- our kernel


def even_batch(probe: str, ctas_per_sm: int, ctas: int, keys: int) -> HybridBatch:
    """A batch that fills `ctas` CTAs with equal work. "own": each prefill tile reads keys that no other reads; "split":
    the keys of a tile or request are cut into four parts, which are merged."""
    shape = SHAPES[ctas_per_sm]
    if probe.endswith("split"):
        ctas //= PARTS
    if probe.startswith("decode"):
        page = 1 << (keys - 1).bit_length()
        return HybridBatch.of(0, 0, ctas, keys, 8 * shape.virtual, shape.virtual, page_size=page)
    tiles = 1 if probe == "prefill own" else next(n for n in (33, 1) if ctas % n == 0)
    tiles = min(tiles, keys // shape.prefill_rows)
    heads = ctas // tiles
    kv_heads = heads if probe == "prefill own" else 1
    return HybridBatch.of(tiles * shape.prefill_rows, keys, 0, 0, heads, kv_heads, causal=False)


def _ours(probe: str, shape: int, ctas: int, size: int):
    import torch

    batch = even_batch(probe, shape, ctas, size)
    shared = probe == "decode shared"
    sequences = 1 if shared else len(batch.kv_lens)
    places = (sequences, batch.page_size or size, batch.num_kv_heads, 128)
    cache = [torch.empty(places, device="cuda", dtype=torch.bfloat16).normal_() for _ in "kv"]
    q = torch.randn(sum(batch.q_lens), batch.num_q_heads, 128, device="cuda", dtype=torch.bfloat16)
    table = None
    if batch.page_size:  # a page a sequence; all the same page when they share
        table = torch.arange(len(batch.kv_lens), device="cuda", dtype=torch.int32)[:, None] * (not shared)
    heads = (batch.num_q_heads, batch.num_kv_heads, 128)
    splits = PARTS if probe.endswith("split") else 1
    choice = {"method": "serial", "ctas_per_sm": shape, "prefill_splits": splits, "decode_splits": splits}
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, page_size=batch.page_size, **choice)
    call = lambda: pod.hybrid_attention(q, *cache, plan, table, causal=batch.causal)  # noqa: E731
    return call, _row(batch.flops, batch.kv_bytes)


def _flash(probe: str, shape: int, ctas: int, size: int):
    """The even batches of two CTAs an SM, but one KV head a decode: as many tiles as `ctas`."""
    import torch

    batch = even_batch("prefill", shape, ctas, size)
    if probe == "fa2 decode":
        batch = HybridBatch.of(0, 0, ctas // 4, size, 32, 4)
    rows = (len(batch.q_lens), batch.q_lens[0], batch.num_q_heads, 128)
    q = torch.randn(*rows, device="cuda", dtype=torch.bfloat16)
    places = (len(batch.kv_lens), size, batch.num_kv_heads, 128)
    k, v = (torch.empty(places, device="cuda", dtype=torch.bfloat16).normal_() for _ in "kv")
    lengths = (rows[1], size)
    call = lambda: torch.ops.aten._flash_attention_forward(q, k, v, None, None, *lengths, 0.0, False, False)  # noqa: E731
    return call, _row(batch.flops, batch.kv_bytes)


def _empty(probe: str, shape: str, ctas: int, size: int):
    """One tile of prefill and one decode with almost no keys: what a method costs before it does any work."""
    import torch

    batch = HybridBatch.of(2, size, 1, size, 1, 1)
    plan = pod.plan(batch.q_lens, batch.kv_lens, 1, 1, 128, method=shape, ctas_per_sm=ctas)
    q, k, v = (torch.randn(*x, 1, 128, device="cuda", dtype=torch.bfloat16) for x in ((3,), (2, size), (2, size)))
    return lambda: pod.hybrid_attention(q, k, v, plan), _row()


# ---------------------------------------------------------------- what it shows

KB = 1024


def table():
    """One row a probe: milliseconds measured, and by the model."""

    df = read("gpusim-calibrate")
    df = df[df.probe.isin(["read", "prefill", "decode"]) & (df["size"] > 0)].copy()
    df["shape"] = df["shape"].astype(int)
    whole = (("prefill_splits", "none"), ("decode_splits", 1))
    kernel = df[df.probe != "read"]
    cases = [
        Case(even_batch(r.probe, r.shape, r.ctas, r.keys), "h200", choice=(("ctas_per_sm", r.shape), *whole))
        for r in kernel.rename(columns={"size": "keys"}).itertuples()
    ]
    df.loc[kernel.index, "model"] = milliseconds(cases)
    reads = df[df.probe == "read"]
    df.loc[reads.index, "model"] = [_littles_law(r.shape, r.ctas, r.bytes) for r in reads.itertuples()]
    return df[["probe", "shape", "ctas", "size", "flops", "bytes", "ms", "model"]].reset_index(drop=True)


def _littles_law(ahead: int, ctas: int, nbytes: int) -> float:
    """Little's law: what is under way arrives every time memory answers, and all together no faster than DRAM."""
    c = gpusim.calibration()
    return 1e3 * nbytes / min(ctas * ahead * 4 * KB / c.miss, c.chip(H200).dram)


def draw(df):
    axes = style.axes(9.5, 3.6, columns=3)
    reads = df[df.probe == "read"].assign(under_way=lambda d: d.ctas * d["shape"] * 4 / 132)
    reads = reads.sort_values("under_way", kind="stable")
    _panel(axes[0], reads, "under_way", "bytes", 1e6, style.WORKERS[4], "bare reads")
    axes[0].set(xlabel="KB under way on each SM (mean)", ylabel="GB/s")
    axes[0].set_title("bare reads: the wait, then DRAM", fontsize=10)
    for ax, probe, column, scale, unit in (
        (axes[1], "prefill", "flops", 1e9, "TFLOP/s"),
        (axes[2], "decode", "bytes", 1e6, "GB/s"),
    ):
        longest = df[(df.probe == probe) & (df["size"] > 4000)]
        for (shape, mine), colour in zip(longest.groupby("shape"), (style.colour(probe), style.INK), strict=True):
            _panel(ax, mine.sort_values("ctas", kind="stable"), "ctas", column, scale, colour, f"{shape} CTAs an SM")
        ax.set(xlabel="CTAs", ylabel=unit)
        ax.set_title(f"{probe} alone", fontsize=10)
        style.legend(ax, loc="lower right")
    for ax in axes:
        ax.set(xscale="log", yscale="log")
    return axes[0].figure


def _panel(ax, df, x: str, column: str, scale: float, colour: str, label: str) -> None:
    ax.plot(df[x], df[column] / df.ms / scale, "o", color=colour, markersize=5, label=label)
    ax.plot(df[x], df[column] / df.model / scale, "-", color=colour, linewidth=1.2)


def parameters():
    """All that is fitted: value, meaning, and the probe that it is read off."""
    c, us = gpusim.calibration(), 1e6
    launch = f"{min(c.launch.values()) * us:.1f} to {max(c.launch.values()) * us:.1f} µs"
    rows = {
        "dram": (f"{c.dram:.0%}", "of the data sheet's bytes/s, when enough is under way", "read"),
        "l2": (f"{c.l2:,.0f} B", "that L2 delivers in a clock cycle", "read again"),
        "miss": (f"{c.miss * us:.2f} µs", "from asking DRAM to having, nobody else asking", "read, 1 CTA"),
        "hit": (f"{c.hit * us:.2f} µs", "the same from L2", "read again, 1 CTA"),
        "mma": (f"{c.mma:.0%}", "of Hopper's tensor rate is what mma.sync reaches; of Ampere's, all", "multiply"),
        "launch": (launch, "before the first CTA starts; by method", "empty"),
        "start": (f"{c.start * us:.1f} µs", "of a CTA before its first key and after its last", "empty"),
        "merge": (", ".join(f"{x * us:.1f}" for x in c.merge) + " µs", "to write or read a part", "split"),
    }
    for name, e in c.efficiency.items():
        whose = "FlashAttention-2" if name == "flash2" else f"{name.replace(' ', ', ')} CTAs an SM"
        meaning = f"of an SM's mma rate, SM full and one worker: {whose}"
        rows[name] = (f"{e.full:.0%}, {e.alone:.0%}", meaning, "longest runs")
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "what it means", "probe"])

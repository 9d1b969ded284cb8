"""The map of the machine: where data can lie on an H200, how long one load waits there, and what all loads get.

Measured: one load's wait and all loads' bytes a second: registers, shared memory, L1, L2, DRAM.
"""

from collections.abc import Callable
from ctypes import c_int64, c_uint64
from statistics import median

import pandas as pd
from matplotlib.patches import Rectangle

from pod.data import a_card, read
from pod.hardware import H200, KIB, MIB
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.measure.bare import checked, library, pointer, stream
from pod.lab.show import style

FIGURE = Figure(
    title=f"Registers, shared memory, L2 and DRAM of {a_card()}: size, wait and rate",
    says="The further away, the longer one load waits, and the fewer bytes come",
    chapter="04",
    method="One thread chases addresses through a ring; all threads read. Registers: operands of multiply-adds.",
    data=("memory-map",),
)
RECORDING = "memory-map"
KEYS = ("probe", "place", "kib")
UNITS = ("memory",)
ROUNDS, REPEATS = 5, 15
TIMER = "chase: clock64 and globaltimer within the kernel; stream: CUDA events around one call after a 256 MB fill"
LINE, HOPS, THREADS = 128, 1 << 15, 512
RINGS = tuple(16 << i for i in range(14))  # KiB of the ring that is chased through: 16 KiB to 128 MiB, twice an L2
SPANS = tuple(4096 << i for i in range(11))  # KiB that all threads together read: 4 MiB to 4 GiB
TOTAL = 8 << 20  # KiB that a stream reads in all, so that a first, cold round is little
FMA_BYTES = 16  # the operands of a multiply-add: three registers read, one written


def cases() -> list[dict]:
    """`kib`: how much memory is gone through; 0 where it is what one SM has."""
    rows = [("chase", "registers", 0), ("chase", "shared", 0), *(("chase", "global", kib) for kib in RINGS)]
    rows += [("stream", place, 0) for place in ("registers", "shared", "L1")]
    return [dict(zip(KEYS, row, strict=True)) for row in rows + [("stream", "global", kib) for kib in SPANS]]


def measure(case: dict) -> dict:
    """Cycles and nanoseconds of a hop, or gigabytes a second of the whole GPU; the other stays empty."""
    empty = dict.fromkeys(("cycles", "ns", "ns_p10", "ns_p90", "gbs", "gbs_p10", "gbs_p90"), "")
    return empty | (_chase if case["probe"] == "chase" else _stream)(case["place"], case["kib"])


# ---------------------------------------------------------------- one load


def _chase(place: str, kib: int) -> dict:
    import torch

    out, seen = torch.zeros(3, dtype=torch.int64, device="cuda"), []
    call = {"registers": _in_registers, "shared": _in_shared}.get(place) or _in_ring(kib)
    for _ in range(REPEATS):
        checked(call(pointer(out), stream()))
        if not out[2]:  # where the chase ended
            raise RuntimeError(f"chase: got no end in {place} of {kib} KiB")
        seen.append([x / HOPS for x in out.tolist()[:2]])
    cycles, ns = zip(*seen, strict=True)
    return {"cycles": round(median(cycles), 2)} | timing.spread(ns).columns("ns", 2)


def _in_registers(out, stream) -> int:
    return library("memory").pod_chase_registers(HOPS, out, stream)


def _in_shared(out, stream) -> int:
    return library("memory").pod_chase_shared(64, HOPS, out, stream)


def _in_ring(kib: int) -> Callable:
    """Through lines in random order, each with the address of the next."""
    import torch

    lines = kib * 1024 // LINE
    ring = torch.zeros(lines, LINE // 8, dtype=torch.int64, device="cuda")
    order = torch.randperm(lines, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    ring[order, 0] = ring.data_ptr() + order.roll(-1) * LINE
    return lambda out, stream: library("memory").pod_chase(c_uint64(ring.data_ptr()), lines, HOPS, out, stream)


# ---------------------------------------------------------------- all loads


def _stream(place: str, kib: int) -> dict:
    import torch

    ctas = 2 * torch.cuda.get_device_properties("cuda").multi_processor_count
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    name, given, nbytes = _reads(place, kib, THREADS * ctas)
    function = getattr(library("memory"), name)
    call = lambda: checked(function(*given(), ctas, THREADS, pointer(sink), stream()))  # noqa: E731
    return timing.shuffled({"x": call}, ROUNDS, 8.0)["x"].rates(nbytes)


def _reads(place: str, kib: int, threads: int) -> tuple[str, Callable, int]:
    """The function, its first arguments, and the bytes that it reads."""
    import torch

    many = 1 << 14
    if place == "registers":
        return "pod_stream_registers", lambda: (many,), many * 8 * FMA_BYTES * threads
    if place == "shared":
        return "pod_stream_shared", lambda: (many,), many * 16 * threads
    data = torch.zeros(max(kib << 10, 16 * threads), dtype=torch.uint8, device="cuda")
    if place == "L1":
        return "pod_stream_l1", lambda: (pointer(data), many), many * 16 * threads
    rounds = max(2, TOTAL // kib)
    return "pod_stream", lambda: (pointer(data), c_int64(kib << 10), rounds), rounds * (kib << 10)


# ---------------------------------------------------------------- what it shows

RING_OF = {"L1": 64, "L2": 8 << 10, "DRAM": 128 << 10}  # KiB of the ring whose wait speaks for the place
SPAN_OF = {"L2": 16 << 10, "DRAM": 4 << 20}  # likewise for the rate
PLATEAUS = {"L1": (64, "center"), "L2": (2 << 10, "center"), "DRAM": (64 << 10, "left")}  # KiB of a ring, and its words
TICKS = {"16 KiB": 1 / 64, "128 KiB": 1 / 8, "1 MiB": 1, "8 MiB": 8, "64 MiB": 64}
L1_BYTES = 256 * KIB  # of an SM, with the shared memory that is cut out of it (CUDA C++ Programming Guide)


def table():
    """As recorded: one row a ring that was chased through, or a span that all threads read together."""
    return read("memory-map")


def places(df):
    """One row a place: bytes of the whole GPU, cycles and nanoseconds that one load waits, and TB/s of all together."""
    chase, stream = (df[df.probe == probe].set_index(["place", "kib"]) for probe in ("chase", "stream"))
    own, cut = {"registers": "registers", "shared memory": "shared"}, {"L2": H200.l2_bytes, "DRAM": H200.memory_bytes}
    each = {"registers": 4 * H200.registers_per_sm, "shared memory": H200.smem_per_sm}
    rows = {name: (H200.sms * each[name], chase.loc[(key, 0)], stream.loc[(key, 0)]) for name, key in own.items()}
    rows["L1"] = H200.sms * L1_BYTES, chase.loc[("global", RING_OF["L1"])], stream.loc[("L1", 0)]
    rows |= {name: (size, chase.loc[("global", RING_OF[name])], stream.loc[("global", SPAN_OF[name])])
             for name, size in cut.items()}  # fmt: skip
    made = {name: (size, wait.cycles, wait.ns, rate.gbs / 1000) for name, (size, wait, rate) in rows.items()}
    return pd.DataFrame.from_dict(made, orient="index", columns=["bytes", "cycles", "ns", "tb_per_s"])


def in_words(found):
    """`places`, for people."""
    sizes = [f"{n / MIB:,.0f} MiB" if n < 1 << 30 else f"{n / 1e9:,.0f} GB" for n in found.bytes]
    rows = {
        "size": [
            f"{size}, with shared memory" if place == "L1" else size
            for place, size in zip(found.index, sizes, strict=True)
        ],
        "one load waits": [f"{c:,.0f} cycles, {ns:,.0f} ns" for c, ns in zip(found.cycles, found.ns, strict=True)],
        "all loads get": [f"{x:,.3g} TB/s" for x in found.tb_per_s],
    }
    return pd.DataFrame(rows, index=found.index)


def filling():
    """One row a number of bytes under way from DRAM on the whole GPU: MB, TB/s, and microseconds that a load waits by
    Little's law. Of chapter 10's bare reads, those with one or two CTAs on every SM and up to 16 KB ahead of each."""
    df = read("gpusim-calibrate")
    df = df[(df.probe == "read") & df.ctas.isin((H200.sms, 2 * H200.sms)) & (df["size"] > 0)]
    df = df.assign(mb=df["shape"].astype(int) * 4 * KIB * df.ctas / 1e6, rate=df.bytes / df.ms / 1e9)
    df = df[df.mb < 10].sort_values("mb", kind="stable")
    made = {"under way, MB": df.mb.round(1), "TB/s": df.rate.round(1), "one load waits, µs": (df.mb / df.rate).round(2)}
    return pd.DataFrame(made).set_index("under way, MB")


LEVELS = {"registers": 3.55, "shared memory": 2.8, "L1": 2.05, "L2": 0.95, "DRAM": 0.2}  # the lower edge of each box
COLUMNS = {"size": (8.2, "size, whole GPU"), "one load waits": (11.3, "one load waits"),
           "all loads get": (13.9, "all loads get")}  # fmt: skip


def draw_map(found):
    """Boxes in boxes, from the registers of an SM down to DRAM, and the numbers of `places` beside each level."""
    ax = style.axes(9.5, 3.7)
    across = 7.4
    for x, name in ((0, "SM 0"), (2.4, "SM 1"), (5.4, f"SM {H200.sms - 1}")):
        _box(ax, x, 1.85, 2, 3.05, "white")
        ax.text(x + 1, 4.65, name, fontsize=9, ha="center", va="center", fontweight="bold")
        for place in ("registers", "shared memory", "L1"):
            _box(ax, x + 0.1, LEVELS[place], 1.8, 0.6, style.IDLE)
            ax.text(x + 1, LEVELS[place] + 0.3, place, fontsize=9, ha="center", va="center")
    ax.text(4.9, 3.3, "…", fontsize=16, ha="center", va="center")
    for place in ("L2", "DRAM"):
        _box(ax, 0, LEVELS[place], across, 0.6, style.FRAME)
        ax.text(across / 2, LEVELS[place] + 0.3, f"{place}, of all SMs", fontsize=9, ha="center", va="center")
    for column, (x, head) in COLUMNS.items():
        ax.text(x, 4.65, head, fontsize=9, va="center", fontweight="bold")
        for place, words in in_words(found)[column].items():
            ax.text(x, LEVELS[place] + 0.3, words.replace(", with shared memory", " of both"), fontsize=9, va="center")
    ax.set(xlim=(-0.1, 15.8), ylim=(0.1, 5))
    ax.axis("off")
    return ax.figure


def _box(ax, x, y, width, height, tone) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=tone, edgecolor=style.INK, linewidth=1))


def draw(df):
    """Left: the wait of one load over the ring that is chased through. Right: what all loads get, place by place."""
    left, right = style.axes(9.5, 3.6, columns=2, width_ratios=(3, 2))
    ring = df[(df.probe == "chase") & (df.place == "global")]
    left.plot(ring.kib / 1024, ring.ns, color=style.INK, marker="o", markersize=4, linewidth=1.5)
    for words, edge, height in (("size of an L1", L1_BYTES, 290), ("size of L2", H200.l2_bytes, 60)):
        left.axvline(edge / MIB, color=style.FRAME, linewidth=1, linestyle="--")
        left.annotate(words, (edge / MIB, height), (-4, 0), textcoords="offset points", fontsize=9, ha="right",
                      color=style.INK)  # fmt: skip
    for words, (kib, side) in PLATEAUS.items():
        wait = ring.set_index("kib").ns[kib]
        left.annotate(f"{words}: {wait:.0f} ns", (kib / 1024, wait), (0, 6), textcoords="offset points", fontsize=9,
                      fontweight="bold", ha=side, color=style.INK)  # fmt: skip
    left.set(xscale="log", xlabel="memory that one thread goes through", ylabel="one load waits, ns")
    left.set(xlim=(1 / 90, 800), ylim=(0, 1.12 * ring.ns.max()))
    left.set_xticks(list(TICKS.values()), list(TICKS), minor=False)
    left.minorticks_off()
    rates = places(df).tb_per_s[::-1]
    right.hlines(rates.index, 1, 4 * rates.max(), color=style.FRAME, linewidth=0.8)
    right.plot(rates, rates.index, "o", color=style.INK, markersize=7)
    for y, rate in enumerate(rates):
        right.annotate(f"{rate:.3g}", (rate, y), (0, 7), textcoords="offset points", fontsize=9, ha="center")
    right.set(xscale="log", xlim=(1, 4 * rates.max()), ylim=(-0.5, len(rates) - 0.4), xlabel="TB/s, logarithmic")
    right.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"], minor=False)
    left.set_title("one thread, one load at a time", fontsize=10)
    right.set_title("all threads together", fontsize=10)
    return left.figure

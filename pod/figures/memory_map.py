"""The map of the machine: where data can lie on an H200, how long one load waits there, and what all loads get."""

from __future__ import annotations

from pod.data import a_card, read
from pod.figures import Figure
from pod.hardware import H200, KIB, MIB

FIGURE = Figure(
    id="memory-map",
    source="This repository",
    title=f"Registers, shared memory, L2 and DRAM of {a_card()}: size, wait and rate",
    chapter="17",
    method="One thread chases addresses through a ring; all threads read. Registers: operands of multiply-adds.",
    state="recorded",
    data=("memory-map",),
)
RINGS = {"L2": 8 << 10, "DRAM": 128 << 10}  # KiB of the ring whose wait speaks for the place
SPANS = {"L2": 16 << 10, "DRAM": 4 << 20}  # likewise for the rate
TICKS = {"16 KiB": 1 / 64, "128 KiB": 1 / 8, "1 MiB": 1, "8 MiB": 8, "64 MiB": 64}
L1_BYTES = 256 * KIB  # of an SM, with the shared memory that is cut out of it (CUDA C++ Programming Guide)


def table():
    """As recorded: one row a ring that was chased through, or a span that all threads read together."""
    return read("memory-map")


def places(df):
    """One row a place: bytes of the whole GPU, cycles and nanoseconds that one load waits, and TB/s of all together."""
    import pandas as pd

    chase, stream = (df[df.probe == probe].set_index(["place", "kib"]) for probe in ("chase", "stream"))
    own, cut = {"registers": "registers", "shared memory": "shared"}, {"L2": H200.l2_bytes, "DRAM": H200.memory_bytes}
    each = {"registers": 4 * H200.registers_per_sm, "shared memory": H200.smem_per_sm}
    rows = {name: (H200.sms * each[name], chase.loc[(key, 0)], stream.loc[(key, 0)]) for name, key in own.items()}
    rows |= {name: (cut[name], chase.loc[("global", RINGS[name])], stream.loc[("global", SPANS[name])]) for name in cut}
    made = {name: (size, wait.cycles, wait.ns, rate.gbs / 1000) for name, (size, wait, rate) in rows.items()}
    return pd.DataFrame.from_dict(made, orient="index", columns=["bytes", "cycles", "ns", "tb_per_s"])


def draw(df):
    """Left: the wait of one load over the ring that is chased through. Right: what all loads get, place by place."""
    from pod.show import style

    left, right = style.axes(9.5, 3.6, columns=2, width_ratios=(3, 2))
    ring = df[(df.probe == "chase") & (df.place == "global")]
    left.plot(ring.kib / 1024, ring.ns, color=style.INK, marker="o", markersize=4, linewidth=1.5)
    for words, edge in {"L1 of an SM": L1_BYTES, "L2": H200.l2_bytes}.items():
        left.axvline(edge / MIB, color=style.FRAME, linewidth=1, linestyle="--")
        left.annotate(words, (edge / MIB, left.get_ylim()[1]), (-4, -2), textcoords="offset points", fontsize=9,
                      ha="right", va="top", color=style.INK)  # fmt: skip
    left.set(xscale="log", xlabel="memory that one thread goes through", ylabel="one load waits, ns")
    left.set(ylim=(0, 1.12 * ring.ns.max()))
    left.set_xticks(list(TICKS.values()), list(TICKS), minor=False)
    left.minorticks_off()
    rates = places(df).tb_per_s[::-1]
    right.barh(rates.index, rates, color=style.WORKERS[5], height=0.6)
    for y, rate in enumerate(rates):
        right.annotate(f"{rate:.3g}", (rate, y), (4, 0), textcoords="offset points", fontsize=9, va="center")
    right.set(xscale="log", xlim=(1, 4 * rates.max()), xlabel="all threads read, TB/s")
    return left.figure

"""One batch of the chat server through all chapters: where in the band each way of computing its attention ends."""

import pandas as pd

from pod.data import card, read
from pod.experiments.basics.stutter import batch
from pod.hardware import A100
from pod.kernels.fusion import NAMES
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.lab.show.band import overlap
from pod.simulate.tiling import Tile, computed_flops

FIGURE = Figure(
    title="The chat server's place in the band, chapter by chapter",
    chapter="08",
    method="Hollow: counted, A100's data sheet. Full: medians of one batch of the sweep (Yi-6B, a chunk of 1K that "
           "ends at 8K, 109 chats of 8K), cold L2. 0 is our own two halves one after the other, 1 the longer alone.",
    data=("methods-sweep", "hopper-sweep"),
)  # fmt: skip
RECORDED = {"model": "yi-6b", "tp": 1, "chunk": 1024, "context": 8192, "decodes": 109, "seen": 7168}
COUNTED = f"counted, {A100.key.upper()}"
WAYS = {  # chapter, words, where its time is recorded
    "serial": ("05", "two kernels, one after the other", "methods-sweep"),
    "streams": ("05", NAMES["streams"], "methods-sweep"),
    "cta": ("06", NAMES["cta"], "methods-sweep"),
    "warp": ("06", NAMES["warp"], "methods-sweep"),
    "pod": ("07", "SM-aware CTAs, the paper's idea", "methods-sweep"),
    "fa3_serial": ("09", "FlashAttention-3, two calls", "methods-sweep"),
    "fa3_varlen": ("09", "FlashAttention-3, one call", "hopper-sweep"),
    "hopper": ("17", "our kernel for Hopper", "methods-sweep"),
}


def counted() -> list[tuple]:
    """What the data sheet allows: the edges, and how far down one may come when decode's tiles are padded."""
    chat = batch()
    a, b = (1e6 * t for t in chat.times(A100))
    rows = [("00", "one after the other", a + b), ("00", "perfect overlap", max(a, b))]
    for height in (128, 16):
        flops = chat.prefill.flops + computed_flops(chat.decode, Tile(height, 64))
        rows.append(("02", f"at best, decode in tiles of {height} rows", 1e6 * A100.roofline_time(flops, chat.bytes)))
    rows.append(("03", "at best, nothing padded", 1e6 * A100.roofline_time(chat.flops, chat.bytes)))
    return [(chapter, way, COUNTED, us, overlap(us, a, b)) for chapter, way, us in rows]


def recorded() -> list[tuple]:
    """What the batch took on the card; every place between the same two halves."""
    found = {name: _row(name) for name in FIGURE.data}
    a, b = (1e3 * float(found["methods-sweep"][part]) for part in ("prefill", "decode"))
    times = {way: 1e3 * float(found[name][way]) for way, (*_, name) in WAYS.items()}
    return [(WAYS[way][0], WAYS[way][1], f"recorded, {card()}", us, overlap(us, a, b)) for way, us in times.items()]


def _row(name: str):
    df = read(name)
    return df.loc[(df[list(RECORDED)] == pd.Series(RECORDED)).all(axis=1)].iloc[0]


def table():
    """One row a way, in the order of the chapters: microseconds of one layer's attention, and the place in the band."""
    return pd.DataFrame(counted() + recorded(), columns=["chapter", "way", "numbers", "us", "place"])


def so_far(chapter: str):
    """The rows that are known when this chapter ends."""
    df = table()
    known = df[df.chapter <= chapter]
    return known.assign(us=known.us.round().astype(int), place=known.place.map("{:.2f}".format)).set_index("chapter")


def draw(df):
    ax = style.axes(9.5, 4.0)
    y = range(len(df))
    ax.axvspan(0, 1, color=style.IDLE, zorder=0)
    ax.hlines(y, 0, df.place, color=style.FRAME, linewidth=1.5, zorder=1)
    for i, row in zip(y, df.itertuples(), strict=True):
        hollow = row.numbers == COUNTED
        ax.plot(row.place, i, "o", color=style.INK, markerfacecolor="white" if hollow else style.INK, markersize=7)
        ax.text(row.place + 0.025, i, f"{row.place:.2f}", va="center", fontsize=9)
    ax.axhline((df.numbers == COUNTED).sum() - 0.5, color=style.INK, linewidth=0.8, linestyle="--")
    ax.set_yticks(y, [f"{row.way}  ({row.chapter})" for row in df.itertuples()])
    ax.set(xlim=(-0.03, 1.1), ylim=(len(df) - 0.4, -0.6), xlabel="place in the band: 0 is the sum of both halves, "
           "1 the longer one alone")  # fmt: skip
    return ax.figure

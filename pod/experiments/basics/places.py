"""One batch through the whole walk: where each way to compute it ends, between the sum of its parts and the longer one."""

from __future__ import annotations

import pandas as pd

from pod.batch import TABLE1
from pod.data import a_card, read
from pod.experiments.hopper.hopper_sweep import parts
from pod.hardware import A100
from pod.lab.figure import Figure
from pod.lab.show import overlap, style
from pod.simulate import gpusim

FIGURE = Figure(
    id="places",
    title=f"The place of one batch in the band, chapter by chapter, on {a_card()}",
    chapter="09",
    method="Table 1's C0: a chunk of 1K at the end of 12K beside 80 chats of 12K, Llama-3-8B on one of two GPUs. 0: the "
    "sum of both parts, 1: the longer one. Parts of the same kernels, or FlashAttention-3's. One row is a model's.",
    data=("methods-peers", "hopper-peers", "gpusim-calibrate"),
    composed=True,
)
BATCH = "C0"
AMPERE = {"streams": "two streams", "warp": "halves of a CTA (HFuse)", "cta": "CTAs of both kinds", "pod": "POD"}
HOPPER = {"fa3_varlen": "FlashAttention-3, one call", "ours": "one kernel with Hopper's instructions"}


def table():
    """One row a way: the chapter that has it, its place, and whether a GPU or a model said so."""
    ours, theirs = read("methods-peers").iloc[0], read("hopper-peers").iloc[:1]
    own, best = (ours.prefill, ours.decode), tuple(parts(theirs).iloc[0])
    rows = [("09", words, overlap(ours[way], *own), "measured") for way, words in AMPERE.items()]
    batch = TABLE1[BATCH]
    seconds = [gpusim.seconds(part, A100, "pod") for part in (batch, batch.prefill, batch.decode)]
    rows.append(("10", "POD, by a model of an A100", overlap(*seconds), "simulated"))
    chapters = {"fa3_varlen": "09", "ours": "17"}
    rows += [(chapters[way], words, overlap(theirs[way].item(), *best), "measured") for way, words in HOPPER.items()]
    return pd.DataFrame(rows, columns=["chapter", "way", "place", "evidence"])


def draw(df):
    ax = style.axes(9.5, 3.4)
    ax.axvspan(0, 1, color=style.IDLE)
    tones = {"measured": style.colour("both"), "simulated": "white"}
    for i, row in enumerate(df.itertuples()):
        ax.plot(row.place, i, "o", color=style.colour("both"), markerfacecolor=tones[row.evidence], markersize=9)
        ax.annotate(f"{row.place:.2f}", (row.place, i), (9, 0), textcoords="offset points", fontsize=9, va="center")
    ax.set_yticks(range(len(df)), [f"{row.way} ({row.chapter})" for row in df.itertuples()], fontsize=9)
    ax.set(ylim=(len(df) - 0.5, -0.5), xlim=(min(-0.05, df.place.min() - 0.1), max(1.15, df.place.max() + 0.15)))
    ax.set_xlabel("place in the band: 0 pays for both parts, 1 for the longer one (hollow: simulated)")
    ax.set_title("Nearer to the right, chapter by chapter", fontsize=10.5, loc="left")
    return ax.figure

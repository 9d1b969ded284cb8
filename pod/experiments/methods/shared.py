"""What the figures of chapter 09 share: names and colours for the ways to run a hybrid batch, and their recordings."""

import numpy as np
import pandas as pd

from pod.data import read
from pod.kernels.fusion import NAMES
from pod.lab.figure import short
from pod.lab.show import style

METHODS = {
    **{way: NAMES[way] for way in ("serial", "streams", "cta", "warp")},
    "pod": "POD",
}
CONFIGURATIONS = ("pod", "pod_2", "pod_4")  # as it chooses, two CTAs an SM, four CTAs an SM
PEERS = {
    "fa2_serial": "FA2, two calls",
    "fa2_streams": "FA2, two streams",
    "cudnn_serial": "cuDNN, two calls",
    "fa3_serial": "FA3, two calls",
    "fa3_streams": "FA3, two streams",
    "fa3_varlen": "FA3, one call",
    "fi_fa2_serial": "FlashInfer fa2, two calls",
    "fi_fa3_serial": "FlashInfer fa3, two calls",
    "fi_fa2_batched": "FlashInfer fa2, one call",
    "fi_batched": "FlashInfer fa3, one call",
    "fi_pod": "FlashInfer's POD",
    "fi_persistent": "FlashInfer persistent",
    "hopper": "our Hopper kernel",
}
TONES = {
    "serial": "#9aa7b4",
    "streams": style.WORKERS[4],
    "cta": style.WORKERS[3],
    "warp": style.WORKERS[1],
    "pod": style.WORKERS[0],
    "best": style.WORKERS[6],
    "fa2_serial": "#111820",
    "fa2_streams": "#5c5552",
    "fa3_serial": style.WORKERS[2],
    "fi_fa2_serial": "#d8b365",
    "fi_fa2_batched": "#d8b365",
    "fi_batched": "#d8b365",
    "fi_pod": "#d8b365",
    "hopper": "#22632c",
}


def recorded(name: str):
    """The recording data/recorded/h200/<name>.csv; a hole has no number."""
    df = read(name)
    for column in df.columns.intersection([*METHODS, *CONFIGURATIONS, *PEERS]):
        df[column] = pd.to_numeric(df[column], errors="coerce")
    return df


def with_parts(df):
    """Add what prefill and decode alone say of a batch: their ratio, the smaller's share, and the larger."""
    alone = df[["prefill", "decode"]]
    share = alone.min(axis=1) / alone.sum(axis=1)
    return df.assign(ratio=df.prefill / df.decode, share=share, larger=alone.max(axis=1))


def heat(ax, cells, image=None, ink=lambda y, x: style.INK, weight: str = "normal", **look) -> None:
    """A table in coloured cells with their numbers: tokens from left to right, what its index counts from below."""
    ax.imshow(cells if image is None else image, origin="lower", aspect="auto", **look)
    for (y, x), value in np.ndenumerate(cells.to_numpy()):
        ax.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=9, color=ink(y, x), fontweight=weight)
    ax.set_xticks(range(len(cells.columns)), [short(n) for n in cells.columns])
    ax.set_yticks(range(len(cells.index)), cells.index)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def gain(base, other):
    """How much faster `other` is than `base`, %."""
    return 100 * (base / other - 1)

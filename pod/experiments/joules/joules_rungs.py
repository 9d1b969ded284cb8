"""What each rung of the ladder of frugality saves in the kernel itself: without it, or with it where it was refused."""

from functools import cache
from pathlib import Path
from random import Random
from statistics import median
from tempfile import mkdtemp

import numpy as np
import pandas as pd

from pod import files
from pod.data import a_card, read
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_sweep import geomean
from pod.experiments.joules.rungs import RUNGS
from pod.files import ROOT
from pod.lab.figure import Figure
from pod.lab.measure import meter
from pod.lab.measure.checkouts import Worker, changed
from pod.lab.show import style

FIGURE = Figure(
    title=f"What each of eight changes does to the kernel's energy, back to back on {a_card()}",
    chapter="18",
    method="The energy counter around calls back to back at the power limit; the kernel as it is beside copies with "
    "one change each, a process a copy, in shuffled rounds. Four hybrid batches, bf16, pages of 16.",
    data=("joules-rungs",),
)
RECORDING = "joules-rungs"
KEYS = hopper_peers.KEYS
UNITS = ("hopper",)
L2 = "warm"
TIMER = f"{meter.TIMER}; a process for every copy, one at a time"
BATCHES = [(32, 8, 2048, 8192, 128, 4096), (32, 8, 4096, 8192, 64, 8192), (32, 8, 1024, 4096, 200, 2048),
           (32, 4, 2048, 16384, 64, 16384)]  # fmt: skip
AS_IT_IS = "ours"
ROUNDS = REPEATS = 4
SECONDS, WARM = 0.8, 0.5
WORKER = """
import hashlib, json, sys
import torch
import pod
from pod.batch import HybridBatch
from pod.lab.measure import meter
call = None
for line in sys.stdin:
    case = json.loads(line)
    if "seconds" in case:
        seen = meter.visit(call, **case)
        answer = {"mj": seen.millijoules / seen.calls, "ms": 1e3 * seen.seconds / seen.calls, "mhz": seen.mhz}
    else:
        call = None
        counts = [case[k] for k in ("chunk", "context", "decodes", "decode_context", "q_heads", "kv_heads")]
        batch = HybridBatch.of(*counts, page_size=16)
        q, k, v, table = batch.tensors(device="cuda")
        plan = pod.plan(batch, device="cuda", method="hopper")
        call = lambda: pod.hybrid_attention(q, k, v, plan, table)
        answer = hashlib.sha256(call().view(torch.int16).cpu().numpy().tobytes()).hexdigest()
    print(json.dumps(answer), flush=True)
"""


def cases() -> list[dict]:
    return [dict(zip(KEYS, row, strict=True)) for row in BATCHES]


def measure(case: dict) -> dict:
    """Of every copy: mJ and its least and most, ms and MHz; and the copies whose results are not the same bits."""
    workers = _workers()
    for worker in workers.values():
        worker.tell(case)  # all build at once
    bits = {name: worker.hear() for name, worker in workers.items()}
    seen: dict[str, list[dict]] = {name: [] for name in workers}
    order = Random(0)
    for _ in range(ROUNDS):
        for name in order.sample(list(workers), len(workers)):
            seen[name].append(workers[name].ask({"seconds": SECONDS, "warm": WARM}))
    row = {}
    for name, windows in seen.items():
        mj, ms, mhz = ([window[unit] for window in windows] for unit in ("mj", "ms", "mhz"))
        found = {"mj": median(mj), "mj_p10": min(mj), "mj_p90": max(mj), "ms": median(ms), "mhz": median(mhz)}
        row |= {f"{name}_{column}": round(value, 5) for column, value in found.items()}
    return row | {"other_bits": " ".join(name for name in bits if bits[name] != bits[AS_IT_IS])}


@cache
def _workers() -> dict[str, Worker]:
    folder = Path(mkdtemp(dir=files.folder("rungs")))
    copies = {rung.name: changed(rung.changes, folder / rung.name) for rung in RUNGS}
    return {name: Worker(checkout, WORKER) for name, checkout in ({AS_IT_IS: ROOT} | copies).items()}


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a batch and rung: % that the changed kernel takes more energy, and more time, than the kernel as it is."""
    rows = [
        (hopper_peers.batch_name(row), rung.words, rung.kept, _more(row, rung.name, "mj"), _more(row, rung.name, "ms"))
        for row in read("joules-rungs").itertuples() for rung in RUNGS
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["batch", "rung", "kept", "energy", "time"])


def _more(row, name: str, unit: str) -> float:
    return 100 * (getattr(row, f"{name}_{unit}") / getattr(row, f"{AS_IT_IS}_{unit}") - 1)


def draw(df):
    """A dot a batch, a mark for their mean: right of the grey, the change costs energy, left of it, it saves some."""
    names = list(dict.fromkeys(df.rung))
    ax = style.axes(8.5, 0.9 + 0.42 * len(names))
    for at, name in enumerate(names):
        mine = df[df.rung == name]
        ax.plot(mine.energy, [at] * len(mine), "o", color=style.colour("hybrid"), alpha=0.6, markersize=6)
        ax.plot([mine.energy.mean()], [at], "|", color=style.INK, markersize=16, markeredgewidth=2)
    ax.axvspan(-spread(), spread(), color=style.IDLE, zorder=0)
    ax.axvline(0, color=style.INK, linewidth=1)
    grey = f"grey: {spread():.0f} %, as rounds of one copy differ"
    words = f"% more energy than the kernel as it is (mark: the mean)\n({grey})"
    ax.set(yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5), xlabel=words)
    kept = df.groupby("rung").kept.first()
    ax.set_yticklabels([f"{'without' if kept[name] else 'with'} {name}" for name in names])
    return ax.figure


# ---------------------------------------------------------------- what chapters ask for


def spread() -> float:
    """How far the rounds of one copy on one batch lie apart at most, %."""
    df, names = read("joules-rungs"), [AS_IT_IS, *(rung.name for rung in RUNGS)]
    return 100 * float(max((df[f"{name}_mj_p90"] / df[f"{name}_mj_p10"]).max() for name in names) - 1)


def energy(name: str) -> float:
    """% more than the kernel as it is, over the batches."""
    df = read("joules-rungs")
    return 100 * (geomean(np.array(df[f"{name}_mj"] / df[f"{AS_IT_IS}_mj"])) - 1)

"""How much a better choice of plan could win: the 300 batches with up to 72 plans each.

Measured: ours as it chooses, and with other borders between decode and prefill, and other numbers of parts; the fastest
of these is timed again beside ours and FlashAttention-3's fastest way, so that it does not owe its place to luck.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.hopper import hopper_any
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import ragged, timing
from pod.lab.show import style
from pod.schedule import choose

FIGURE = Figure(
    title=f"300 batches with the best of up to 72 plans, on {a_card()}: what a better choice could win",
    says="With the best of up to 72 plans it would win 1.3 % more, and still be behind on a few batches",
    chapter="17",
    method="the batches of hopper-any; ours with each border between decode and prefill, each of these with 1 to 32 "
    "parts of every tile of prefill and, where heads are few, of decode; the fastest timed again beside ours",
    data=("hopper-any-plans",),
)
RECORDING = "hopper-any-plans"
KEYS, UNITS = hopper_any.KEYS, ("hopper", "lean")
ROUNDS, REPEATS = 5, 15
PARTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
FEW = 132  # heads of decode: as many as SMs need not be cut
cases = hopper_any.cases


def plans(batch: HybridBatch) -> dict[str, dict]:
    """By name, what is chosen in place of the cost model: who is decode, who yields, in how many parts."""
    found = {}
    for roles in choose.possible_roles(batch.group):
        name = f"{roles.rows} rows, decode up to {roles.tokens}"
        few = sum(q_len <= roles.tokens for q_len in batch.q_lens)
        found[name] = {"roles": roles}
        if few < len(batch.q_lens):
            found |= {f"{name}, prefill in {n}": {"roles": roles, "splits": n} for n in PARTS}
        if 0 < few * batch.num_kv_heads <= FEW:
            found |= {f"{name}, decode in {n}": {"roles": roles, "parts": n} for n in PARTS}
        if 0 < few < len(batch.q_lens):
            found |= {f"{name}, prefill {how}": {"roles": roles, "yields": how == "yields"}
                      for how in ("yields", "insists")}  # fmt: skip
    return found


def made(s: ragged.Ragged, **choice):
    import torch

    import pod
    from pod.kernels import sm90

    plan = sm90.plan(s.batch, torch.device(s.device, torch.cuda.current_device()), **choice)
    return lambda: [pod.hybrid_attention(s.q, s.k, s.v, plan, s.table)]


def measure(case: dict) -> dict:
    mix = hopper_any.drawn()[int(case["batch"])]
    s = ragged.Ragged(mix.batch, hopper_any.room())
    others: dict[str, Callable] = {name: partial(made, **choice) for name, choice in plans(mix.batch).items()}
    calls, holes, _ = ragged.ready(s, ragged.FA3 | {"ours": ragged.ours} | others)
    first = timing.shuffled(calls, 2, 1.0, 3)
    fa3, best = (min(set(names) & set(first), key=lambda name: first[name].ms) for names in (ragged.FA3, others))
    times = timing.shuffled({"fa3": calls[fa3], "ours": calls["ours"], "best": calls[best]}, ROUNDS, 2.0, 3)
    refused = sorted(holes[name] for name in others if name in holes)
    row = {"head_dim": mix.batch.head_dim, "words": mix.words, "plan": best, "tried": len(others) - len(refused)}
    for name in times:
        row |= times[name].columns(name)
    return row | {"holes": f"{len(refused)} plans: {refused[0]}" if refused else ""}


# ---------------------------------------------------------------- what it shows


def table():
    """One row a batch: FlashAttention-3's fastest way over ours as it chooses, and over the fastest of the plans; the
    chosen one is among these, so that it is never faster than the best but by noise."""
    df = read("hopper-any-plans")
    best = df[["ours", "best"]].min(axis=1)
    return df[["batch", "kind", "head_dim", "words", "plan", "tried"]].assign(
        us=1e3 * df.ours, chosen=df.fa3 / df.ours, best=df.fa3 / best, lost=df.ours / best
    )


def worst(count: int = 10):
    """The batches in which a better choice would win the most."""
    return table().sort_values("lost", ascending=False, kind="stable").head(count)


def listed(rows) -> str:
    """Rows of hopper_any.worst as a Markdown table: the gain there, those of this recording, and what a batch is."""
    lines = ["gain | as chosen | best plan | ours, µs | model | batch", "--:|--:|--:|--:|---|---"]
    here = table().set_index("batch")
    for row in rows.itertuples():
        gains = [f"{gain:.2f}" for gain in (row.gain, here.chosen[row.batch], here.best[row.batch])]
        cells = [*gains, f"{1e3 * row.ours:.0f}", f"{row.model}, TP{row.tp}"]
        lines.append(" | ".join((*cells, row.words)))
    return "\n".join(f"| {line} |" for line in lines)


def summary(df):
    """As chosen and with the best plan: geometric mean and least of the gains, and how many batches are lost."""
    choices = {"as chosen": df.chosen, "with the best plan": df.best}
    rows = {name: [geomean(gain), gain.min(), (gain < hopper_any.LOST).sum()] for name, gain in choices.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean gain", "least", f"below {hopper_any.LOST}"])


def draw(df):
    axes = style.axes(9.5, 4.0, columns=2)
    ordered = df.sort_values("best", kind="stable").reset_index(drop=True)
    axes[0].axhline(1, color=style.INK, linewidth=1)
    for column, colour, words in (("chosen", 1, "as chosen"), ("best", 0, "best of all tried")):
        axes[0].plot(ordered.index, ordered[column], "o", color=style.WORKERS[colour], markersize=3,
                     label=f"{words}: {geomean(df[column]):.2f}, least {df[column].min():.2f}")  # fmt: skip
    axes[0].set(yscale="log", xlabel=f"{len(df)} batches, sorted", ylabel="FlashAttention-3's time / ours", xticks=[])
    _ticks(axes[0].yaxis, (0.9, 1, 1.2, 1.5, 2, 2.5))
    style.legend(axes[0], loc="upper left")
    axes[1].plot(df.us, 100 * (df.lost - 1), "o", color=style.WORKERS[0], markersize=3.5, alpha=0.7)
    axes[1].set(xscale="log", xlabel="ours as chosen, µs", ylabel="a better plan would win, %")
    _ticks(axes[1].xaxis, (10, 30, 100, 300, 1000))
    return axes[0].figure


def _ticks(axis, places: tuple[float, ...]) -> None:
    axis.set_ticks(places, [f"{place:g}" for place in places])
    axis.set_ticks([], minor=True)


# ---------------------------------------------------------------- what claims ask for


def lost() -> float:
    """How much longer ours takes as it chooses than with the best of all plans, on average, percent."""
    return 100 * (geomean(table().lost) - 1)


def first_percentile() -> float:
    """Of the lead, were the best plan always chosen."""
    return float(np.percentile(table().best, 1))

"""The eleven batches of hopper-peers with every way inside a CUDA graph: no seam of the host is in any time.

Measured: every way as one replay of a graph that holds it, three of them also as calls; and these three as graphs of
several calls, back to back.
"""

import numpy as np

from pod.data import a_card, read
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_peers import PEERS, batch_name, batch_of
from pod.experiments.hopper.hopper_sweep import geomean
from pod.hardware import GPU
from pod.lab.figure import Figure
from pod.lab.measure import peers, timing
from pod.lab.show import style
from pod.schedule.work import Schedule

FIGURE = Figure(
    title=f"What the gain over two calls of FlashAttention-3 is made of, inside CUDA graphs, on {a_card()}",
    says="Inside graphs, too, fusing brings the larger part, even back to back",
    chapter="17",
    method="Eleven hybrid batches, bf16. Cold: one replay of a graph that holds the way once, cold L2, shuffled "
    "rounds, medians. Back to back: graphs of four, repeated for a second. Ticks: the same as calls, without a graph.",
    data=("hopper-graphs",),
)
RECORDING = "hopper-graphs"
KEYS = hopper_peers.KEYS
UNITS = ("hopper",)
ROUNDS, REPEATS = 5, 15
IN_A_ROW = 4  # calls in the graph that is repeated back to back
SECONDS = 1.0
TIMER = (
    f"{timing.TIMER}; that call is one replay of a CUDA graph, in columns _calls the way itself; columns _steady_ms, "
    f"_mj, _watts and _mhz by NVML's energy counter and the host clock around graphs of {IN_A_ROW} repeated back to "
    "back, L2 as they leave it"
)
SPLIT = {"fa3_serial": peers.fa3_serial, "ours_serial": peers.ours_serial, "ours": peers.ours}  # the gain in two
GRAPHS = {name: peers.graphed(make) for name, make in (peers.PEERS | SPLIT).items()}
GRAPHS["fi_pod"] = peers.refused("no graph: its counters are set to zero by a memset of the default stream")
CALLS = {f"{name}_calls": make for name, make in SPLIT.items()}


def cases() -> list[dict]:
    return hopper_peers.cases()


def measure(case: dict) -> dict:
    setting = peers.Setting(batch_of(case))
    row = peers.table_row(setting, CALLS | GRAPHS, ROUNDS, ms=6.0)  # a capture that fails spoils none before it
    for name, make in SPLIT.items():
        spent = timing.energy(peers.graphed(make, IN_A_ROW)(setting), SECONDS)
        one = round(spent.ms / IN_A_ROW, 5), round(spent.millijoules / IN_A_ROW, 2)
        row |= {f"{name}_steady_ms": one[0], f"{name}_mj": one[1], f"{name}_watts": round(spent.watts, 1),
                f"{name}_mhz": spent.sm_clock_mhz}  # fmt: skip
    return row


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    return peers.planned(batch_of(case), SPLIT, gpu)


# ---------------------------------------------------------------- what it shows

WAYS = {"cold": "", "steady": "_steady_ms", "energy": "_mj", "calls": "_calls"}  # endings of a way's columns
SHOWN = {"cold": "cold L2", "steady": "back to back"}


def table():
    """One row a batch: two calls of FlashAttention-3 over ours, in two factors: better halves, and fusing them; cold,
    back to back, of the energy, and cold as calls without graphs. The best peer over ours, and how many µs longer a way
    takes as calls than as a graph. `holes` says why a way has no time."""
    df = read("hopper-graphs")
    out = df[list(KEYS)].assign(batch=[batch_name(row) for row in df.itertuples()])
    for how, ending in WAYS.items():
        fa3, serial, ours = (df[f"{way}{ending}"] for way in SPLIT)
        out[f"{how}_halves"], out[f"{how}_fusing"] = fa3 / serial, serial / ours
    for way in SPLIT:
        out[f"{way}_seam_us"] = 1e3 * (df[f"{way}_calls"] - df[way])
    best = df[list(PEERS)].apply(lambda column: column.astype(float)).min(axis=1)
    return out.assign(over_best_peer=best / df.ours, watts=df[[f"{way}_watts" for way in SPLIT]].median(axis=1),
                      holes=df.holes.fillna(""))  # fmt: skip


def draw(df):
    """Two bars a batch, one on the other on a scale of factors: their product is the gain."""
    axes = style.axes(9.5, 4.6, columns=2, sharey=True)
    for ax, (how, words) in zip(axes, SHOWN.items(), strict=True):
        _factors(ax, df[f"{how}_halves"], df[f"{how}_fusing"])
        if how == "cold":
            ax.plot(df.calls_halves * df.calls_fusing, range(len(df)), "|", color=style.INK, markersize=11)
        mine = halves(how, df), fusing(how, df)
        ax.set_title(f"{words}: {mine[0]:.2f} × {mine[1]:.2f}", fontsize=10)
    axes[0].set(yticks=range(len(df)), ylim=(len(df) - 0.4, -0.6))
    axes[0].set_yticklabels(df.batch, fontsize=8.5)
    style.legend(axes[0], loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return axes[0].figure


def _factors(ax, better, fused) -> None:
    y = range(len(better))
    ax.barh(y, better - 1, left=1, color=style.colour("load"), height=0.6, label="better halves")
    ax.barh(y, better * (fused - 1), left=better, color=style.colour("hybrid"), height=0.6, label="fusing them")
    ax.axvline(1, color=style.INK, linewidth=1)
    ax.set(xscale="log", xlabel="two calls of FlashAttention-3 over ours, ×")
    style.ticks(ax, (0.9, 1, 1.2, 1.4, 1.6, 1.8, 2))


# ---------------------------------------------------------------- what we state


def halves(how: str = "cold", df=None) -> float:
    """What the better halves alone bring: two FlashAttention-3 calls over ours in turn, geometric mean."""
    return geomean((table() if df is None else df)[f"{how}_halves"])


def fusing(how: str = "cold", df=None) -> float:
    """What computing both at once brings: ours in turn over ours at once, geometric mean."""
    return geomean((table() if df is None else df)[f"{how}_fusing"])


def over_fa3(how: str = "cold") -> float:
    df = table()
    return geomean(df[f"{how}_halves"] * df[f"{how}_fusing"])


def over_best_peer() -> float:
    """The fastest of all peers' graphs over ours, geometric mean; NaN of a recording in which some were not there."""
    df = table()
    return float("nan") if df.holes.str.contains("not installed").any() else geomean(df.over_best_peer)


def batches() -> int:
    return len(table())


def watts() -> float:
    return float(np.median(table().watts))


def seam_us() -> float:
    """How much longer two calls of FlashAttention-3 take than their graph, at most, µs."""
    return float(table().fa3_serial_seam_us.max())

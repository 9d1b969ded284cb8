"""The roof of joules: what the power limit leaves of the roofline, for a batch that is repeated without a rest."""

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, hardware, read
from pod.experiments.hopper import hopper_peers
from pod.experiments.hopper.hopper_peers import batch_of
from pod.experiments.joules import joules as batches
from pod.experiments.joules import joules_model
from pod.lab.figure import Figure
from pod.lab.show import roofline, style
from pod.simulate import joules
from pod.simulate.joules import Work

FIGURE = Figure(
    title=f"The roof of joules on {a_card()}: no batch is repeated faster than the power limit pays for",
    chapter="18",
    method="Hybrid batches of one chunk and more and more decodes, from counted work and the prices learnt for "
    "joules-model, at the median clock seen. Dots: eleven batches, FLOPs that attention needs, bf16.",
    data=("joules-prices", "joules"),
    fitted=True,
)
POWER = style.WORKERS[2]
K = 1024
SIDES = HybridBatch.of(2 * K, 16 * K, 64, 16 * K, 32, 8)  # whose prefill and decode are mixed
MIXES = np.geomspace(1 / 64, 64, 49)  # times its prefill beside its decode


def roof(awake: float | None = None) -> pd.DataFrame:
    """FLOPs per byte of a mix, the clock-free roofs' FLOP/s, and FLOP/s that the power limit allows. awake: other watts
    than the list's for a GPU that is awake."""
    gpu, prices = hardware(), joules_model.prices(awake)
    sides = [(np.array(joules.of_batch(side, gpu.sms)), side) for side in (SIDES.prefill, SIDES.decode)]
    rows = []
    for mix in MIXES:
        work, flops, nbytes = (mix * a + b for a, b in zip(*[(w, s.flops, s.bytes) for w, s in sides], strict=True))
        seconds = prices.least_seconds(Work(*work), clock(), gpu.power_w)
        rows.append((flops / nbytes, gpu.attainable(flops / nbytes), flops / seconds))
    return pd.DataFrame(rows, columns=["intensity", "roofs", "power"])


def clock() -> float:
    """MHz, the median of the fused kernel on the eleven batches."""
    return float(read("joules").ours_steady_mhz.median())


def table():
    """One row a batch: FLOPs per byte; FLOP/s of one call with a cold L2 and of calls back to back."""
    df, rows = read("joules"), []
    for row in df.itertuples():
        batch = batch_of(row._asdict())
        rates = (1e3 * batch.flops / ms for ms in (row.ours, row.ours_steady_ms))
        rows.append((batch.flops / batch.bytes, *rates))
    made = pd.DataFrame(rows, columns=["intensity", "one_call", "back_to_back"])
    return made.assign(batch=batches.table().batch.unique())


def draw(df):
    line = roof()
    ax = roofline((hardware(),), xlim=(16, 1024))
    ticks = (100, 200, 500, 1000)
    ax.set_ylim(70, 1500)
    ax.set_yticks(ticks, [f"{t:,}" for t in ticks])
    tone = style.colour("both")
    ax.plot(line.intensity, line.power / 1e12, "--", color=POWER, linewidth=2)
    words = f"{hardware().power_w:.0f} W at {clock() / 1e3:.2f} GHz"
    end = line[line.intensity < 500].iloc[-1]
    ax.annotate(words, (end.intensity, end.power / 1e12), (0, -18), textcoords="offset points", fontsize=9, color=POWER)
    _left_at_the_ridge(ax)
    ax.plot(df.intensity, df.one_call / 1e12, "o", color=tone, markerfacecolor="white", label="one call, L2 cold")
    ax.plot(df.intensity, df.back_to_back / 1e12, "o", color=tone, label="back to back")
    style.legend(ax, loc="lower right")
    ax.set_title("Where the two roofs meet, the power limit takes the most", fontsize=10.5, loc="left")
    return ax.figure


def _left_at_the_ridge(ax) -> None:
    """An arrow from the bend of the roofs down to what the power limit leaves there."""
    x, top = hardware().ridge, hardware().tensor_flops / 1e12
    low = top * at_the_ridge() / 100
    ax.annotate("", (x, low), (x, top), arrowprops={"arrowstyle": "->", "color": POWER, "shrinkA": 4, "shrinkB": 1})
    words = f" {at_the_ridge():.0f} % left"
    ax.text(x, (top * low) ** 0.5, words, color=POWER, fontsize=10, fontweight="bold", va="center")


def longer_back_to_back(even: bool) -> tuple[float, float]:
    """How much longer the batches take back to back than in single calls, %, least and most: of those of which neither
    side alone takes twice as long as the other, or of the others."""
    sides, df = hopper_peers.table(), table()
    longer = 100 * (df.one_call / df.back_to_back - 1)[hopper_peers.is_even(sides.prefill / sides.decode) == even]
    return float(longer.min()), float(longer.max())


def below() -> float:
    """The largest share of the data sheet's roofs, %, that the power limit leaves to a mix."""
    df = roof()
    return 100 * float((df.power / df.roofs).max())


def at_the_ridge(awake: float | None = None) -> float:
    """The share that it leaves where arithmetic and memory take equally long, %."""
    df = roof(awake)
    return 100 * float((df.power / df.roofs)[(df.intensity - hardware().ridge).abs().idxmin()])

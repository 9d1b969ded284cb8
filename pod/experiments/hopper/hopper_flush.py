"""What emptying L2 does to a measurement: every fifth of the 300 batches, L2 emptied by writing and by reading.

Measured: the same calls after a fill of 256 MB, as all cold recordings have it, and after a sum over 256 MB.
"""

from pod.data import a_card, read
from pod.experiments.hopper import hopper_any
from pod.experiments.hopper.hopper_sweep import geomean
from pod.lab.figure import Figure
from pod.lab.measure import ragged, timing
from pod.lab.show import style

FIGURE = Figure(
    title=f"The same batches after L2 was emptied by writing and by reading, on {a_card()}",
    says="How L2 is emptied changes a time by microseconds, and the lead over FlashAttention-3 little",
    chapter="17",
    method="60 of the 300 batches of hopper-any; FlashAttention-3 in the fastest of nine ways. A fill leaves lines "
    "that the timed call must write back; a sum leaves none, but its code takes the place of ours.",
    data=("hopper-flush",),
)
RECORDING = "hopper-flush"
KEYS, UNITS = hopper_any.KEYS, hopper_any.UNITS
ROUNDS, REPEATS = 5, 15
TIMER = f"{timing.TIMER}; in columns read_ after a sum over 256 MB instead"
STEP = 5  # of the batches, in which kinds take turns
FLUSHES = {"fill": timing.fill, "read": timing.read}
NAMES = {"fill": "L2 emptied by writing", "read": "L2 emptied by reading"}


def cases() -> list[dict]:
    return [case for case in hopper_any.cases() if case["batch"] % STEP == 0]


def measure(case: dict) -> dict:
    mix = hopper_any.drawn()[int(case["batch"])]
    calls, holes, _ = ragged.ready(ragged.Ragged(mix.batch, hopper_any.room()), ragged.FA3 | {"ours": ragged.ours})
    row = {"head_dim": mix.batch.head_dim, "words": mix.words}
    for how, flush in FLUSHES.items():
        times = timing.shuffled(calls, ROUNDS, 2.0, 3, flush)
        way = min((name for name in times if name != "ours"), key=lambda name: times[name].ms)
        row |= times[way].columns(f"{how}_fa3") | {f"{how}_way": way} | times["ours"].columns(f"{how}_ours")
    return row | {"holes": "; ".join(f"{name}: {why}" for name, why in holes.items())}


def table():
    """One row a batch: µs of ours after each flush, and FlashAttention-3's time over it."""
    df = read("hopper-flush")
    gains = {f"{how}_gain": df[f"{how}_fa3"] / df[f"{how}_ours"] for how in FLUSHES}
    return df[["batch", "kind", "words"]].assign(**{f"{how}_us": 1e3 * df[f"{how}_ours"] for how in FLUSHES}, **gains)


def gain(how: str, least_us: float = 0) -> float:
    """Geometric mean over the batches that take ours so long after a fill."""
    df = table()
    return geomean(df[df.fill_us >= least_us][f"{how}_gain"])


def draw(df):
    axes = style.axes(9.5, 4.2, columns=2)
    _pairs(axes[0], df.fill_us, df.read_us, [10, 30, 100, 300, 1000], "ours, µs")
    _pairs(axes[1], df.fill_gain, df.read_gain, [1, 1.5, 2, 2.5], "FlashAttention-3's time / ours")
    off = (df.read_us - df.fill_us).abs().max()
    means = " and ".join(f"{geomean(df[f'{how}_gain']):.2f}" for how in FLUSHES)
    for ax, words in zip(axes, (f"at most {off:.0f} µs off the line", f"geometric means {means}"), strict=True):
        ax.text(0.03, 0.96, words, transform=ax.transAxes, va="top", fontsize=10, fontweight="bold")
    return axes[0].figure


def _pairs(ax, fill, read, ticks: list[float], what: str) -> None:
    """A dot a batch, and the line on which both ways of emptying L2 say the same."""
    ends = [min(fill.min(), read.min()) / 1.1, max(fill.max(), read.max()) * 1.1]
    ax.plot(ends, ends, color=style.FRAME, linewidth=2, zorder=1)
    ax.plot(fill, read, "o", color=style.WORKERS[1], markersize=5, alpha=0.7)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=f"{what}, {NAMES['fill']}")
    ax.set(ylabel=f"{what}, {NAMES['read']}")
    style.ticks(ax, ticks)
    style.ticks(ax, ticks, axis="y")

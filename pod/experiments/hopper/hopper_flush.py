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
    id="hopper-flush",
    title=f"The same batches after L2 was emptied by writing and by reading, on {a_card()}",
    says="How L2 is emptied changes a time by microseconds, and the lead over FlashAttention-3 little",
    chapter="17",
    method="60 of the 300 batches of hopper-any; FlashAttention-3 in the fastest of six ways. A fill leaves lines that "
    "the timed call must write back; a sum leaves none, but its code takes the place of ours.",
    data=("hopper-flush",),
)
RECORDING = "hopper-flush"
KEYS, UNITS = hopper_any.KEYS, hopper_any.UNITS
ROUNDS, REPEATS = 5, 15
TIMER = f"{timing.TIMER}; in columns read_ after a sum over 256 MB instead"
STEP = 5  # of the batches, in which kinds take turns
FLUSHES = {"fill": timing.fill, "read": timing.read}
COLOURS = dict(zip(FLUSHES, (style.WORKERS[1], style.WORKERS[3]), strict=True))
NAMES = {"fill": "emptied by writing", "read": "emptied by reading"}


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


# ---------------------------------------------------------------- what it shows


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
    axes = style.axes(9.5, 3.6, columns=2)
    for how, colour in COLOURS.items():
        axes[1].plot(df.fill_us, df[f"{how}_gain"], "o", color=colour, markersize=3.5,
                     label=f"{NAMES[how]}: {geomean(df[f'{how}_gain']):.2f}")  # fmt: skip
    axes[0].plot(df.fill_us, df.read_us - df.fill_us, "o", color=style.INK, markersize=3.5)
    axes[0].axhline(0, color=style.INK, linewidth=1)
    axes[1].axhline(1, color=style.INK, linewidth=1)
    axes[0].set_ylabel("ours: µs more after reading")
    axes[1].set_ylabel("FlashAttention-3's time / ours")
    for ax in axes:
        ax.set(xscale="log", xlabel="ours after a fill, µs")
        ax.set_xticks(ticks := [10, 30, 100, 300, 1000], [f"{t}" for t in ticks])
        ax.minorticks_off()
    axes[1].legend(loc="upper right", fontsize=8.5)
    return axes[0].figure

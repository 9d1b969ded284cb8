"""The overlap itself: when each role of an SM worked, with the two halves one after the other and fused.

Measured: start and end of every role on every SM, fused and the two halves alone (2K @ 8K beside 128 x 4K).
"""

from functools import lru_cache

from pod.batch import HybridBatch
from pod.data import read
from pod.kernels import sm90
from pod.lab.figure import Figure
from pod.lab.show import gantt, style

FIGURE = Figure(
    title="When each role of an SM works: the halves one after the other, and fused",
    chapter="17",
    method="One launch each, a time stamp where a role begins and ends. 2K @ 8K beside 128 x 4K, 32/8 heads, bf16.",
    data=("hopper-trace",),
)
RECORDING = "hopper-trace"
KEYS, WHOLE = ("run", "sm", "role"), ("run",)
UNITS = ("hopper",)
REPEATS = 1
TIMER = "%globaltimer at the start and the end of every role, the last of three launches"
L2 = "warm"
K = 1024
RUNS = ("fused", "prefill", "decode")
SMS, ROLE_COUNT = 132, 5


def cases() -> list[dict]:
    return [{"run": run, "sm": sm, "role": role} for run in RUNS for sm in range(SMS) for role in range(ROLE_COUNT)]


def measure(case: dict) -> dict:
    start, end = _stamps(case["run"])[int(case["sm"])][int(case["role"])]
    return {"start_us": start, "end_us": end}


@lru_cache
def _stamps(run: str):
    """Microseconds after the first role of any SM began."""
    whole = HybridBatch.of(2 * K, 8 * K, 128, 4 * K, 32, 8)
    batch = whole if run == "fused" else whole.prefill if run == "prefill" else whole.decode
    plan, (q, k, v, table) = sm90.plan(batch), batch.tensors(device="cuda")
    for _ in range(3):  # the last of three: code and lists are warm, as in a model's layers
        _, stamps = plan.run(q, k, v, table, trace=True)
    stamps = stamps.cpu()
    return ((stamps - stamps[stamps > 0].min()) / 1000).tolist()


# ---------------------------------------------------------------- what it shows

ROLES = ("copies for prefill", "copies for decode", "prefill 0", "prefill 1", "decode")  # as the kernel numbers them
ORDER = (0, 2, 3, 1, 4)
SERIAL, FUSED = "one after the other", "fused"


def table():
    """One row a way, SM and role that had work, in microseconds. One after the other is prefill's launch, then
    decode's."""
    df = read("hopper-trace")
    side = df.role.map(lambda r: "decode" if r in (1, 4) else "prefill")
    df = df.assign(side=side, role=df.role.map(lambda r: ROLES[r]))[(df.run == "fused") | (df.run == side)]
    shift = df.end_us[df.run == "prefill"].max() * (df.run == "decode")
    way = df.run.map(lambda r: FUSED if r == "fused" else SERIAL)
    return df.assign(way=way, start_us=df.start_us + shift, end_us=df.end_us + shift).drop(columns="run")


def draw(df):
    axes = style.axes(9.5, 6.2, rows=3, sharex=True, height_ratios=(5, 5, 4))
    rows, sm = [ROLES[r] for r in ORDER], typical(df)
    for ax, way in zip(axes, (SERIAL, FUSED), strict=False):
        mine = df[(df.way == way) & (df.sm == sm)]
        gantt(_bars(mine, mine.role), rows, ax=ax, slots_per_row=1)
        ax.set_title(f"SM {sm}, {way}: {df[df.way == way].end_us.max():.0f} µs", fontsize=10, loc="right")
        ax.set_xlabel("")
        ax.get_legend().set_visible(way == SERIAL)
    for role in ("prefill 0", "decode"):
        part = df[(df.way == FUSED) & (df.role == role)]
        side = part.side.iloc[0]
        axes[2].plot(part.end_us, part.sm, ".", color=style.colour(side), label=f"{side} ends")
    axes[2].set_title(f"all {df.sm.nunique()} SMs, fused", fontsize=10, loc="right")
    axes[2].set(xlim=(0, 1.02 * df.end_us.max()), xlabel="time, µs", ylabel="SM")
    style.legend(axes[2], loc="upper left")
    return axes[0].figure


def typical(df) -> int:
    """The SM whose sides end nearest to when most do. Some have a unit of prefill less."""
    ends = df.groupby(["sm", "way", "side"]).end_us.max().unstack(["way", "side"])
    return int((ends - ends.median()).abs().sum(axis=1).idxmin())


def _bars(df, rows) -> list[tuple]:
    kinds = ["load" if role.startswith("copies") else side for role, side in zip(df.role, df.side, strict=True)]
    return list(zip(rows, df.start_us, df.end_us, kinds, strict=True))


def ends(df) -> dict[tuple[str, str], float]:
    """Microseconds from first to last stamp of each side, by (way, side)."""
    grouped = df.groupby(["way", "side"])
    return (grouped.end_us.max() - grouped.start_us.min()).to_dict()

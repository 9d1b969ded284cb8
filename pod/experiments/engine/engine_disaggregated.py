"""Eight GPUs and a promise: chunks of prompts beside the decodes, or prompts on GPUs of their own?

Disaggregation sends the keys and values of a prompt that is done to a GPU that only decodes. Nobody is slowed down by
a prompt there, so gaps are short; but whoever computes prompts has no decodes that could ride along. In one gap of each
answer they travel, so it is asked for two links: from machine to machine, and in one.
"""

import pandas as pd
from matplotlib.ticker import MaxNLocator

from pod.data import kept, read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.cost import Efficiency
from pod.simulate.run import Run, Setup
from pod.simulate.scenarios import h200
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Requests a second that eight H200s serve, by the gap between words that is promised",
    chapter="15",
    method="operators measured on one H200, calibrated by real runs, our kernel in all ways; Llama-3-8B, 60 s of "
    "Poisson arrivals, 240 of long chats; P99 TTFT up to 1 s (long chats 2 s), a gap above 200 ms for at most 1 % of "
    "the users; the best chunk or split of the GPUs (3 to 7 for prompts); every prompt computed whole; keys and "
    "values travel at 50 GB/s a GPU, dotted at 450 (NVLink); lines: one draw of requests and arrivals; upright "
    "strokes: from the lowest to the highest rate of four draws",
    data=("engine-disaggregated", "engine-seeds"),
    fitted=True,
)
COMPUTED = "engine-disaggregated"
# `knob` is the chunk, or how many of the GPUs compute prompts
KEYS, READS = ("workload", "way", "knob", "qps"), ("operators", "engine-runs")
GPUS = 8
SECONDS = {"azure-conv": 60, "azure-code": 60, "conversation": 240}  # of arrivals: of long chats fewer come
TTFT = {"azure-conv": 1.0, "azure-code": 1.0, "conversation": 2.0}  # P99, s
STALLED = 1.0  # % of the users: who waits for a place to decode has one long gap among hundreds, which P99 TBT hides
TURN, ONCE, APART, NVLINK = "chunks, in turn", "chunks, at once", "prompts apart", "prompts apart, NVLink"
# bytes/s that a GPU sends keys and values with: what a 400 Gb/s card does, and NVLink of an HGX H100 or H200, one way
LINKS = {APART: 50e9, NVLINK: 450e9}
CHUNKS, SPLITS = (128, 256, 512, 1024, 2048), (3, 4, 5, 6, 7)
KNOBS = {TURN: CHUNKS, ONCE: CHUNKS, APART: SPLITS, NVLINK: SPLITS}
RATES = {"azure-conv": range(20, 201, 10), "azure-code": range(15, 176, 8), "conversation": range(4, 26)}
NAMES = {"azure-conv": "chat (Azure)", "azure-code": "code (Azure)", "conversation": "long chats (Mooncake)"}
PROMISES = (9, 10, 12, 14, 16, 18, 20, 22, 25, 30, 40, 50, 60, 75, 100)  # P99 TBT, ms
DRAWN = (10, 14, 22, 50)  # those of which conclusions are drawn, and requests are drawn several times


def cases() -> list[dict]:
    return [dict(zip(KEYS, (workload, way, knob), strict=False))
            for workload in RATES for way, knobs in KNOBS.items() for knob in knobs]  # fmt: skip


def setup(way: str, knob: int) -> Setup:
    apart = way in LINKS
    return h200("llama-3-8b", attention="pod" if way == ONCE else "serial", kernels="hopper", max_batch=256,
                max_tokens=32768, chunk=8192 if apart else knob, replicas=GPUS, router="shortest-queue",
                prompt_replicas=knob if apart else 0,
                efficiency=Efficiency(send_bytes_per_s=LINKS[way]) if apart else Efficiency())  # fmt: skip


def measure(case: dict) -> list[dict]:
    """Every rate up to the first that keeps not even the weakest promise: no higher one counts."""
    on, rows = setup(case["way"], case["knob"]), []
    for qps in RATES[case["workload"]]:
        metrics = Run(on, Workload(case["workload"], SECONDS[case["workload"]] * qps, qps)).metrics()
        rows.append({"qps": qps} | metrics)
        if not (_in_time(metrics, TTFT[case["workload"]]) and 1e3 * metrics["tbt_p99"] <= PROMISES[-1]):
            break
    return rows


def _in_time(felt, ttft: float):
    """Whether nobody waits too long, before or between words; of a row or of a table of rows."""
    return (felt["ttft_p99"] <= ttft) & (felt["stalls_200ms"] <= STALLED)


# ---------------------------------------------------------------- what it shows


@kept("engine-disaggregated")  # the pages of its energy and of its draws ask for it too
def table():
    """A row a workload, way and promise: the highest rate that keeps it, as all lower ones do, and with which knob."""
    runs = read("engine-disaggregated").sort_values("qps", kind="stable")
    ways = runs.groupby(["workload", "way"], sort=False)
    rows = [(*which, *best) for which, mine in ways for best in _best(mine, TTFT[which[0]], PROMISES)]
    return pd.DataFrame(rows, columns=["workload", "way", "tbt_p99_ms", "qps", "knob"])


def _best(runs, ttft: float, promises: tuple[int, ...]) -> list[tuple[int, float, float]]:
    """Each promise, the highest rate that keeps it, and with which knob. A rate is told of the worst gap up to it."""
    good = _in_time(runs, ttft).groupby(runs.knob).cummin()
    worst = (1e3 * runs.tbt_p99).groupby(runs.knob).cummax()
    rates, rows = runs[["qps", "knob"]].assign(worst=worst)[good], []
    for promise in promises:
        kept = rates[rates.worst <= promise]
        rows.append((promise, *(kept.loc[kept.qps.idxmax(), ["qps", "knob"]] if len(kept) else (0.0, float("nan")))))
    return rows


def draws() -> pd.DataFrame:
    """The same for each draw that was simulated, seed 1 being that of the picture."""
    shown = table().query("way != @TURN").assign(seed=1)
    runs = read("engine-seeds").sort_values("qps", kind="stable").groupby(["workload", "way", "seed"], sort=False)
    rows = [(workload, way, *best, seed)
            for (workload, way, seed), mine in runs for best in _best(mine, TTFT[workload], DRAWN)]  # fmt: skip
    every = pd.concat([shown, pd.DataFrame(rows, columns=shown.columns)])
    return every[every.tbt_p99_ms.isin(DRAWN)]


def spread() -> pd.DataFrame:
    """Lowest and highest rate over the draws, and by how many percent chunks at once lead in the draw where they lead
    least, and most."""
    rates = draws().pivot(index=["workload", "tbt_p99_ms", "seed"], columns="way", values="qps")
    for way, words in {APART: "chunks lead by, %", NVLINK: "with NVLink by, %"}.items():
        rates[words] = 100 * (rates[ONCE] / rates[way] - 1)
    ranges = rates.groupby(["workload", "tbt_p99_ms"]).agg(["min", "max"])
    return ranges.reindex(RATES, level="workload")


def leads() -> pd.DataFrame:
    """By how many percent chunks at once lead, in words: in the draw in which they lead least, and most."""
    ranges = spread()["chunks lead by, %"].rename(index=NAMES)
    words = [_range(each["min"], each["max"]) for _, each in ranges.iterrows()]
    return pd.Series(words, ranges.index).unstack(sort=False)


def sides(tight: int = 10, loose: int = 50) -> pd.DataFrame:
    """Chunks at once against prompts apart at a tight and at a loose promise, their lead in four draws behind it, and
    where one passes the other."""
    rates, lead, columns = table().set_index(["workload", "tbt_p99_ms", "way"]).qps, leads(), {}
    for workload, name in NAMES.items():
        ends = {}
        for promise in (tight, loose):
            once, apart = (rates[workload, promise, way] for way in (ONCE, APART))
            ends[promise] = f"{once:.0f} against {apart:.0f}" + (f" ({lead[promise][name]} %)" if apart else "")
        passes = _crossing(table().query("workload == @workload"))
        columns[name] = {
            f"tight: {tight} ms": ends[tight],
            "chunks ahead from": f"{passes} ms" if passes else "never behind",
            f"loose: {loose} ms": ends[loose],
        }
    return pd.DataFrame(columns)


def _range(low: float, high: float) -> str:
    if high == float("inf"):
        return "apart serves none"
    words = [f"{x:+.0f}" if round(x) else "0" for x in (low, high)]
    return " to ".join(dict.fromkeys(words))


def _crossing(mine: pd.DataFrame) -> float | None:
    """The promise from which on chunks at once serve more than prompts apart, if those serve more below it."""
    rates = mine.pivot(index="tbt_p99_ms", columns="way", values="qps")
    behind = rates.index[rates[ONCE] < rates[APART]]
    ahead = rates.index[rates[ONCE] > rates[APART]]
    return ahead[ahead > behind.max()].min() if len(behind) and len(ahead) else None


def draw(df):
    axes, four = style.axes(9.5, 3.4, len(RATES)), spread()
    labels = {APART: f"{APART}, 50 GB/s"}
    looks = {TURN: (style.WORKERS[1], "-"), ONCE: (style.WORKERS[0], "-"), APART: (style.WORKERS[2], "-"),
             NVLINK: (style.WORKERS[2], ":")}  # fmt: skip
    for ax, workload in zip(axes, RATES, strict=True):
        for way, (colour, line) in looks.items():
            mine = df[(df.workload == workload) & (df.way == way)]
            ax.plot(mine.tbt_p99_ms, mine.qps, line, marker="o" if line == "-" else "", drawstyle="steps-post",
                    markersize=4, color=colour, label=labels.get(way, way))  # fmt: skip
        for way, beside in ((ONCE, 0.97), (APART, 1.03)):
            ends = four.loc[workload, way]
            ax.vlines(ends.index * beside, ends["min"], ends["max"], color=looks[way][0], linewidth=4, alpha=0.5,
                      label="strokes: four draws" if way == ONCE else None)  # fmt: skip
        ax.set(xscale="log", xlabel="promised P99 TBT, ms", ylim=(0, None))
        if promise := _crossing(df[df.workload == workload]):
            ax.axvline(promise, 0.4, color=style.INK, linestyle=":", linewidth=1)
            ax.text(0.97 * promise, 0.99, f"green ahead\nfrom {promise} ms", transform=ax.get_xaxis_transform(),
                    ha="right", va="top", fontsize=8.5)  # fmt: skip
        style.ticks(ax, (10, 20, 50, 100))
        ax.yaxis.set_major_locator(MaxNLocator(9, integer=True, steps=(1, 2, 5, 10)))
        ax.set_title(NAMES[workload], fontsize=10)
    axes[0].set_ylabel("requests a second, 8 GPUs, simulated")
    style.legend(axes[0], loc="lower right")
    return axes[0].figure


def ahead(workload: str, over: str, promise: int) -> float:
    """How many percent more requests fused chunks serve than another way, at this promise."""
    rates = table().set_index(["workload", "way", "tbt_p99_ms"]).qps
    return 100 * (rates[workload, ONCE, promise] / rates[workload, over, promise] - 1)

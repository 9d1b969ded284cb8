"""Prompts that begin alike: what it brings to compute a common beginning once, as long as memory keeps it."""

from dataclasses import replace

from pod.data import DATA, read
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.run import Run
from pod.simulate.scenarios import h200
from pod.simulate.workload import Workload

FIGURE = Figure(
    title="Time to the first token with and without a cache of beginnings, on one H200",
    chapter="15",
    method="operators measured on one H200, calibrated by a real run; Llama-3-8B, our kernel, chunk 2,048, the first "
    "1,500 requests of Mooncake's conversations in order, their recorded arrivals stretched to each rate",
    data=("engine-prefix",),
    fitted=True,
)
COMPUTED = "engine-prefix"
KEYS, READS = ("memory", "qps"), ("operators", "engine-runs")
TRACE = DATA / "public" / "mooncake.csv"
REQUESTS, RATES = 1500, (0.8, 1.0, 1.2, 1.4)
# how many GPUs' memory keeps beginnings. More than one stand for a store elsewhere; to bring a block from there is free
MEMORIES = {0: "no cache", 1: "the GPU's memory", 4: "four times as much", 16: "sixteen times"}


def cases() -> list[dict]:
    return [dict(zip(KEYS, (memory, qps), strict=True)) for memory in MEMORIES for qps in RATES]


def measure(case: dict) -> dict[str, float]:
    setup = h200("llama-3-8b", attention="pod", chunk=2048, max_batch=128, max_tokens=1 << 17)
    setup = replace(setup, prefix_cache=case["memory"] > 0, blocks=max(1, case["memory"]) * setup.num_blocks())
    return Run(setup, Workload(str(TRACE), REQUESTS, case["qps"], high=1 << 17)).full()


def table():
    """A row a cache and rate: seconds to the first token, share of prompt tokens computed, joules a request."""
    df = read("engine-prefix")
    shown = ["qps", "ttft_p50", "ttft_p99", "computed_percent", "joules_per_request"]
    return df[shown].assign(cache=df.memory.map(MEMORIES))


def joules():
    """Of a request, a row a cache, a column a rate."""
    df = table()
    return df.pivot(index="cache", columns="qps", values="joules_per_request").reindex(df.cache.unique())


def draw(df):
    axes = style.axes(9.5, 3.3, 2)
    tones = (style.colour("linear"), style.WORKERS[1], style.WORKERS[2], style.WORKERS[0])
    for (name, mine), colour in zip(df.groupby("cache", sort=False), tones, strict=True):
        axes[0].plot(mine.qps, mine.ttft_p50, "o-", color=colour, label=name)
        axes[1].plot(mine.qps, mine.computed_percent, "o-", color=colour, label=name)
    axes[0].set(yscale="log", ylabel="median TTFT, s, simulated", xlabel="requests per second")
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "23458" else "")
    axes[1].set(ylabel="% of prompt tokens computed", xlabel="requests per second", ylim=(0, 110))
    style.legend(axes[0], loc="upper left")
    return axes[0].figure


def faster(memory: int, qps: float) -> float:
    """Median TTFT without a cache over that with one."""
    ttft = table().set_index(["cache", "qps"]).ttft_p50
    return float(ttft[MEMORIES[0], qps] / ttft[MEMORIES[memory], qps])

"""One iteration of the engine as it was: the GPU works, and then it waits for Python."""

from pod.experiments.plus34 import shared
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Timeline of the engine: how long the GPU idles",
    chapter="16",
    method="torch.profiler, one decode iteration of 144 chats, LLaMA-13B, random weights. Idle: over the time "
    "unwatched, by estimate.",
    data=("vllm-timeline", "vllm-ladder", "vllm-plan"),
)
SHOWN = ("clean", "query in shared memory")


def table():
    """One row a rung and bin: the share of the bin in which the GPU works for model and sampler, and the host waits."""
    return shared.profile(*SHOWN)


def draw(df):
    rungs = list(dict.fromkeys(df.rung))
    axes = style.axes(9.5, 0.7 + 1.35 * len(rungs), rows=len(rungs), sharex=True)
    found = shared.summary(df)
    for ax, rung in zip(axes, rungs, strict=True):
        words = f"unwatched {found.ms[rung]:.0f} ms, GPU idle {found.idle[rung]:.0f} %, by estimate"
        shared.strip(ax, df[df.rung == rung], f"{rung}: {words}")
    longest = (df.start_us + df.width_us).max() / 1e3
    axes[-1].set(xlim=(0, longest), xlabel="time in the profiled iteration, ms")
    style.legend(axes[0], loc="lower right", bbox_to_anchor=(1, 1.0), ncols=3, borderaxespad=0.2)
    return axes[0].figure


def idle() -> float:
    """Share of the iteration without GPU work when the kernel is mended and the sampler is not, as in the post, %."""
    return float(shared.summary(table()).idle["query in shared memory"])

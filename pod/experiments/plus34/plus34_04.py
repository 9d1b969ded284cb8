"""The kernel after the query moved to shared memory, the two ideas that failed, and what one would run today."""

import pandas as pd

from pod.data import hardware, read
from pod.experiments.plus34 import shared, single_query
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule.waves import waves

FIGURE = Figure(
    title="The kernel after the query moved to shared memory",
    says="Moving the query is worth a lot only where loads wait for each other",
    chapter="16",
    method="picture: bytes of keys and values over time, % of 4.8 TB/s. Cold L2, bf16, 40 heads of their own keys",
    data=("single-query", "single-query-counters"),
)
MOVED = ("registers", "shared"), ("registers_in_turn", "shared_in_turn")  # the query, in two builds
BUILDS = "keys in turn", "loads overlap"  # the second, and the first


def table():
    """One row a batch and kernel: milliseconds, percent of the DRAM rate, time over the kernel before, and its CTAs."""
    df = read("single-query")
    rows = []
    for kernel in shared.KERNELS:
        part = df[["batch", "kv_bytes"]].assign(kernel=kernel, ms=df[kernel], over_before=df[kernel] / df.registers)
        for column in ("registers", "ctas"):
            part[column] = df.get(f"{kernel}_{column}")
        rows.append(part)
    out = pd.concat(rows, ignore_index=True).dropna(subset="ms")
    return out.assign(dram=shared.share_of_dram(out.kv_bytes, out.ms))


def counters(batch: str = "256 x 512") -> pd.DataFrame:
    """What the profiler counts before and after the move, %: the post's, and ours in two builds."""
    names = ("f01.compute_util", "f01.memory_util", "f02.idle_cycles", "f04.memory_util")
    compute, before, idle, after = (paper.value(f"plus34.{name}") for name in names)
    rows = {"the post, before": (compute, before, 100 * idle / 6), "the post, after": (None, after, None)}
    seen = read("single-query-counters").set_index(["batch", "kernel"]).loc[batch]
    for pair, build in zip(reversed(MOVED), BUILDS, strict=True):
        for name, when in zip(pair, ("before", "after"), strict=True):
            rows[f"{build}, {when}"] = seen.compute[name], seen.dram[name], 100 - seen.issue[name]
    return pd.DataFrame(rows, index=["SM, %", "DRAM, %", "cycles without an issue, %"]).T.astype(float)


def last_waves(batches=("64 x 2048", "256 x 512")) -> pd.DataFrame:
    """How full the last wave is before and after the move, and which share of all slots of all waves is used."""
    timed, rows = read("single-query").set_index("batch"), []
    for batch in batches:
        ctas = len(single_query.BATCHES[batch]) * single_query.HEADS
        for kernel in MOVED[0]:
            slots = int(timed[f"{kernel}_ctas"][batch]) * hardware().sms
            full, used = ctas / slots % 1, ctas / slots / waves(ctas, slots)
            rows.append((batch, shared.KERNELS[kernel], ctas, slots, round(100 * full), round(100 * used)))
    columns = ["chats x tokens", "", "CTAs", "slots", "last wave full, %", "slots used, %"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    batches = list(dict.fromkeys(df.batch))
    batches.sort(key=lambda b: (int(b.split()[0]), df[df.batch == b].kv_bytes.iloc[0]))  # by chats, then by bytes
    ax = style.axes(9.5, 5.2)
    for edge, words in ((paper.value("plus34.f01.memory_util"), "post (A100), before"),
                        (paper.value("plus34.f04.memory_util"), "post (A100), after")):  # fmt: skip
        ax.axvline(edge, color=style.FRAME, linestyle="--", linewidth=1.2)
        ax.text(edge, -0.62, f"{words}: {edge:.0f} %", fontsize=8.5, ha="center", color=style.INK)
    marks, kernels = dict(zip(shared.KERNELS, "os^vosPDX", strict=True)), list(dict.fromkeys(df.kernel))
    for before, after in MOVED:
        ends = df[df.kernel.isin((before, after))].pivot(index="batch", columns="kernel", values="dram")
        for batch, row in ends.iterrows() if after in ends else ():
            y = [batches.index(batch) + _height(kernels, kernel) for kernel in (before, after)]
            ax.plot(row[[before, after]], y, color=shared.COLOURS[after], linewidth=2.5, alpha=0.6)
    for kernel in kernels:
        mine = df[df.kernel == kernel].set_index("batch")
        y = [batches.index(b) + _height(kernels, kernel) for b in mine.index]
        ax.plot(mine.dram, y, marks[kernel], color=shared.COLOURS[kernel], markersize=7, markeredgecolor="white",
                markeredgewidth=0.6, label=shared.KERNELS[kernel])  # fmt: skip
    ax.set_yticks(range(len(batches)), batches, fontsize=9)
    for i in range(1, len(batches)):
        ax.axhline(i - 0.5, color=style.IDLE, linewidth=1, zorder=0)
    ax.set(xlim=(0, 102), ylim=(len(batches) - 0.5, -0.5), xlabel="% of the DRAM rate (4.8 TB/s)",
           ylabel="requests x tokens")  # fmt: skip
    style.legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax.figure


def draw_moved(df):
    """The query alone, from before to after, in two builds and on two batches, below what the post saw."""
    timed = df.set_index(["kernel", "batch"])
    stated = (paper.value(f"plus34.{name}") for name in ("f01.memory_util", "f04.memory_util"))
    rows = [("the post, A100", *stated, "")]
    for (before, after), build in zip(reversed(MOVED), BUILDS, strict=True):
        for batch in ("256 x 512", shared.CHATS):
            old, new = timed.loc[before, batch], timed.loc[after, batch]
            rows.append((f"{batch}, {build}", old.dram, new.dram, f", {old.ms / new.ms:.2f}x as fast"))
    ax = style.axes(8.5, 0.8 + 0.36 * len(rows))
    for y, (_, old, new, faster) in enumerate(rows):
        tone = shared.COLOURS["shared"] if y else style.INK
        ax.plot([old, new], [y, y], color=tone, linewidth=2.5, zorder=1)
        for value, face, words in ((old, "white", "before"), (new, tone, "after")):
            ax.plot(value, y, "o", color=tone, markerfacecolor=face, markersize=7, label="" if y else words)
        ax.text(max(old, new) + 2, y, f"{old:.0f} to {new:.0f} %{faster}", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), [words for words, *_ in rows], fontsize=9)
    ax.set(xlim=(0, 128), ylim=(len(rows) - 0.5, -0.5), xlabel="% of the DRAM rate")
    ax.set_xticks(range(0, 101, 20))
    style.legend(ax, loc="upper left")
    return ax.figure


def _height(kernels: list[str], kernel: str) -> float:
    """Where a kernel's mark stands in the row of its batch."""
    return 0.7 * ((kernels.index(kernel) + 0.5) / len(kernels) - 0.5)


# ---------------------------------------------------------------- what claims ask for


def _time(kernel: str) -> float:
    return float(table().set_index(["batch", "kernel"]).ms[shared.CHATS, kernel])


def memory_after() -> float:
    """DRAM utilisation by ncu on the run's batch, %."""
    df = read("single-query-counters").set_index(["batch", "kernel"])
    return float(df.dram[shared.CHATS, "shared"])


def table_reads() -> float:
    return _time("table_batch") / _time("shared")


def atomics() -> float:
    return _time("atomics") / _time("shared")

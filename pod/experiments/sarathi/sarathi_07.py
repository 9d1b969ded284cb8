"""SARATHI post, Figure 7: one GPU, decode-maximal batches against Orca at three lengths."""

import pandas as pd

from pod.data import read
from pod.experiments.sarathi import sarathi_08
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import best_ratio, reserved_a6000

FIGURE = Figure(
    title="Single-GPU throughput over Orca",
    chapter="13",
    method="analytical A6000, LLaMA-13B, no host time, 300 requests at each length's best P:D for chunks of 256",
    data=("sarathi-07",),
    says="At the best ratios less than the post's 1.3",
)
COMPUTED = "sarathi-07"
KEYS = ("length", "system", "asked")
LENGTHS, CHUNK, REQUESTS = {1024: "batch_1k", 2048: "batch_2k", 3072: "batch_3k"}, 256, 300


def shape(length: int) -> tuple[int, float]:
    """The batch that fits, and the ratio at which its chunks and decodes run out together."""
    batch = int(paper.value(f"sarathi.f07.{LENGTHS[length]}"))
    return batch, best_ratio(CHUNK, batch)


def cases() -> list[dict]:
    return [{"length": length, "system": system, "asked": asked} for length in LENGTHS
            for asked in (REQUESTS, _few(length)) for system in ("orca", "sarathi_v1")]  # fmt: skip


def _few(length: int) -> int:
    """Requests of a short run."""
    return sarathi_08.ROUNDS * shape(length)[0]


def measure(case: dict) -> dict[str, float]:
    length = case["length"]
    return reserved_a6000(length, *shape(length), CHUNK, case["asked"])[case["system"]].metrics()


def table(short: bool = False):
    """A row a length, of long runs or of short ones."""
    done = read("sarathi-07").set_index(list(KEYS)).requests_per_minute
    asked = {length: _few(length) if short else REQUESTS for length in LENGTHS}
    rows = [(length, *shape(length), *(done[length, system, asked[length]] for system in ("orca", "sarathi_v1")))
            for length in LENGTHS]  # fmt: skip
    columns = ["length", "batch", "pd", "orca_requests_per_minute", "sarathi_requests_per_minute"]
    df = pd.DataFrame(rows, columns=columns)
    return df.assign(gain=df.sarathi_requests_per_minute / df.orca_requests_per_minute)


def draw(df):
    ax = style.axes(6.5, 3.0)
    ax.bar(range(len(df)), df.gain, 0.5, color=style.WORKERS[0], label="ours, analytical A6000")
    for i, gain in enumerate(df.gain):
        ax.text(i, gain + 0.02, f"{gain:.2f}x", ha="center", fontsize=9)
    ax.axhline(paper.value("sarathi.f07.gain"), color=style.INK, linestyle="--", linewidth=1, label="post: 1.3x")
    ax.set_xticks(range(len(df)), [f"{n:,} tokens\nbatch {b}, P:D {r:.0f}" for n, b, r in
                                   zip(df.length, df.batch, df.pd, strict=True)])  # fmt: skip
    ax.set(ylabel="throughput over Orca", ylim=(0, 1.6))
    style.legend(ax, loc="upper right", ncols=2)
    return ax.figure


def at_ratio() -> int:
    """P:D at 1,024 tokens, by the formula the one that suits SARATHI best."""
    return round(table().set_index("length").pd[1024])


def loses_from() -> int:
    """P:D from which on Orca is ahead with the same chunk."""
    return sarathi_08.loses_from(CHUNK)


def gain_1k() -> float:
    """Throughput over Orca at 1,024 tokens."""
    return float(table().set_index("length").gain[1024])

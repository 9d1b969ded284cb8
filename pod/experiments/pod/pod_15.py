"""POD-Attention, Figure 15: the gain lives where most batches are hybrid."""

import pandas as pd

from pod.data import read
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.scenarios import POD, SARATHI, offline

FIGURE = Figure(
    title="Throughput against the ratio of prefill to decode tokens",
    chapter="15",
    method="analytical A100, Llama-3-8B on two, 384 of the paper's 2,048 requests at each ratio, chunk 1,024",
    data=("pod-15",),
)
COMPUTED = "pod-15"
KEYS = ("pd", "system")
RATIOS, REQUESTS = (4, 8, 10, 12, 14, 16, 18, 20, 24, 36, 64), 384


def cases() -> list[dict]:
    return [{"pd": ratio, "system": system} for ratio in RATIOS for system in ("Sarathi", "Sarathi+POD")]


def measure(case: dict) -> dict[str, float]:
    total = int(paper.value("pod.f15.request_tokens"))
    return offline("llama-3-8b", 2, case["pd"], 1024, REQUESTS, total)[case["system"]].metrics()


def table():
    """Requests per minute, gain of POD, and the share of iterations with both phases."""
    done, rows = read("pod-15").set_index(list(KEYS)).to_dict("index"), []
    for ratio in RATIOS:
        sarathi, pod = (done[ratio, name] for name in (SARATHI, POD))
        minute = sarathi["requests_per_minute"], pod["requests_per_minute"]
        rows.append((ratio, *minute, 100 * (minute[1] / minute[0] - 1), pod["hybrid_percent"]))
    columns = ["pd", "sarathi_requests_per_minute", "pod_requests_per_minute", "gain_percent", "hybrid_percent"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    axes = style.axes(9.5, 3.1, 3)
    axes[0].plot(df.pd, df.sarathi_requests_per_minute, "o-", color=style.WORKERS[1], label="Sarathi")
    axes[0].plot(df.pd, df.pod_requests_per_minute, "o-", color=style.WORKERS[0], label="Sarathi+POD")
    axes[0].set(ylabel="requests per minute, simulated", ylim=(0, None))
    axes[1].plot(df.pd, df.gain_percent, "o-", color=style.WORKERS[0], label="POD")
    axes[1].axvspan(paper.value("pod.f15.peak_low"), paper.value("pod.f15.peak_high"), color=style.LIT, alpha=0.35,
                    label="paper: peak", linewidth=0)  # fmt: skip
    axes[1].set(ylabel="gain of POD, %", ylim=(0, None))
    axes[2].plot(df.pd, df.hybrid_percent, "s--", color=style.WORKERS[3])
    axes[2].set(ylabel="time in hybrid batches, %", ylim=(0, 105))
    for ax in axes:
        ax.set(xscale="log", xlabel="P:D")
        style.ticks(ax, RATIOS[::2])
    for ax in axes[:2]:
        style.legend(ax, loc="lower right")
    return axes[0].figure


def best_ratio() -> float:
    return float(table().set_index("pd").gain_percent.idxmax())

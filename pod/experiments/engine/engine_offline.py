"""POD's Figures 12 and 15 once more, on one H200 with measured operators: how much of the gain is left?"""

import pandas as pd

from pod.data import read
from pod.experiments.pod.pod_12 import MODELS, SHORT
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.shapes import SHAPES
from pod.simulate.scenarios import IN_TURN, POD, SARATHI, SYSTEMS, VLLM, offline_h200

FIGURE = Figure(
    title="Offline throughput on one H200: three models, and one over P:D",
    says="Simulated: for Llama-3-8B less than half of the gain is overlap",
    chapter="15",
    method="operators measured on one H200, calibrated by real runs; serial is FlashAttention-3, POD our kernel; "
    "320 requests of 16,384 tokens",
    data=("engine-offline",),
    fitted=True,
)
COMPUTED = "engine-offline"
KEYS, READS = ("model", "pd", "system"), ("operators", "engine-runs")
RATIOS, REQUESTS = (4, 8, 12, 16, 24, 36, 64, 100, 160, 256), 320


def chunks() -> dict[tuple[str, int], int]:
    """Tokens of a chunk by model and ratio: the paper's Figure 12, then its Figure 15."""
    stated = {(model, ratio): int(paper.value(f"pod.f12.{SHORT[model]}_chunk"))
              for model, (_, ratio, _) in MODELS.items()}  # fmt: skip
    return stated | {("llama-3-8b", ratio): 1024 for ratio in RATIOS}


def cases() -> list[dict]:
    return [dict(zip(KEYS, (*case, system), strict=True)) for case in chunks() for system in (*SYSTEMS, IN_TURN)]


def measure(case: dict) -> dict[str, float]:
    model, ratio = case["model"], case["pd"]
    return offline_h200(model, ratio, chunks()[model, ratio], REQUESTS)[case["system"]].metrics()


def table():
    """A row a model, ratio and system: requests per minute, the gain of POD over the system in percent, the paper's."""
    done, rows = read("engine-offline").set_index(list(KEYS)).to_dict("index"), []
    for (model, ratio, system), metrics in done.items():
        minute, pod = metrics["requests_per_minute"], done[model, ratio, POD]["requests_per_minute"]
        place = MODELS[model][2] if ratio == MODELS[model][1] else None
        key = {VLLM: "over_vllm", SARATHI: "over_sarathi"}.get(system)
        stated = paper.value(f"pod.f12.{key}_{place}") if place and key else None
        rows.append((model, ratio, system, minute, 100 * (pod / minute - 1), stated, metrics["hybrid_percent"]))
    columns = ["model", "pd", "system", "requests_per_minute", "pod_gain", "pod_gain_paper", "hybrid_percent"]
    return pd.DataFrame(rows, columns=columns)


def draw(df):
    axes = style.axes(9.5, 3.2, 4, width_ratios=(1, 1, 1, 1.9))
    colours = (style.FRAME, style.WORKERS[1], style.WORKERS[0])
    for ax, (model, (_, ratio, _)) in zip(axes, MODELS.items(), strict=False):
        mine = df[(df.model == model) & (df.pd == ratio)]
        mine = mine[mine.system != IN_TURN]
        ax.bar(range(3), mine.requests_per_minute, color=colours, width=0.86)
        for i, row in enumerate(mine.itertuples()):
            ax.text(i, row.requests_per_minute, f"{row.requests_per_minute:.0f}", ha="center", va="bottom", fontsize=9)
            if row.pod_gain_paper == row.pod_gain_paper:
                words = f"POD\n{row.pod_gain:+.0f} %\n\npaper,\nA100s\n{row.pod_gain_paper:+.0f} %"
                ax.text(i, row.requests_per_minute / 2, words, ha="center", va="center", fontsize=8.5,
                        color=style.letters_on(colours[i]))  # fmt: skip
        ax.set_xticks(range(3), ["vLLM", "Sarathi", "+POD"], fontsize=8.5)
        ax.set_title(SHAPES[model].name, fontsize=10)
        ax.set_ylim(0, 1.14 * mine.requests_per_minute.max())
    axes[0].set_ylabel("requests per minute, simulated")
    over = df[(df.model == "llama-3-8b") & df.pd.isin(RATIOS)].sort_values("pd", kind="stable")
    mine, alone = over[over.system == SARATHI], over[over.system == IN_TURN]
    axes[3].plot(mine.pd, mine.pod_gain, "o-", color=style.WORKERS[0], label="POD over Sarathi, %")
    axes[3].plot(alone.pd, alone.pod_gain, "o--", color=style.WORKERS[3], label="of it by overlap alone, %")
    axes[3].axvspan(paper.value("pod.f15.peak_low"), paper.value("pod.f15.peak_high"), color=style.LIT, alpha=0.35,
                    label="paper: peak gains", linewidth=0)  # fmt: skip
    axes[3].set(xscale="log", xlabel="P:D", ylim=(0, 1.6 * mine.pod_gain.max()))
    style.ticks(axes[3], RATIOS[::2])
    axes[3].set_title("Llama-3-8B", fontsize=10)
    style.legend(axes[3], loc="upper left")
    return axes[0].figure


def gain(model: str) -> float:
    """Gain over Sarathi at the paper's ratio, percent."""
    rows = table().set_index(["model", "pd", "system"]).pod_gain
    return float(rows[model, MODELS[model][1], SARATHI])

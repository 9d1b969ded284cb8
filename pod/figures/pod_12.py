"""POD-Attention, Figure 12: offline throughput of three models under three systems."""

from __future__ import annotations

from pod import paper
from pod.figures import Figure

FIGURE = Figure(
    id="pod-12",
    source="POD-Attention, Figure 12",
    title="Offline serving throughput of three models",
    chapter="14",
    method="analytical A100 with a Python engine's host time; 1,000 to 2,000 requests of 16,384 tokens",
    state="simulated",
)
# model: GPUs, the artifact's P:D, and where the text (naming no model) puts its gains
MODELS = {"yi-6b": (1, 8, "first"), "llama-2-7b": (2, 64, "second"), "llama-3-8b": (2, 17, "third")}
KEYS = {"yi-6b": "yi", "llama-2-7b": "llama2", "llama-3-8b": "llama3"}


def table():
    """Requests per minute, and the gain of Sarathi+POD over the others beside the paper's, in percent."""
    import pandas as pd

    from pod.serving.experiments import POD, SARATHI, VLLM, offline, results

    runs = {}
    for model, (tp, pd_ratio, _) in MODELS.items():
        chunk, requests = (int(paper.value(f"pod.f12.{KEYS[model]}_{what}")) for what in ("chunk", "requests"))
        runs |= {(model, name): run for name, run in offline(model, tp, pd_ratio, chunk, requests).items()}
    minute = dict(zip(runs, (m["requests_per_minute"] for m in results(tuple(runs.values()))), strict=True))
    rows = []
    for model, (_, _, place) in MODELS.items():
        for system, key in ((VLLM, "over_vllm"), (SARATHI, "over_sarathi"), (POD, None)):
            gain = 100 * (minute[model, POD] / minute[model, system] - 1) if key else None
            stated = paper.value(f"pod.f12.{key}_{place}") if key else None
            rows.append((model, system, minute[model, system], gain, stated))
    return pd.DataFrame(rows, columns=["model", "system", "requests_per_minute", "pod_gain_ours", "pod_gain_paper"])


def draw(df):
    from pod.show import style

    axes = style.axes(9.5, 3.1, len(MODELS))
    colours = (style.FRAME, style.DECODE, style.PREFILL)
    for ax, (model, mine) in zip(axes, df.groupby("model", sort=False), strict=True):
        ax.bar(mine.system, mine.requests_per_minute, color=colours, width=0.65)
        for i, row in enumerate(mine.itertuples()):
            words = f"{row.requests_per_minute:.1f}"
            if row.pod_gain_ours == row.pod_gain_ours:
                words += f"\nPOD +{row.pod_gain_ours:.0f} %\npaper +{row.pod_gain_paper:.0f} %"
            ax.text(i, row.requests_per_minute + 0.3, words, ha="center", va="bottom", fontsize=8.5)
        ax.set_title(model, fontsize=10)
        ax.set_ylim(0, 1.3 * mine.requests_per_minute.max())
    axes[0].set_ylabel("requests per minute, simulated")
    return axes[0].figure


def gain(model: str, over: str) -> float:
    """Gain of Sarathi+POD, percent."""
    df = table().set_index(["model", "system"])
    return float(df.pod_gain_ours[model, over])


def gain_max() -> float:
    return max(gain(model, "Sarathi") for model in MODELS)


def sarathi_over_vllm(model: str) -> float:
    df = table().set_index(["model", "system"]).requests_per_minute
    return float(df[model, "Sarathi"] / df[model, "vLLM"])

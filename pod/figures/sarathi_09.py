"""SARATHI post, Figure 9: bubbles and completion times of GPT-3 on 64 A100s, three ways."""

from __future__ import annotations

from functools import cache

from pod import paper
from pod.figures import Figure

FIGURE = Figure(
    id="sarathi-09",
    source="SARATHI post, Figure 9",
    title="Bubble time and completion time of a GPT-3 pipeline",
    chapter="12",
    method="analytical A100, 1,600 of the post's 10,000 requests, Zipf 0.4 from 1K to 4K, P:D 10, chunk 256",
    state="simulated",
)
REQUESTS = 1600
QUANTILES = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95)


@cache
def runs() -> dict:
    """Per system: minutes to complete, and the bubble seconds of each request."""
    import numpy as np

    from pod.serving.experiments import pipeline
    from pod.serving.metrics import bubbles, metrics
    from pod.serving.simulate import simulate

    out = {}
    for name, run in pipeline(REQUESTS).items():
        log = simulate(run.setup, run.workload.requests())
        waits = np.array(list(bubbles(log).values())) if run.setup.pp > 1 else np.zeros(1)
        out[name] = metrics(log)["minutes"], waits, run.setup.max_batch
    return out


def table():
    """Batch cap, minutes, and quantiles of the bubble time, by system."""
    import numpy as np
    import pandas as pd

    done = runs().items()
    rows = [(name, batch, minutes, *np.percentile(waits, QUANTILES)) for name, (minutes, waits, batch) in done]
    return pd.DataFrame(rows, columns=["system", "batch", "minutes", *(f"bubble_p{q}_s" for q in QUANTILES)])


def draw(df):
    from pod.show import style

    axes = style.axes(9.5, 3.0, 2)
    colours = (style.DECODE, style.PREFILL, style.colour("linear"))
    for row, colour in zip(df.itertuples(index=False), colours, strict=True):
        if row.system.startswith("TP8 x"):
            axes[0].plot(row[3:], QUANTILES, "o-", markersize=4, color=colour, label=row.system)
    axes[0].set_xscale("log")
    axes[0].set(xlabel="bubble time of a request, s", ylabel="% of requests", ylim=(0, 100))
    style.legend(axes[0], loc="upper center", bbox_to_anchor=(0.52, 1.0))
    names = [f"{name}\nbatch {batch}" for name, batch in zip(df.system, df.batch, strict=True)]
    axes[1].barh(range(len(df)), df.minutes, color=colours)
    for i, minutes in enumerate(df.minutes):
        axes[1].text(minutes, i, f" {minutes:.1f}", va="center", fontsize=9)
    axes[1].set(yticks=range(len(df)), yticklabels=names, ylim=(len(df) - 0.5, -0.5), xlim=(0, 1.15 * df.minutes.max()),
                xlabel=f"minutes for {REQUESTS:,} requests")  # fmt: skip
    return axes[0].figure


def ratios():
    """Stated and simulated ratios, side by side."""
    import numpy as np
    import pandas as pd

    from pod.serving.experiments import speedups

    done = runs()
    ours = speedups([minutes for minutes, *_ in done.values()])
    orca, sarathi = (np.median(waits) for _, waits, _ in list(done.values())[:2])
    ours["bubble_gain"] = float(orca / sarathi)
    words = {"tp_over_pp": "8 replicas over pipeline with Orca", "over_pp": "SARATHI over pipeline with Orca",
             "over_tp": "SARATHI over 8 replicas", "bubble_gain": "median bubble time, Orca over SARATHI"}  # fmt: skip
    return pd.DataFrame([(text, paper.value(f"sarathi.f09.{k}"), ours[k]) for k, text in words.items()],
                        columns=["ratio", "post", "ours"])  # fmt: skip


def _ratio(words: str) -> float:
    return float(ratios().set_index("ratio").ours[words])


def bubble_gain() -> float:
    return _ratio("median bubble time, Orca over SARATHI")


def over_pipeline() -> float:
    return _ratio("SARATHI over pipeline with Orca")


def over_replicas() -> float:
    return _ratio("SARATHI over 8 replicas")


def replicas_over_pipeline() -> float:
    return _ratio("8 replicas over pipeline with Orca")


def pipeline_cap() -> float:
    from pod.serving.experiments import pipeline_batch

    return pipeline_batch(8, 8)


def replica_cap() -> float:
    from pod.serving.experiments import pipeline_batch

    return pipeline_batch(8, 1)

"""PagedAttention post: an iteration is prompts or decodes. The strip of iterations while a long prompt arrives."""

import pandas as pd

from pod.experiments.pod.pod_02 import log
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.lab.show.serving import iteration_strip
from pod.simulate.scenarios import ARRIVES

FIGURE = Figure(
    title="Prompt iterations and decode iterations never mix",
    chapter="12",
    method="40 chats at 8K tokens and a prompt of 12,288, Llama-3-8B on two A100s, analytical times",
    data=("pod-02",),
)
SYSTEMS, WINDOW = ("vLLM", "Orca"), (-0.3, 1.2)


def table():
    """Iterations of the whole run by what is in them, and the seconds they take."""
    rows = []
    for system in SYSTEMS:
        for kind in ("prompts", "decodes", "both"):
            mine = [e for e in log(system).iterations if kind == _kind(e)]
            rows.append((system, kind, len(mine), sum(e.seconds for e in mine)))
    return pd.DataFrame(rows, columns=["scheduler", "iteration", "count", "seconds"])


def _kind(event) -> str:
    return "both" if event.prefills and event.decodes else "prompts" if event.prefills else "decodes"


def draw(df):
    both = df[df.iteration == "both"].set_index("scheduler")["count"]
    logs = {f"{system}: {both[system]} iteration{'' if both[system] == 1 else 's'} with both": log(system)
            for system in SYSTEMS}  # fmt: skip
    start = ARRIVES + WINDOW[0]
    figure = iteration_strip(logs, start, ARRIVES + WINDOW[1])
    for ax, run in zip(figure.axes, logs.values(), strict=True):
        event = next(e for e in run.iterations if e.prefills)
        words = f"one iteration of {event.seconds:.2f} s"
        ax.text((event.scheduled + event.end) / 2 - start, 0.5, words, ha="center", va="center", fontsize=9,
                color=style.text_on(_colour(event)))  # fmt: skip
    return figure


def _colour(event) -> str:
    return "hybrid" if event.decodes else "prefill"


def mixed_iterations() -> float:
    """Iterations of vLLM's scheduler in which prompts and decodes share a batch."""
    return float(table().set_index(["scheduler", "iteration"])["count"]["vLLM", "both"])

"""POD-Attention, Figure 2: prompts first stalls the answers, chunks delay the prompt. Both are visible in one trace."""

import numpy as np
import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.lab.show.serving import request_lanes
from pod.simulate.metrics import token_times
from pod.simulate.scenarios import ARRIVES, FIVE, LONG, chat

FIGURE = Figure(
    id="pod-02",
    title="What prefill-first and chunked scheduling do to TTFT and TBT",
    chapter="13",
    method="40 chats at 8K tokens and a prompt of 12,288, Llama-3-8B on two A100s, analytical times",
    state="simulated",
)
WINDOW = (-0.3, 2.0)  # seconds around the arrival of the long prompt
WATCHED = (0, 13)


def table():
    """TTFT of the long prompt, and the chats' longest gap in the window, in milliseconds."""
    rows = []
    for system in FIVE:
        ids, times = token_times(chat(system))
        waits = gaps(system)
        rows.append((system, 1000 * (times[ids == LONG][0] - ARRIVES), np.median(waits), waits.max()))
    return pd.DataFrame(rows, columns=["system", "ttft_long_prompt_ms", "tbt_median_ms", "tbt_max_ms"])


def gaps(system: str):
    """Every wait of a chat between two of its tokens in the window, in milliseconds."""
    ids, times = token_times(chat(system))
    mine = (times > ARRIVES + WINDOW[0]) & (times < ARRIVES + WINDOW[1]) & (ids != LONG)
    return 1000 * np.concatenate([np.diff(times[mine & (ids == i)]) for i in np.unique(ids[mine])])


def draw(df):
    names = dict(zip(WATCHED, ("chat 1", "chat 2"), strict=True)) | {LONG: "long prompt"}
    logs = {system: chat(system) for system in df.system}
    return request_lanes(logs, names, ARRIVES + WINDOW[0], ARRIVES + WINDOW[1], watch=WATCHED)


def draw_gaps(df):
    """The same window as a histogram of TBT, a panel a system."""
    axes, bins = style.axes(9.5, 2.3, len(df), sharey=True), np.geomspace(20, 1000, 36)
    for ax, system, longest in zip(axes, df.system, df.tbt_max_ms, strict=True):
        waits = gaps(system)
        ax.hist(waits, bins, weights=np.full(len(waits), 100 / len(waits)), color=style.DECODE)
        ax.set(xscale="log", yscale="log", ylim=(0.5, 150), xticks=(30, 100, 500), xlabel="TBT, ms")
        ax.set_xticklabels((30, 100, 500))
        ax.minorticks_off()
        ax.set_title(f"{system}\nup to {longest:.0f} ms", fontsize=10)
    axes[0].set(ylabel="% of the tokens", yticks=(1, 10, 100), yticklabels=(1, 10, 100))
    return axes[0].figure

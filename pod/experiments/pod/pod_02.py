"""POD-Attention, Figure 2: prompts first stalls the answers, chunks delay the prompt. Both are visible in one trace."""

import numpy as np
import pandas as pd

from pod.batch import HybridBatch
from pod.data import kept, read
from pod.hardware import A100
from pod.lab.figure import Figure
from pod.lab.show import overlap, style
from pod.lab.show.serving import request_lanes
from pod.serving.events import Iteration, Log
from pod.simulate import gpusim
from pod.simulate.metrics import token_times
from pod.simulate.scenarios import ARRIVES, FIVE, LONG, chat, chats, long_prompt

FIGURE = Figure(
    title="What prefill-first and chunked scheduling do to TTFT and TBT",
    chapter="13",
    method="40 chats at 8K tokens and a prompt of 12,288, Llama-3-8B on two A100s, analytical times",
    data=("pod-02",),
)
COMPUTED = "pod-02"
KEYS = ("system", "iteration")
WINDOW = (-0.3, 2.0)  # seconds around the arrival of the long prompt
WATCHED = (0, 13)


def cases() -> list[dict]:
    return [{"system": system} for system in FIVE]


def measure(case: dict) -> list[dict]:
    """Of every iteration the tokens of the long prompt, whether its first answer comes out, and who decodes."""
    return [{"iteration": i, "scheduled_s": event.scheduled, "end_s": event.end, **_chunk(event),
             "decodes": _ranges(event.decodes)} for i, event in enumerate(chat(**case).iterations)]  # fmt: skip


def _chunk(event: Iteration) -> dict[str, int]:
    _, new, before, emits = event.prefills[0] if event.prefills else (LONG, 0, 0, False)
    return {"chunk": new, "before": before, "emits": int(emits)}


def _ranges(ids: list[int]) -> str:
    """[0, 1, 2, 5] -> 0-2 5-5"""
    ends = [i for i in sorted(ids) if i + 1 not in ids]
    starts = [i for i in sorted(ids) if i - 1 not in ids]
    return " ".join(f"{low}-{high}" for low, high in zip(starts, ends, strict=True))


def _ids(ranges: str) -> list[int]:
    pairs = [map(int, pair.split("-")) for pair in ranges.split()]
    return [i for low, high in pairs for i in range(low, high + 1)]


@kept("pod-02")  # a drawing asks for it three times
def log(system: str) -> Log:
    """The run's log, as far as it was written down: who computed what and when."""
    df, asked = read("pod-02").fillna({"decodes": ""}), [long_prompt(), *chats()]
    rows = df[df.system == system].itertuples()
    chunk = lambda row: [(LONG, row.chunk, row.before, bool(row.emits))] if row.chunk else []  # noqa: E731
    events = [Iteration(0, row.scheduled_s, row.end_s, chunk(row), _ids(row.decodes), 0) for row in rows]
    return Log(requests=[(r.id, r.arrival, r.prompt, r.output) for r in asked], iterations=events)


def table():
    """TTFT of the long prompt, and the chats' longest gap in the window, in milliseconds."""
    rows = []
    for system in FIVE:
        ids, times = token_times(log(system))
        waits = gaps(system)
        rows.append((system, 1000 * (times[ids == LONG][0] - ARRIVES), np.median(waits), waits.max()))
    return pd.DataFrame(rows, columns=["system", "ttft_long_prompt_ms", "tbt_median_ms", "tbt_max_ms"])


def gaps(system: str):
    """Every wait of a chat between two of its tokens in the window, in milliseconds."""
    ids, times = token_times(log(system))
    mine = (times > ARRIVES + WINDOW[0]) & (times < ARRIVES + WINDOW[1]) & (ids != LONG)
    return 1000 * np.concatenate([np.diff(times[mine & (ids == i)]) for i in np.unique(ids[mine])])


def draw(df):
    names = dict(zip(WATCHED, ("chat 1", "chat 2"), strict=True)) | {LONG: "long prompt"}
    logs = {system: log(system) for system in df.system}
    return request_lanes(logs, names, ARRIVES + WINDOW[0], ARRIVES + WINDOW[1], watch=WATCHED)


def dial(ax, budget: int) -> None:
    """The chats' waits after the prompt came, under one token budget, and when the prompt has its first token."""
    run = chat("Sarathi", budget)
    ids, times = token_times(run)
    first = times[ids == LONG][0]
    ends = np.array([e.end for e in run.iterations if ARRIVES <= e.end <= first + 1])
    ax.plot(ends[1:] - ARRIVES, 1000 * np.diff(ends), ".", color=style.DECODE, markersize=4)
    ax.axvline(first - ARRIVES, color=style.PREFILL)
    ax.set(xlabel="s after the prompt came", ylabel="TBT, ms", ylim=(0, 270), xlim=(0, 3.5))
    ax.set_title(f"budget {budget}: TTFT {first - ARRIVES:.2f} s", fontsize=10)


LAST = (984, 10_824), 40, 8200  # the prompt's last full chunk: new tokens and those before; beside it, decodes at 8,200
WAYS = {"serial": "serial", "streams": "two streams", "warp": "halves of a CTA", "cta": "CTAs by index", "pod": "POD"}


def other_ways() -> pd.DataFrame:
    """Attention of one layer in that chunk's iteration on one of the two A100s, by chapter 10's model: milliseconds,
    percent of the serial time, and the place in the band, as planned and with the prompt's tiles in three parts."""
    (new, before), decodes, context = LAST
    batch = HybridBatch.of(new, before + new, decodes, context, 16, 4)
    halves = [gpusim.seconds(half, A100, "serial") for half in (batch.prefill, batch.decode)]
    seconds = {way: gpusim.seconds(batch, A100, way) for way in WAYS}
    thirds = {way: gpusim.seconds(batch, A100, way, prefill_splits=3) for way in WAYS}
    columns = {"ms a layer": lambda way: 1000 * seconds[way],
               "% of serial": lambda way: 100 * seconds[way] / seconds["serial"],
               "place in the band": lambda way: overlap(seconds[way], *halves),
               "with tiles in three parts": lambda way: overlap(thirds[way], *halves)}  # fmt: skip
    return pd.DataFrame({name: {words: of(way) for way, words in WAYS.items()} for name, of in columns.items()})

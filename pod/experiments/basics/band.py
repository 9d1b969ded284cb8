"""The whole argument in one picture: what overlap could give, batch by batch."""

import pandas as pd

from pod.batch import MODELS, TABLE1, HybridBatch
from pod.experiments.basics.stutter import CONTEXT, PROMPT
from pod.experiments.basics.stutter import batch as chat_batch
from pod.hardware import A100, H200
from pod.lab.figure import Figure
from pod.lab.show import band, explore

FIGURE = Figure(
    title="Prefill and decode attention of one batch: between the sum and the maximum",
    chapter="00",
    method="Roofline times of the two parts alone, from counted FLOPs and bytes and the data sheets' peaks.",
)
CHAT = "the chat server"


def batches():
    return {CHAT: chat_batch(), **TABLE1}


def table():
    """One row a batch and GPU: both parts in microseconds, the two edges of the band, and their ratio."""
    rows = []
    for name, batch in batches().items():
        for gpu in (A100, H200):
            prefill, decode = (1e6 * t for t in batch.times(gpu))
            rows.append((name, gpu.key, prefill, decode, prefill + decode, max(prefill, decode)))
    df = pd.DataFrame(rows, columns=["batch", "gpu", "prefill_us", "decode_us", "sum_us", "max_us"])
    return df.assign(speedup_at_best=df.sum_us / df.max_us)


def draw(df):
    ax = band({row.batch: (row.prefill_us, row.decode_us) for row in df[df.gpu == A100.key].itertuples()})
    ax.set_title("All that overlap can gain lies between two lines, and most of it where both parts are equal",
                 fontsize=10, loc="left")  # fmt: skip
    ax.set_title(A100.name, fontsize=10, loc="right")
    return ax.figure


# ---------------------------------------------------------------- the chat server in other settings, with sliders

CHATS = (10, 160, 10)  # the slider: from, to, step


def draw_settings():
    """The last chunk's batch with fewer chats, or a smaller chunk."""
    show = [{"chats": 10, "chunk": 1024}, {"chats": 80, "chunk": 1024}, {"chats": 80, "chunk": 256}]
    words = "Overlap pays most where the chunk takes about as long as the chats"
    chunk = [256, 512, 1024, 2048]
    return explore(_last_batch, show=show, sharey=True, takeaway=words, chats=CHATS, chunk=chunk)


def _last_batch(ax, chats: int, chunk: int) -> None:
    a, b = _times(chats, chunk, PROMPT)
    band({"chats": (a, b)}, ratios=(1 / 16, 16), words=False, ax=ax)
    ax.set_title(f"{chats} chats, chunk {chunk:,}: up to {(a + b) / max(a, b):.2f}×", fontsize=10)


def draw_prompt():
    """The batches of one whole prompt, a line for each chunk."""
    show = [{"chats": 10, "chunk": 1024}, {"chats": 80, "chunk": 1024}, {"chats": 80, "chunk": 4096}]
    words = "Chunk by chunk, a prompt's batch moves to the right through the band"
    chunk = [256, 512, 1024, 2048, 4096]
    return explore(_all_batches, show=show, sharey=True, takeaway=words, chats=CHATS, chunk=chunk)


def _all_batches(ax, chats: int, chunk: int) -> None:
    times = {end: _times(chats, chunk, end) for end in range(chunk, PROMPT + 1, chunk)}
    band(times, ratios=(1 / 32, 32), words=False, ax=ax)
    gain = sum(a + b for a, b in times.values()) / sum(map(max, times.values()))
    ax.set_title(f"{chats} chats, chunk {chunk:,}: {gain:.2f}× in all", fontsize=10)


def _times(chats: int, chunk: int, end: int) -> tuple[float, float]:
    """Seconds of prefill and decode alone, in the iteration whose chunk ends at token `end` of the prompt."""
    return HybridBatch.of(chunk, end, chats, CONTEXT, **MODELS["yi-6b"].heads()).times(A100)

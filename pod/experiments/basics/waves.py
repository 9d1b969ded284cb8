"""The staircase: decode attention takes a step whenever one request more opens another wave."""

import pandas as pd

from pod.hardware import A100, H200
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule.waves import makespan, shared_dram, waves

FIGURE = Figure(
    title="One request more: decode time over the batch, on 108 and on 132 SMs",
    says="At the reach of the paper's step, one request past a full wave costs a quarter, on 108 SMs and on 132",
    chapter="05",
    method="Yi-6B: 4 CTAs a request, 2 CTAs an SM. Equal CTAs; DRAM shared, reach from the paper's step of 25 %.",
    state="simulated",
)
CTAS_PER_SM = 2
BATCHES = range(30, 151)


def ctas(requests: int) -> int:
    """One CTA for each KV head of each request."""
    return requests * int(paper.value("pod.f06.ctas_per_decode"))


def reach() -> float:
    """How much more than its share in a full wave a CTA can draw from DRAM, if one extra CTA costs the paper's step."""
    return 100 / paper.value("pod.f06.decode_step")


def time(requests: int, sms: int) -> float:
    """In units of one full wave, with a shared DRAM at the reach of the paper's step."""
    slots = CTAS_PER_SM * sms
    return makespan([1.0] * ctas(requests), slots, shared_dram(slots, reach()))


def table():
    """One row a batch and GPU: CTAs, and the time without quantization, with a steady pace, and with shared DRAM."""
    rows = []
    for gpu in (A100, H200):
        slots = CTAS_PER_SM * gpu.sms
        rows += [(gpu.key, b, ctas(b), ctas(b) / slots, waves(ctas(b), slots), time(b, gpu.sms)) for b in BATCHES]
    return pd.DataFrame(rows, columns=["gpu", "requests", "ctas", "work", "steady", "shared_dram"])


def last_in_a_wave(sms: int) -> list[int]:
    """The batches after which one request more opens another wave."""
    slots = CTAS_PER_SM * sms
    return [b for b in BATCHES if ctas(b) <= slots * (ctas(b) // slots or 1) < ctas(b + 1)]


def draw(df):
    panels = style.axes(9.5, 3.6, columns=2, sharey=True)
    for ax, gpu in zip(panels, (A100, H200), strict=True):
        part = df[df.gpu == gpu.key]
        ax.plot(part.requests, part.work, color=style.FRAME, linewidth=2, label="the work itself")
        ax.step(part.requests, part.steady, color=style.INK, linewidth=1, linestyle="--", label="steady pace")
        ax.plot(part.requests, part.shared_dram, color=style.DECODE, linewidth=2, label="shared DRAM")
        edge = last_in_a_wave(gpu.sms)[0]
        before, after = (float(part[part.requests == b].shared_dram.iloc[0]) for b in (edge, edge + 1))
        words = f"{edge} → {edge + 1}: +{100 * (after / before - 1):.0f} %"
        ax.annotate(words, (edge + 1, after), (16, -34), textcoords="offset points", fontsize=9, fontweight="bold",
                    arrowprops={"arrowstyle": "->", "color": style.INK})  # fmt: skip
        ax.set(xlabel="requests in the batch", ylim=(0, 3.3), xlim=(BATCHES[0], BATCHES[-1]))
        ax.set_title(f"{gpu.key.upper()}: {gpu.sms} SMs, {CTAS_PER_SM * gpu.sms} slots", fontsize=10)
    panels[0].set_ylabel("time, in full waves")
    style.legend(panels[0], loc="lower right")
    return panels[0].figure

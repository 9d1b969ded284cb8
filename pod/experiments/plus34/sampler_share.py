"""How much of a decode iteration is the sampler, by batch size.

Measured: decode iterations of LLaMA-13B at 400 tokens of context: model and sampler by batch size.
"""

from statistics import median

from pod.data import a_card, read
from pod.experiments.plus34 import vllm_ladder
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.events import iteration
from pod.serving.request import Request
from pod.serving.sampler import SAMPLERS
from pod.serving.schedulers import Batch

FIGURE = Figure(
    title="The sampler's share of a decode iteration, by batch size",
    chapter="16",
    method=f"LLaMA-13B with random weights on {a_card()}, 400 tokens of context, "
    "kernel with the query in shared memory.",
    data=("sampler-share",),
)
RECORDING = "sampler-share"
KEYS = ("sampler", "batch")
UNITS, TIMER, L2, REPEATS = vllm_ladder.UNITS, vllm_ladder.TIMER, "warm", 5
BATCHES, CONTEXT = (1, 4, 16, 64, 128, 256), 400


def cases() -> list[dict]:
    return [{"sampler": sampler, "batch": batch} for batch in BATCHES for sampler in SAMPLERS]


def measure(case: dict) -> dict:
    place = vllm_ladder.lab()
    batch = decodes(place, int(case["batch"]))
    event = iteration(batch, 0, 0.0, 0, 0)
    runs = [place.once(("shared", case["sampler"]), batch, event) for _ in range(REPEATS + 1)][1:]
    for request in batch.decodes:
        place.pool.release(request)
    return {name: median(run[name] for run in runs) for name in runs[0]}


def decodes(place: vllm_ladder.Lab, count: int) -> Batch:
    """So many requests, each about to compute its token number CONTEXT."""
    requests = [Request(i, CONTEXT - 1, 2) for i in range(count)]
    place.write_texts(requests)
    for request in requests:
        place.pool.admit(request)
        request.advance(request.prompt)
        place.pool.grow(request)
        place.texts[request.id].append(0)
    return Batch(decodes=requests)


LOOKS = {"loop": ("o-", style.WORKERS[1]), "loop, packed": ("o--", style.WORKERS[1]),
         "batched": ("s-", style.WORKERS[2]), "packed": ("^-", style.WORKERS[0])}  # fmt: skip


def table():
    """Milliseconds until the model is done and after it, and the latter's share in percent."""
    df = read("sampler-share")
    return df.assign(share=100 * df.sampler_ms / df.ms, us_each=1e3 * df.sampler_ms / df.batch)


def draw(df):
    left, right = style.axes(9.5, 3.4, columns=2)
    for sampler, (look, tone) in LOOKS.items():
        mine = df[df["sampler"] == sampler].sort_values("batch", kind="stable")
        for ax, values in ((left, mine.share), (right, mine.sampler_ms)):
            ax.plot(mine.batch, values, look, color=tone, markersize=5)
            _name(ax, sampler, mine.batch.iloc[-1], values.iloc[-1], tone)
    model = df.groupby("batch").model_ms.median()
    right.plot(model.index, model, color=style.INK, linewidth=2)
    _name(right, "the model\nitself", model.index[-1], model.iloc[-1], style.INK)
    ticks = sorted(set(df.batch) - {192})  # no room for its number
    left.set(xscale="log", xlim=(0.8, 1600), xlabel="requests that decode, logarithmic axis")
    style.ticks(left, ticks, fontsize=9)
    right.set(xlim=(0, 400), xlabel="requests that decode, linear axis")
    style.ticks(right, [1, *(batch for batch in ticks if batch >= 64)], fontsize=9)
    left.set(ylim=(0, 60), ylabel="sampler, % of the iteration")
    right.set(ylim=(0, None), ylabel="ms an iteration")
    return left.figure


def _name(ax, words: str, x: float, y: float, tone: str) -> None:
    """At the end of a line."""
    ax.annotate(words, (x, y), (7, 3), textcoords="offset points", va="center", fontsize=9, color=tone)

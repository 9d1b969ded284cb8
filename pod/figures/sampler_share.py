"""How much of a decode iteration is the sampler, by batch size."""

from __future__ import annotations

from pod.data import a_card, read
from pod.figures import Figure

FIGURE = Figure(
    id="sampler-share",
    source="This repository",
    title="The sampler's share of a decode iteration, by batch size",
    chapter="15",
    method=f"LLaMA-13B with random weights on {a_card()}, 400 tokens of context, "
    "kernel with the query in shared memory.",
    state="recorded",
    data=("sampler-share",),
)
LOOKS = {"loop": ("o-", "#b279a2"), "loop, packed": ("o--", "#b279a2"), "batched": ("s-", "#4c78a8"),
         "packed": ("^-", "#54a24b")}  # fmt: skip


def table():
    """Milliseconds until the model is done and after it, and the latter's share in percent."""
    df = read("sampler-share")
    return df.assign(share=100 * df.sampler_ms / df.ms, us_each=1e3 * df.sampler_ms / df.batch)


def draw(df):
    from pod.show import style

    left, right = style.axes(9.5, 3.4, columns=2)
    for sampler, (look, tone) in LOOKS.items():
        mine = df[df["sampler"] == sampler].sort_values("batch")
        left.plot(mine.batch, mine.share, look, color=tone, label=sampler, markersize=5)
        right.plot(mine.batch, mine.sampler_ms, look, color=tone, label=sampler, markersize=5)
    model = df.groupby("batch").model_ms.median()
    right.plot(model.index, model, color=style.INK, linewidth=2, label="the model itself")
    ticks = sorted(set(df.batch) - {192})  # no room for its number
    for ax in (left, right):
        ax.set(xscale="log", xlabel="requests that decode")
        ax.set_xticks(ticks, [str(t) for t in ticks], fontsize=9)
        ax.minorticks_off()
    left.set(ylim=(0, 100), ylabel="sampler, % of the iteration")
    right.set(ylim=(0, None), ylabel="ms an iteration")
    style.legend(right, loc="upper left")
    return left.figure

"""A question to the model before anybody builds the answer: should decode come in equal ranges beside prefill, too?"""

from pod.batch import MODELS, HybridBatch
from pod.data import a_card
from pod.experiments.gpu.shared import Case, milliseconds
from pod.experiments.methods.shared import recorded
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"What equal ranges of decode cost POD beside prefill, predicted and measured on {a_card()}",
    chapter="10",
    method="Time with equal ranges over time with shrinking pieces, 75 batches of Llama-3-8B; medians, cold L2.",
    data=("methods-grid", "gpusim"),
    fitted=True,
)
GROUPS = {"4 chats": (4, 4), "16 and 32": (16, 32), "64 and 128": (64, 128)}


def table():
    """One row a batch: by how many percent equal ranges make POD slower, as measured and as the model says."""
    df, heads = recorded("methods-grid"), MODELS["llama-3-8b"].heads(1)
    batches = [HybridBatch.of(r.chunk, r.context, r.decodes, r.context, **heads) for r in df.itertuples()]
    ways = [Case(b, "h200", "pod", choice=how) for b in batches for how in ((), (("decode_splits", "stream-k"),))]
    times = milliseconds(ways)
    model = [100 * (ranges / pieces - 1) for pieces, ranges in zip(times[::2], times[1::2], strict=True)]
    measured = 100 * (df.ranges / df["pod"] - 1)
    return df[["context", "chunk", "decodes"]].assign(measured=measured, model=model)


def draw(df):
    ax = style.axes(5.4, 4.4)
    ends = [df[["measured", "model"]].min().min() - 2, df[["measured", "model"]].max().max() + 2]
    ax.plot(ends, ends, color=style.FRAME, linewidth=1)
    ax.axhline(0, color=style.INK, linewidth=0.8)
    ax.axvline(0, color=style.INK, linewidth=0.8)
    for (name, (low, high)), colour in zip(GROUPS.items(), style.WORKERS, strict=False):
        part = df[df.decodes.between(low, high)]
        ax.scatter(part.model, part.measured, s=22, color=colour, label=name)
    ax.set(xlabel="equal ranges are slower by, % (model)", ylabel="measured, %", xlim=ends, ylim=ends)
    style.legend(ax, loc="center right", title="beside the chunk")
    return ax.figure

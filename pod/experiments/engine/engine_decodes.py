"""One decode-only iteration of the real engine on an H200: graphs between the attentions, and the next plan in time."""

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show.engine import timeline

FIGURE = Figure(
    title="One decode-only iteration of Llama-3-8B on the host and on the GPU",
    chapter="14",
    method="CUDA events around every piece; 32 chats of 2K to 4K tokens, CUDA graphs, random weights",
    data=("engine-timeline",),
)


def table():
    """Milliseconds since the scheduler was asked, one row a piece; layer -1 is around the layers."""
    df = read("engine-timeline")
    return df[df.run == "decodes"].assign(run="32 chats, our kernel, CUDA graphs")


def draw(df):
    return timeline(df)

"""SARATHI post, Figure 2: equal chunks with decodes riding along keep the pipeline full."""

from pod.experiments.sarathi.sarathi_01 import picture, rows
from pod.lab.figure import Figure

FIGURE = Figure(
    title="The same pipeline with chunked prefills and decode-maximal batches",
    chapter="13",
    method="the requests of sarathi-01 in chunks of 256 tokens, analytical times",
    state="simulated",
)


def table():
    return rows("sarathi_v1")


def draw(df):
    return picture("sarathi_v1", "chunks of 256")

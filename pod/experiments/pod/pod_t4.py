"""POD-Attention, Table 4: the paper's internal workload, which is not public, by a synthetic one of the same means."""

from pod.experiments.pod.pod_t5 import panels, rows
from pod.lab.figure import Figure

FIGURE = Figure(
    title="Online latency, internal workload",
    says="Table 4: P99 gaps lie within a quarter of the paper's, waits often do not",
    chapter="15",
    method="analytical A100, a synthetic workload with the stated means; also with iterations 5 % longer",
    data=("online",),
)
WORKLOAD, CHUNK, LOADS = "conversation", 1536, ("1.1", "1.2")


def table():
    return rows(WORKLOAD, CHUNK, LOADS, "t4")


def draw(df):
    return panels(df)

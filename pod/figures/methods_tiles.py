"""Figure 10 measured: what a decode tile of 16 and of 128 rows does to the SMs and to DRAM."""

from __future__ import annotations

from pod.figures import Figure, pod_01, pod_10

FIGURE = Figure(
    id="methods-tiles",
    source="This repository",
    title="Figure 10 measured: decode with a tile of 16 rows and of 128 rows, on an H200",
    chapter="08",
    method="Llama-2-7B's heads, requests of 4K, bf16. 16 rows: our decode. 128 rows: FlashAttention-2's, unsplit. "
    "Nsight Compute's sm__throughput and dram__throughput, else FLOPs and bytes over time. Lines: chapter 02's model.",
    state="recorded",
    data=("h200/methods-counters.csv",),
)
ROWS = {"ours": 16, "fa2": 128}


def table():
    """One row a tile and batch: rows, utilisation of compute and DRAM and of the tensor cores in %, and what chapter
    02's model says of the compute."""
    df = pod_01.utilisation()
    df = df[df.panel == "tile"]
    model = pod_10.table().set_index(["gpu", "rows"]).compute_util
    rows = df.way.map(ROWS)
    out = df.assign(rows=rows, requests=df.batch.astype(int), model=[model["h200", n] for n in rows])
    return out[["rows", "requests", "compute", "dram", *(["tensor"] if "tensor" in df else []), "model", "source"]]


def _largest_compute(rows: int) -> float:
    df = table()
    return float(df[df.rows == rows].compute.max())


def compute_128() -> float:
    return _largest_compute(128)


def compute_16() -> float:
    return _largest_compute(16)


def small_over_large() -> float:
    """DRAM's use with 16 rows over that with 128, at the largest batch."""
    df = table()
    dram = df[df.requests == df.requests.max()].set_index("rows").dram
    return float(dram[16] / dram[128])


def draw(df):
    from pod.show import style

    axes = style.axes(8.5, 3.3, columns=2, sharey=True)
    for ax, column, title in ((axes[0], "compute", "SMs busy"), (axes[1], "dram", "DRAM busy")):
        for rows, tone in ((16, style.WORKERS[2]), (128, style.WORKERS[3])):
            part = df[df.rows == rows]
            ax.plot(range(len(part)), part[column], "o-", color=tone, label=f"{rows} rows")
            if column == "compute":
                ax.plot(range(len(part)), part.model, ":", color=tone, label=f"{rows} rows, model")
        ax.set_xticks(range(df.requests.nunique()), df.requests.unique())
        ax.set(xlabel="requests of 4K tokens", ylim=(0, 105))
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("% of the peak")
    style.legend(axes[0], loc="upper left", ncols=2)
    return axes[0].figure

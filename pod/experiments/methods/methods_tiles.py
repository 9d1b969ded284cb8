"""Figure 10 measured: what the rows of a decode's tile do to the SMs and to DRAM."""

from functools import partial

from pod.data import a_card
from pod.experiments.pod import pod_01, pod_10
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title=f"Figure 10 measured: decode with tiles of 16 to 128 rows, on {a_card()}",
    chapter="09",
    method="Llama-2-7B's heads, requests of 4K, bf16. Ours: 16 rows in the decode kernel, 64 and 128 in the prefill "
    "kernel. FlashAttention-2's tile, unsplit, has 128. Nsight Compute's sm__throughput and dram__throughput, else "
    "FLOPs and bytes over time. Dotted: chapter 02's model.",
    data=("methods-counters",),
)
ROWS = {"ours": 16, "ours_64": 64, "ours_128": 128, "fa2": 128}
PEER = "fa2"


def table():
    """One row a way and batch: the rows of its tile, utilisation of compute and DRAM and of the tensor cores in %, and
    what chapter 02's model says of the compute."""
    df = pod_01.utilisation()
    df = df[df.panel == "tile"]
    model = pod_10.table().set_index(["gpu", "rows"]).compute_util
    rows = df.way.map(ROWS)
    out = df.assign(rows=rows, requests=df.batch.astype(int), model=[model["h200", n] for n in rows])
    columns = ["compute", "dram", *(["tensor"] if "tensor" in df else [])]
    return out[["way", "rows", "requests", *columns, "model", "source"]]


def draw(df):
    axes = style.axes(9, 3.6, columns=2, sharey=True)
    tones = dict(zip(sorted(df.requests.unique()), ("#a3cf9d", "#54a24b", "#22632c"), strict=True))
    by_rows = df.assign(peer=df.way == PEER).sort_values("rows", kind="stable")
    for ax, column, title in ((axes[0], "compute", "SMs busy"), (axes[1], "dram", "DRAM busy")):
        for (requests, peer), part in by_rows.groupby(["requests", "peer"]):
            ax.plot(part.rows, part[column], "s" if peer else "o-", color=tones[requests], alpha=0.9,
                    markerfacecolor="white" if peer else None,
                    label=f"{'FlashAttention-2' if peer else 'ours'}, {requests} requests")  # fmt: skip
        ax.set_xticks(sorted(set(ROWS.values())))
        ax.set(xlabel="rows of the tile, of which a decode fills one", ylim=(0, 105))
        ax.set_title(title, fontsize=10)
    model = by_rows.drop_duplicates("rows")
    axes[0].plot(model.rows, model.model, ":", color=style.INK, label="chapter 02's model")
    axes[0].set_ylabel("% of the peak")
    return style.legend_outside(axes[0], "lower", 4)


def _largest_compute(way: str) -> float:
    return float(table().groupby("way").compute.max()[way])


compute_128 = partial(_largest_compute, PEER)
compute_16 = partial(_largest_compute, "ours")


def _dram():
    """DRAM's use at the largest batch, by way."""
    df = table()
    return df[df.requests == df.requests.max()].set_index("way").dram


def small_over_large() -> float:
    """With 16 rows over that with FlashAttention-2's 128."""
    return float(_dram()["ours"] / _dram()[PEER])


def saturating() -> float:
    """With 64 rows over that with the best tile."""
    return float(_dram()["ours_64"] / _dram().max())

"""POD-Attention, Figure 1: prefill uses compute, decode uses memory, POD uses both; and what that is worth."""

from __future__ import annotations

from pod.batch import TABLE1
from pod.data import a_card
from pod.figures import Figure
from pod.figures._methods import PEERS, TONES, recorded

FIGURE = Figure(
    id="pod-01",
    source="POD-Attention, Figure 1",
    title=f"Utilisation of compute and memory by each kernel, and the runtime of C0 to C2, on {a_card()}",
    chapter="08",
    method="Llama-3-8B on two GPUs, bf16, cold L2. Utilisation: Nsight Compute's sm__throughput and dram__throughput "
    "where it could read them, else FLOPs and bytes over time; the table's column `source` says which.",
    state="recorded",
    data=("methods-counters", "methods-peers"),
)
PANELS = {"prefill": "context, tokens", "decode": "batch, requests of 4K", "hybrid": "Table 1's batch"}
WAYS = {
    "ours": "ours",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "serial": "ours, one after the other",
    "pod": "POD",
    "hopper": "our Hopper kernel",
}
COUNTED = {"compute": "counted_compute", "dram": "counted_dram"}
RUNTIMES = {"fa2_serial": PEERS["fa2_serial"], "fi_fa2_serial": PEERS["fi_fa2_serial"], "serial": "ours, two calls",
            "pod": "POD", "fa3_serial": PEERS["fa3_serial"], "hopper": PEERS["hopper"]}  # fmt: skip


def table():
    """The rows of utilisation() that Figure 1 shows."""
    df = utilisation()
    return df[df.panel.isin(PANELS)]


def utilisation():
    """One row a panel, batch and way: utilisation of compute and DRAM in %, where it is from, and milliseconds; by the
    counters also how long the tensor cores are busy, %."""
    df = recorded("methods-counters")
    counters = "compute" in df
    for name, counted in COUNTED.items():
        df[name] = df[name].fillna(df[counted]) if counters else df[counted]
    source = df.us.notna().map({True: "counters", False: "counted"}) if counters else "counted"
    columns = ["panel", "batch", "way", "compute", "dram", *(["tensor"] if counters else []), *COUNTED.values(), "ms"]
    return df[columns].assign(source=source)


def runtimes():
    """One row a batch of Table 1 and way: milliseconds, and time over FlashAttention-2's two calls."""
    import pandas as pd

    df = recorded("methods-peers")
    rows = []
    for name, batch in TABLE1.items():
        prefill, decode = batch.prefill, batch.decode
        keys = (prefill.q_lens[0], prefill.kv_lens[0], len(decode.q_lens), decode.kv_lens[0])
        chosen = df[(df[["chunk", "context", "decodes", "decode_context"]] == keys).all(axis=1)].iloc[0]
        rows += [(name, way, chosen[way], chosen[way] / chosen.fa2_serial) for way in RUNTIMES]
    return pd.DataFrame(rows, columns=["batch", "way", "ms", "over_fa2"])


def _of(panel: str, way: str):
    df = table()
    return df[(df.panel == panel) & (df.way == way)].set_index("batch")


def prefill_bandwidth() -> float:
    return float(_of("prefill", "ours").dram.median())


def decode_compute() -> float:
    return float(_of("decode", "ours").compute.max())


def uses_both() -> float:
    """C1: the smaller of both utilisations under POD, over the same under serial."""
    pod, serial = (_of("hybrid", way).loc["C1", ["compute", "dram"]].min() for way in ("pod", "serial"))
    return float(pod / serial)


# ---------------------------------------------------------------- the picture


def draw(df):
    from matplotlib import pyplot as plt

    from pod.show import style

    figure, axes = plt.subplots(2, 2, figsize=(9.5, 6.8), dpi=100, layout="constrained")
    for ax, panel in zip(axes.flat, ("prefill", "decode"), strict=False):
        _lines(style.tidy(ax), df[df.panel == panel])
        ax.set(xlabel=PANELS[panel])
        ax.set_title(f"{panel} alone (blue: compute, orange: DRAM)", fontsize=10)
    _pairs(style.tidy(axes[1, 0]), df[df.panel == "hybrid"])
    _runtimes(style.tidy(axes[1, 1]), runtimes())
    style.legend(axes[0, 0], loc="upper left")
    return figure


def _lines(ax, df) -> None:
    from pod.show import style

    for way, marker in (("ours", "o"), ("fa2", "s"), ("fa3", "^")):
        part = df[df.way == way]
        x = range(len(part))
        for column, tone in (("compute", style.PREFILL), ("dram", style.DECODE)):
            ax.plot(x, part[column], marker + "-", color=tone, markerfacecolor=tone if way == "ours" else "white",
                    linewidth=2 if way == "ours" else 1)  # fmt: skip
        ax.plot([], [], marker + "-", color=style.INK, markerfacecolor=style.INK if way == "ours" else "white",
                label=WAYS[way])  # fmt: skip
        ax.set_xticks(x, part.batch)
    ax.set(ylim=(0, 100), ylabel="% of the peak")


def _pairs(ax, df) -> None:
    from pod.show import style

    ways = list(dict.fromkeys(df.way))
    batches = list(dict.fromkeys(df.batch))
    for row in df.itertuples():
        x = batches.index(row.batch) * (len(ways) + 1) + ways.index(row.way)
        ax.bar(x - 0.2, row.compute, 0.38, color=style.PREFILL)
        ax.bar(x + 0.2, row.dram, 0.38, color=style.DECODE)
    ticks = [b * (len(ways) + 1) + w for b in range(len(batches)) for w in range(len(ways))]
    ax.set_xticks(ticks, [WAYS[way].replace("ours, ", "") for way in ways] * len(batches), rotation=55, ha="right",
                  rotation_mode="anchor", fontsize=8)  # fmt: skip
    for b, name in enumerate(batches):
        ax.text(b * (len(ways) + 1) + (len(ways) - 1) / 2, 97, name, ha="center", va="top", fontweight="bold")
    ax.set(ylim=(0, 100), ylabel="% of the peak")
    ax.set_title("hybrid batches (blue: compute, orange: DRAM)", fontsize=10)


def _runtimes(ax, df) -> None:
    for w, way in enumerate(RUNTIMES):
        part = df[df.way == way].reset_index()
        at = part.index + 0.14 * (w - 2.5)
        ax.bar(at, part.over_fa2, 0.13, color=TONES[way], label=RUNTIMES[way])
        for x, value in zip(at, part.over_fa2, strict=True):
            ax.text(x, value + 0.01, f"{value:.2f}", ha="center", fontsize=7, rotation=90, va="bottom")
    ax.set_xticks(range(df.batch.nunique()), df.batch.unique())
    ax.set(ylim=(0, 1.6), ylabel="time / FA2's two calls")
    ax.set_title("runtime", fontsize=10)
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")

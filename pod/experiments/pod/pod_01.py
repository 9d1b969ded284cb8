"""POD-Attention, Figure 1: prefill uses compute, decode uses memory, POD uses both; and what that is worth.

Measured: compute and memory utilisation of prefill, decode and hybrid kernels (ncu), Llama-3-8B on two GPUs.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import pandas as pd
from matplotlib import pyplot as plt

import pod
from pod.batch import MODELS, TABLE1, HybridBatch
from pod.data import a_card
from pod.experiments.methods.shared import PEERS, TONES, recorded
from pod.kernels.build import gpu_of
from pod.lab.figure import Figure
from pod.lab.measure import ncu, peers, timing
from pod.lab.show import style

FIGURE = Figure(
    title=f"Utilisation of compute and memory by each kernel, and the runtime of C0 to C2, on {a_card()}",
    chapter="09",
    method="One of two GPUs' heads of Llama-3-8B, bf16, cold L2. Utilisation: Nsight Compute's sm__throughput and "
    "dram__throughput where it could read them, else FLOPs and bytes over time; the column `source` says which.",
    data=("methods-counters", "methods-peers"),
)
RECORDING = "methods-counters"
KEYS = ("panel", "batch", "way")
UNITS = ("hybrid", "hopper")
ROUNDS, REPEATS = 3, 9
CONTEXTS, DECODES, DECODE_CONTEXT = (1024, 2048, 4096, 8192, 16384), (16, 32, 64, 128, 256), 4096
TILE_DECODES = (8, 16, 32)


def decode_as_prefill(s: peers.Setting, ctas_per_sm: int) -> Callable:
    """Our decode with prefill's tile, of 128 rows with two CTAs an SM and of 64 with four: each request brings its
    token twice, and so counts as a chunk. The second of the two sees what the one token would."""
    heads, lens = (s.batch.num_q_heads, s.batch.num_kv_heads, s.batch.head_dim), s.batch.kv_lens
    plan = pod.plan([2] * len(lens), lens, *heads, dtype=s.q.dtype, device=s.device, method="serial",
                    ctas_per_sm=ctas_per_sm, prefill_splits="none")  # fmt: skip
    q = s.q.repeat_interleave(2, 0)
    return lambda: (None, pod.hybrid_attention(q, s.k, s.v, plan)[1::2])


WAYS: dict[str, dict[str, Callable]] = {
    "prefill": {"ours": peers.HALVES["prefill"], "fa2": peers.fa2_prefill, "fa3": peers.fa3_prefill_exact},
    "decode": {"ours": peers.HALVES["decode"], "fa2": peers.fa2_decode, "fa3": peers.fa3_decode},
    # Llama-2-7B's heads share no keys. Our decode's tile has 16 rows, FlashAttention-2's without splits 128.
    "tile": {
        "ours": peers.HALVES["decode"],
        "ours_64": partial(decode_as_prefill, ctas_per_sm=4),
        "ours_128": partial(decode_as_prefill, ctas_per_sm=2),
        "fa2": peers.fa2_decode,
    },
    "hybrid": {name: peers.FAMILY[name] for name in ("serial", "pod")}
    | {"fa3": peers.fa3_serial, "hopper": peers.ours},
}


def batches(panel: str) -> dict[str, HybridBatch]:
    heads = MODELS["llama-3-8b"].heads()
    if panel == "prefill":
        return {str(n): HybridBatch.of(n, n, 0, 1, **heads) for n in CONTEXTS}
    if panel == "decode":
        return {str(n): HybridBatch.of(0, 1, n, DECODE_CONTEXT, **heads) for n in DECODES}
    if panel == "tile":
        heads = MODELS["llama-2-7b"].heads(1)
        return {str(n): HybridBatch.of(0, 1, n, DECODE_CONTEXT, **heads) for n in TILE_DECODES}
    return TABLE1


def cases() -> list[dict]:
    return [{"panel": panel, "batch": batch, "way": way}
            for panel, ways in WAYS.items() for batch in batches(panel) for way in ways]  # fmt: skip


def measure(case: dict) -> dict:
    """Percent of the peak: `compute` and `dram` by the counters, `counted_*` from FLOPs and bytes over `ms`."""
    panel, name, way = (case[key] for key in KEYS)
    batch = batches(panel)[name]
    setting = peers.Setting(batch)
    ready, holes = peers.ready(setting, {way: WAYS[panel][way]})
    if holes:
        return {"hole": holes[way]}
    time, gpu = timing.shuffled(ready, ROUNDS, ms=1.0)[way], gpu_of(setting.q.device)
    row = time.columns()
    row["counted_compute"] = round(100e3 * gpu.compute_time(batch.flops) / time.ms, 2)
    row["counted_dram"] = round(100e3 * gpu.memory_time(batch.bytes) / time.ms, 2)
    read = _counters()
    place = cases().index(case)
    return row | {"hole": ""} | ({name: round(x, 2) for name, x in read[place].items()} if read else {})


@lru_cache
def _counters() -> list[dict[str, float]]:
    """All rows in one go, as ncu takes seconds to start; none where it cannot read them."""
    try:
        rows = ncu.profile(__name__)
        if len(rows) != len(cases()):
            raise ValueError(f"ncu saw {len(rows)} calls of {len(cases())}")
        return rows
    except ValueError as reason:
        print(f"{reason}; utilisation is counted from FLOPs, bytes and time")
        return []


def calls() -> Iterator[Callable]:
    """The calls of cases(), in that order; of a way that is a hole, a call that does nothing."""
    for case in cases():
        setting = peers.Setting(batches(case["panel"])[case["batch"]])
        ready, _ = peers.ready(setting, {case["way"]: WAYS[case["panel"]][case["way"]]})
        yield ready.get(case["way"], lambda: None)


# ---------------------------------------------------------------- what it shows

PANELS = {"prefill": "context, tokens", "decode": "batch, requests of 4K", "hybrid": "Table 1's batch"}
NAMES = {
    "ours": "ours",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "serial": "ours, serial",
    "pod": "POD",
    "hopper": "our Hopper kernel",
}
PLACES = {"compute": "SMs", "dram": "DRAM"}
COUNTED = {"compute": "counted_compute", "dram": "counted_dram"}
RUNTIMES = {"fa2_serial": PEERS["fa2_serial"], "fi_fa2_serial": PEERS["fi_fa2_serial"], "serial": "serial",
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
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 7.2), dpi=100, layout="constrained", height_ratios=(2, 3))
    for ax, panel in zip(axes[0], ("prefill", "decode"), strict=True):
        _alone(style.tidy(ax), df[df.panel == panel])
        ax.set(xlabel=PANELS[panel])
        ax.set_title(f"{panel} alone", fontsize=10)
    _hybrid(style.tidy(axes[1, 0]), df[df.panel == "hybrid"])
    _runtimes(style.tidy(axes[1, 1]), runtimes())
    return figure


def _alone(ax, df) -> None:
    """Our kernel in strong lines, two others beside it in thin ones."""
    for way, marker in (("ours", "o"), ("fa2", "s"), ("fa3", "^")):
        part = df[df.way == way]
        thin = {"markersize": 4, "linewidth": 0.8, "markerfacecolor": "white"}
        look, alpha = ({"markersize": 6, "linewidth": 3}, 1) if way == "ours" else (thin, 0.6)
        for column, tone in style.BUSY.items():
            ax.plot(range(len(part)), part[column], marker + "-", color=tone, alpha=alpha, **look)
        ax.plot([], [], marker + "-", color=style.INK, label=NAMES[way], **look)
    mine = df[df.way == "ours"]
    for column, tone in style.BUSY.items():
        y = max(mine[column].iloc[-1], 4)  # clear of the axis
        ax.text(len(mine) - 0.85, y, PLACES[column], color=tone, va="center", fontweight="bold")
    ax.set_xticks(range(len(mine)), mine.batch)
    ax.set(ylim=(0, 100), xlim=(-0.2, len(mine) - 0.1), ylabel="% of the peak")
    if mine.panel.iloc[0] == "prefill":
        style.legend(ax, loc="upper left")


def _hybrid(ax, df) -> None:
    """A row a batch and kernel, from the less busy place to the busier one."""
    ways, batches = list(dict.fromkeys(df.way)), list(dict.fromkeys(df.batch))
    rows = {(b, w): i * (len(ways) + 1) + j for i, b in enumerate(batches) for j, w in enumerate(ways)}
    for row in df.itertuples():
        y, busy = rows[row.batch, row.way], [getattr(row, name) for name in style.BUSY]
        ax.plot(busy, [y, y], color=style.FRAME, linewidth=3, zorder=1)
        for value, tone in zip(busy, style.BUSY.values(), strict=True):
            ax.plot(value, y, "o", color=tone, markersize=8)
        ax.text(min(busy) - 3, y, f"{min(busy):.0f}", ha="right", va="center", fontsize=9)
    ax.set_yticks(list(rows.values()), [NAMES[way].replace("ours, ", "") for _, way in rows], fontsize=9)
    for batch in batches:
        ax.text(100, rows[batch, ways[0]], batch, ha="right", va="center", fontweight="bold")
    for name, tone in style.BUSY.items():
        ax.plot([], [], "o", color=tone, markersize=8, label=PLACES[name])
    style.legend(ax, loc="lower left")
    ax.set(xlim=(0, 100), ylim=(len(rows) + len(batches) - 1.5, -0.8), xlabel="% of the peak")
    ax.set_title("hybrid batches: the less busy of the two, in numbers", fontsize=10)


def _runtimes(ax, df) -> None:
    batches = list(df.batch.unique())
    for i, row in enumerate(df.itertuples()):
        y = i + batches.index(row.batch)
        ax.barh(y, row.over_fa2, 0.85, color=TONES[row.way])
        ax.text(row.over_fa2 + 0.02, y, f"{row.over_fa2:.2f}  {RUNTIMES[row.way]}", va="center", fontsize=8.5)
    starts = [b * (len(RUNTIMES) + 1) for b in range(len(batches))]
    ax.set_yticks(starts, batches, fontweight="bold")
    ax.set(xlim=(0, 1.6), ylim=(starts[-1] + len(RUNTIMES) - 0.3, -0.7), xlabel="time / FA2's two calls")
    ax.set_title("what that is worth", fontsize=10)

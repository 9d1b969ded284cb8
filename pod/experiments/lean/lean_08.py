"""LeanAttention, Figure 8, on an H200 (as many SMs as the paper's H100): stream-K over context, heads and batch.

Measured: decode over context, heads, batch and raggedness: stream-K, FlashDecoding's splits, the best split, the
paper's.
"""

from itertools import product

from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.lean import lean, shared
from pod.experiments.lean.lean_07 import LINES
from pod.lab.figure import Figure
from pod.lab.measure import peers
from pod.lab.show import style

FIGURE = Figure(
    title="Stream-K over fixed splits on 132 SMs: by context, heads and batch",
    chapter="11",
    method="Head dimension 64, fp16. Above: the paper's tile, rebuilt, cut three ways. Below: the "
    "Hopper kernel under equal ranges over its best fixed split.",
    data=("lean-sweep",),
)
RECORDING = "lean-sweep"
KEYS = ("panel", "q_heads", "kv_heads", "head_dim", "batch", "context", "ratio")
UNITS = lean.UNITS
ROUNDS, REPEATS = 3, 9
K = lean.K
BATCHES = (1, 4, 16)  # of figure 11


def cases() -> list[dict]:
    """Panels: 7 and 8 by what varies (a context, b heads, c batch), 10 by the ratio of average to longest, 11 by model.

    Figure 8 has the SMs of an H200; figure 7's shapes are those of an A100. The paper does not say which batches its
    figure 11 has: ours are one request, and two batches whose heads more or less fill the SMs without a split.
    """
    rows = [("7a", 32, 32, 64, 4, n * K, 1.0) for n in (1, 4, 16, 64, 128, 256, 512)]
    rows += [("7b", h, h, 64, 4, 256 * K, 1.0) for h in (8, 16, 24, 32, 40, 48, 64, 96)]
    rows += [("7c", 32, 32, 64, b, 64 * K, 1.0) for b in (1, 2, 4, 6, 8, 12, 16, 24)]
    rows += [("8a", 48, 48, 64, 6, n * K, 1.0) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    rows += [("8b", h, h, 64, 6, 64 * K, 1.0) for h in (8, 16, 24, 32, 40, 48, 56, 64, 96)]
    rows += [("8c", 48, 48, 64, b, 64 * K, 1.0) for b in (1, 2, 3, 4, 6, 8, 12, 16)]
    rows += [("10", 32, 32, 64, b, 64 * K, r) for b in (4, 8, 16) for r in (0.15, 0.3, 0.5, 0.75, 1.0) if r * b > 1.1]
    for heads, b in product(((32, 32), (32, 8), (40, 10)), BATCHES):
        rows += [("11", *heads, 128, b, n * K, 1.0) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def batch_of(case: dict, dtype: str | None = None) -> HybridBatch:
    q_heads, kv_heads, head_dim, requests, context = (int(case[key]) for key in KEYS[1:6])
    ratio = float(case["ratio"])
    lens = [context] * requests if ratio == 1 else lean.ragged(requests, context, ratio)
    dtype = dtype or ("float16" if head_dim == 64 else "bfloat16")
    return HybridBatch((1,) * requests, tuple(lens), q_heads, kv_heads, head_dim, dtype=dtype)


def measure(case: dict) -> dict:
    batch = batch_of(case)
    others = {"fa3": peers.fa3_decode} | lean.FLASHINFER
    rounds = ROUNDS if batch.kv_bytes < 4e9 else 2 * ROUNDS  # long calls are repeated less often within a round
    row = lean.compare(peers.Setting(batch), others, rounds, ms=1.0, paper=batch.head_dim == 64)
    return {"batch_bytes": batch.kv_bytes} | row


# ---------------------------------------------------------------- what it shows

PANELS = {"8a": ("context", "context, 48 heads, batch 6"), "8b": ("q_heads", "heads, batch 6, 64K"),
          "8c": ("batch", "batch, 48 heads, 64K")}  # fmt: skip
COLUMNS = (*shared.PAPER, *shared.HOPPER)


def table():
    """One row a batch: milliseconds of both decodes and the speed-ups."""
    df = shared.speedups(read("lean-sweep"))
    df = df[df.panel.isin(PANELS)]
    keys = ["panel", "q_heads", "batch", "context", "lean", "paper_lean", "paper_host", "best_split_parts"]
    return df[[*keys, *COLUMNS]].reset_index(drop=True)


PEAKS = 144, 288  # units that the rule of 2.5.6 leaves whole: 120 slots of 264 stay empty, and 240 of a second wave
TRIED = ("over the best fixed split",)
ROWS = {"paper's tile, over": (shared.PAPER, 0.8, 1.9), "Hopper kernel, over": (TRIED, 0.8, 1.2)}


def draw(df):
    """Each row is one kernel, to the same scale: peers are other kernels, and say nothing about a cut."""
    heights = [top - bottom for _, bottom, top in ROWS.values()]
    rows = style.axes(9.5, 5, columns=3, rows=2, sharex="col", height_ratios=heights)
    for axes, (whose, (names, *limits)) in zip(rows, ROWS.items(), strict=True):
        for ax, (panel, (x, _)) in zip(axes, PANELS.items(), strict=True):
            part = df[df.panel == panel].sort_values(x, kind="stable")
            shared.lines(ax, part, x, names)
            if x == "context":
                ax.set_xscale("log", base=2)
            ax.set_xticks(part[x], [shared.in_k(n) for n in part[x]] if x == "context" else part[x], fontsize=8.5)
            ax.set_ylim(limits)
        handles, labels = axes[0].get_legend_handles_labels()
        labels = [label.split(" over ")[1] for label in labels]
        axes[-1].legend(handles, labels, title=whose, loc="upper right", frameon=False, fontsize=9, title_fontsize=9)
    for ax, (panel, (x, words)) in zip(rows[-1], PANELS.items(), strict=True):
        ax.set_xlabel(words)
        if x != "context":
            _name_peaks(rows[0][list(PANELS).index(panel)], df[df.panel == panel], x)
    rows[0, 0].figure.supylabel("speed-up of equal ranges", fontsize=10)
    return rows[0, 0].figure


def _name_peaks(ax, df, x: str) -> None:
    for _, row in df[(df.q_heads * df.batch).isin(PEAKS)].iterrows():
        ax.annotate(f"{row.q_heads * row.batch} units", (row[x], row["over the rule of 2.5.6"]), (0, 6), ha="center",
                    textcoords="offset points", fontsize=8.5)  # fmt: skip


# ---------------------------------------------------------------- what claims ask for


def _multi_head():
    """All batches of one length whose query heads have their own keys, at head dimension 64: figures 7 and 8. A batch
    that two panels have counts once."""
    df = shared.speedups(read("lean-sweep"))
    return df[(df.head_dim == 64) & (df.ratio == 1)].drop_duplicates(["q_heads", "batch", "context"])


def batches() -> int:
    return len(_multi_head())


def swept() -> int:
    return len(read("lean-sweep"))


OVER = LINES | {"fa3": "over FlashAttention-3", "flashinfer": "over FlashInfer"}


def mean_gain(over: str = "2.5.6") -> float:
    return float(_multi_head()[OVER[over]].mean())


def largest_gain(over: str) -> float:
    return float(_multi_head()[OVER[over]].max())


def least_gain(over: str, panel: str, beyond: int) -> float:
    """In one panel of the sweep, at contexts beyond so many thousands of tokens."""
    df = shared.speedups(read("lean-sweep"))
    return float(df[(df.panel == panel) & (df.context > beyond << 10)][OVER[over]].min())


def flashinfer_over(way: str) -> tuple[float, float, float]:
    """Time of FlashInfer's faster decode over that of a column, on the batches of mean_gain: least, mean, most."""
    df = _multi_head()
    return tuple((df.flashinfer / df[way]).agg(["min", "mean", "max"]))


def paper_tile_over_flashinfer() -> float:
    """Mean over the same batches as mean_gain, for the rebuilt tile of the paper."""
    df = _multi_head()
    return float((df.flashinfer / df.paper_lean).mean())


def gains_of_128_units() -> tuple[float, float]:
    """Equal ranges at 32 heads, batch 4, 64K over the rule of 2.5.6 and over today's, all with the paper's tile."""
    row = read("lean-sweep").query("panel == '7a' and context == 65536").iloc[0]
    return row.paper_rule_256 / row.paper_lean, row.paper_rule_now / row.paper_lean


def gain_at_64k() -> float:
    return float(table().set_index(["panel", "context"])["over the rule of 2.5.6"]["8a", 64 << 10].iloc[0])


def least_beyond_4k() -> float:
    df = table()
    return float(df[(df.panel == "8a") & (df.context > 4096)]["over the rule of 2.5.6"].min())


def never_slower() -> float:
    """Least speed-up of equal ranges over the best fixed split, both in the Hopper kernel, over the whole sweep."""
    df = shared.speedups(read("lean-sweep"))
    return float(df["over the best fixed split"].min())


def least_of_the_papers_tile() -> float:
    """The same for the rebuilt tile of the paper over the rule of 2.5.6, on all batches that it was timed on."""
    df = read("lean-sweep")
    return float((df.paper_rule_256 / df.paper_lean).min())


def behind(by: float = 5.0, way: str = "lean") -> int:
    """On how many batches of the sweep equal ranges, or another way, take so many percent more than the best split."""
    df = read("lean-sweep")
    return int((df[way] > (1 + by / 100) * df.best_split).sum())


def plan_behind() -> int:
    return behind(3, "auto")


def plan_never_slower() -> float:
    """Least speed-up of what the plan chooses: equal ranges, or parts of every head where they end first."""
    df = read("lean-sweep")
    return float((df.best_split / df.auto).min())

"""The ladder: what each idea of the attention kernel is worth, on a batch of prefill and on one of decode.

Measured: every rung of csrc/ladder, two of them without their idea, one without that of the rung before; the
production kernels and torch's attention.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from operator import itemgetter

import pandas as pd

from pod.batch import HybridBatch
from pod.data import a_card, hardware, read
from pod.experiments.gpu.gpu_calibration import bare_read
from pod.kernels import ladder
from pod.lab import ladder as parts
from pod.lab.figure import Figure
from pod.lab.measure import peers, timing
from pod.lab.show import style
from pod.simulate import gpusim

FIGURE = Figure(
    title=f"Twelve attention kernels on {a_card()}, one idea each: tensor cores, the swizzle and split keys gain most",
    chapter="08",
    method="bf16, head dimension 128, 32 query heads over 8 KV heads; medians, cold L2, shuffled rounds.",
    data=("ladder",),
)
RECORDING = "ladder"
KEYS, WHOLE = ("batch", "kernel"), ("batch",)
UNITS = ("ladder", "hybrid", "hopper", "rates")
ROUNDS, REPEATS = 5, 15
K = 1024
HEADS = (32, 8)
BATCHES = {
    "prefill": HybridBatch.of(2 * K, 8 * K, 0, 1, *HEADS),
    "decode": HybridBatch.of(0, 1, 8, 64 * K, *HEADS),
}
SPARE = 32 * K  # bytes that keep the other CTA off an SM
LIMIT = 1e-2  # of the relative error against float64
WITHOUT = {"split whole": ("split", {"splits": 1}), "two alone": ("two", {"spare": SPARE})}  # rungs without their idea
CHANGED = {"swizzle alone": ("mma", parts.SWIZZLED)}  # without the copies ahead of the rung before
PEERS = {
    "prefill": {"sm80": partial(peers.family, method="serial"), "sm90": peers.ours, "torch": peers.fa2_prefill},
    "decode": {"sm80": partial(peers.family, method="serial"), "sm90": peers.ours, "torch": peers.fa2_decode},
}
COLUMNS = (*ladder.Made._fields, "splits")
NAMES = (*ladder.RUNGS, *WITHOUT, *CHANGED, "sm80", "sm90", "torch", "read")
LABELS = {"sm80": "production, any GPU", "sm90": "production, Hopper", "torch": "torch's FlashAttention-2"}
MOST_HZ, DELIVERS, LANES = 1.98e9, 128, 128  # an SM's clock; bytes of shared memory and multiply-adds in a cycle of it
LABEL = 0.17  # of an axis: about the width of a long bar's label; those of short ones are wider, and far from a line
LOAD, FED = 512, 2 * 4096  # bytes of an ldmatrix_x4; FLOPs of the two mma that it feeds
ARITHMETIC, EIGHT, ONE = "arithmetic of threads", "shared memory, 8 accesses", "shared memory, 1 access"
UNDER = {"row": ARITHMETIC, "tile": ARITHMETIC, "mma": EIGHT, "ahead": EIGHT, "swizzle": ONE}  # whose roof, in prefill
SHOWN = (*(name for name, rung in ladder.RUNGS.items() if not rung.hopper), "sm80", "torch",
         *(name for name, rung in ladder.RUNGS.items() if rung.hopper), "sm90")  # fmt: skip


def cases() -> list[dict]:
    pairs = [(batch, name) for batch in BATCHES for name in NAMES if (batch, name) != ("prefill", "read")]
    return [dict(zip(KEYS, pair, strict=True)) for pair in pairs]


def measure(case: dict) -> dict:
    return _measured(case["batch"])[case["kernel"]]


@cache
def _measured(batch: str) -> dict[str, dict]:
    """One row a kernel, all timed in the same shuffled rounds."""
    ladder.build_all()
    setting = peers.Setting(BATCHES[batch])
    calls, rows = {}, {}
    for name in (case["kernel"] for case in cases() if case["batch"] == batch):
        calls[name], rows[name] = _call(setting, batch, name)
        rows[name]["error"] = _checked(setting, name, calls[name]())
    times = timing.shuffled(calls, ROUNDS, ms=4.0)
    work = {"flops": setting.batch.flops, "kv_bytes": setting.batch.kv_bytes}
    return {name: work | times[name].columns() | row for name, row in rows.items()}


def _call(s: peers.Setting, batch: str, name: str) -> tuple[Callable, dict]:
    """What runs it, and what the compiler made of it."""
    if name == "read":
        return bare_read(s.batch.kv_bytes), dict.fromkeys(COLUMNS, "")
    if name in PEERS[batch]:
        call = PEERS[batch][name](s)
        return lambda: next(out for out in call() if out is not None and len(out)), dict.fromkeys(COLUMNS, "")
    rung, how = WITHOUT.get(name, (name, {}))
    if name in CHANGED:
        rung, change = CHANGED[name]
        how = {"given": parts.changed(rung, change, "cuda")}
    made = ladder.describe(rung, spare=how.get("spare", 0), given=how.get("given"))
    q = s.q.view(len(s.k), -1, *s.q.shape[1:])
    how = {"splits": _splits(rung, q, s.k, made.ctas_per_sm)} | how
    out = q.new_empty(q.shape)
    run = ladder.launch(rung, q, s.k, s.v, out, **how)
    return lambda: (run(), out.view(s.q.shape))[1], made._asdict() | {"splits": how["splits"]}


def _splits(rung: str, q, k, ctas_per_sm: int) -> int:
    """Parts of a tile, so that each SM has as many CTAs as it holds."""
    import torch

    if not ladder.RUNGS[rung].splits:
        return 1
    tiles = ladder.tiles_of(ladder.RUNGS[rung], *q.shape[:3], k.shape[2])
    return max(1, torch.cuda.get_device_properties("cuda").multi_processor_count * ctas_per_sm // tiles)


def _checked(s: peers.Setting, name: str, out) -> float | str:
    """The largest relative error of a few rows against float64."""
    if name == "read":
        return ""
    rows = sorted({0, len(s.q) // 2, len(s.q) - 1})
    worst = max(float((out[row].double() - want).norm() / want.norm()) for row in rows for want in [_truth(s, row)])
    if not worst < LIMIT:
        raise ValueError(f"{name}: got a relative error of {worst:.1e} against float64, allowed is {LIMIT:.0e}")
    return float(f"{worst:.2e}")


def _truth(s: peers.Setting, row: int):
    """float64 attention of one row of q, all heads."""
    import torch

    sequence, visible = (0, s.context - s.chunk + row + 1) if s.chunk else (row, s.batch.kv_lens[row])
    k, v = (x[sequence, :visible].double().transpose(0, 1) for x in (s.k, s.v))
    q = s.q[row].double().view(s.batch.num_kv_heads, s.batch.group, s.batch.head_dim)
    weights = torch.softmax(q @ k.transpose(1, 2) * s.batch.head_dim**-0.5, -1)
    return (weights @ v).reshape(s.batch.num_q_heads, s.batch.head_dim)


# ---------------------------------------------------------------- what it shows


def table():
    """One row a batch and kernel: milliseconds, TFLOP/s, TB/s of keys and values, and % of the roof it is under."""
    df, gpu = read("ladder"), hardware()
    tflops, tb_per_s = df.flops / df.ms / 1e9, df.kv_bytes / df.ms / 1e9
    limit = pd.Series(100e3 * gpu.compute_time(df.flops) / df.ms)
    percent = limit.where(df.batch == "prefill", 100e3 * gpu.memory_time(df.kv_bytes) / df.ms)
    return df.assign(tflops=tflops, tb_per_s=tb_per_s, percent=percent)


def gain(df, batch: str, name: str, before: str) -> float:
    """How many times as fast as another kernel."""
    ms = df[df.batch == batch].set_index("kernel").ms
    return ms[before] / ms[name]


def best_step(df, batch: str) -> tuple[str, float]:
    """The rung of the seven that gains most over the one before it, and how much."""
    names = [name for name, rung in ladder.RUNGS.items() if not rung.hopper]
    gains = {name: gain(df, batch, name, before) for before, name in pairwise(names)}
    return max(gains.items(), key=itemgetter(1))


def orders(df):
    """How many times as fast the copies ahead and the swizzle make rung 3: each as the first of the two, and second."""
    steps = {
        "copies ahead": (("ahead", "mma"), ("swizzle", "swizzle alone")),
        "swizzle": (("swizzle alone", "mma"), ("swizzle", "ahead")),
    }
    gains = {idea: [gain(df, batch, *step) for batch in BATCHES for step in steps[idea]] for idea in steps}
    columns = [f"{batch}, {place}" for batch in BATCHES for place in ("first", "second")]
    return pd.DataFrame.from_dict(gains, orient="index", columns=columns)


def words(df, name: str) -> str:
    """A rung's lines, its two rates and their share of the limit, and what the next rung will mend."""
    prefill, decode = (df[df.batch == batch].set_index("kernel").loc[name] for batch in BATCHES)
    rates = (
        f"prefill {_short(prefill.tflops)} TFLOP/s, {prefill.percent:.2g} % of the limit; "
        f"decode {_short(decode.tb_per_s)} TB/s, {decode.percent:.2g} %"
    )
    return f"{name}, {parts.code_lines(name)} lines: {rates}\nnext: {ladder.RUNGS[name].next}"


def _short(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.2g}"


def roof(whose: str) -> float:
    """TFLOP/s that an H200's threads multiply at most, or its shared memory feeds to `mma` at most."""
    a_cycle = 2 * LANES if whose == ARITHMETIC else FED / (LOAD / DELIVERS * {EIGHT: 8, ONE: 1}[whose])
    return a_cycle * hardware().sms * MOST_HZ / 1e12


def draw_roofs(df):
    """The first five rungs in prefill, each with the roof that it stands under."""
    rates = df[df.batch == "prefill"].set_index("kernel").tflops.reindex(list(UNDER))
    ax = style.axes(8.5, 3.2)
    ax.barh(range(len(rates)), rates, color=style.colour("compute"), height=0.6)
    for y, (rate, whose) in enumerate(zip(rates, UNDER.values(), strict=True)):
        ax.plot([roof(whose)] * 2, [y - 0.42, y + 0.42], color=style.ALARM, linewidth=2.5)
        ax.text(roof(whose) + 6, y, f"{_short(rate)} of {roof(whose):.0f}: {whose}", va="center", fontsize=9)
    ax.set_yticks(range(len(rates)), [ladder.RUNGS[name].idea for name in UNDER])
    ax.invert_yaxis()
    ax.set(xlim=(0, 840), xlabel="TFLOP/s of prefill: reached (bars), and at most (lines)")
    return ax.figure


def draw(df):
    left, right = style.axes(9.5, 4.8, columns=2, sharey=True)
    mma, bare = gpusim.calibration().mma * hardware().tensor_flops / 1e12, df[df.kernel == "read"].tb_per_s.item()
    most = {
        "prefill": (mma, "all that\nmma gives", SHOWN.index("torch")),
        "decode": (bare, "a bare\nread", len(SHOWN) - 1),
    }
    sides = (
        (left, "prefill", "tflops", "TFLOP/s of 2K tokens at the end of 8K"),
        (right, "decode", "tb_per_s", "TB/s of keys and values, 8 sequences of 64K"),
    )
    for ax, batch, column, measured in sides:
        labels = _bars(ax, df[df.batch == batch].set_index("kernel").reindex(SHOWN), column)
        _most(ax, labels, *most[batch])
        name, times = best_step(df, batch)
        ax.set_title(f"{batch}: most by {ladder.RUNGS[name].idea}, {times:.1f}x", fontsize=10.5, loc="left")
        ax.set_xlabel(f"{measured}; % of the limit", fontsize=9)
    left.set_yticks(range(len(SHOWN)), [LABELS.get(name) or ladder.RUNGS[name].idea for name in SHOWN])
    left.invert_yaxis()
    return left.figure


def _most(ax, labels: list, rate: float, words: str, last: int) -> None:
    """A line down to the last bar that cannot pass it; a label that it would cross stands behind it."""
    ax.plot([rate] * 2, [-0.5, last + 0.5], color=style.ALARM, linewidth=1.5)
    for label in labels[: last + 1]:
        if rate < label.xy[0] + LABEL * ax.get_xlim()[1]:
            label.xy = (rate, label.xy[1])
    ax.annotate(words, (rate, 0), xytext=(-4, 0), textcoords="offset points", ha="right", va="center", fontsize=8.5,
                color=style.INK)  # fmt: skip


def _bars(ax, rows, column: str) -> list:
    kinds = [_kind(name, ours="compute" if column == "tflops" else "memory") for name in rows.index]
    bars = ax.barh(range(len(rows)), rows[column], color=[style.colour(kind) for kind in kinds], height=0.68)
    labels = [f"{_short(rate)}   {percent:.2g} %" for rate, percent in zip(rows[column], rows.percent, strict=True)]
    ax.set_xlim(0, 1.27 * rows[column].max())
    return ax.bar_label(bars, labels, padding=3, fontsize=8.5, color=style.INK)


def _kind(name: str, ours: str) -> str:
    if name not in ladder.RUNGS:
        return "linear"
    return "both" if ladder.RUNGS[name].hopper else ours

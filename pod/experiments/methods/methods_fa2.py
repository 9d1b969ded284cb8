"""The paper's FlashAttention-2: decode with tiles of 64 rows, beside torch's, whose tile has 128.

Measured: the 32 chunks of a 16K prompt beside 66 and 67 decodes, then batches of Figure 11, each way's decode and both
parts, with either tile.
"""

import pandas as pd

from pod.batch import MODELS
from pod.data import a_card, hardware, read
from pod.experiments.basics import wave_step
from pod.experiments.hopper import hopper_dry, hopper_peers, hopper_sweep
from pod.experiments.hopper.hopper_sweep import geomean
from pod.experiments.methods.shared import TONES, gain, with_parts
from pod.experiments.pod import pod_06, pod_11
from pod.hardware import GPU
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import flash2, peers
from pod.lab.show import style
from pod.schedule.work import Schedule

FIGURE = Figure(
    title=f"FlashAttention-2 with the paper's decode tile of 64 rows, and with torch's of 128, on {a_card()}",
    says="A decode tile of 64 rows makes FlashAttention-2 faster, and its step no smaller",
    chapter="09",
    method="64: our tile code on FlashAttention-2's grid, two CTAs an SM, keys cut by FlashDecoding's rule; prefill is "
    "torch's. Left: Yi-6B, chunks of 512, decodes of 16K. bf16, medians, cold L2, shuffled rounds.",
    data=("methods-fa2",),
)
RECORDING = "methods-fa2"
KEYS = ("set", "q_heads", "kv_heads", "chunk", "context", "decodes", "decode_context")
UNITS = ("hybrid",)
ROUNDS, REPEATS = 3, 9
SWEPT = 100  # batches of Figure 11, the first that may pass its filter: they are in random order
PROMPT, SWEEP = "figure 6", "figure 11"
WAYS = peers.HALVES | {name: peers.FAMILY[name] for name in ("serial", "pod")}
WAYS |= {"fa2_prefill": peers.fa2_prefill, "fa2_decode": peers.fa2_decode, "fa2_serial": peers.fa2_serial,
         "fa2_streams": peers.fa2_streams}  # fmt: skip
WAYS |= {"decode_64": flash2.decode, "serial_64": flash2.serial, "streams_64": flash2.streams}
WAYS |= {"fi_fa2_serial": peers.PEERS["fi_fa2_serial"]}


def cases() -> list[dict]:
    yi = MODELS["yi-6b"].heads()
    heads = yi["num_q_heads"], yi["num_kv_heads"]
    rows = [(PROMPT, *heads, pod_06.CHUNK, pod_06.CHUNK * (i + 1), n, pod_06.PROMPT)
            for n in pod_06.STEPS[0] for i in range(pod_06.PROMPT // pod_06.CHUNK)]  # fmt: skip
    batches = map(hopper_sweep.batch_of, pod_11.cases()[pod_11.EVEN : pod_11.EVEN + SWEPT])
    rows += [(SWEEP, b.num_q_heads, b.num_kv_heads, b.q_lens[0], b.kv_lens[0], len(b.q_lens) - 1, b.kv_lens[1])
             for b in batches]  # fmt: skip
    return [dict(zip(KEYS, row, strict=True)) for row in dict.fromkeys(rows)]


def measure(case: dict) -> dict:
    return peers.table_row(peers.Setting(hopper_peers.batch_of(case)), WAYS, ROUNDS, ms=1.0)


def planned(case: dict, gpu: GPU) -> list[Schedule]:
    batch = hopper_peers.batch_of(case)
    return [*peers.planned(batch, WAYS, gpu), flash2.decide(flash2.as_rows(batch.decode), gpu.sms)]


# ---------------------------------------------------------------- what it shows

TILES = {"fa2_serial": "two calls, 128 rows", "fa2_streams": "two streams, 128 rows", "serial_64": "two calls, 64 rows",
         "streams_64": "two streams, 64 rows", "pod": "POD"}  # fmt: skip
BASES = {"our prefill and the fastest decode": "fastest", "our two kernels in turn": "serial", "CTAs by index": "cta",
         "FlashAttention-3, two calls": "fa3_serial", "FlashAttention-3, one call": "fa3_varlen",
         "FlashAttention-3, one call, faster cut": "fa3_one", "FlashInfer's POD": "fi_pod",
         "torch's FlashAttention-2, two calls": "fa2_serial"}  # fmt: skip
NUMBERS = ((1.06, "mean"), (1.16, "no filter"), (1.27, "ahead on"))  # columns of numbers, right of the axis
LINES = dict(zip(TILES, ("-", ":", "-", ":", "-"), strict=True))


def table():
    """One row a batch: milliseconds of each way, of our parts alone, and the smaller's share."""
    return with_parts(read("methods-fa2"))


def _set(name: str):
    df = table()
    return df[df.set == name]


def swept():
    """The batches of Figure 11 that pass its filter."""
    return hopper_sweep.filtered(_set(SWEEP))


def bases(some, fair):
    """One row a base, of the batches `some` of Figure 11: POD's gain over it in %, mean, best and worst, the share of
    them on which POD is ahead, how many they are, and the mean gain on the sample `fair`. The paper's tile has its
    own batches, `swept`, and no fair sample."""
    some, fair = (_with_fastest(pod_11.with_one_call(df)) for df in (some, fair))
    gains = {name: gain(some[way], some["pod"]).dropna() for name, way in BASES.items()}
    gains["FlashAttention-2 with the paper's tile"] = gain(swept().serial_64, swept()["pod"])
    rows = {name: (g.mean(), g.max(), g.min(), 100 * (g > 0).mean(), len(g)) for name, g in gains.items()}
    columns = ["mean %", "best %", "worst %", "ahead on, %", "batches"]
    df = pd.DataFrame(rows, index=columns).T.round(1).astype({"batches": int}).rename_axis("POD over")
    unfiltered = {name: f"{gain(fair[way], fair['pod']).mean():.1f}" for name, way in BASES.items()}
    return df.assign(**{"mean %, no filter": pd.Series(unfiltered)}).fillna("").sort_values("mean %", kind="stable")


def _with_fastest(df):
    """With the milliseconds of our prefill and of a decode that reads at the best rate seen, alone or fused."""
    return df.assign(fastest=df.prefill + df.kv_bytes / max(hopper_dry.rates("decode")) / 1e9)


def draw_bases(df):
    """`bases` as a row a base: from POD's worst to its best gain, with the mean, and at the right the numbers."""
    ax = style.axes(9.5, 4.0)
    for y, row in enumerate(df.to_dict("records")):
        ax.plot([row["worst %"], row["best %"]], [y, y], color=style.FRAME, linewidth=5, solid_capstyle="butt")
        bare = row["mean %, no filter"]
        numbers = (
            f"{row['mean %']:.0f}",
            f"{float(bare):.0f}" if bare else "",
            f"{row['ahead on, %']:.0f} %",
        )
        for (x, _), words, weight in zip(NUMBERS, numbers, ("bold", "normal", "normal"), strict=True):
            ax.text(x, y, words, ha="right", va="center", fontsize=9, weight=weight, transform=ax.get_yaxis_transform())
        if row["batches"] < df.batches.max():
            ax.text(row["best %"] + 3, y, f"{row['batches']} batches", va="center", fontsize=8.5)
    for x, words in NUMBERS:
        ax.text(x, -0.75, words, ha="right", va="bottom", fontsize=8.5, transform=ax.get_yaxis_transform())
    ax.plot(df["mean %"], range(len(df)), "o", color=TONES["pod"], markersize=8, label="mean, and from worst to best")
    unfiltered = pd.to_numeric(df["mean %, no filter"])
    ax.plot(
        unfiltered, range(len(df)), "o", color=style.INK, markersize=6, markerfacecolor="white", label="mean, no filter"
    )
    ax.axvline(0, color=style.INK, linewidth=1)
    stated = paper.value("pod.f11.pod_mean")
    ax.axvline(stated, color=style.ALARM, linewidth=1.5, linestyle="--", label=f"the paper's mean, {stated:.0f} %")
    ax.set_yticks(range(len(df)), df.index)
    ax.set(ylim=(len(df) - 0.5, -0.7), xlim=(-40, 170), xlabel="POD's gain over it, %")
    return style.legend_outside(ax, "lower", 3)


def draw(df):
    axes = style.axes(9.5, 3.8, columns=2, sharey=True)
    tones = dict(zip(TILES, (style.INK, style.INK, style.WORKERS[2], style.WORKERS[2], TONES["pod"]), strict=True))
    for ax, decodes in zip(axes, pod_06.STEPS[0], strict=True):
        mine = df[(df.set == PROMPT) & (df.decodes == decodes)]
        for way, name in TILES.items():
            ax.plot(mine.context // 1024, mine[way], LINES[way], color=tones[way], label=name)
        ax.set(xlabel="context of the chunk, K tokens")
        ax.set_title(f"{decodes} decodes", fontsize=10)
    axes[0].set(ylabel="attention of one layer, ms", ylim=(0, None))
    return style.legend_outside(axes[0], "lower", 3)


# ---------------------------------------------------------------- what the paper states, with its tile


def _step(way: str):
    """Rise from a full wave to one request more, %, chunk by chunk."""
    df = _set(PROMPT)
    full, more = (df[df.decodes == n].set_index("context")[way] for n in pod_06.STEPS[0])
    return 100 * (more / full - 1)


def decode_step(way: str = "decode_64") -> float:
    return float(_step(way).median())


def total_step_max() -> float:
    return float(_step("serial_64").max())


def streams_gain_max() -> float:
    df = _set(PROMPT)
    df = df[df.decodes == pod_06.STEPS[0][1]]
    return float(gain(df.serial_64, df.streams_64).max())


def streams_flat() -> float:
    return 1 + float(_step("streams_64").mean()) / 100


def over_flashinfer() -> float:
    """Median time of this FlashAttention-2 over FlashInfer's, both serial."""
    df = swept()
    return float((df.serial_64 / df.fi_fa2_serial.astype(float)).median())


def over_pod(way: str = "serial_64") -> float:
    """Of two calls with either tile over POD, geometric mean."""
    df = swept()
    return geomean(df[way] / df["pod"])


def batches() -> int:
    return len(swept())


def share_of_read(way: str = "decode_64") -> float:
    """DRAM rate of decode in a full wave, % of the peak."""
    df = _set(PROMPT)
    df = df[df.decodes == pod_06.STEPS[0][0]]
    return 100 * float((df.kv_bytes / (1e-3 * df[way]) / hardware().dram_bytes_per_s).median())


# ---------------------------------------------------------------- the last wave, kernel by kernel


def last_waves():
    """One row a kernel: the rise from 66 to 67 requests, %, the full waves that 66 make, and the last wave over one."""
    rows = [
        ("FlashAttention-2 (torch)", pod_06.decode_step(), 1),
        (wave_step.SERIAL, wave_step.step(), 2),
        ("our code, tile of 64 rows", decode_step(), 1),
    ]
    df = pd.DataFrame(rows, columns=["kernel", "step", "waves"])
    return df.assign(last=df.step / 100 * df.waves)


def draw_last(df):
    """Bars: the wave of the four last CTAs, over a full one. Lines: the paper's, and a steady pace."""
    ax = style.axes(8.5, 2.3)
    ax.barh(df.kernel, df["last"], 0.6, color=style.DECODE)
    for y, row in enumerate(df.itertuples()):
        waves = "one full wave" if row.waves == 1 else "two full waves"
        ax.text(row.last - 0.01, y, f"{row.last:.2f}", ha="right", va="center", fontsize=9, fontweight="bold")
        ax.text(row.last + 0.01, y, f"step {row.step:.0f} %, over {waves}", va="center", fontsize=9)
    quarter = paper.value("pod.f06.decode_step") / 100
    lines = ((quarter, 0.01, "paper, A100: over a quarter", "left"), (1, -0.01, "steady pace", "right"))
    for x, margin, words, side in lines:
        ax.axvline(x, color=style.INK, linewidth=1.2, linestyle="--")
        ax.text(x + margin, -0.55, words, ha=side, fontsize=9)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.12), ylim=(2.5, -0.8), xlabel="time of the last four CTAs, in full waves")
    ax.tick_params(axis="y", length=0)
    return ax.figure

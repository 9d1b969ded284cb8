"""What the tensor cores leave to decode: its products beside one and two warpgroups that multiply without end.

Measured: keys that one warpgroup of decode uses up, from DRAM and from shared memory, and what the others multiply.
"""

from functools import cache, partial

import pandas as pd

from pod.data import a_card, read
from pod.experiments.ladder.ladder import MOST_HZ
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.measure.bare import checked, library, pointer, stream
from pod.lab.show import style
from pod.simulate import tensor_core_queue

FIGURE = Figure(
    title=f"Decode's products on {a_card()}, beside none, one and two warpgroups that multiply without end",
    says="From DRAM decode gets beside one warpgroup what it gets alone, and beside two it loses two fifths",
    chapter="17",
    method="bf16; 64 keys of 128 columns by 8 queries, beside products of 64 x 128 x 128; medians, cold L2.",
    data=("hopper-beside",),
)
RECORDING = "hopper-beside"
KEYS, WHOLE = ("keys", "beside"), ()
UNITS = ("beside",)
ROUNDS, REPEATS = 7, 21
KEPT = 8  # tiles that a CTA's shared memory has: kStages of csrc/micro/beside.cu
TILES, TILE_BYTES, QUERIES = 120 * KEPT, 64 * 128 * 2, 8
PRODUCT_FLOPS = 2 * 64 * 128 * 16  # of one product beside
FLOPS = 8 * PRODUCT_FLOPS  # of a round of them
PLACES = ("DRAM", "shared memory")


def cases() -> list[dict]:
    return [{"keys": place, "beside": groups} for place in PLACES for groups in (0, 1, 2)]


def measure(case: dict) -> dict:
    return _measured()[case["keys"], int(case["beside"])]


@cache
def _measured() -> dict[tuple, dict]:
    """All timed in the same shuffled rounds, once each has been seen to add up every key."""
    import torch

    sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    keys = torch.randint(4, (sms, TILES, TILE_BYTES // 2), device="cuda", dtype=torch.int8).bfloat16()
    total = {"DRAM": _sum(keys), "shared memory": _sum(keys[:, :KEPT]) * TILES // KEPT}
    made = {name: torch.zeros(n, dtype=torch.int64, device="cuda") for name, n in (("sum", 1), ("cycles", sms))}
    made |= {name: torch.zeros(n, dtype=torch.int32, device="cuda") for name, n in (("rounds", 2 * sms), ("sink", 1))}
    calls = {tuple(case.values()): partial(_launch, *case.values(), keys, made) for case in cases()}
    counts = {key: _counted(call, made, total[key[0]]) for key, call in calls.items()}
    return {key: counts[key] | time.columns() for key, time in timing.shuffled(calls, ROUNDS, 2.0).items()}


def _sum(keys) -> int:
    import torch

    return QUERIES * sum(tiles.sum(dtype=torch.int64).item() for tiles in keys.char())


def _launch(place: str, groups: int, keys, made: dict) -> None:
    at = {name: pointer(x) for name, x in made.items()}
    where = (int(place == "shared memory"), groups, pointer(keys), TILES, len(keys))
    checked(library("beside").pod_beside(*where, *at.values(), stream()))


def _counted(call, made: dict, total: int) -> dict:
    """Of the third call, as an SM has them on average: cycles of decode, and FLOPs of the others."""
    for _ in range(3):
        for x in made.values():
            x.zero_()
        call()
    if (got := made["sum"].item()) != total:
        raise ValueError(f"decode: got a sum of {got}, allowed is {total}")
    sms = len(made["cycles"])
    return {
        "kv_bytes": sms * TILES * TILE_BYTES, "flops": FLOPS * made["rounds"].sum().item(),
        "cycles": round(made["cycles"].double().mean().item()),
    }  # fmt: skip


# ---------------------------------------------------------------- what it shows


def table():
    """One row a place and number of warpgroups: decode's TB/s, in a cycle of an SM bytes of keys, products of prefill
    for one of decode; and TB/s and bytes by the model of a queue.

    From DRAM some SMs are through long before the last, so the mean of their cycles says less than the time of all.
    """
    df = read("hopper-beside")
    products = df.kv_bytes / tensor_core_queue.KV_BYTES
    queued = [sum(tensor_core_queue.queue(H200, beside).values()) for beside in df.beside]
    return df.assign(
        tb_per_s=df.kv_bytes / df.ms / 1e9, a_cycle=TILES * TILE_BYTES / df.cycles,
        others=df.flops / PRODUCT_FLOPS / products,
        model_tb_per_s=[tensor_core_queue.decode_bytes_per_s(H200, beside, MOST_HZ) / 1e12 for beside in df.beside],
        model_a_cycle=[tensor_core_queue.KV_BYTES / cycles for cycles in queued],
    )  # fmt: skip


def shown(df):
    """As a reader wants it: a row a number of warpgroups."""
    dram, near = (df[df["keys"] == place].set_index("beside") for place in PLACES)
    return pd.DataFrame({
        "DRAM, TB/s": dram.tb_per_s.round(1), "queue, TB/s": dram.model_tb_per_s.round(1),
        "shared memory, bytes a cycle": near.a_cycle.round(1), "queue, bytes a cycle": near.model_a_cycle.round(1),
        "prefill's products for one": near.others.round(1),
    }).rename_axis("warpgroups beside")  # fmt: skip


def draw(df):
    """What decode uses up, and what the model of a queue allows: from DRAM a second, else in a cycle of an SM."""
    axes = style.axes(8.5, 2.6, columns=2)
    sides = zip(axes, PLACES, ("tb_per_s", "a_cycle"), ("TB/s", "bytes a cycle and SM"), strict=True)
    for ax, place, column, unit in sides:
        mine = df[df["keys"] == place]
        bars = ax.bar(mine.beside, mine[column], color=style.colour("memory"), width=0.6)
        ax.bar_label(bars, [f"{x:.1f}" for x in mine[column]], label_type="center", fontsize=9)
        queued = mine[mine.beside > 0]
        ax.hlines(queued[f"model_{column}"], queued.beside - 0.4, queued.beside + 0.4, color=style.ALARM, linewidth=2,
                  label="a queue in turn")  # fmt: skip
        ax.set_xticks(mine.beside, ["alone", "beside one", "beside two"])
        ax.set_title(f"keys from {place}", fontsize=10.5, loc="left")
        ax.set(ylabel=unit, ylim=(0, 1.1 * max(mine[column].max(), queued[f"model_{column}"].max())))
    axes[1].legend(frameon=False, fontsize=9)
    return axes[0].figure

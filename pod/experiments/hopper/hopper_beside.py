"""What the tensor cores leave to decode: its products beside one and two warpgroups that multiply without end.

Measured: keys that one warpgroup of decode uses up, from DRAM and from shared memory, and what the others multiply.
"""

from functools import cache, partial

from pod.data import a_card, read
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.measure.bare import checked, library, pointer, stream
from pod.lab.show import style
from pod.simulate import tensor_core_queue

FIGURE = Figure(
    title=f"Decode's products on {a_card()}, beside none, one and two warpgroups that multiply without end",
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
FLOPS = 2 * 64 * 128 * 128  # of one product beside
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
    """One row a place and number of warpgroups: rates of both, and bytes that an SM's decode uses up in a cycle."""
    df = read("hopper-beside")
    queue = [tensor_core_queue.queue(H200, beside) for beside in df.beside]
    return df.assign(
        tb_per_s=df.kv_bytes / df.ms / 1e9, tflops=df.flops / df.ms / 1e9,
        a_cycle=TILES * TILE_BYTES / df.cycles,
        model=[tensor_core_queue.KV_BYTES / sum(products.values()) for products in queue],
    )  # fmt: skip


def draw(df):
    """Bytes that decode uses up in a cycle of an SM, and what the model of a queue says."""
    axes = style.axes(8.5, 2.6, columns=2)
    for ax, place in zip(axes, PLACES, strict=True):
        mine = df[df["keys"] == place]
        bars = ax.bar(mine.beside, mine.a_cycle, color=style.colour("memory"), width=0.6)
        ax.bar_label(bars, [f"{x:.1f}" for x in mine.a_cycle], label_type="center", fontsize=9)
        queued = mine[mine.beside > 0]
        ax.hlines(queued.model, queued.beside - 0.4, queued.beside + 0.4, color=style.ALARM, linewidth=2, label="model")
        ax.set_xticks(mine.beside, ["alone", "beside one", "beside two"])
        ax.set_title(f"keys from {place}", fontsize=10.5, loc="left")
        ax.set_ylim(0, 1.2 * max(mine.a_cycle.max(), queued.model.max()))
    axes[0].set_ylabel("bytes of keys a cycle and SM")
    axes[1].legend(frameon=False, fontsize=9)
    return axes[0].figure

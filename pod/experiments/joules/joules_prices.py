"""What each instruction of attention costs an H200 in energy: bytes, products, exponentials, multiply-adds, waiting.

Measured: one kind of work on every SM at a time, by the energy counter.
"""

from collections.abc import Callable
from ctypes import c_int64
from functools import cache, partial

import numpy as np
import pandas as pd

from pod.data import a_card, kept, read, repeated
from pod.lab.figure import Figure
from pod.lab.measure import meter
from pod.lab.measure.bare import checked, library, pointer, stream
from pod.lab.show import style
from pod.simulate.joules import Prices, Work

FIGURE = Figure(
    title=f"What {a_card()} pays for attention's instructions: bytes by how far they come, products by their numbers",
    chapter="18",
    method="One kind of work on all SMs, launches of 10 ms back to back, the energy counter; less the watts of a GPU "
    "that is awake. Bars: random numbers, white lines: zeros.",
    data=("joules-prices",),
)
RECORDING = "joules-prices"
KEYS = ("work", "how", "data", "ctas")
UNITS = ("energy",)
WHOLE = ()  # all of them in the same rounds
ROUNDS = REPEATS = 2
TIMER, L2 = meter.TIMER, "warm"
SMS, LAUNCH_MS = 132, 10
MIB = 1 << 20
BYTES = {"dram": 4096 * MIB, "l2": 16 * MIB}
KV_ROW = 2048  # bytes from a token to the next: 8 heads of 128
PANEL, THREADS, VALUES, DEPTH = 128 * 128, 512, 16, 128  # csrc/micro/energy.cu
SHAPES = (8, 16, 64, 128, 256)
WAITS = ("test", "try", "hint", "barrier", "alone")  # Wait of csrc/micro/energy.cu
OPS = ("fma", "exp", "exp packed")  # likewise Op
# Where from, bytes a row, L2 promotion, evict first, CTAs that share
COPIES = {
    "dram": ("dram", 128, 256, 0, 1),
    "dram, KV": ("dram", KV_ROW, 256, 0, 1),
    "dram, KV, 128 B": ("dram", KV_ROW, 128, 0, 1),
    "dram, KV, 128 B, first": ("dram", KV_ROW, 128, 1, 1),
    "dram, KV, first": ("dram", KV_ROW, 256, 1, 1),
    "dram, pairs": ("dram", 128, 256, 0, 2),
    "l2": ("l2", 128, 256, 0, 1),
    "l2, KV": ("l2", KV_ROW, 256, 0, 1),
    "l2, 128 B": ("l2", 128, 128, 0, 1),
    "l2, pairs": ("l2", 128, 256, 0, 2),
}
PARTS = (33, 66, 99)  # CTAs: with fewer the clock is higher


def cases() -> list[dict]:
    rows = [("copy", how, "random", SMS) for how in COPIES]
    rows += [("copy", how, "zeros", SMS) for how in ("dram", "l2")]
    rows += [("copy", "l2", "random", ctas) for ctas in PARTS]
    rows += [("shared", "read", data, SMS) for data in ("random", "zeros")]
    rows += [("product", f"n{n} {place}", "random", SMS) for n in SHAPES for place in ("shared", "registers")]
    rows += [("product", f"n128 {place}", "zeros", SMS) for place in ("shared", "registers")]
    rows += [("product", "n128 shared", "random", ctas) for ctas in PARTS]
    rows += [("compute", how, "random", SMS) for how in OPS]
    rows += [("wait", how, "", SMS) for how in WAITS]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    return _all()[tuple(case[key] for key in KEYS)]


@cache
def _all() -> dict[tuple, dict]:
    works = {tuple(case.values()): _work(case) for case in cases()}
    found = meter.metered({name: call for name, (call, _) in works.items()}, ROUNDS)
    rows = {}
    for name, (_, counted) in works.items():
        spent = found.ways[name].columns("launch")
        rows[name] = dict.fromkeys(("bytes", "flops", "ops", "tries"), 0) | counted() | spent | found.columns()
    return rows


# ---------------------------------------------------------------- one kind of work


def _work(case: dict) -> tuple[Callable, Callable]:
    """A launch of about LAUNCH_MS, and what it counts."""
    make = {"copy": _copy, "shared": _shared, "product": _product, "compute": _compute, "wait": _wait}[case["work"]]
    return make(case["how"], case["data"], case["ctas"])


def _enough(launch: Callable[[int], None], a_round: dict, ctas: int) -> tuple[Callable, Callable]:
    """As many rounds as take LAUNCH_MS, and what they count, of what a CTA counts in one."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rounds, took = 64, 0.0
    while took < 1.0:
        rounds *= 4
        begin.record()
        launch(rounds)
        end.record()
        torch.cuda.synchronize()
        took = begin.elapsed_time(end)
    rounds = round(rounds * LAUNCH_MS / took)
    return partial(launch, rounds), lambda: {name: rounds * ctas * n for name, n in a_round.items()}


@cache
def _bits(nbytes: int, data: str, dtype: str = "bfloat16"):
    import torch

    kind = getattr(torch, dtype)
    values = torch.empty(nbytes // kind.itemsize, dtype=kind, device="cuda")
    return values.normal_() if data == "random" else values.zero_()


@cache
def _sink():
    import torch

    return torch.zeros(1, dtype=torch.int64, device="cuda")


def _copy(how: str, data: str, ctas: int):
    place, *rest, pair = COPIES[how]
    nbytes = BYTES[place]
    source = _bits(BYTES["dram"], data)
    lib = library("energy")

    def launch(rounds: int) -> None:
        checked(lib.pod_copy(pointer(source), c_int64(nbytes), *rest, pair, rounds, ctas, stream()))

    return _enough(launch, {"bytes": PANEL}, ctas)


def _shared(how: str, data: str, ctas: int):
    source, lib = _bits(MIB, data), library("energy")

    def launch(rounds: int) -> None:
        checked(lib.pod_read_shared(pointer(source), rounds, ctas, pointer(_sink()), stream()))

    return _enough(launch, {"bytes": THREADS * VALUES * 16}, ctas)


def _product(how: str, data: str, ctas: int):
    n, place = how[1:].split()
    source, lib = _bits(MIB, data), library("energy")
    kind = (int(n), int(place == "registers"))

    def launch(rounds: int) -> None:
        checked(lib.pod_multiply(pointer(source), *kind, rounds, ctas, pointer(_sink()), stream()))

    return _enough(launch, {"flops": lib.pod_groups(int(n)) * 2 * 64 * int(n) * DEPTH}, ctas)


def _compute(how: str, data: str, ctas: int):
    source, lib = _bits(MIB, data, "float32"), library("energy")

    def launch(rounds: int) -> None:
        checked(lib.pod_compute(pointer(source), OPS.index(how), rounds, ctas, pointer(_sink()), stream()))

    each = 2 if how == "exp packed" else 1
    return _enough(launch, {"ops": THREADS * VALUES * each}, ctas)


def _wait(how: str, data: str, ctas: int):
    """Tries: of one launch, counted by a warp's first lane."""
    import torch

    tries, launches, lib = torch.zeros(1, dtype=torch.int64, device="cuda"), [0], library("energy")

    def launch() -> None:
        launches[0] += 1
        checked(lib.pod_wait(WAITS.index(how), c_int64(LAUNCH_MS * 10**6), ctas, pointer(tries), stream()))

    return launch, lambda: {"tries": round(tries.item() / launches[0])}


# ---------------------------------------------------------------- what it shows

UNITS_OF = {"copy": "bytes", "shared": "bytes", "product": "flops", "compute": "ops"}
PANELS = {
    "copy": "pJ a byte into shared memory",
    "product": "pJ a flop of wgmma",
    "compute": "pJ an operation of one thread",
    "wait": "W of 15 warps an SM that wait",
}
WORDS = {
    "dram": "DRAM, 16 KB together", "dram, KV": "DRAM, KV, promotion 256 B",
    "dram, KV, 128 B": "DRAM, KV, promotion 128 B", "dram, KV, 128 B, first": "the same, evict first",
    "dram, KV, first": "DRAM, KV, evict first", "dram, pairs": "DRAM, two SMs share", "l2": "L2, 16 KB together",
    "l2, KV": "L2, rows of KV", "l2, 128 B": "L2, promotion 128 B", "l2, pairs": "L2, two SMs share",
    "fma": "multiply-add", "exp": "exponential, with its multiply-add", "exp packed": "two of 16 bits in one",
    "test": "test_wait", "try": "try_wait", "hint": "try_wait with a hint", "barrier": "named barrier",
    "alone": "nobody waits",
}  # fmt: skip


@kept("joules-prices")
def table():
    """One row a kind of work: the price of its unit over the watts awake, in pJ, the lowest and the highest seen (of
    waiting: watts over nobody waiting); its rate in 10^12 a second, watts and GHz."""
    df = read("joules-prices")
    amount = pd.concat([df[df.work == work][unit] for work, unit in UNITS_OF.items()]).reindex(df.index)
    rows = df[list(KEYS)].assign(watts=df.launch_mj / df.launch_ms, ghz=df.launch_mhz / 1e3)
    for name, mj in (("price", df.launch_mj), ("low", df.launch_mj_p10), ("high", df.launch_mj_p90)):
        over = mj - _awake(df) * df.launch_ms
        rows[name] = (1e9 * over / amount).where(df.work != "wait", over / df.launch_ms)
    return rows.assign(rate=amount / df.launch_ms / 1e9)


def _awake(df) -> float:
    """Watts with the clock up and one warp an SM asleep."""
    alone = df[df.how == "alone"].iloc[0]
    return alone.launch_mj / alone.launch_ms


def draw(df):
    axes = style.axes(9.5, 5.6, columns=2, rows=2, height_ratios=(2, 1))
    tones = dict(zip(PANELS, ("memory", "compute", "merge", "linear"), strict=True))
    for ax, (work, words) in zip(axes.flat, PANELS.items(), strict=True):
        _bars(ax, df[(df.work == work) & (df.ctas == SMS)], style.colour(tones[work]))
        ax.set_xlabel(words)
    return axes[0, 0].figure


def _bars(ax, df, tone: str) -> None:
    """One bar a way with random numbers; a line where it ends with zeros."""
    zeros = df[df.data == "zeros"].set_index("how").price
    df = df[df.data != "zeros"]
    y = range(len(df))
    ax.barh(y, df.price, 0.62, color=tone)
    ax.hlines(y, df.low, df.high, color=style.INK, linewidth=1)
    for i, row in zip(y, df.itertuples(), strict=True):
        words = _number(row.price)
        if row.how in zeros:
            ax.vlines(zeros[row.how], i - 0.31, i + 0.31, color="white", linewidth=2)
            words += f", zeros {_number(zeros[row.how])}"
        if row.work == "copy":
            words += f"   ({row.rate:.1f} TB/s)"
        ax.text(row.high, i, f"  {words}", va="center", fontsize=8.5)
    ax.set_yticks(y, [WORDS.get(how) or _shape(how) for how in df.how], fontsize=8.5)
    ax.set(ylim=(len(df) - 0.4, -0.6), xlim=(0, 1.45 * df.price.max()))
    ax.tick_params(axis="y", length=0)


def _number(price: float) -> str:
    return f"{price:.{2 if price < 10 else 0}f}".removesuffix(".00")


def _shape(how: str) -> str:
    columns, place = how.split()
    return f"{columns[1:]} columns, rows in {place}"


# ---------------------------------------------------------------- the price list

LIKE_A_MULTIPLY_ADD = 2.5  # of a score, beside its exponential: a maximum, a sum, half a conversion
LISTED = {
    "into_sms": ("copy", "l2, KV"),
    "scores": ("compute", "exp"),
    "wide": ("product", "n128 shared"),
    "wide_registers": ("product", "n128 registers"),
    "narrow": ("product", "n8 shared"),
    "narrow_16": ("product", "n16 shared"),
}


def listed() -> Prices:
    """For the energy of a kernel (pod/simulate/joules.py); of DRAM what it costs more than L2."""
    df = read("joules-prices")
    rows = table()
    rows = rows[(rows.ctas == SMS) & (rows.data == "random")].set_index(["work", "how"])
    each = {name: rows.price[row] for name, row in LISTED.items()}
    each["dram"] = rows.price["copy", "dram"] - rows.price["copy", "l2"]
    each["scores"] += LIKE_A_MULTIPLY_ADD * rows.price["compute", "fma"]
    mhz = {name: 1e3 * rows.ghz[row] for name, row in LISTED.items()}
    return Prices(Work(**each), Work(**mhz), _awake(df))


# ---------------------------------------------------------------- what claims ask for


def price(work: str, how: str, data: str = "random") -> float:
    """pJ, or of waiting watts."""
    df = table()
    return float(df[(df.work == work) & (df.how == how) & (df.data != ("zeros" if data == "random" else "random"))
                    & (df.ctas == SMS)].price.iloc[0])  # fmt: skip


def random_over_zeros() -> float:
    """What products of 128 columns cost with random numbers, over what they cost with zeros."""
    return price("product", "n128 shared") / price("product", "n128 shared", "zeros")


def narrow_over_wide() -> tuple[float, float]:
    """A flop of 8 columns over one of 128 at the same clock, which these keep on few SMs only: least and most."""
    df = table()
    narrow = df[df.how == "n8 shared"].iloc[0]
    wide = df[(df.how == "n128 shared") & (df.data == "random") & (df.ghz == narrow.ghz)].price
    return float(narrow.price / wide.max()), float(narrow.price / wide.min())


def exponents() -> tuple[float, float]:
    """Of the clock, in the price of a product of 128 columns: from all SMs to fewer that keep the highest clock."""
    df = table()
    df = df[(df.how == "n128 shared") & (df.data == "random")].set_index("ctas")
    full = df.loc[SMS]
    fast = df[df.ghz == df.ghz.max()]
    found = np.log(fast.price / full.price) / np.log(fast.ghz / full.ghz)
    return float(found.min()), float(found.max())


def dram_over_l2() -> float:
    """A byte from DRAM into shared memory over one from L2."""
    return price("copy", "dram") / price("copy", "l2")


def dram_in_repeats() -> pd.DataFrame:
    """What a byte from DRAM costs, 16 KB together and as KV, pJ, and the first over one from L2: here, and a row a
    repeat."""
    rows = []
    for df in (read("joules-prices"), *repeated("joules-prices")):
        copies = df[(df.data == "random") & (df.ctas == SMS)].set_index("how")
        copies = copies.assign(pj=1e9 * (copies.launch_mj - _awake(df) * copies.launch_ms) / copies.bytes).pj
        rows.append((copies["dram"], copies["dram, KV"], copies["dram"] / copies["l2"]))
    return pd.DataFrame(rows, columns=["dram", "kv", "over_l2"])


def sharing_saves() -> float:
    """% of a byte from L2 that two SMs save when they share it."""
    return 100 * (1 - price("copy", "l2, pairs") / price("copy", "l2"))


def promotion_saves() -> float:
    """% of a byte of KV from DRAM that promotion to 128 bytes saves over 256."""
    return 100 * (1 - price("copy", "dram, KV, 128 B") / price("copy", "dram, KV"))


def waiting_watts() -> float:
    """W that 15 warps an SM take while they wait as the kernels do."""
    return price("wait", "try", "") - price("wait", "alone", "")

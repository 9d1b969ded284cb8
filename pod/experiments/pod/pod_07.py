"""POD-Attention, Figure 7: a compute-bound and a memory-bound loop, fused in every way, on an H200.

Measured: a compute-bound and a memory-bound loop: alone, in turn, and fused in every way (Figure 7).
"""

from dataclasses import replace
from functools import lru_cache, partial
from statistics import median

import pandas as pd

from pod.data import read
from pod.kernels import build
from pod.kernels import fusion as micro
from pod.kernels.fusion import ALONE, METHODS, NAMES, Work
from pod.kernels.trace import both_share
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style

FIGURE = Figure(
    title="Fusing a compute-bound with a memory-bound loop, method by method",
    chapter="06",
    method="As many CTAs a slot as the artifact has. Median of 15 at least, p10 to p90 shaded, cold L2.",
    data=("micro-fusion",),
)
RECORDING = "micro-fusion"
KEYS = ("case", "iterations")
UNITS = ("fusion",)
ROUNDS, REPEATS = 5, 15

FIGURE7, EQUAL, LONG_COMPUTE, LONG_MEMORY = "figure 7", "equal tiles", "long compute tiles", "long memory tiles"
WAVE, WAVE_AND = "a full wave", "4 tiles more"
UNROLL = 16
BALANCE = 100  # iterations at which both loops take equally long alone
ITERATIONS = range(20, 201, 20)
CTAS_PER_SM = 2048 // micro.THREADS
ARTIFACT_CTAS, ARTIFACT_SLOTS = 2048, 108 * 8  # the paper's artifact on its A100
ROWS = (26, 105)  # of compute and memory in one of as many tiles as the artifact has CTAs: a millisecond on an H200
HALF_EACH = ("cta", "alternate", "sm-aware")  # CTAs are compute or memory, so each side gets half of them


def cases() -> list[dict]:
    rows = [(FIGURE7, n) for n in ITERATIONS]
    rows += [(case, BALANCE) for case in (EQUAL, LONG_COMPUTE, LONG_MEMORY, WAVE, WAVE_AND)]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


@lru_cache
def slots() -> int:
    """CTAs that this GPU holds at once."""
    import torch

    return CTAS_PER_SM * build.sm_count(torch.device("cuda"))


def ctas() -> int:
    """As many CTAs a slot as the artifact launches, an even number."""
    return 2 * round(slots() * ARTIFACT_CTAS / ARTIFACT_SLOTS / 2)


def work(case: str, method: str) -> Work:
    """The work of a case, cut as this method cuts it, with one multiplication a step."""
    n = ctas()
    if case in (WAVE, WAVE_AND):  # tiles of one size
        n = slots() + (4 if case == WAVE_AND else 0)
        return Work(64 * n, 256 * n, 1, (n, n))
    tiles = {
        FIGURE7: (n // 2, n // 2) if method in HALF_EACH else (n, n),
        EQUAL: (8 * slots(), 8 * slots()),
        LONG_COMPUTE: (slots(), 8 * slots()),
        LONG_MEMORY: (8 * slots(), slots()),
    }
    return Work(ROWS[0] * n, ROWS[1] * n, 1, tiles[case])


@lru_cache(maxsize=1)
def data(compute: int, memory: int) -> tuple:
    return micro.arrays(Work(compute, memory, 1, (1, 1)), "cuda")


@lru_cache
def multiplications(case: str) -> int:
    """Of a step, so that both loops take equally long alone."""
    if case == WAVE_AND:  # the same tiles as in the full wave
        return multiplications(WAVE)

    def ms(work: Work, side: str) -> float:
        work = replace(work, multiplications=unrolled(work.multiplications))
        return median(timing.samples(micro.prepare(work, side, data(work.compute, work.memory)), 9))

    return micro.balanced(replace(work(case, "serial"), multiplications=512), ms, rounds=4).multiplications


def unrolled(times: float) -> int:
    """As the kernel unrolls its loop: a remainder would cost more than it counts."""
    return UNROLL * max(1, round(times / UNROLL))


def measure(case: dict) -> dict:
    name, iterations = case["case"], int(case["iterations"])
    whole = work(name, "serial")
    arrays, times = data(whole.compute, whole.memory), unrolled(multiplications(name) * iterations / BALANCE)
    works = {m: replace(work(name, m), multiplications=times) for m in (*ALONE, *METHODS)}
    calls = {m: micro.prepare(w, m, arrays) for m, w in works.items()}
    row = {"multiplications": times}
    for method, time in timing.shuffled(calls, ROUNDS, ms=6.0).items():
        row |= time.columns(method)
    for method in METHODS:
        row[f"{method} together"] = round(both_share(micro.spans(works[method], method, arrays), ALONE), 4)
    return row


# ---------------------------------------------------------------- what it shows

CASE = "figure 7"


def recorded(cases: tuple[str, ...] = ()):
    """One row a case, number of iterations and method: ms, time over the oracle, share of time with both on an SM."""
    rows = []
    for row in read("micro-fusion").to_dict("records"):
        if cases and row["case"] not in cases:
            continue
        oracle = max(row["compute"], row["memory"])
        for method in NAMES:
            ms = row[method]
            rows.append((row["case"], row["iterations"], method, row["compute"] / row["memory"], oracle, ms,
                         row[f"{method}_p10"], row[f"{method}_p90"], ms / oracle, 100 * (row["serial"] / ms - 1),
                         100 * row[f"{method} together"]))  # fmt: skip
    columns = ["case", "iterations", "method", "compute_over_memory", "oracle_ms", "ms", "ms_p10", "ms_p90",
               "over_oracle", "gain_percent", "together_percent"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def table():
    """Figure 7's ten points, method by method; `recorded` says what the columns are."""
    return recorded((CASE,)).drop(columns="case")


# ---------------------------------------------------------------- drawing


def look(method: str) -> dict:
    """Colour and line of a method, the same in all pictures of these loops."""
    tone = {"serial": style.INK, "streams": "#9aa7b4", "cta": style.SMS[3], "alternate": style.SMS[3],
            "in turn": style.SMS[1], "interleaved": style.SMS[1], "warp": "#79706e",
            "sm-aware": style.KINDS["both"]}[method]  # fmt: skip
    return {"color": tone, "linestyle": "--" if method in ("alternate", "interleaved") else "-"}


def draw(df):
    ax, last = style.axes(9.5, 4.6), df.iterations.max()
    ends = {method: df[df.method == method].over_oracle.iloc[-1] for method in NAMES}
    for method in NAMES:
        part = df[df.method == method]
        ax.plot(part.iterations, part.over_oracle, linewidth=2, **look(method))
        oracle = part.oracle_ms
        ax.fill_between(part.iterations, part.ms_p10 / oracle, part.ms_p90 / oracle, color=look(method)["color"],
                        alpha=0.2, lw=0)  # fmt: skip
    ax.axhline(1, color=style.INK, linestyle=":", linewidth=2)
    for (method, end), at in zip(ends.items(), style.apart(list(ends.values()), 0.052), strict=True):
        tone = look(method)["color"]
        ax.annotate(NAMES[method], (last, end), (last + 6, at), fontsize=9, va="center", color=tone,
                    arrowprops={"arrowstyle": "-", "color": tone, "lw": 0.7, "shrinkB": 0})  # fmt: skip
    ax.text(last + 6, 0.972, "the oracle", fontsize=9, va="center")
    ax.set(ylabel="time / oracle", ylim=(0.95, 2.06), xlim=(15, 1.28 * last), xticks=range(20, 201, 20),
           xlabel="compute iterations (100: both loops take equally long)")  # fmt: skip
    return ax.figure


# ---------------------------------------------------------------- what the claims ask for


def _mean_gain(method: str, over: str) -> float:
    """%, over the ten points."""
    ms = table().pivot(index="iterations", columns="method", values="ms")
    return float(100 * (ms[over] / ms[method] - 1).mean())


cta_over_serial = partial(_mean_gain, "cta", "serial")
intra_over_serial = partial(_mean_gain, "in turn", "serial")
intra_over_cta = partial(_mean_gain, "in turn", "cta")


def in_turn_over_interleaved() -> float:
    """Mean time of one loop after the other over interleaved, x."""
    ms = table().pivot(index="iterations", columns="method", values="ms")
    return float((ms["in turn"] / ms["interleaved"]).mean())


def same_sm() -> float:
    """Correlation, over the methods at equal halves, of time and of the share of time with both on an SM."""
    df = table()
    half = df[df.iterations == paper.value("pod.f07.balance")]
    return float(half.ms.corr(half.together_percent))

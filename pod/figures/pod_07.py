"""POD-Attention, Figure 7: a compute-bound and a memory-bound loop, fused in every way, on an H200."""

from __future__ import annotations

from pod import paper
from pod.data import read
from pod.figures import Figure
from pod.micro import NAMES

FIGURE = Figure(
    id="pod-07",
    source="POD-Attention, Figure 7",
    title="Fusing a compute-bound with a memory-bound loop, method by method",
    chapter="05",
    method="As many CTAs a slot as the artifact has. Median of 15 at least, p10 to p90 shaded, cold L2.",
    state="recorded",
    data=("micro-fusion",),
)
CASE = "figure 7"
IN_PAPER = ("serial", "cta", "in turn")  # beside the oracle


def recorded(cases: tuple[str, ...] = ()):
    """One row a case, number of iterations and method: ms, time over the oracle, share of time with both on an SM."""
    import pandas as pd

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


# ---------------------------------------------------------------- what the claims ask for


def _mean_gain(method: str, over: str) -> float:
    """%, over the ten points."""
    ms = table().pivot(index="iterations", columns="method", values="ms")
    return float(100 * (ms[over] / ms[method] - 1).mean())


def cta_over_serial() -> float:
    return _mean_gain("cta", "serial")


def intra_over_serial() -> float:
    return _mean_gain("in turn", "serial")


def intra_over_cta() -> float:
    return _mean_gain("in turn", "cta")


def in_turn_over_interleaved() -> float:
    """Mean time of one loop after the other over interleaved, x."""
    ms = table().pivot(index="iterations", columns="method", values="ms")
    return float((ms["in turn"] / ms["interleaved"]).mean())


def same_sm() -> float:
    """Correlation, over the methods at equal halves, of time and of the share of time with both on an SM."""
    df = table()
    half = df[df.iterations == paper.value("pod.f07.balance")]
    return float(half.ms.corr(half.together_percent))


# ---------------------------------------------------------------- drawing


def look(method: str) -> dict:
    """Colour and line of a method, the same in all pictures of these loops."""
    from pod.show import style

    tone = {"serial": style.INK, "streams": "#9aa7b4", "cta": style.WORKERS[4], "alternate": style.WORKERS[4],
            "in turn": style.WORKERS[3], "interleaved": style.WORKERS[3], "warp": style.WORKERS[6],
            "sm-aware": style.WORKERS[2]}[method]  # fmt: skip
    return {"color": tone, "linestyle": "--" if method in ("alternate", "interleaved") else "-"}


def draw(df):
    from pod.show import style

    left, right = style.axes(9.5, 4.6, columns=2)
    oracle = df[df.method == "serial"]
    left.plot(oracle.iterations, oracle.oracle_ms, ":", color=style.INK, linewidth=2)
    for method in NAMES:
        part = df[df.method == method]
        if method in (*IN_PAPER, "sm-aware"):
            left.plot(part.iterations, part.ms, linewidth=2, **look(method))
            left.fill_between(part.iterations, part.ms_p10, part.ms_p90, color=look(method)["color"], alpha=0.2, lw=0)
        right.plot(part.iterations, part.over_oracle, linewidth=2, label=NAMES[method], **look(method))
    right.axhline(1, color=style.INK, linestyle=":", linewidth=2)
    left.set(ylabel="time, ms", ylim=(0, None))
    left.set_title("as in the paper, and SM-aware", fontsize=10)
    right.set(ylabel="time / oracle", ylim=(0.97, 2.06))
    right.set_title("every method", fontsize=10)
    for ax in (left, right):
        ax.set(xlabel="compute iterations (100: both loops take equally long)", xticks=range(20, 201, 40))
    handles, names = right.get_legend_handles_labels()
    right.figure.legend([*left.lines[:1], *handles], ["oracle", *names], loc="outside lower center", ncols=5,
                        frameon=False, fontsize=9)  # fmt: skip
    return left.figure

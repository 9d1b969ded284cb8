"""How far off the analytical cost is for one model on one number of GPUs, which rows of many models can hide."""

import pandas as pd

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate import judge
from pod.simulate.judge import PARTLY

FIGURE = Figure(
    title="Errors of the analytical cost, model by model and by number of GPUs",
    says="Each part is within its bars for each model and number of GPUs",
    chapter="15",
    method="held-out rows of public measurements and of our own (data/judged.csv); a dot is a part of an iteration, "
    "from one source, with one model on one number of GPUs, at the larger of its two errors in units of the bars. "
    "All-reduces that a host launches one by one are left out: cost-parts has them",
    state="simulated",
)
PARTS = {"prefill": style.WORKERS[0], "decode": style.WORKERS[1], "linear": style.colour("linear"),
         "all-reduce": style.WORKERS[2], "host": style.colour("host")}  # fmt: skip


def table() -> pd.DataFrame:
    """A row a part, source, model and number of GPUs: its two errors, and the larger of them in units of its bar."""
    rows = [row for row in judge.read()
            if row["split"] == "held out" and row["model"] != "all" and row["part"] in PARTS]  # fmt: skip
    made = [(row["part"], row["what"], row["model"], int(row["tp"]), int(row["rows"]), float(row["median"]),
             float(row["p95"]), float(row["bias"]), row["passes"] == "yes") for row in rows]  # fmt: skip
    columns = ["part", "what", "model", "tp", "rows", "median", "p95", "bias", "passes"]
    df = pd.DataFrame(made, columns=columns)
    most, most_p95 = PARTLY
    return df.assign(over=pd.concat([df["median"] / most, df.p95 / most_p95], axis=1).max(axis=1))


def draw(df):
    """Each as a dot on the line of its part and number of GPUs; whose model misses a bar is named."""
    shown = df[~_hosted(df)]
    lines = [(part, tp) for part in PARTS for tp in sorted(set(shown.tp[shown.part == part]))]
    ax = style.axes(8.5, 0.9 + 0.27 * len(lines))
    for i, (part, tp) in enumerate(lines):
        mine = shown[(shown.part == part) & (shown.tp == tp)]
        ax.scatter(mine.over, [i] * len(mine), s=26, color=PARTS[part], zorder=3)
        ax.text(2.0, i, ", ".join(mine[~mine.passes].model + mine[~mine.passes].what.map(_place)).strip(),
                va="center", fontsize=8.5)  # fmt: skip
    ax.axvline(1, color=style.INK, linewidth=1.2)
    ax.set(xscale="log", xlabel="larger error in units of its bar (line)", xlim=(0.05, 60),
           ylim=(len(lines) - 0.5, -0.5), yticks=range(len(lines)))  # fmt: skip
    style.ticks(ax, (0.1, 0.3, 1, 2))
    ax.set_yticklabels([f"{part}, {tp} GPU{'s' * (tp > 1)}" for part, tp in lines], fontsize=8.5)
    return ax.figure


def _place(what: str) -> str:
    """Where it was measured, for a name beside the model's."""
    return f" ({what.partition(' on ')[2] or what.partition(' from ')[0]})"


def _hosted(df: pd.DataFrame) -> pd.Series:
    """All-reduces below 1 MiB that a host launches one by one."""
    return (df.part == "all-reduce") & ~df.what.str.contains("nccl|pcie|from 1 MiB")


def missed() -> float:
    """Of operators, each model and number of GPUs by itself: how many miss a bar."""
    return float((~table().passes).sum())


def judged() -> float:
    return float(len(table()))


def launched() -> float:
    """Those of the missed that are all-reduces which a host launches one by one."""
    df = table()
    return float((~df.passes & _hosted(df)).sum())

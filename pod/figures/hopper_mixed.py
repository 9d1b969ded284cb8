"""Mixed reality: several chunks, ragged decodes, pages; beside a uniform batch, at the same work."""

from __future__ import annotations

from pod.data import hardware, read
from pod.figures import Figure

FIGURE = Figure(
    id="hopper-mixed",
    source="This repository",
    title="Several chunks, ragged decodes and pages cost little more than a uniform batch",
    chapter="16",
    method="Time over the uniform contiguous batch of the same heads, less what more work explains (roofline sum).",
    state="recorded",
    data=("hopper-mixed",),
)
PAGES = {0: "contiguous", 256: "pages of 256", 64: "pages of 64", 16: "pages of 16"}


def table():
    """One row a batch and page size: work and time over those of the uniform batch, and what is left over, %."""
    import pandas as pd

    df = read("hopper-mixed")
    kind, heads = (df.batch.str.rsplit(" ", n=1).str[i] for i in (0, 1))
    gpu = hardware()
    cost = gpu.compute_time(df.flops) + gpu.memory_time(df.kv_bytes)
    plain = df.assign(cost=cost, heads=heads)[(kind == "uniform") & (df.page == 0)].set_index("heads")
    beside = df.uniform if "uniform" in df else heads.map(plain.ours)  # timed in the same rounds, where recorded
    work, time = cost / heads.map(plain.cost), df.ours / beside
    return pd.DataFrame({"heads": heads, "batch": kind, "page": df.page, "ms": df.ours, "work": work, "time": time,
                         "excess_percent": 100 * (time / work - 1)})  # fmt: skip


def worst() -> float:
    """Largest time over the uniform batch at the same work, %."""
    return float(table().excess_percent.max())


def draw(df):
    from pod.show import style

    ax = style.axes(9.5, 3.6)
    groups = list(dict.fromkeys(zip(df.batch, df.heads, strict=True)))
    tones = (style.WORKERS[2], style.WORKERS[5], style.WORKERS[3], style.WORKERS[6])
    for p, (page, name) in enumerate(PAGES.items()):
        part = df[df.page == page].set_index(["batch", "heads"]).excess_percent
        for g, key in enumerate(groups):
            x = g + 0.2 * (p - 1.5)
            ax.bar(x, part[key], 0.18, color=tones[p], label=name)
            up = part[key] >= 0
            label = f"{part[key]:.1f}" if part[key] else "0"
            at, side = (0.15, "bottom") if up else (-0.15, "top")
            ax.text(x, part[key] + at, label, ha="center", va=side, fontsize=8)
    ax.axhline(0, color=style.INK, linewidth=1)
    ax.axhline(10, color=style.INK, linewidth=1, linestyle="--")
    ax.text(len(groups) - 0.45, 10.1, "what we allow: 10 %", ha="right", va="bottom", fontsize=9)
    ax.set_xticks(range(len(groups)), [_label(kind, heads) for kind, heads in groups])
    ax.set(ylabel="% longer than uniform,\nsame work", xlim=(-0.6, len(groups) - 0.4))
    ax.set_ylim(min(-0.2, df.excess_percent.min() - 1), 12)
    ax.tick_params(axis="x", length=0)
    style.legend(ax, loc="upper left", ncols=4)
    return ax.figure


def _label(kind: str, heads: str) -> str:
    return kind.replace(", ", ",\n").replace("ragged decodes", "ragged\ndecodes") + f"\n{heads} heads"

"""SARATHI post, Figure 6: what each scheduler puts into one iteration, and what attention then computes apart."""

import pandas as pd
from matplotlib.patches import Rectangle

from pod.lab.figure import Figure
from pod.lab.show import style
from pod.serving.blocks import ReservedPool
from pod.serving.schedulers import Orca, SarathiV1
from pod.simulate.scenarios import ticked

FIGURE = Figure(
    title="What Orca and SARATHI batch, and what they compute apart",
    chapter="13",
    method="the same arrivals through both schedulers; the iteration in which prompts meet two decodes",
    says="SARATHI's matrix products are nearly equal; Orca's are as long as the prompts",
)
# two short requests are decoding when two prompts of 6 and 9 tokens arrive
LENGTHS = ((2, 12, 0.0), (3, 12, 0.0), (6, 3, 3.5), (9, 3, 3.5))
CHUNK = 6


def table():
    """One row a piece of the first iterations after the prompts' arrival."""
    rows = []
    for system in ("Orca", "SARATHI"):
        pool = ReservedPool(200, 40)
        scheduler = Orca(pool, 4) if system == "Orca" else SarathiV1(pool, 4, chunk=CHUNK, tile=2)
        log = ticked(scheduler, LENGTHS)
        events = [e for e in log.iterations if e.scheduled >= 3.5 and e.prefills]
        for step, event in enumerate(events):
            rows += [(system, step, f"x{i + 1}", "decode", 1) for i in event.decodes]
            rows += [(system, step, f"x{i + 1}", "prefill", n) for i, n, *_ in event.prefills]
    return pd.DataFrame(rows, columns=["scheduler", "iteration", "request", "what", "tokens"])


def draw(df):
    axes = style.axes(9.5, 2.9, 2)
    for ax, (system, mine) in zip(axes, df.groupby("scheduler", sort=False), strict=True):
        for step, pieces in mine.groupby("iteration"):
            left = 0
            for piece in pieces.itertuples():
                ax.add_patch(Rectangle((left, step + 0.2), piece.tokens, 0.6, edgecolor="white",
                                       facecolor=style.colour(piece.what)))  # fmt: skip
                ax.text(left + piece.tokens / 2, step + 0.5, piece.request, ha="center", va="center", fontsize=9,
                        color=style.text_on(piece.what))  # fmt: skip
                left += piece.tokens
            ax.add_patch(Rectangle((-0.08, step + 0.12), left + 0.16, 0.76, fill=False, edgecolor=style.INK))
        ax.set(xlim=(-0.5, 18), ylim=(df.iteration.max() + 1, 0), xlabel="tokens in one matrix product",
               yticks=[i + 0.5 for i in range(df.iteration.max() + 1)])  # fmt: skip
        ax.set_yticklabels([f"iteration {i}" for i in range(df.iteration.max() + 1)])
        ax.tick_params(axis="y", length=0)
        ax.set_title(system, fontsize=10)
    return axes[0].figure

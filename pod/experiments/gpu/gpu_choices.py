"""POD-Attention's Figures 13 and 14 by the model: on an H200 beside what we measured, and on the paper's A100."""

import pandas as pd
from matplotlib import pyplot as plt

from pod.batch import MODELS, HybridBatch
from pod.data import a_card
from pod.experiments.gpu.shared import Case, milliseconds
from pod.experiments.methods.shared import gain, heat
from pod.experiments.pod import pod_13, pod_14
from pod.hardware import A100, H200
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.simulate.gpusim import seconds

FIGURE = Figure(
    title=f"CTAs an SM and the policy: measured and predicted on {a_card()}, predicted for the paper's A100",
    says="Proportional loses to 50:50; four CTAs win at 1K, on the H200 alone",
    chapter="10",
    method="pod/simulate/gpusim.py on batches of Figures 13 and 14. "
    "Measured: h200/methods-ctas.csv and methods-policy.csv.",
    data=("methods-ctas", "methods-policy", "gpusim"),
    fitted=True,
)
PLACES = {"measured": "H200, measured", "h200": "H200, model", "a100": "A100, model"}
DECODES = (8, 32, 128)  # of Figure 13's, enough to see where four CTAs win
CTAS, POLICY = "four CTAs over two, time", "proportional over 50:50, %"


def table():
    """One row a place, question and batch. `value`: a ratio of times, or a gain in percent with two CTAs an SM."""
    return pd.concat([_ctas(), _policies()], ignore_index=True)


def _ctas():
    measured = pod_13.table()
    cells = measured[measured.decodes.isin(DECODES)][["context", "decodes"]].reset_index(drop=True)
    whole = [(n, n, decodes, n, "llama-3-8b") for n, decodes in cells.itertuples(index=False)]
    found = measured.set_index(["context", "decodes"])
    values = {"measured": [found.pod_4[key] / found.pod_2[key] for key in cells.itertuples(index=False, name=None)]}
    for gpu in ("h200", "a100"):
        two, four = (_model(gpu, whole, ctas_per_sm=n) for n in (2, 4))
        values[gpu] = [b / a for a, b in zip(two, four, strict=True)]
    return pd.concat(cells.assign(question=CTAS, place=place, value=x) for place, x in values.items())


def _policies():
    measured = pod_14.table()
    cells = measured[["model", "decodes"]].assign(context=8192)
    whole = [(8192, 8192, decodes, 8192, model) for model, decodes in measured[["model", "decodes"]].to_numpy()]
    values = {"measured": gain(measured[f"{pod_14.TURNS}_2"], measured[f"{pod_14.PROPORTIONAL}_2"])}
    for gpu in ("h200", "a100"):
        turns, own = (_model(gpu, whole, ctas_per_sm=2, policy=p) for p in (pod_14.TURNS, pod_14.PROPORTIONAL))
        values[gpu] = [gain(a, b) for a, b in zip(turns, own, strict=True)]
    return pd.concat(cells.assign(question=POLICY, place=place, value=x) for place, x in values.items())


def _model(gpu: str, batches, **choice) -> list[float]:
    """Milliseconds of POD on (chunk, context, decodes, decode context, model)."""
    made = [HybridBatch.of(*sizes, **MODELS[model].heads(1)) for *sizes, model in batches]
    return milliseconds(Case(batch, gpu, "pod", "ours", tuple(choice.items())) for batch in made)


def draw(df):
    figure, axes = plt.subplots(2, 3, figsize=(9.5, 5.4), dpi=style.DPI, layout="constrained", sharey="row")
    for column, (place, words) in zip(axes.T, PLACES.items(), strict=True):
        mine = df[df.place == place]
        cells = mine[mine.question == CTAS].pivot(index="decodes", columns="context", values="value")
        heat(column[0], cells, cmap="PRGn_r", vmin=0.5, vmax=1.5)
        column[0].set_xlabel("context, tokens")
        column[0].set_title(words, fontsize=10)
        _bars(style.tidy(column[1]), mine[mine.question == POLICY])
    axes[0, 0].set_ylabel("four CTAs an SM / two\n\ndecodes")
    axes[1, 0].set_ylabel(POLICY)
    axes[1, 0].legend(frameon=False, fontsize=9)
    return figure


def ranges() -> pd.DataFrame:
    """Least and most of each place: four CTAs over two at the shortest context and at longer ones; proportional."""
    df = table()
    lengths = (df.context > df.context.min()).map({False: "the shortest context", True: "longer ones"})
    what = df.question.where(df.question == POLICY, CTAS + ", " + lengths).rename("what")
    ends = df.groupby([what, "place"], sort=False).value.agg(["min", "max"]).round(2)
    words = (ends["min"].map("{:g}".format) + " to " + ends["max"].map("{:g}".format)).unstack()
    return words[list(PLACES)].rename(columns=PLACES)


def policies_with_four() -> pd.DataFrame:
    """With four CTAs an SM: what two policies gain over 50:50 on Yi-6B's batches, measured and by the model, %."""
    measured, rows = pod_14.table().query("model == 'yi-6b' and decodes in (32, 96, 192)"), {}
    batches = [HybridBatch.of(8192, 8192, n, 8192, **MODELS["yi-6b"].heads(1)) for n in measured.decodes]
    for policy in (pod_14.INTEGER, pod_14.PROPORTIONAL):
        rows[f"{policy}, {PLACES['measured']}"] = list(gain(measured[f"{pod_14.TURNS}_4"], measured[f"{policy}_4"]))
        for gpu in (H200, A100):
            turns, other = ([seconds(b, gpu, "pod", ctas_per_sm=4, policy=p) for b in batches]
                            for p in (pod_14.TURNS, policy))  # fmt: skip
            rows[f"{policy}, {PLACES[gpu.key]}"] = [gain(a, b) for a, b in zip(turns, other, strict=True)]
    return pd.DataFrame(rows, index=[f"{n} decodes" for n in measured.decodes]).T


def _bars(ax, df) -> None:
    models = df.groupby("model", sort=False)
    for shift, (model, part), tone in zip((-0.2, 0.2), models, style.WORKERS[:2], strict=True):
        at = range(len(part))
        ax.bar([x + shift for x in at], part.value, 0.38, color=tone, label=MODELS[model].name)
        ax.set_xticks(at, part.decodes)
    ax.axhline(0, color=style.INK, linewidth=0.8)
    ax.set_xlabel("decodes beside a prompt of 8K")

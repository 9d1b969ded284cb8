"""Pictures of the engine: the tokens of one step, pages that grow, and one iteration on the host and on the GPU."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pod.lab.show import style
from pod.lab.show.serving import name
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.events import Log
from pod.serving.loop import Replay, serve
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.serving.step import Step


def wrong_rows(step: Step):
    """A bug that was published: to find a request's row the sampler counts the tokens of the scheduler's list, which
    has the decodes first, in tensors that have the prompts first."""
    import numpy as np

    chunks, decodes = step.q_lens[: step.chunks], len(step.q_lens) - step.chunks
    last = chunks.cumsum() - 1
    complete = np.isin(last, step.rows)
    return np.concatenate([decodes + last[complete], np.arange(decodes)])


class WrongRows(Engine):
    """An engine with that sampler."""

    def run(self, step: Step):
        step.rows[:] = wrong_rows(step)
        return super().run(step)


def step_table(step: Step, owners: Sequence[int], block: int):
    """One row a token: whose it is, its place in the text, its place in the cache, and whether its row predicts."""
    import numpy as np
    import pandas as pd

    whose = np.repeat([name(i) for i in owners], step.q_lens)
    predicts = np.isin(np.arange(len(step.tokens)), step.rows)
    return pd.DataFrame({"request": whose, "token": step.tokens, "position": step.positions,
                         "block": step.slots // block, "offset": step.slots % block, "predicts": predicts})  # fmt: skip


def step_arrays(step: Step):
    """One row an array of the step, in the order in which they lie in `flat`."""
    import pandas as pd

    says = {
        "header": "sequences, tokens, chunks, rows, width of table",
        "q_lens": "new tokens of each request",
        "kv_lens": "tokens of each in the cache, these included",
        "tokens": "the new tokens",
        "positions": "where each stands in its text",
        "slots": "its place in the cache: block × size + offset",
        "rows": "which rows predict",
        "table": "blocks of each request, filled up with 0",
    }
    values = [str(step.header), *(str(getattr(step, field).tolist()) for field in list(says)[1:])]
    return pd.DataFrame({"values": values, "what they say": says.values()}, index=pd.Index(says, name="array"))


def rows_and_requests(step: Step, owners: Sequence[int], choices: dict[str, Sequence[int]]) -> Figure:
    """Who gets which row of the logits, a panel a choice of rows: on the left all tokens of the step, on the right who
    gets a token, beside the row that is its own. Red: somebody gets another one."""
    whose = [name(i) for i, n in zip(owners, step.q_lens, strict=True) for _ in range(n)]
    prompts = sum(step.q_lens[: step.chunks])
    axes = style.axes(9.5, 0.7 + 0.34 * len(whose), len(choices))
    for ax, (title, rows) in zip(axes, choices.items(), strict=True):
        for y, who in enumerate(whose):
            kind = "prefill" if y < prompts else "decode"
            _box(ax, y, 0, kind, f"row of {who}'s token {y - whose.index(who) + 1}" if y < prompts else f"row of {who}")
            if y in step.rows:
                _box(ax, y, 3, kind, f"next token of {who}")
        for own, row in zip(step.rows, rows, strict=True):
            line = {"arrowstyle": "-|>", "color": style.INK if row == own else style.ALARM, "linewidth": 1.5}
            ax.annotate("", (3, own + 0.5), (2, row + 0.5), arrowprops=line)
        ax.set(xlim=(-0.1, 5.1), ylim=(len(whose), 0))
        ax.set_axis_off()
        ax.set_title(title, fontsize=10)
    return axes[0].figure


def page_tables(log: Log) -> list[dict[int, list[int]]]:
    """The block tables after each iteration was scheduled: the recorded run, scheduled once more."""
    pool = PagedPool(log.run["blocks"], log.run["block_size"])
    scheduler, states = Sarathi(pool, len(log.requests), chunk=log.run["chunk"]), []

    class Watched(Replay):
        def submit(self, batch, event):
            states.append({i: list(table) for i, table in pool.tables.items()})
            return super().submit(batch, event)

    made = {i: sum(c[0] == i and c[3] for e in log.iterations for c in e.prefills)
            + sum(i in e.decodes for e in log.iterations) for i, *_ in log.requests}  # fmt: skip
    serve([Request(i, prompt, made[i], arrival) for i, arrival, prompt, _ in log.requests], [scheduler], Watched(log))
    return states


def pages_grow(log: Log) -> Figure:
    """Tokens in the cache of each request, and the pages that hold them, iteration by iteration."""
    from matplotlib import pyplot as plt

    block, tables = log.run["block_size"], page_tables(log)
    figure, axes = plt.subplots(1, len(log.requests), figsize=(9.5, 2.5), dpi=style.DPI, layout="constrained",
                                sharey=True)  # fmt: skip
    for ax, (i, *_) in zip(axes, log.requests, strict=True):
        style.tidy(ax)
        tokens, cached = [], 0
        for event in log.iterations:
            cached = sum([c[2] + c[1] for c in event.prefills if c[0] == i]) or cached + (i in event.decodes)
            tokens.append(cached)
        held = [block * len(table.get(i, ())) for table in tables]
        tokens = [n if h else float("nan") for n, h in zip(tokens, held, strict=True)]
        ax.fill_between(range(len(held)), held, step="post", color=style.WORKERS[i], alpha=0.3, linewidth=0,
                        label="pages")  # fmt: skip
        ax.step(range(len(held)), tokens, where="post", color=style.INK, linewidth=1.2, label="tokens")
        ax.set_title(f"{name(i)}", fontsize=10, loc="left")
        ax.set(xlabel="iteration", yticks=range(0, max(held) + 1 if i == 2 else 200, 2 * block))
    axes[0].set_ylabel(f"tokens; a page holds {block}")
    style.legend(axes[0], loc="upper right")
    return figure


PIECES = {"before": ("linear", "norm, QKV, rotation, cache"), "attention": ("hybrid", "attention"),
          "after": ("merge", "output, feed-forward"), "head": ("load", "logits"),
          "graph": ("linear", "all between two attentions, one graph")}  # fmt: skip
ON_HOST = {"plan": ("host", "schedule, plan, hand out tokens"), "finish": ("host", "schedule, plan, hand out tokens"),
           "expect": ("merge", "plan the next iteration"), "wait": ("wait", "wait")}  # fmt: skip


def timeline(df) -> Figure:
    """Iterations on the host and on the GPU, a panel a run; `df` as engine-timeline.csv has it."""
    from matplotlib import pyplot as plt

    runs = list(dict.fromkeys(df.run))
    figure, axes = plt.subplots(len(runs), 1, figsize=(9.5, 0.5 + 1.5 * len(runs)), dpi=style.DPI, layout="constrained",
                                sharex=True, squeeze=False)  # fmt: skip
    for ax, run in zip(axes[:, 0], runs, strict=True):
        style.tidy(ax)
        for row in df[df.run == run].itertuples():
            kind, label = (PIECES | ON_HOST)[row.piece]
            _bar(ax, 0, row.host_start_ms, row.host_end_ms, style.colour(kind), label)
            if row.piece in PIECES:
                _bar(ax, 1, row.gpu_start_ms, row.gpu_end_ms, style.colour(kind), label)
            if row.piece == "wait":
                middle = (row.host_start_ms + row.host_end_ms) / 2
                ax.text(middle, 0.5, "waits for the tokens", ha="center", va="center", fontsize=9)
        _idle(ax, df[(df.run == run) & df.piece.isin(PIECES)].gpu_start_ms.min())
        ax.set(ylim=(2.6, 0), yticks=(0.5, 1.5), yticklabels=("host", "GPU"), xlim=(0, df.host_end_ms.max()))
        ax.set_title(run, fontsize=10, loc="right")
    axes[-1, 0].set_xlabel("ms since the scheduler was asked")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    once.pop(ON_HOST["wait"][1], None)  # it stands in its bar
    figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def _idle(ax, until: float) -> None:
    """What the GPU does before its first kernel."""
    ax.plot([0, until], [1.5, 1.5], color=style.ALARM, linewidth=4, solid_capstyle="butt")
    ax.text(0, 2.3, f" nothing to do for {until:.1f} ms", color=style.ALARM, va="center", fontsize=9)


def _box(ax, row: int, left: float, kind: str, words: str) -> None:
    _bar(ax, row, left, left + 2, style.colour(kind), "")
    ax.text(left + 1, row + 0.5, words, ha="center", va="center", fontsize=9, color=style.text_on(kind))


def _bar(ax, row: int, start: float, end: float, colour: str, label: str) -> None:
    ax.add_patch(Rectangle((start, row + 0.1), end - start, 0.8, facecolor=colour, edgecolor="white", linewidth=0.3,
                           label=label))  # fmt: skip

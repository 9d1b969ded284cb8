"""The batches of SARATHI's Figures 3 and 5 and of its Table 1 on a GPU: LLaMA-13B with FlashAttention-3.

Measured: one layer for prompts and for decodes at 1,024 tokens, all of it, without its attention, and its attention
alone; the output head; and whole iterations of the 40 layers for the table's batches. Each batch has exactly its
tokens, for a padded one would hide the step that the table is about.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from pod.data import a_card, card, read
from pod.experiments.engine import operators
from pod.experiments.sarathi import sarathi_05
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.serving import shapes
from pod.serving.backends import backend
from pod.serving.engine import Cache
from pod.serving.model import Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import Batch, Chunk
from pod.serving.step import Step, pack

FIGURE = Figure(
    title=f"Prompts, decodes and both in one batch, LLaMA-13B on {a_card()}",
    chapter="13",
    method="bf16, random weights, FlashAttention-3 in two calls; one layer, its parts and the head, the layer 40 times "
    "for a token; whole iterations of 40 layers; CUDA graphs, cold L2, median of 10 in shuffled order",
    data=("sarathi-batches",),
    says="Beside a chunk a decode takes a sixth of its time alone, with three rows too many two thirds",
)
RECORDING = "sarathi-batches"
KEYS = ("part", "prompts", "tokens", "before", "decodes")
UNITS = ("model",)
REPEATS = 10  # rounds
TIMER = f"CUDA events around one call, replayed as a graph, after a {timing.FLUSH_BYTES >> 20} MB fill that empties " \
    "L2; a batch's parts, or all whole iterations, shuffled in every round"  # fmt: skip
MODEL, ATTENTION, PAGE, CONTEXT = "llama-13b", "fa3", 256, 1024
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCHES, CHUNKS = (1, 2, 4, 8, 18), (128, 256, 512, 1024)
LAYER, LINEAR, ATTEND, HEAD, ITERATION = "layer", "linear", "attention", "head", "iteration"


class Mix(NamedTuple):
    """`prompts` bring `tokens` each, after `before` that were read already; beside them requests decode at CONTEXT."""

    prompts: int = 0
    tokens: int = 0
    before: int = 0
    decodes: int = 0

    @property
    def rows(self) -> int:
        return self.prompts * self.tokens + self.decodes

    @property
    def pages(self) -> int:
        """A request holds."""
        return -(-max(CONTEXT, self.before + self.tokens) // PAGE)


def mixes() -> list[Mix]:
    """Of Figures 3 and 5, the largest last: they heat the GPU."""
    some = {Mix(1, n) for n in TOKENS} | {Mix(decodes=n) for n in (*TOKENS, *BATCHES)}
    some |= {Mix(n, CONTEXT) for n in BATCHES}
    some |= {Mix(1, chunk, before) for chunk in CHUNKS for before in range(0, CONTEXT, chunk)}
    return sorted(some, key=lambda mix: (mix.rows, mix))


TABLE = (Mix(1, 1021), Mix(1, 1024), Mix(decodes=4), Mix(1, 1021, decodes=3), Mix(1, 1024, decodes=3))


def cases() -> list[dict]:
    named = [(part, *mix) for mix in mixes() for part in (LAYER, LINEAR, ATTEND, HEAD)]
    named += [(ITERATION, *mix) for mix in TABLE]
    return [dict(zip(KEYS, row, strict=True)) for row in named]


def measure(case: dict) -> dict[str, float]:
    mix = Mix(*(int(case[key]) for key in KEYS[1:]))
    taken = _iterations()[mix] if case["part"] == ITERATION else _parts(mix)[case["part"]]
    return taken.columns()


@lru_cache(maxsize=1)
def _parts(mix: Mix) -> dict[str, timing.Time]:
    return _timed(parts(_place(1), mix))


@lru_cache
def _iterations() -> dict[Mix, timing.Time]:
    place = _place(shapes.shape(MODEL).layers)
    return _timed({mix: iteration(place, mix) for mix in TABLE})


def _timed(calls: dict) -> dict:
    """In the engine the host is ahead of the GPU, so launches must not show."""
    return timing.shuffled({name: operators._captured(call) for name, call in calls.items()}, REPEATS)


# ---------------------------------------------------------------- a model, and what a batch of it computes


class Place:
    """A model, and a cache of random keys and values whose pages lie in random order."""

    def __init__(self, model: Llama, pages: int, attention: str = ATTENTION):
        self.model, self.cache, self.name = model, Cache(model, pages, PAGE), attention
        for layer in self.cache:
            for keys in layer:
                keys.normal_()
        self.order = np.random.default_rng(0).permutation(pages).astype(np.int32)

    def attention(self):
        """One for each batch: the graph of a batch reads what its attention planned."""
        m = self.model
        return backend(self.name, m.q_heads, m.kv_heads, m.shape.head_dim, PAGE, m.dtype, m.device)

    def step(self, mix: Mix) -> Step:
        requests = [Request(i, max(CONTEXT, mix.before + mix.tokens), 2) for i in range(mix.prompts + mix.decodes)]
        chunks = []
        for request in requests[: mix.prompts]:
            request.prefill = mix.before + mix.tokens  # so that a token comes out
            chunks.append(Chunk(request, mix.tokens, mix.before))
        for request in requests[mix.prompts :]:
            request.computed = CONTEXT - 1  # with its new token it is that long
        batch = Batch(chunks, requests[mix.prompts :])
        texts = dict.fromkeys(range(len(requests)), [1] * max(r.prompt for r in requests))
        tables = {i: self.order[i * mix.pages : (i + 1) * mix.pages] for i in range(len(requests))}
        return pack(batch, texts, tables, PAGE)


@lru_cache(maxsize=1)
def _place(layers: int) -> Place:
    import torch

    some = replace(shapes.shape(MODEL), layers=layers)
    model = Llama(some, random_weights(0, layers, "cuda"), "cuda", torch.bfloat16)
    return Place(model, max((m.prompts + m.decodes) * m.pages for m in (mixes() if layers == 1 else TABLE)))


def parts(place: Place, mix: Mix) -> dict[str, Callable]:
    """The first layer in parts, and the head for the rows after which a token comes out."""
    import torch

    model, (keys, values) = place.model, next(iter(place.cache))
    attention, host = place.attention(), place.step(mix)
    step = host.to(model.device)
    attention.plan(host, step)
    slots = step.slots.long()
    x = torch.randn(len(host.tokens), model.shape.hidden, dtype=model.dtype, device=model.device)
    q = torch.randn(len(host.tokens), model.q_heads, model.shape.head_dim, dtype=model.dtype, device=model.device)

    def layer(attend):
        made = model.before(0, x, step.positions, slots, keys, values)
        return model.after(0, x, attend(made, keys, values))

    calls = {LAYER: lambda: layer(attention.run), LINEAR: lambda: layer(lambda *_: q),
             ATTEND: lambda: attention.run(q, keys, values), HEAD: lambda: model.logits(x[step.rows])}  # fmt: skip
    return {name: torch.inference_mode()(call) for name, call in calls.items()}


def iteration(place: Place, mix: Mix) -> Callable:
    """All layers and the head."""
    import torch

    attention, host = place.attention(), place.step(mix)
    step = host.to(place.model.device)
    attention.plan(host, step)
    return torch.inference_mode()(lambda: place.model.forward(step, place.cache, attention.run))


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row a batch: milliseconds of a layer and its parts, of the head, and of a whole iteration."""
    df = read(RECORDING)
    return df.pivot(index=list(Mix._fields), columns="part", values="ms").reset_index().rename_axis(columns=None)


def _of(df: pd.DataFrame) -> Callable[..., pd.Series]:
    at = df.set_index(list(Mix._fields))
    return lambda *mix: at.loc[Mix(*mix)]


def throughput(df: pd.DataFrame) -> pd.DataFrame:
    """Figure 3: tokens a second of one layer, and percent of the best of its kind."""
    of, rows = _of(df), []
    for phase, mixes in {"prefill": [Mix(1, n) for n in TOKENS], "decode": [Mix(decodes=n) for n in TOKENS]}.items():
        rows += [(phase, mix.rows, 1000 * mix.rows / of(*mix)[LAYER]) for mix in mixes]
    made = pd.DataFrame(rows, columns=["phase", "tokens", "tokens_per_second"])
    best = made.groupby("phase").tokens_per_second.transform("max")
    return made.assign(percent_of_peak=100 * made.tokens_per_second / best)


def per_token(df: pd.DataFrame) -> pd.DataFrame:
    """Figure 5: milliseconds a token of all layers; the head where a token comes out."""
    of, rows, layers = _of(df), [], shapes.shape(MODEL).layers
    groups = [("prefill", n, [Mix(n, CONTEXT)]) for n in BATCHES] + [("decode", n, [Mix(decodes=n)]) for n in BATCHES]
    groups += [("chunked", n, [Mix(1, n, at) for at in range(0, CONTEXT, n)]) for n in CHUNKS]
    for phase, size, mixes in groups:
        each = [layers * sum(of(*mix)[part] for mix in mixes) for part in (LINEAR, ATTEND)] + [of(*mixes[-1])[HEAD]]
        rows.append((phase, size, *(ms / sum(mix.rows for mix in mixes) for ms in each)))
    return pd.DataFrame(rows, columns=["phase", "batch_or_chunk", "linear_ms", "attention_ms", "other_ms"])


def whole(df: pd.DataFrame) -> pd.DataFrame:
    """Table 1: milliseconds of whole iterations, and what each decode adds to the prompt beside it."""
    of, rows = _of(df), []
    for mix in TABLE:
        ms = of(*mix)[ITERATION]
        alone = of(*mix._replace(decodes=0))[ITERATION] if mix.prompts else 0.0
        rows.append((*mix, ms, (ms - alone) / mix.decodes if mix.decodes else None))
    return pd.DataFrame(rows, columns=[*Mix._fields, "ms", "ms_per_decode"])


def from_parts(chunk: int, decodes):
    """Milliseconds of an iteration of `chunk` rows with so many decodes, by its parts, a prompt's chunks on average."""
    df = table()
    alone = df[(df.prompts == 0) & (df.decodes <= max(BATCHES))].sort_values("decodes", kind="stable")
    mine = df[(df.prompts == 1) & (df.tokens == chunk) & df.before.isin(range(0, CONTEXT, chunk)) & (df.decodes == 0)]
    beside = np.interp(decodes, [0, *alone.decodes], [0, *alone[ATTEND]])
    return shapes.shape(MODEL).layers * (mine[LINEAR].mean() + mine[ATTEND].mean() + beside) + mine[HEAD].mean()


def draw(df):
    figure, axes = plt.subplot_mosaic([["layer", "tokens"], ["whole"] * 2], figsize=(9.5, 5.2), dpi=style.DPI,
                                      layout="constrained", width_ratios=[1, 1.4], height_ratios=[1.4, 1])  # fmt: skip
    for ax in axes.values():
        style.tidy(ax)
    many, each, batches = throughput(df), per_token(df), whole(df)
    for (phase, mine), colour, mark in zip(many.groupby("phase", sort=False), style.WORKERS, "o^", strict=False):
        axes["layer"].plot(mine.tokens, mine.percent_of_peak, f"{mark}-", markersize=5, color=colour, label=phase)
    axes["layer"].set_xscale("log", base=2)
    axes["layer"].set(ylim=(0, 105), xlabel="tokens in the batch", ylabel="% of the best throughput shown")
    axes["layer"].set_xticks(TOKENS, TOKENS, fontsize=8.5)
    saturates = paper.value("sarathi.f03.peak_tokens")
    axes["layer"].axvline(saturates, color=style.INK, linestyle="--", linewidth=1)
    axes["layer"].text(1.08 * saturates, 4, "post: A6000\nsaturates", fontsize=9, color=style.INK)
    axes["layer"].set_title("one layer", fontsize=10)
    style.legend(axes["layer"], loc="upper left")
    some, bottom = each[each.phase != "prefill"].reset_index(drop=True), 0.0
    at = some.index + 0.5 * (some.phase == "chunked")
    columns = {"linear_ms": "linear", "attention_ms": "merge", "other_ms": "wait"}
    total = some[[*columns]].sum(axis=1)
    for column, tone in columns.items():
        share = 100 * some[column] / total
        axes["tokens"].bar(at, share, bottom=bottom, color=style.colour(tone), label=column.removesuffix("_ms"))
        bottom = share + bottom
    for x, ms in zip(at, total, strict=True):
        axes["tokens"].text(x, 102, f"{ms:.2g}", ha="center", fontsize=8.5)
    axes["tokens"].set_xticks(at, some.batch_or_chunk, fontsize=8.5)
    axes["tokens"].set(ylim=(0, 130), yticks=range(0, 101, 20), ylabel="% of the time",
                xlabel="decodes in the batch | chunk of a prompt of 1,024")  # fmt: skip
    axes["tokens"].set_title("all layers, by operation; above, ms a token", fontsize=10)
    style.legend(axes["tokens"], loc="upper center", ncols=3)
    axes["whole"].barh(range(len(batches)), batches.ms, 0.6, color=style.WORKERS[0])
    for i, row in enumerate(batches.itertuples()):
        more = f", {row.ms_per_decode:.2f} a decode" if row.decodes else ""
        axes["whole"].text(row.ms, i, f" {row.ms:.1f} ms{more}", va="center", fontsize=9)
    axes["whole"].set_yticks(range(len(batches)), [_words(mix) for mix in TABLE], fontsize=9)
    axes["whole"].set(ylim=(len(batches) - 0.5, -0.5), xlim=(0, 1.3 * batches.ms.max()), xlabel=f"ms, {card()}")
    stated = paper.value("sarathi.t1.decode_gain")
    words = f"decodes beside a chunk: {_cheaper(batches):.1f} times cheaper (post, A6000: about {stated:g})"
    axes["whole"].set_title(words, fontsize=10)
    return figure


def _words(mix: Mix) -> str:
    decodes = f"{mix.decodes} decodes" if mix.decodes else ""
    return " + ".join(words for words in (f"{mix.tokens:,} tokens" if mix.prompts else "", decodes) if words)


# ---------------------------------------------------------------- what claims ask for


def of_peak(tokens: int) -> float:
    """Prefill throughput of a layer at so many tokens, over the best."""
    return float(throughput(table()).set_index(["phase", "tokens"]).percent_of_peak["prefill", tokens]) / 100


def overhead() -> float:
    return sarathi_05.overhead(per_token(table()))


def decode_gain() -> float:
    """Time of a decode alone over the time that it adds to a chunk."""
    return _cheaper(whole(table()))


def _cheaper(batches: pd.DataFrame) -> float:
    each = batches.ms_per_decode
    return float(each[TABLE.index(Mix(decodes=4))] / each[TABLE.index(Mix(1, 1021, decodes=3))])


def rows_too_many() -> float:
    """Time that three decodes add to 1,024 prompt tokens over what they add to 1,021."""
    each = whole(table()).ms_per_decode
    return float(each[TABLE.index(Mix(1, 1024, decodes=3))] / each[TABLE.index(Mix(1, 1021, decodes=3))])


def saturates(phase: str = "decode", share: float = 0.9) -> int:
    """The fewest tokens of those shown at which a layer has so much of its best throughput."""
    many = throughput(table())
    return int(many.tokens[(many.phase == phase) & (many.percent_of_peak >= 100 * share)].min())

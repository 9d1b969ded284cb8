"""Every figure and table of the sources: what it shows, which chapter brings it, and whether it is here yet."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import pod.experiments
from pod.data import a_card, card, path_of
from pod.experiments import Figure

OURS = "This repository"
FITTED = "H200"  # the card to which the models are fitted
SOURCES = {
    "pod": "POD-Attention",
    "lean": "LeanAttention",
    "sarathi": "SARATHI post",
    "orca": "Continuous batching post",
    "vllm": "PagedAttention post",
    "plus34": "+34 % post",
}

# id, chapter, what it shows. "t" before the number means a table. Posts number nothing: figures count from their top,
# and for PagedAttention, whose post draws nothing, each mechanism that it describes gets one.
CATALOGUE = """
pod-01      08  Utilisation of compute and memory by each kernel, and the runtime of C0 to C2
pod-02      12  What prefill-first and chunked scheduling do to TTFT and TBT
pod-03      03  Which operations of a hybrid batch share weights, and which do not
pod-04      14  Where the time of a hybrid iteration goes as the context grows
pod-05      04  The GPU execution model: CTAs, warps, SMs
pod-06      08  Attention time of the 32 hybrid batches of a 16K prompt, with and without wave quantization
pod-07      05  Fusing a compute-bound with a memory-bound loop, method by method
pod-08      06  SM-aware CTA scheduling, step by step
pod-09      06  The code of SM-aware CTA scheduling
pod-10      02  What the decode tile size does to compute and bandwidth
pod-11      08  Distribution of speed-ups over a thousand hybrid batches
pod-12      14  Offline serving throughput of three models
pod-13      08  Two or four CTAs per SM, over batch and context
pod-14      08  50:50 against proportional scheduling
pod-15      14  Throughput against the ratio of prefill to decode tokens
pod-t1      03  The hybrid batches C0 to C2
pod-t2      05  Methods of concurrent execution and what they guarantee
pod-t3      08  The attention methods that are compared
pod-t4      14  Online latency, internal workload
pod-t5      14  Online latency, arXiv workload
pod-t6      14  Chunk size: TTFT against TBT
pod-t7      08  Limiting the splits of a prefill chunk
lean-01     10  Two heads on five SMs: no split, fixed split, stream-K
lean-02     10  Share of prefill, decode attention and linear layers, Phi-3 Medium
lean-03     10  Utilisation of LeanAttention against FlashDecoding
lean-04     01  One head cut into two unequal pieces and merged
lean-05     10  Data flow inside one CTA
lean-06     10  Equal tiles for every SM in a ragged batch
lean-07     10  Speed-up on one A100 over context, heads and batch
lean-08     10  Speed-up on one H100 over context, heads and batch
lean-09     10  Speed-up on eight GPUs with tensor parallelism
lean-10     10  Ragged batches: speed-up against heterogeneity
lean-11     10  Speed-up at head dimension 128 for three model shapes
lean-12     10  End-to-end speed-up, Phi-3 Medium
lean-13     10  Energy against FlashDecoding
lean-t1     03  Dimensions of the attention operations in prefill and decode
sarathi-01  12  Pipeline bubbles under continuous batching
sarathi-02  12  The same pipeline with chunked prefills and decode-maximal batches
sarathi-03  12  Throughput of one LLaMA-13B layer against tokens
sarathi-04  03  Attention masks of successive prefill chunks
sarathi-05  12  Time per token by operation and batch size
sarathi-06  12  What Orca and SARATHI batch, and what they compute apart
sarathi-07  12  Single-GPU throughput over Orca
sarathi-08  12  Throughput against P:D and its optimum
sarathi-09  12  Bubble time and completion time of a GPT-3 pipeline
sarathi-t1  12  Prefill-only, decode-only and mixed batches
orca-01     11  Static batching: slots that wait for the longest request
orca-02     11  Iteration-level scheduling: slots refilled at once
orca-03     11  Selective batching: linear operations together, attention apart
vllm-01     11  Block tables growing on demand
vllm-02     11  Reserved against used memory: reserve-max and paging
vllm-03     11  Preemption by recompute and by swap when the pool runs dry
vllm-04     11  Prompt iterations and decode iterations never mix
plus34-01   15  Single-query attention kernel: compute and memory utilisation
plus34-02   15  Cycles in which no warp issues
plus34-03   15  The loads that stall
plus34-04   15  The kernel after the query moved to shared memory
plus34-05   15  Timeline of the engine: the GPU idles half of the time
plus34-06   15  Timeline after batched sampling
plus34-07   15  The small copies that remain
plus34-t1   15  The ladder of four throughputs
"""


@dataclass(frozen=True)
class Entry:
    """One row of the registry. `figure` is None while no module draws it."""

    id: str
    source: str
    title: str
    chapter: str
    figure: Figure | None = None
    lacks: tuple[str, ...] = ()  # tables that would have to be made first

    @property
    def state(self) -> str:
        return self.figure.state if self.figure else "missing"

    @property
    def gpu(self) -> str:
        """The GPU whose recordings it shows, e.g. "H200"."""
        return card() if self.figure and self.figure.state == "recorded" else ""

    @property
    def composed(self) -> bool:
        return bool(self.figure and self.figure.composed)

    @property
    def badge(self) -> str:
        """The state as the gallery colours and counts it: what was put together is no recording."""
        return "simulated" if self.composed else self.state

    @property
    def how(self) -> str:
        return "composed from" if self.composed else "recorded on"

    @property
    def state_text(self) -> str:
        if self.lacks:
            return f"lacks {', '.join(self.lacks)} of {a_card()}"
        if self.state == "missing":
            return f"missing: chapter {self.chapter} brings it"
        return f"{self.how} {self.gpu}" if self.gpu else self.state

    @property
    def line(self) -> str:
        return f"{self.id:<14} {self.state_text:<29} {self.source}: {self.title}"


def source_of(figure_id: str) -> str:
    """pod-06 becomes "POD-Attention, Figure 6"; ids of no source are this repository's own."""
    prefix, _, number = figure_id.partition("-")
    if prefix not in SOURCES or not number.lstrip("t").isdigit():
        return OURS
    kind = "Table" if number.startswith("t") else "Figure"
    return f"{SOURCES[prefix]}, {kind} {int(number.lstrip('t'))}"


def _modules() -> dict[str, str]:
    names = (m.name for m in pkgutil.iter_modules(pod.figures.__path__))
    return {n.replace("_", "-"): n for n in names if n not in ("registry", "gallery") and not n.startswith("_")}


def load(figure_id: str) -> ModuleType:
    """The module of a figure that is here; a ValueError says what is known otherwise."""
    entry = find(figure_id)
    if entry.figure is None:
        raise ValueError(f"figure {figure_id!r}: {entry.state_text}")
    return importlib.import_module(f"pod.figures.{_modules()[figure_id]}")


def tables(figure_id: str) -> tuple[str, ...]:
    """The tables that a figure reads, also those that are still to be made."""
    name = _modules().get(find(figure_id).id)
    return importlib.import_module(f"pod.figures.{name}").FIGURE.data if name else ()


def show(figure_id: str):
    """Draw a figure and return its table. While its recording is missing, say how to make it and return None."""
    module = importlib.import_module(f"pod.figures.{_modules()[figure_id]}")
    if find(figure_id).figure is None:
        print(f"not recorded yet: `python -m pod measure {figure_id}` on a GPU records it")
        return None
    df = module.table()
    module.draw(df)
    return df


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """All figures and tables, in the order of the sources, then this repository's own."""
    drawn = {i: importlib.import_module(f"pod.figures.{name}").FIGURE for i, name in _modules().items()}
    rows = []
    for line in CATALOGUE.strip().splitlines():
        figure_id, chapter, title = line.split(maxsplit=2)
        here = drawn.pop(figure_id, None)
        rows.append(_entry(here) if here else Entry(figure_id, source_of(figure_id), title, chapter))
    return (*rows, *map(_entry, drawn.values()))


def _entry(figure: Figure) -> Entry:
    """A figure that one of its tables lacks counts as missing."""
    lacks = lacking(figure)
    return Entry(figure.id, figure.source, figure.title, figure.chapter, None if lacks else figure, lacks)


def lacking(figure: Figure) -> tuple[str, ...]:
    """The tables of a figure that are not here. Of a model that was fitted to another card, none is."""
    if figure.fitted and card() != FITTED:
        return figure.data
    return tuple(name for name in figure.data if not path_of(name).is_file())


def find(figure_id: str) -> Entry:
    for entry in entries():
        if entry.id == figure_id:
            return entry
    known = ", ".join(e.id for e in entries())
    raise ValueError(f"unknown figure {figure_id!r}; known: {known}")


def drawable() -> list[Entry]:
    return [e for e in entries() if e.figure]

"""Predictions of the GPU model, as chapter 10's figures look them up in data/computed/gpusim.csv."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

from pod.batch import HybridBatch
from pod.data import kept, read

KEYS = ("batch", "gpu", "method", "kernel", "choice")
_asked: dict[Case, float] | None = None  # while somebody collects what figures ask


@dataclass(frozen=True)
class Case:
    """A batch on a GPU by a method; `choice`: further arguments of pod.plan, as pairs."""

    batch: HybridBatch
    gpu: str
    method: str = "serial"
    kernel: str = "ours"
    choice: tuple[tuple[str, str | int], ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        chosen = " ".join(f"{name}={value}" for name, value in self.choice)
        return text(self.batch), self.gpu, self.method, self.kernel, chosen


def milliseconds(cases: Iterable[Case]) -> list[float]:
    """What the model predicts, in order."""
    cases = list(cases)
    if _asked is not None:
        _asked.update(dict.fromkeys(cases, 1.0))
        return [1.0] * len(cases)
    known = _known()
    if lacking := [case.key for case in cases if case.key not in known]:
        raise ValueError(f"gpusim: {lacking[0]} is not computed; `python -m pod compute gpusim` adds it")
    return [known[case.key] for case in cases]


@kept("gpusim")  # pictures and claims ask for it a hundred times
def _known() -> dict[tuple[str, ...], float]:
    df = read("gpusim").fillna({"choice": ""})
    return dict(zip(df[list(KEYS)].itertuples(index=False, name=None), df.ms, strict=True))


@contextmanager
def asked() -> Iterator[dict[Case, float]]:
    """Collects the cases that figures ask for meanwhile; all of them get one millisecond."""
    global _asked
    _asked = {}
    try:
        yield _asked
    finally:
        _asked = None


# ---------------------------------------------------------------- a batch in words


def text(batch: HybridBatch) -> str:
    """512@8192 54x1@16384, 16/2 heads of 128: a chunk of 512 at the end of 8,192 tokens, and 54 decodes."""
    runs = [(len(list(run)), *lens) for lens, run in groupby(zip(batch.q_lens, batch.kv_lens, strict=True))]
    lens = " ".join(f"{f'{n}x' if n > 1 else ''}{q}@{kv}" for n, q, kv in runs)
    pages = f", pages of {batch.page_size}" if batch.page_size else ""
    mask = "" if batch.causal else ", no mask"
    return f"{lens}, {batch.num_q_heads}/{batch.num_kv_heads} heads of {batch.head_dim}{pages}{mask}"


def batch_of(words: str) -> HybridBatch:
    """The batch that text() describes."""
    lens, heads, *rest = words.split(", ")
    runs = [re.fullmatch(r"(?:(\d+)x)?(\d+)@(\d+)", run).groups() for run in lens.split()]
    every = [(int(q), int(kv)) for n, q, kv in runs for _ in range(int(n or 1))]
    q_heads, kv_heads, head_dim = map(int, re.fullmatch(r"(\d+)/(\d+) heads of (\d+)", heads).groups())
    page = next((int(word.removeprefix("pages of ")) for word in rest if word.startswith("pages")), None)
    causal = "no mask" not in rest
    return HybridBatch(*zip(*every, strict=True), q_heads, kv_heads, head_dim, page_size=page, causal=causal)

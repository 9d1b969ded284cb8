"""One iteration as tensors: which tokens go in, where their keys and values go, and which rows predict.

All of it is integers and small, so it travels as one array: a single copy to the GPU, a single broadcast to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from pod.serving.request import Request
from pod.serving.schedulers import Batch

NOTHING = np.zeros(0, np.int32)
HEADER = 5  # sequences, tokens, prefill chunks, rows that predict, width of the block table


@dataclass(frozen=True)
class Step:
    """Sequences in order: the prefill chunks, then the decodes. Every field is a view of `flat`.

    `slots` are places in the cache, block * block_size + offset; `rows` are the tokens after which one comes out.
    """

    flat: object  # int32 [...], a NumPy array on the host or a tensor on a device
    chunks: int
    q_lens: object  # [sequences]
    kv_lens: object  # [sequences]
    tokens: object  # [tokens]
    positions: object  # [tokens]
    slots: object  # [tokens]
    rows: object  # [sequences that predict]
    table: object  # [sequences, width]

    @classmethod
    def view(cls, flat, header: Sequence[int] | None = None) -> Step:
        """Cut `flat` into its fields. The header is read from it unless given, which on a GPU would mean waiting."""
        header = header if header is not None else flat[:HEADER].tolist()
        sequences, _, chunks, _, width = header
        ends = _ends(header)
        parts = [flat[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        return cls(flat, chunks, *parts[:-1], parts[-1].reshape(sequences, width))

    @classmethod
    def empty(cls, header: Sequence[int]) -> Step:
        """All but the header is 0; entries of the block table that nobody fills are never read."""
        flat = np.zeros(_ends(header)[-1], np.int32)
        flat[:HEADER] = header
        return cls.view(flat, header)

    @property
    def header(self) -> list[int]:
        return [len(self.q_lens), len(self.tokens), self.chunks, len(self.rows), self.table.shape[1]]

    def to(self, device) -> Step:
        """The same step on a device, in one copy that the host does not wait for."""
        import torch

        flat = torch.from_numpy(self.flat)
        if torch.device(device).type == "cuda":
            flat = flat.pin_memory().to(device, non_blocking=True)
        return Step.view(flat, self.header)


def _ends(header: Sequence[int]) -> list[int]:
    """Where in `flat` each field ends, the header first."""
    sequences, tokens, _, rows, width = header
    return list(accumulate((HEADER, sequences, sequences, tokens, tokens, tokens, rows, sequences * width)))


def pack(batch: Batch, texts: Mapping[int, Sequence[int]], tables: Mapping[int, Sequence[int]], block: int) -> Step:
    """The step of a batch. `texts` holds all tokens of a request so far, `tables` the blocks that it holds."""
    parts = [(c.request.id, c.context, c.tokens) for c in batch.prefills]
    parts += [(r.id, r.computed, 1) for r in batch.decodes]
    ids, starts, q_lens = zip(*parts, strict=True)
    starts, q_lens, count = np.array(starts), np.array(q_lens), sum(q_lens)
    emits = np.array([c.last for c in batch.prefills] + [True] * len(batch.decodes))
    first, kv_lens = q_lens.cumsum() - q_lens, starts + q_lens
    widths = -(-kv_lens // block)
    header = [len(parts), count, len(batch.prefills), np.count_nonzero(emits), int(widths.max())]
    step = Step.empty(header)
    step.q_lens[:], step.kv_lens[:] = q_lens, kv_lens
    new = chain.from_iterable(texts[id_][start : start + count] for id_, start, count in parts)
    step.tokens[:] = np.fromiter(new, np.int32, count)
    for row, id_, width in zip(step.table, ids, widths.tolist(), strict=True):
        row[:width] = tables[id_][:width]
    owner = np.arange(len(parts)).repeat(q_lens)
    positions = np.arange(count) - (first - starts)[owner]
    page = positions // block
    step.positions[:], step.slots[:] = positions, (step.table[owner, page] - page) * block + positions
    step.rows[:] = (first + q_lens - 1)[emits]  # of a chunk its last row, and only if the prompt is complete with it
    return step


class Arrays:
    """Block tables as arrays: to read the lists anew would cost a millisecond where pages are small. A list that
    belongs to the same request as before has only grown. `first` is the block of the cache that they call 0."""

    def __init__(self, tables: Mapping[int, list[int]], first: int = 0):
        self.tables, self.first, self._known = tables, first, {}

    def __getitem__(self, id_: int) -> np.ndarray:
        blocks = self.tables[id_]
        of, row = self._known.get(id_, (None, NOTHING))
        row = row if of is blocks else NOTHING
        if len(row) != len(blocks):
            row = np.concatenate([row, np.array(blocks[len(row) :], np.int32) + np.int32(self.first)])
            self._known[id_] = blocks, row
        return row

    def sweep(self) -> None:
        """Forget who is gone, now and then."""
        if len(self._known) > 2 * len(self.tables) + 64:
            self._known = {id_: known for id_, known in self._known.items() if id_ in self.tables}


def predicting(batch: Batch) -> list:
    """The requests that get a token, in the order of `Step.rows`."""
    return [c.request for c in batch.prefills if c.last] + list(batch.decodes)


def promise(requests: Sequence[Request], texts: Mapping[int, list]) -> list[int]:
    """Where in its text each request's next token will be. Until it is here, the j-th is written as -1 - j: a step that
    reads it finds it on the device."""
    for j, request in enumerate(requests):
        texts[request.id].append(~j)
    return [len(texts[request.id]) - 1 for request in requests]


def fill(places: Sequence[int], tokens: Sequence[int], requests: Sequence[Request], texts: Mapping[int, list],
         stop: Set[int]) -> list[Request]:  # fmt: skip
    """The tokens, in the places that were promised them; who is gone or has ended meanwhile gets none. One of `stop` is
    the last of its answer. Returns whose answers it ends."""
    stopped = []
    for place, token, request in zip(places, tokens, requests, strict=True):
        text = texts.get(request.id, ())
        if place < len(text):
            text[place] = token
            if token in stop:
                end(request, text, place + 1)
                stopped.append(request)
    return stopped


def end(request: Request, text: list[int], tokens: int) -> None:
    """Its text has so many tokens and no more, whatever was promised; so the scheduler retires it."""
    del text[tokens:]
    request.output = tokens - request.prompt

"""Decode-maximal batching, as SARATHI first had it: one chunk of one prompt, and every decode rides along."""

from collections import deque

from pod.serving.blocks import PagedPool
from pod.serving.request import Request
from pod.serving.schedulers.base import Batch, Chunk, Scheduler


class SarathiV1(Scheduler):
    """At most one prompt is in progress, so up to max_batch - 1 decodes join its chunk. Memory is reserved.

    The chunk shrinks by the number of decodes, so that the rows of the matrix products stay a multiple of `chunk`
    (or of `tile`, when the decodes alone fill a chunk): one row more would cost a whole tile.
    """

    name = "sarathi_v1"
    decisions = ("chunk",)

    def __init__(self, pool: PagedPool, max_batch: int, waiting: deque[Request] | None = None,
                 chunk: int = 256, tile: int = 128):  # fmt: skip
        super().__init__(pool, max_batch, waiting)
        for name, value in (("chunk", chunk), ("tile", tile)):
            if value < 1:
                raise ValueError(f"{name}: got {value!r}, allowed are integers >= 1")
        self.chunk, self.tile = chunk, tile

    def chunk_beside(self, decodes: int) -> int:
        """Prompt tokens that complete the tiles which `decodes` rows leave open."""
        return self.chunk - decodes if decodes < self.chunk else self.tile - decodes % self.tile

    def schedule(self) -> Batch:
        batch = Batch(decodes=[r for r in self.running if not r.prefilling])
        prompt = next((r for r in self.running if r.prefilling), None)
        if prompt is None and self._admissible():
            prompt = self._admit()
        if prompt is not None:
            tokens = min(prompt.prefill - prompt.computed, self.chunk_beside(len(batch.decodes)))
            batch.prefills.append(Chunk(prompt, tokens, prompt.computed))
        return batch

"""A scheduler that takes part in a contest, and is told no more than one may know.

It has copies of the requests, which do not say how long the answers will be. The requests themselves stay with the
loop and the GPU, who go by the batches alone: whatever is written into a copy makes nothing faster.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pod.serving.blocks import PagedPool
    from pod.serving.request import Request
    from pod.serving.schedulers import Batch, Scheduler


class Refused(ValueError):
    """An entry that has no score, with the reason."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def _entry(kind: Callable, pool: PagedPool, max_batch: int) -> Scheduler:
    from pod.serving.schedulers import Scheduler

    entry = kind(pool, max_batch)
    if not isinstance(entry, Scheduler):
        raise Refused(f"scheduler: got {entry!r:.60}, allowed is a Scheduler as in pod.serving.schedulers")
    return entry


class Blind:
    """The lane of an entry. `longest`: tokens of prompt and answer that the server allows, all that is known of the
    length of an answer until it ends."""

    def __init__(self, kind: Callable[[PagedPool, int], Scheduler], pool: PagedPool, max_batch: int, longest: int):
        self.pool, self.longest = pool, longest
        self.blocks, self.block_size = pool.num_blocks, pool.block_size  # before an entry lays hands on it
        self.entry = _entry(kind, pool, max_batch)
        self.name, self.waiting = self.entry.name, ()
        self.here: dict[int, Request] = {}  # not answered yet
        self.copies: dict[int, Request] = {}
        self.said = None  # the entry's own words for the batch in flight

    @property
    def running(self) -> list[Request]:
        return list(self.here.values())

    def refusal(self, request: Request) -> str | None:
        from pod.serving.request import Request

        most = self.longest - request.prompt
        self.copies[request.id] = Request(request.id, request.prompt, most, request.arrival, request.prefix)
        return self.entry.refusal(self.copies[request.id])

    def add(self, request: Request) -> None:
        self.here[request.id] = request
        self.entry.add(self.copies[request.id])

    def schedule(self) -> Batch:
        """The entry's batch, in terms of the requests themselves."""
        from pod.serving.schedulers import Batch, Chunk

        self.said = said = self._spoken()
        for copy, _ in said.preempted:
            self._own(copy).restart()
        chunks = [Chunk(self._own(copy), index(tokens), index(context)) for copy, tokens, context in said.prefills]
        batch = Batch(chunks, [self._own(copy) for copy in said.decodes])
        self._check(batch)
        return batch

    def complete(self, batch: Batch) -> list[Request]:
        """An answer is known to be over when its last token is out, and not before."""
        for request, tokens, _ in batch.prefills:
            request.advance(tokens)
        for request in batch.decodes:
            request.advance(1)
        over = [request for request in self.running if request.finished]
        for request in over:
            self.copies[request.id].output = request.output
            del self.here[request.id]
        for copy in self.entry.complete(self.said):
            if early := self.here.get(copy.id):
                raise Refused(f"answer: got the end of request {copy.id} after {early.generated} tokens, allowed is "
                              "when its last token is out")  # fmt: skip
        return over

    def _spoken(self) -> Batch:
        from pod.serving.request import Request
        from pod.serving.schedulers import Batch, Chunk

        batch = self.entry.schedule()
        parts = [(batch.prefills, Chunk), (batch.decodes, Request)] if isinstance(batch, Batch) else []
        if not parts or not all(isinstance(one, kind) for many, kind in parts for one in many):
            raise Refused(f"schedule: got {batch!r:.60}, allowed is a Batch with Chunks to prefill and Requests to "
                          "decode")  # fmt: skip
        return batch

    def _own(self, copy: Request) -> Request:
        if copy.id not in self.here:
            raise Refused(f"batch: got request {copy.id!r:.60}, allowed are those that wait for an answer")
        return self.here[copy.id]

    def _check(self, batch: Batch) -> None:
        members = [chunk.request.id for chunk in batch.prefills] + [request.id for request in batch.decodes]
        if len(set(members)) < len(members):
            raise Refused("batch: got a request twice, allowed is each once")
        after = {}
        for request, tokens, context in batch.prefills:
            if tokens < 1 or context != request.computed or context + tokens > request.prefill:
                raise Refused(f"chunk: got tokens {context} to {context + tokens}, allowed begin at {request.computed} "
                              f"and end by {request.prefill}")  # fmt: skip
            after[request.id] = context + tokens
        for request in batch.decodes:
            if request.prefilling:
                raise Refused("batch: got a decode of a request whose prompt is not through, allowed are chunks of it")
            after[request.id] = request.computed + 1
        self._check_memory(after)

    def _check_memory(self, after: dict[int, int]) -> None:
        """`after`: tokens in the cache then, by the requests of a batch."""
        for request, tokens in after.items():
            room = len(self.pool.tables.get(request, ())) * self.block_size
            if room < tokens:
                raise Refused(f"memory: got {tokens} tokens of a request with room for {room}, allowed are those for "
                              "which the pool gave blocks")  # fmt: skip
        held = {request.id: request.computed for request in self.running} | after
        blocks = sum(-(-tokens // self.block_size) for tokens in held.values())
        if blocks > self.blocks:
            raise Refused(f"memory: got {blocks:,} blocks in use, allowed are the {self.blocks:,} that there are")

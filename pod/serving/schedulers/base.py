"""What all schedulers share: a queue, the running requests, and the batch that they form each iteration."""

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.request import Request, age

RECOMPUTE, SWAP = "recompute", "swap"


class Chunk(NamedTuple):
    """`tokens` new tokens of a prompt, after `context` tokens that are in the cache already."""

    request: Request
    tokens: int
    context: int

    @property
    def last(self) -> bool:
        """Whether the prompt is complete after it, so that a token comes out."""
        return self.context + self.tokens == self.request.prefill


@dataclass(slots=True)
class Batch:
    """One iteration. A request is in at most one of prefills, decodes and idle."""

    prefills: list[Chunk] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    idle: list[Request] = field(default_factory=list)  # finished, but holding their slot (static batching)
    preempted: list[tuple[Request, str]] = field(default_factory=list)
    swapped_in: list[Request] = field(default_factory=list)
    copied_blocks: int = 0  # between GPU and host, for swapping

    def __bool__(self) -> bool:
        return bool(self.prefills or self.decodes)

    @property
    def tokens(self) -> int:
        return sum(c.tokens for c in self.prefills) + len(self.decodes)


class Scheduler:
    """First come, first served. `waiting` may be shared by the lanes of a pipeline, everything else is one's own."""

    name: str
    pool_type: type[PagedPool] = ReservedPool  # who cannot preempt must reserve
    decisions: tuple[str, ...] = ()  # options that are a user's to choose

    def __init__(self, pool: PagedPool, max_batch: int, waiting: deque[Request] | None = None):
        if not isinstance(pool, self.pool_type):
            raise ValueError(f"pool: got {type(pool).__name__}, {self.name} needs {self.pool_type.__name__}")
        if max_batch != int(max_batch) or max_batch < 1:
            raise ValueError(f"max_batch: got {max_batch!r}, allowed are integers >= 1")
        self.pool, self.max_batch = pool, max_batch
        self.waiting: deque[Request] = deque() if waiting is None else waiting
        self.running: list[Request] = []  # oldest first

    def refusal(self, request: Request) -> str | None:
        """Why this request can never run; None when it can."""
        return self.pool.refusal(request)

    def add(self, request: Request) -> None:
        if reason := self.refusal(request):
            raise ValueError(f"request {request.id}: {reason}")
        self.waiting.append(request)

    def schedule(self) -> Batch:
        """The next iteration's batch; empty when there is nothing to run."""
        raise NotImplementedError

    def complete(self, batch: Batch) -> list[Request]:
        """The batch has run: note the progress. Returns the requests that are answered and hold nothing any more."""
        finished = []
        for request, tokens, _ in batch.prefills:
            request.advance(tokens)
            self.pool.filled(request)
            if request.generated >= request.output:
                finished.append(request)
        for request in batch.decodes:
            request.computed += 1
            request.generated = generated = request.generated + 1
            if generated >= request.output:
                finished.append(request)
        return self._retire(finished) if finished else finished

    def repeat(self, batch: Batch) -> Iterator[bool]:
        """Each time it is asked, the batch has run and is to run once more. It ends where another batch may follow.

        The same as `complete` and `schedule`, but that decodes are counted when it is closed, all turns at once. In
        most turns few of them open a block, and to count each in each would take longer than all the rest.
        """
        if (turns := self._repeats(batch)) < 1:
            return
        turn, size, opening = 0, self.pool.block_size, defaultdict(list)
        for request in batch.decodes:
            opening[-request.computed % size].append(request)
        try:
            for turn in range(1, turns + 1):
                if batch.prefills:
                    batch.prefills = [self._next_chunk(chunk) for chunk in batch.prefills]
                for request in opening.get(turn % size, ()):
                    request.computed = request.prompt + request.generated - 1 + turn
                    self.pool.grow(request)
                yield True
        finally:
            for request in batch.decodes:
                request.generated += turn
                request.computed = request.prompt + request.generated - 1

    def _next_chunk(self, chunk: Chunk) -> Chunk:
        request, tokens, _ = chunk
        request.advance(tokens)
        self.pool.filled(request)
        return Chunk(request, tokens, request.computed)

    def _repeats(self, batch: Batch) -> int:
        """How often the same batch will surely come again, if nobody arrives: so long no prompt is done and nobody has
        the last token. Who had to wait now does so then, too, for nobody leaves, and blocks only become fewer."""
        if batch.idle or batch.preempted or batch.swapped_in:
            return 0
        turns = [r.output - r.generated - 1 for r in batch.decodes]
        turns += [(c.request.prefill - c.context - 1) // c.tokens - 1 for c in batch.prefills]
        return min(*turns, self.pool.lasts(len(batch.decodes)))

    def stop(self, request: Request) -> list[Request]:
        """Its answer has ended, sooner than its length said when a batch with it was completed. Returns who is retired
        with that: nobody where it has been, by its length."""
        if request in self.running:
            return self._retire([request])
        if request not in self.waiting:
            return []
        self.cancel(request)  # it had been sent away
        return [request]

    def cancel(self, request: Request) -> None:
        """Nobody waits for it any more. It may have been retired by its length, while its last token is on its way."""
        queue = next((queue for queue in (self.running, self.waiting) if request in queue), None)
        if queue is None:
            return
        queue.remove(request)
        self.pool.forget(request)
        self._retire([])  # a batch that stays together may have waited for it alone

    def _retire(self, finished: list[Request]) -> list[Request]:
        for request in finished:
            self.pool.release(request)
        gone = set(finished)  # another may have ended, too, whose turn to be stopped comes next
        self.running = [r for r in self.running if r not in gone]
        return finished

    def _admissible(self) -> bool:
        """Whether the head of the queue may start now. Nobody overtakes it."""
        return bool(self.waiting) and len(self.running) < self.max_batch and self.pool.can_admit(self.waiting[0])

    def _admit(self) -> Request:
        request = self.waiting.popleft()
        self.pool.admit(request)
        insort(self.running, request, key=age)  # at the end, unless another lane had preempted it
        return request


class PreemptingScheduler(Scheduler):
    """Blocks on demand can run out; then the latest request gives way, with all its blocks."""

    pool_type = PagedPool

    def __init__(self, pool: PagedPool, max_batch: int, waiting: deque[Request] | None = None,
                 preemption: str = RECOMPUTE):  # fmt: skip
        super().__init__(pool, max_batch, waiting)
        if preemption not in (RECOMPUTE, SWAP):
            raise ValueError(f"preemption: got {preemption!r}, allowed are {RECOMPUTE}, {SWAP}")
        self.preemption = preemption

    def _reserve_slots(self, batch: Batch) -> list[Request]:
        """A slot for the next token of every decoding request, oldest first. Returns those still prefilling."""
        prefilling, grow, size = [], self.pool.grow, self.pool.inside
        running, decodes = self.running, batch.decodes
        for request in running:  # which loses its last while we go
            if (computed := request.computed) < request.prefill:
                prefilling.append(request)
                continue
            while not (computed % size or grow(request)):
                victim = running.pop()
                self._preempt(victim, batch)
                if victim is request:
                    return prefilling
            decodes.append(request)
        return prefilling

    def _preempt(self, request: Request, batch: Batch) -> None:
        how = SWAP if self.preemption == SWAP and self.pool.can_swap_out(request) else RECOMPUTE
        if how == SWAP and not request.prefilling:
            batch.copied_blocks += self.pool.swap_out(request)
        else:  # no room in host memory, or nothing worth keeping yet
            how = RECOMPUTE
            self.pool.release(request)
            request.restart()
        insort(self.waiting, request, key=age)  # in front: it is older than all who have not run yet
        batch.preempted.append((request, how))

    def _head_is_swapped(self) -> bool:
        return bool(self.waiting) and self.waiting[0].id in self.pool.swapped

    def _swap_in(self, batch: Batch) -> None:
        """Bring swapped requests back, oldest first, and let them decode at once."""
        while self._head_is_swapped() and len(self.running) < self.max_batch:
            if not self.pool.can_swap_in(self.waiting[0]):
                return
            request = self.waiting.popleft()
            batch.copied_blocks += self.pool.swap_in(request)
            self.pool.grow(request)
            self.running.append(request)
            batch.swapped_in.append(request)
            batch.decodes.append(request)

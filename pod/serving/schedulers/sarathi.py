"""Sarathi-Serve: every iteration has a budget of tokens; decodes take theirs first, prompt chunks fill the rest.

Where memory runs out some details are ours; published.py has Sarathi-Serve's and says what differs.
"""

from collections import deque

from pod.serving.blocks import PagedPool
from pod.serving.request import Request
from pod.serving.schedulers.base import RECOMPUTE, Batch, Chunk, PreemptingScheduler


class Sarathi(PreemptingScheduler):
    """No decode ever waits for a prompt. An iteration takes chunks of `max_prefills` prompts; POD's takes one."""

    name = "sarathi"
    decisions = ("preemption", "chunk", "max_prefills")

    def __init__(self, pool: PagedPool, max_batch: int, waiting: deque[Request] | None = None,
                 preemption: str = RECOMPUTE, chunk: int = 1024, max_prefills: int = 1):  # fmt: skip
        super().__init__(pool, max_batch, waiting, preemption)
        for name, value in (("chunk", chunk), ("max_prefills", max_prefills)):
            if value < 1:
                raise ValueError(f"{name}: got {value!r}, allowed are integers >= 1")
        self.chunk, self.max_prefills = chunk, max_prefills

    def schedule(self) -> Batch:
        batch = Batch()
        for prompt in self._reserve_slots(batch):
            self._add_chunk(prompt, batch)
        if self.waiting and not batch.preempted:  # who was just sent away must not come back in the same breath
            self._swap_in(batch)
            while self._admissible() and not self._head_is_swapped() and self._room(batch) > 0:
                self._add_chunk(self._admit(), batch)
        return batch

    def _room(self, batch: Batch) -> int:
        """Prompt tokens that the iteration still takes."""
        return self.chunk - batch.tokens if len(batch.prefills) < self.max_prefills else 0

    def _add_chunk(self, prompt: Request, batch: Batch) -> None:
        tokens = min(prompt.prefill - prompt.computed, self._room(batch))
        if tokens > 0:
            batch.prefills.append(Chunk(prompt, tokens, prompt.computed))

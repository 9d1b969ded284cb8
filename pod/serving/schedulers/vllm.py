"""vLLM's first scheduler: prompts go first and alone, memory is paged, the latest request is preempted.

The rules are vLLM's, four details are ours; published.py has vLLM 0.2.7's and says what differs.
"""

from collections import deque

from pod.serving.blocks import PagedPool
from pod.serving.request import Request
from pod.serving.schedulers.base import RECOMPUTE, Batch, Chunk, PreemptingScheduler


class VLLM(PreemptingScheduler):
    """An iteration is either whole prompts or decodes, never both: every admission stalls every decode."""

    name = "vllm"
    decisions = ("preemption", "max_tokens")

    def __init__(self, pool: PagedPool, max_batch: int, waiting: deque[Request] | None = None,
                 preemption: str = RECOMPUTE, max_tokens: int = 16384):  # fmt: skip
        super().__init__(pool, max_batch, waiting, preemption)
        if max_tokens < 1:
            raise ValueError(f"max_tokens: got {max_tokens!r}, allowed are integers >= 1")
        self.max_tokens = max_tokens  # of one prompt iteration

    def refusal(self, request: Request) -> str | None:
        # a recomputed prompt grows by what was generated, and must still fit one iteration
        tokens = request.prompt + request.output
        if tokens > self.max_tokens:
            return f"{tokens} tokens, an iteration has {self.max_tokens}"
        return super().refusal(request)

    def schedule(self) -> Batch:
        prompts: list[Chunk] = []
        while self._admissible() and not self._head_is_swapped() and self._joins(prompts):
            request = self._admit()
            prompts.append(Chunk(request, request.prefill - request.computed, request.computed))
        if prompts:
            return Batch(prefills=prompts)
        batch = Batch()
        self._reserve_slots(batch)
        if not batch.preempted:
            self._swap_in(batch)
        return batch

    def _joins(self, prompts: list[Chunk]) -> bool:
        """Whether the head of the queue fits into the iteration beside these prompts."""
        return sum(c.tokens for c in prompts) + self.waiting[0].prefill <= self.max_tokens

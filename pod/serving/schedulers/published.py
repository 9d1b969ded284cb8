"""What published systems decide differently from us. With these classes the batches are theirs, one by one:
tests/simulate/test_golden_schedules.py holds them against schedules that the systems themselves have made.

    a block for every token   A decode wants a free block though its token has a place already, and a request that
                              returns from the host wants one more than it held. So they preempt without need.
    watermark                 1 % of the blocks, rounded down; ours is rounded up, and never 0.
    padded prompts            vLLM 0.2.7 pads the prompts of an iteration to the longest, counts the padding in the
                              budget and allows 256 tokens of it: one or two prompts an iteration, where ours adds up.
    victims return at once    Sarathi-Serve lets a prompt that was sent away half computed back in the same iteration,
                              if its blocks are free again. It may be sent away in the next one, and so on; ours waits.

Sarathi-Serve's own vLLM scheduler adds prompts up, as ours does; its Orca and its request-level batches are ours.
"""

import math
import sys

from pod.serving.blocks import PagedPool
from pod.serving.request import Request
from pod.serving.schedulers.base import Batch, Chunk, Scheduler
from pod.serving.schedulers.orca import Orca
from pod.serving.schedulers.sarathi import Sarathi
from pod.serving.schedulers.static import Static
from pod.serving.schedulers.vllm import VLLM


class PublishedPool(PagedPool):
    """Takes it that every token opens a block."""

    def __init__(self, num_blocks: int, block_size: int = 16, watermark: float = 0.01, swap_blocks: int = 0):
        super().__init__(num_blocks, block_size, watermark, swap_blocks)
        self.kept_free = math.floor(watermark * num_blocks)
        self.inside = 1  # all are asked

    def need(self, request: Request) -> int:
        # who fills the pool alone would be sent away at every token, and never come back from the host
        return super().need(request) + 1

    def grow(self, request: Request) -> bool:
        return bool(self.free) and super().grow(request)

    def can_swap_in(self, request: Request) -> bool:
        return len(self.free) - len(self.swapped[request.id]) - 1 >= self.kept_free


class PaddedVLLM(VLLM):
    """vLLM 0.2.7."""

    MAX_PADDINGS = 256

    def _joins(self, prompts: list[Chunk]) -> bool:
        tokens = [c.tokens for c in prompts] + [self.waiting[0].prefill]
        padded = len(tokens) * max(tokens)
        return padded <= self.max_tokens and padded - sum(tokens) <= self.MAX_PADDINGS


class SarathiServe(Sarathi):
    """Sarathi-Serve, commit 96f9911: any number of prompts in an iteration."""

    def __init__(self, *args, max_prefills: int = 1, **options):
        if max_prefills != 1:
            raise ValueError(f"max_prefills: got {max_prefills}, Sarathi-Serve takes all that fit, leave it out")
        super().__init__(*args, max_prefills=sys.maxsize, **options)

    def schedule(self) -> Batch:
        self.missing: dict[int, int] = {}
        batch = super().schedule()
        while batch.preempted and self._admissible() and (tokens := min(self._wanted(), self._room(batch))) > 0:
            batch.prefills.append(Chunk(self._admit(), tokens, 0))
        return batch

    def _wanted(self) -> int:
        """Prompt tokens that the head of the queue asks for. Of a victim, those that it lacked when it was sent away:
        its count starts anew only after the iteration is made up. A decode lacked none, and stops all behind it."""
        return self.missing.get(self.waiting[0].id, self.waiting[0].prefill)

    def _preempt(self, request: Request, batch: Batch) -> None:
        self.missing[request.id] = request.prefill - request.computed
        super()._preempt(request, batch)


PUBLISHED: dict[str, dict[str, type[Scheduler]]] = {
    "sarathi-serve": {"sarathi": SarathiServe, "vllm": VLLM, "orca": Orca, "static": Static},
    "vllm-0.2.7": {"vllm": PaddedVLLM},
}


def published(system: str, scheduler: str) -> type[Scheduler]:
    """The scheduler of a published system, by our name for it."""
    if system not in PUBLISHED:
        raise ValueError(f"like: got {system!r}, allowed are {', '.join(PUBLISHED)}")
    if scheduler not in PUBLISHED[system]:
        raise ValueError(f"scheduler: got {scheduler!r}, {system} has {', '.join(PUBLISHED[system])}")
    return PUBLISHED[system][scheduler]

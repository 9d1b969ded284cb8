"""Where keys and values live: a pool of fixed-size blocks and, for each request, a table of the blocks it holds."""

import math
from collections.abc import Sequence

from pod.serving.request import Request

MOST_BLOCKS = 10_000_000  # each is an entry of a list; a typing error must not ask for terabytes


class PagedPool:
    """Blocks on demand: a request takes a new one only when its newest token opens it (PagedAttention).

    `watermark` is the share of blocks that admission leaves free, so that the running requests can grow a while
    before somebody has to be preempted. `swap_blocks` is the room in host memory for preempted requests.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, watermark: float = 0.01, swap_blocks: int = 0):
        for name, value, least in (("num_blocks", num_blocks, 1), ("block_size", block_size, 1),
                                   ("swap_blocks", swap_blocks, 0)):  # fmt: skip
            if value != int(value) or value < least:
                raise ValueError(f"{name}: got {value!r}, allowed are integers >= {least}")
        if num_blocks > MOST_BLOCKS:
            raise ValueError(f"num_blocks: got {num_blocks}, allowed are up to {MOST_BLOCKS}")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark: got {watermark!r}, allowed is a share from 0 to below 1")
        self.num_blocks, self.block_size, self.swap_blocks = int(num_blocks), int(block_size), int(swap_blocks)
        self.kept_free = math.ceil(watermark * num_blocks) if watermark else 0
        self.inside = self.block_size  # a token within so many needs no block: schedulers look, and ask only the others
        self.free = list(range(self.num_blocks))[::-1]
        self.tables: dict[int, list[int]] = {}
        self.swap_free = list(range(self.swap_blocks))[::-1]
        self.swapped: dict[int, list[int]] = {}

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def claim(self, request: Request) -> int:
        """Tokens that admission must find room for: the prompt, and what was generated before a preemption."""
        return request.prefill

    def need(self, request: Request) -> int:
        """Blocks that must be there before the request can be sure to end."""
        return self.blocks_for(request.prompt + request.output) + self.kept_free

    def refusal(self, request: Request) -> str | None:
        """Why this request can never run here, even alone; None when it can."""
        need = self.need(request)
        if need > self.num_blocks:
            tokens = request.prompt + request.output
            return f"{tokens} tokens and the watermark need {need} blocks, the pool has {self.num_blocks}"
        return None

    def can_admit(self, request: Request) -> bool:
        return len(self.free) - self.blocks_for(self.claim(request)) >= self.kept_free

    def admit(self, request: Request) -> None:
        self.tables[request.id] = self._take(self.free, self.blocks_for(self.claim(request)))

    def grow(self, request: Request) -> bool:
        """Room for one more token; False when that needs a block and none is free."""
        if request.computed % self.block_size:
            return True
        if not self.free:
            return False
        self.tables[request.id].append(self.free.pop())
        return True

    def lasts(self, requests: int) -> float:
        """How many tokens more of each of so many fit for sure. A block stays free, for some pools always want one."""
        return (len(self.free) - 1) // requests * self.block_size if requests else math.inf

    def filled(self, request: Request) -> None:
        """More of a prompt is in its blocks; who shares blocks takes note."""

    def names(self, tokens: Sequence[int]) -> tuple:
        """Of a prompt's blocks, for who shares them."""
        return ()

    def release(self, request: Request) -> None:
        self.free += reversed(self.tables.pop(request.id))

    def forget(self, request: Request) -> None:
        """It comes no more: whatever it holds, here or in host memory, is free."""
        if request.id in self.tables:
            self.release(request)
        self.swap_free += reversed(self.swapped.pop(request.id, []))

    def can_swap_out(self, request: Request) -> bool:
        return len(self.tables[request.id]) <= len(self.swap_free)

    def swap_out(self, request: Request) -> int:
        """All blocks of a request go to host memory, or none. Returns how many were copied."""
        count = len(self.tables[request.id])
        self.swapped[request.id] = self._take(self.swap_free, count)
        self.release(request)
        return count

    def can_swap_in(self, request: Request) -> bool:
        return len(self.free) - self.blocks_for(request.computed + 1) >= self.kept_free

    def swap_in(self, request: Request) -> int:
        held = self.swapped.pop(request.id)
        self.swap_free += reversed(held)
        self.tables[request.id] = self._take(self.free, len(held))
        return len(held)

    @staticmethod
    def _take(free: list[int], count: int) -> list[int]:
        if count > len(free):
            raise RuntimeError(f"{count} blocks wanted, {len(free)} are free: ask can_admit or can_swap first")
        taken = free[len(free) - count :][::-1]
        del free[len(free) - count :]
        return taken


class ReservedPool(PagedPool):
    """Room for `max_tokens` set aside when a request is admitted, used or not (Orca and before)."""

    def __init__(self, num_blocks: int, max_tokens: int, block_size: int = 1):
        if max_tokens < 1:
            raise ValueError(f"max_tokens: got {max_tokens!r}, allowed are integers >= 1")
        super().__init__(num_blocks, block_size, watermark=0.0)
        self.max_tokens = max_tokens
        if self.blocks_for(max_tokens) > num_blocks:
            raise ValueError(f"num_blocks: got {num_blocks}, allowed are integers from {self.blocks_for(max_tokens)}, "
                             f"which one request of max_tokens, {max_tokens}, needs")  # fmt: skip

    def claim(self, request: Request) -> int:
        return self.max_tokens

    def refusal(self, request: Request) -> str | None:
        tokens = request.prompt + request.output
        return f"{tokens} tokens, the limit is {self.max_tokens}" if tokens > self.max_tokens else None

    def grow(self, request: Request) -> bool:
        return True

    def lasts(self, requests: int) -> float:
        return math.inf

"""Prompts that begin alike share blocks: who asks for a text that is in the cache already need not compute it again.

A block of a prompt is known by all tokens up to its end, so equal names mean equal keys and values. Requests bring the
names along, in `Request.prefix`; an engine makes them of its tokens with `names`, a trace has them as hash ids.
"""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from hashlib import blake2b

from pod.serving.blocks import PagedPool
from pod.serving.request import Request

TRACE = 512  # tokens for which an id stands in Mooncake's traces


def names(tokens: Sequence[int], size: int) -> tuple[bytes, ...]:
    """A name for each full block of `size` tokens, of all tokens up to its end."""
    found = [b""]
    for end in range(size, len(tokens) + 1, size):
        found.append(blake2b(found[-1] + array("q", tokens[end - size : end]).tobytes(), digest_size=16).digest())
    return tuple(found[1:])


class PrefixPool(PagedPool):
    """Blocks that are given back keep what is in them until somebody takes them, least recently used first.

    `grain` is the number of tokens that a name in `Request.prefix` stands for, a multiple of the block size.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, watermark: float = 0.01, grain: int | None = None):
        super().__init__(num_blocks, block_size, watermark)
        self.grain = grain or self.block_size
        if self.grain % self.block_size:
            raise ValueError(f"block_size: got {block_size}, allowed with names of {grain} tokens are its divisors")
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.num_blocks))  # the next to be taken first
        self.users = [0] * self.num_blocks
        self.known: dict[tuple[Hashable, int], int] = {}  # blocks by the name of what is in them
        self.content: dict[int, tuple[Hashable, int]] = {}

    def names(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        return names(tokens, self.grain)

    def _name(self, request: Request, block: int) -> tuple[Hashable, int]:
        return request.prefix[block * self.block_size // self.grain], block

    def shared(self, request: Request) -> list[int]:
        """Blocks at the beginning of its prompt that are there already; one token is left to compute."""
        found: list[int] = []
        most = min(request.prompt, request.prefill - 1, len(request.prefix) * self.grain) // self.block_size
        while len(found) < most and (block := self.known.get(self._name(request, len(found)))) is not None:
            found.append(block)
        return found

    def can_admit(self, request: Request) -> bool:
        if super().can_admit(request):
            return True
        used = sum(self.users[block] > 0 for block in self.shared(request))
        return len(self.free) - self.blocks_for(self.claim(request)) + used >= self.kept_free

    def admit(self, request: Request) -> None:
        table = self.shared(request)
        for block in table:
            self.free.pop(block, None)
            self.users[block] += 1
        request.computed = len(table) * self.block_size
        missing = self.blocks_for(self.claim(request)) - len(table)
        if missing > len(self.free):
            raise RuntimeError(f"{missing} blocks wanted, {len(self.free)} are free: ask can_admit first")
        self.tables[request.id] = table + [self._fresh() for _ in range(missing)]

    def _fresh(self) -> int:
        block, _ = self.free.popitem(last=False)
        if (name := self.content.pop(block, None)) is not None:
            del self.known[name]
        self.users[block] = 1
        return block

    def grow(self, request: Request) -> bool:
        if request.computed % self.block_size:
            return True
        if not self.free:
            return False
        self.tables[request.id].append(self._fresh())
        return True

    def filled(self, request: Request) -> None:
        full = min(request.computed, request.prompt, len(request.prefix) * self.grain) // self.block_size
        table = self.tables[request.id]
        for i in range(full - 1, -1, -1):
            block, name = table[i], self._name(request, i)
            if block in self.content:
                return  # all before it are in there, too
            if name not in self.known:  # else somebody computed the same meanwhile
                self.known[name], self.content[block] = block, name

    def release(self, request: Request) -> None:
        for block in reversed(self.tables.pop(request.id)):  # a text's end goes before its beginning
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None
                if block not in self.content:
                    self.free.move_to_end(block, last=False)

"""Several answers to one prompt: sequences share blocks until one of them writes (PagedAttention's sequence groups).

A block counts its users. A fork copies a table and no keys; a block that others read is copied before it is written.
"""

from pod.serving.blocks import PagedPool
from pod.serving.request import Request


class SharingPool(PagedPool):
    """Copy on write. `copies` are blocks to be copied before the next iteration, as (from, to)."""

    def __init__(self, num_blocks: int, block_size: int = 16, watermark: float = 0.01):
        super().__init__(num_blocks, block_size, watermark)
        self.inside = 1  # a token within a block may need one, too: a copy
        self.users = [0] * self.num_blocks
        self.copies: list[tuple[int, int]] = []

    def admit(self, request: Request) -> None:
        super().admit(request)
        for block in self.tables[request.id]:
            self.users[block] = 1

    def fork(self, request: Request, child: Request) -> None:
        """Another answer that begins as this one: the same blocks, in a table of its own."""
        if child.id in self.tables:
            raise ValueError(f"child: got id {child.id}, which holds blocks already")
        self.tables[child.id] = list(self.tables[request.id])
        for block in self.tables[child.id]:
            self.users[block] += 1
        child.computed, child.generated, child.prefill = request.computed, request.generated, request.prefill

    def grow(self, request: Request) -> bool:
        """Room for one more token, in a block that is nobody else's."""
        table, opens = self.tables[request.id], request.computed % self.block_size == 0
        if not opens and self.users[table[-1]] == 1:
            return True
        if not self.free:
            return False
        block = self.free.pop()
        self.users[block] = 1
        if opens:
            table.append(block)
        else:
            self.copies.append((table[-1], block))
            self.users[table[-1]] -= 1
            table[-1] = block
        return True

    def release(self, request: Request) -> None:
        for block in reversed(self.tables.pop(request.id)):
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)

"""Whole iterations as CUDA graphs: the plan and all layers are one launch, whatever is in the batch.

    Step -> staged in pinned memory -> one copy up -> replay: plan from the lengths, layers -> head and sampler

The GPU plans by itself, so prompts and decodes may be in any mix. Everything has the size of the next of a few:
rows that are too many belong to no sequence, and their keys and values go to the spare block. The head is outside, for
the rows that predict and no others: it is launched while the GPU is busy with the layers, and costs no wait.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from pod.serving.backends import Backend
from pod.serving.step import HEADER, Step

LARGEST, MOST_SEQUENCES = 2048, 256
SIZES = sorted({n for i in range(LARGEST.bit_length()) for n in (1 << i, 3 << i >> 1) if n <= LARGEST})  # and halves


class Size(NamedTuple):
    tokens: int
    sequences: int
    width: int  # of the block table

    @property
    def header(self) -> list[int]:
        """Every sequence may predict; what is a chunk is nobody's concern here."""
        return [self.sequences, self.tokens, 0, self.sequences, self.width]


def size_for(tokens: int, sequences: int) -> int | None:
    """The fewest padded tokens for a step; None when it is larger than all."""
    if sequences > MOST_SEQUENCES:
        return None
    return next((n for n in SIZES if n >= tokens), None)


class Staged:
    """A step of one size, filled on the host and copied up whole."""

    def __init__(self, size: Size, spare_slot: int, device):
        import torch

        ints = HEADER + 3 * (size.sequences + size.tokens) + size.sequences * size.width
        self.spare = spare_slot
        self.pinned = torch.zeros(ints, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.there = torch.zeros(ints, dtype=torch.int32, device=device)
        self.copied = torch.cuda.Event() if device.type == "cuda" else None
        self.host, self.device = Step.view(self.pinned.numpy(), size.header), Step.view(self.there, size.header)

    def fill(self, step: Step) -> None:
        """What is too many: sequences without tokens, tokens without a sequence, rows that nobody asks for."""
        if self.copied:
            self.copied.synchronize()  # of a pipeline's micro-batches several are launched before the first has run
        for name, fill in (("q_lens", 0), ("kv_lens", 0), ("tokens", 0), ("positions", 0), ("slots", self.spare),
                           ("rows", 0)):  # fmt: skip
            into, new = getattr(self.host, name), getattr(step, name)
            into[: len(new)], into[len(new) :] = new, fill
        sequences, width = step.table.shape
        self.host.table[:sequences, :width] = step.table  # what else is there is behind the lengths
        self.there.copy_(self.pinned, non_blocking=True)
        if self.copied:
            self.copied.record()

    def alone(self, block: int) -> Step:
        """One token that sees itself, in the spare block: work for a first run, at nobody's cost."""
        numbers = [np.array([n], np.int32) for n in (1, 1, 0, 0, self.spare, 0)]
        return Step(None, 0, *numbers, np.array([[self.spare // block]], np.int32))


class Captured:
    """An iteration of one size over fixed buffers. `work` plans and attends, `capture` makes replays."""

    def __init__(self, model, cache, size: Size, work, capture):
        import torch

        self.model, self.cache, self.work = model, cache, work
        self.staged = Staged(size, cache.spare_slot, model.device)
        shape = (size.tokens, model.q_heads, model.shape.head_dim)
        self.attended = torch.zeros(shape, dtype=model.dtype, device=model.device)  # no NaN in rows that nobody has
        self.attend = partial(work.attend, table=self.staged.device.table, out=self.attended)
        self.staged.fill(self.staged.alone(cache.block_size))
        self.replay = capture(self._iteration)

    def _iteration(self) -> None:
        step = self.staged.device
        self.work.update(step.q_lens, step.kv_lens)
        x, slots = self.model.embed(step.tokens), step.slots.long()
        for i, (k_cache, v_cache) in enumerate(self.cache):
            q = self.model.before(i, x, step.positions, slots, k_cache, v_cache)
            x = self.model.after(i, x, self.attend(q, k_cache, v_cache))
        self.x = x

    def run(self, rows: int):
        """Logits of the first `rows` that predict."""
        self.replay()
        return self.model.logits(self.x[self.staged.device.rows[:rows]])

    def pass_on(self, tokens: int):
        """What the layers made of the first `tokens`, in memory that the next replay leaves alone."""
        self.replay()
        return self.x[:tokens].clone()


class Whole:
    """The captured iterations of an engine, each made when first needed. Where several processes share the layers, all
    get the same steps, so they capture the same sizes in the same order, as the sums among them must be."""

    def __init__(self, model, cache, attention: Backend):
        self.model, self.cache, self.attention = model, cache, attention
        self.longest = min(model.context, cache.blocks * cache.block_size)
        alone = attention.alone
        self.decodes = type(self)(model, cache, alone) if alone else None  # for iterations without a prompt
        self.made: dict[int, Captured] = {}
        self.pool = None  # of memory: iterations follow each other, so graphs may share it

    def ready(self, step: Step) -> Captured | None:
        """The iteration of its size, with the step on its way up; None if it is larger than all."""
        made = self.made_for(len(step.tokens), len(step.q_lens), step.chunks)
        if made:
            made.staged.fill(step)
        return made

    def made_for(self, tokens: int, sequences: int, chunks: int) -> Captured | None:
        if self.decodes and not chunks:
            return self.decodes.made_for(tokens, sequences, chunks)
        padded = size_for(tokens, sequences)
        return padded and self.captured_for(padded)

    def warm(self, tokens: int) -> None:
        """All sizes for up to so many tokens, the largest first: the others find room in its memory."""
        for n in reversed(SIZES[: next((i + 1 for i, n in enumerate(SIZES) if n >= tokens), None)]):
            self.captured_for(n)
        if self.decodes:
            self.decodes.warm(min(tokens, MOST_SEQUENCES))

    def captured_for(self, tokens: int) -> Captured:
        if tokens not in self.made:
            size = Size(tokens, min(tokens, MOST_SEQUENCES), -(-self.longest // self.cache.block_size))
            work = self.attention.fix(size.tokens, size.sequences, self.longest)
            self.made[tokens] = Captured(self.model, self.cache, size, work, self._capture)
        return self.made[tokens]

    def _capture(self, iteration):
        import torch

        self.pool = self.pool or torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once for real, so that libraries have set up what a capture must not
            iteration()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events from a thread of its own, which must not spoil the capture
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            iteration()
        return graph.replay


def possible(attention: Backend, model) -> bool:
    """Whether launches may be the same for all lengths, where they run."""
    return model.device.type == "cuda" and attention.can_fix(model.device)

"""Micro-batches of a pipeline that share memory, and who is in them: each is made anew of whoever is in no other.

kept      a micro-batch has a share of the memory of its own, and keeps its requests until they are answered
reformed  all memory is shared; a micro-batch that leaves the pipeline is dissolved, and the next one takes the
          oldest requests that are in none, as many as make all micro-batches equally large, and who waits
"""

from pod.serving.request import Request, age
from pod.serving.schedulers import Batch, Scheduler

PIPELINES = ("kept", "reformed")


class Microbatch:
    """One of `stages`, behind which stands the same scheduler; `flying` are the ids in all of them."""

    def __init__(self, behind: Scheduler, flying: set[int], stages: int):
        self._behind, self._flying, self._stages = behind, flying, stages

    def __getattr__(self, name: str):
        """All else is the scheduler's."""
        return getattr(self._behind, name)

    def schedule(self) -> Batch:
        everyone = self._behind.running
        share = -(-len(everyone) // self._stages)
        mine = [r for r in everyone if r.id not in self._flying][:share]
        others = {r.id for r in everyone} - {r.id for r in mine}
        self._behind.running = mine
        batch = self._behind.schedule()
        self._flying |= _ids(batch)
        self._behind.running = sorted([r for r in everyone if r.id in others] + self._behind.running, key=age)
        return batch

    def complete(self, batch: Batch) -> list[Request]:
        self._flying -= _ids(batch)
        return self._behind.complete(batch)


def _ids(batch: Batch) -> set[int]:
    return {c.request.id for c in batch.prefills} | {r.id for r in (*batch.decodes, *batch.idle)}


def reformed(behind: Scheduler, stages: int) -> list[Microbatch]:
    flying: set[int] = set()
    return [Microbatch(behind, flying, stages) for _ in range(stages)]

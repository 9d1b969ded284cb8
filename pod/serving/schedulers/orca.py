"""Iteration-level scheduling: after every iteration the finished leave and the waiting join."""

from pod.serving.schedulers.base import Batch, Chunk, Scheduler


class Orca(Scheduler):
    """Whole prompts share the iteration with the decodes. Memory for the longest output is reserved at admission, so
    nobody is ever preempted."""

    name = "orca"

    def schedule(self) -> Batch:
        batch = Batch(decodes=list(self.running))
        while self._admissible():
            request = self._admit()
            batch.prefills.append(Chunk(request, request.prefill, 0))
        return batch

"""Request-level batching: the batch stays together until its longest member is done."""

from pod.serving.request import Request
from pod.serving.schedulers.base import Batch, Chunk, Scheduler


class Static(Scheduler):
    """FasterTransformer's way: who finishes early keeps the slot, idle, and who arrives late waits for all."""

    name = "static"

    def schedule(self) -> Batch:
        if not self.running:
            while self._admissible():
                self._admit()
            return Batch(prefills=[Chunk(r, r.prefill, 0) for r in self.running])
        return Batch(decodes=[r for r in self.running if not r.finished], idle=[r for r in self.running if r.finished])

    def _retire(self, finished: list[Request]) -> list[Request]:
        return super()._retire(self.running) if all(r.finished for r in self.running) else []

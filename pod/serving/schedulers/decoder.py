"""A server of decodes: prompts come with their keys and values, computed elsewhere."""

from pod.serving.schedulers.base import Batch
from pod.serving.schedulers.sarathi import Sarathi


class Decoder(Sarathi):
    """Who comes decodes at once. Preempted, it loses what it came with and is computed anew here, in chunks."""

    name = "decoder"

    def schedule(self) -> Batch:
        while self._admissible() and not self.waiting[0].prefilling and not self._head_is_swapped():
            self._admit()
        return super().schedule()

"""Five ways to answer one question: who runs in the next iteration?"""

from pod.serving.schedulers.base import RECOMPUTE, SWAP, Batch, Chunk, Scheduler
from pod.serving.schedulers.orca import Orca
from pod.serving.schedulers.sarathi import Sarathi
from pod.serving.schedulers.sarathi_v1 import SarathiV1
from pod.serving.schedulers.static import Static
from pod.serving.schedulers.vllm import VLLM

SCHEDULERS: dict[str, type[Scheduler]] = {s.name: s for s in (Static, Orca, VLLM, SarathiV1, Sarathi)}


def listening(option: str) -> list[str]:
    """The schedulers that have this option."""
    return [name for name, scheduler in SCHEDULERS.items() if option in scheduler.decisions]


__all__ = ["RECOMPUTE", "SCHEDULERS", "SWAP", "Batch", "Chunk", "Orca", "Sarathi", "SarathiV1", "Scheduler", "Static",
           "VLLM", "listening"]  # fmt: skip

"""Attention methods that nobody measured in a server: their time over serial execution, by the GPU model."""

from pod.simulate.attention_model import KEYS, READS, cases, measure

COMPUTED = "attention-model"
__all__ = ["COMPUTED", "KEYS", "READS", "cases", "measure"]

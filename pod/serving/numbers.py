"""A model that nobody trained, in the place of a file: random weights of a known shape, and for text the numbers of its
tokens. A server can be put under load with it where no file of that size is at hand."""

import re
from pathlib import Path

from pod.serving import tiny
from pod.serving.model import random_weights
from pod.serving.shapes import SHAPES

NUMBER = re.compile("[0-9]{1,9}")  # Python itself refuses one of thousands of digits
KNOWN = {tiny.SHAPE.key: tiny.SHAPE} | {key: shape for key, shape in SHAPES.items() if shape.gated}


class Numbers:
    """`device` is where weights are drawn: billions of them take minutes on a CPU."""

    stops, has_template = (), False  # it never says that it has said enough

    def __init__(self, key: str, device: str):
        if key not in KNOWN:
            raise ValueError(f"--random: got {key!r}, allowed are {', '.join(KNOWN)}")
        self.shape, self.path = KNOWN[key], Path(key)
        self.weights = random_weights(0, self.shape.layers, device)

    def tokens(self, text: str) -> list[int]:
        if wrong := next((word for word in text.split() if not NUMBER.fullmatch(word)), None):
            raise ValueError(f"prompt: got {wrong[:20]!r}, allowed are numbers of tokens")
        return [int(word) for word in text.split()]

    def piece(self, token: int) -> bytes:
        return b"%d " % token

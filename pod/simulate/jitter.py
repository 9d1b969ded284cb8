"""How much longer or shorter than usual an engine's host takes, iteration by iteration.

The draws follow what was recorded of our engine on an H200 (pod/experiments/engine/host_jitter.py). It was never 5 ms
late. A stall of 200 ms, as POD's Tables 4 and 5 count them, is another matter, which we have not measured: the model
says nothing about that column.
"""

import numpy as np

from pod.data import COMPUTED

TABLE = COMPUTED / "host-jitter.csv"
AT_ONCE = 4096
MOST = 1000


class Jitter:
    """Draws of seconds, `scale` times as large as they were recorded; each server of a cluster has its own."""

    def __init__(self, scale: float, seed: int = 1, server: int = 0):
        if not 0 <= scale <= MOST:
            raise ValueError(f"jitter: got {scale!r}, allowed are numbers from 0 to {MOST}")
        self.scale, self._random, self._drawn = scale, np.random.default_rng((seed, server)), []
        if scale:
            self._table = np.loadtxt(TABLE, delimiter=",", skiprows=1)

    def __call__(self) -> float:
        if not self.scale:
            return 0.0
        if not self._drawn:
            at = np.interp(self._random.random(AT_ONCE), self._table[:, 0], self._table[:, 1])
            self._drawn = (self.scale * at / 1e3).tolist()
        return self._drawn.pop()

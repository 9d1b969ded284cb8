"""How much longer or shorter than usual an engine's iterations take, and in which order.

The draws are pieces of what was recorded of our engine on an H200 (pod/experiments/engine/host_jitter.py): a late
iteration is mostly followed by another one, so hundreds in a row are drawn together. Between two iterations the host
was never 5 ms later than usual; its launches were, and let the GPU wait for up to 33 ms. Stalls of 200 ms, as POD's
Tables 4 and 5 count them, we have not recorded, so at scale 1 none is drawn.
"""

import numpy as np

from pod.data import COMPUTED

TABLE = COMPUTED / "host-jitter.csv"
IN_A_ROW = 200
MOST = 1000


class Jitter:
    """Draws of seconds, `scale` times as large as they were recorded; each server of a cluster has its own."""

    def __init__(self, scale: float, seed: int = 1, server: int = 0):
        if not 0 <= scale <= MOST:
            raise ValueError(f"jitter: got {scale!r}, allowed are numbers from 0 to {MOST}")
        self.scale, self._random, self._drawn = scale, np.random.default_rng((seed, server)), []
        if scale:
            self._recorded = scale / 1e3 * np.loadtxt(TABLE, delimiter=",", skiprows=1, usecols=2)

    def __call__(self) -> float:
        if not self.scale:
            return 0.0
        if not self._drawn:
            first = self._random.integers(len(self._recorded) - IN_A_ROW + 1)
            self._drawn = self._recorded[first : first + IN_A_ROW][::-1].tolist()
        return self._drawn.pop()

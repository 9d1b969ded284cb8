"""Percentiles of a stream: exact while it is short, then within a few thousandths of a percent, in the same memory."""

from array import array

import numpy as np

KEPT = 1 << 21  # pairs of a value and its count, 16 bytes each
BITS = 14  # of a value's mantissa, once there are more


class Quantiles:
    """Values with counts, as they come."""

    def __init__(self, kept: int = KEPT):
        self.kept, self.count, self.max = kept, 0, 0.0
        self._values, self._counts = array("d"), array("q")

    def add(self, value: float, count: int = 1) -> None:
        self._values.append(value)
        self._counts.append(count)
        self.count += count
        if value > self.max:
            self.max = value
        if len(self._values) >= self.kept:
            self._round()

    def _round(self) -> None:
        fraction, power = np.frexp(np.frombuffer(self._values))
        rounded = np.ldexp(np.round(np.ldexp(fraction, BITS)), power - BITS)
        values, which = np.unique(rounded, return_inverse=True)
        counts = np.zeros(len(values), dtype=np.int64)
        np.add.at(counts, which, np.frombuffer(self._counts, dtype=np.int64))
        self._values, self._counts = array("d", values.tobytes()), array("q", counts.tobytes())
        self.kept = max(self.kept, 2 * len(values))  # a stream of very different values is kept rounded

    def percentiles(self, *percents: float) -> list[float]:
        """As numpy.percentile has them, from the values with their counts."""
        order = np.argsort(np.frombuffer(self._values))
        values = np.frombuffer(self._values)[order]
        ends = np.cumsum(np.frombuffer(self._counts, dtype=np.int64)[order])
        return [self._at(values, ends, (self.count - 1) * (p / 100)) for p in percents]

    @staticmethod
    def _at(values: np.ndarray, ends: np.ndarray, place: float) -> float:
        low = int(place)
        first, last = np.searchsorted(ends, (low, min(low + 1, int(ends[-1]) - 1)), side="right")
        a, b, share = float(values[first]), float(values[last]), place - low
        return a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share)

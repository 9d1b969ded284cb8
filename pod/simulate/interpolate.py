"""Interpolation in a measured table: multilinear inside, monotone, in proportion to the work beyond."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np

from pod import files


class GridTable:
    """Seconds measured at every point of a grid, and between.

    More work seldom takes less time, so the values are first made non-decreasing along each axis (noise would otherwise
    let the simulated scheduler profit from a larger batch), unless they are known better (`monotone=False`). Beyond the
    last point of an axis the time grows in proportion, before the first it stays: both keep the function monotone.
    Values that are no times (`times=False`) are left as they are, and stay beyond either end.
    """

    def __init__(self, axes: Sequence[Sequence[float]], values, times: bool = True, monotone: bool = True):
        self.axes = [list(map(float, axis)) for axis in axes]
        values = np.asarray(values, dtype=float)
        if values.shape != tuple(map(len, self.axes)):
            raise ValueError(f"values: got shape {values.shape}, the axes allow {tuple(map(len, self.axes))}")
        for i, axis in enumerate(self.axes):
            if len(axis) < 2 or any(b <= a for a, b in zip(axis, axis[1:], strict=False)):
                raise ValueError(f"axis {i}: got {axis}, allowed are two or more increasing numbers")
            values = np.maximum.accumulate(values, axis=i) if times and monotone else values
        self._times, self.shape, self._values = times, values.shape, values.ravel().tolist()

    def __call__(self, *point: float) -> float:
        # corners of the cell around the point, each with its weight; a lookup is a few microseconds, so plain Python
        corners, beyond = [(0, 1.0)], 1.0
        for axis, size, x in zip(self.axes, self.shape, point, strict=True):
            if x > axis[-1] and self._times:
                beyond *= x / axis[-1]
            low = min(max(bisect_right(axis, x) - 1, 0), size - 2)
            part = min(max((x - axis[low]) / (axis[low + 1] - axis[low]), 0.0), 1.0)
            corners = [
                (index * size + low + step, weight * share)
                for index, weight in corners
                for step, share in ((0, 1.0 - part), (1, part))
                if share
            ]
        return beyond * sum(self._values[index] * weight for index, weight in corners)

    @property
    def points(self) -> list[tuple[float, ...]]:
        return list(product(*self.axes))

    @classmethod
    def load(cls, path: str | Path, axes: Sequence[str], value: str = "seconds", unit: float = 1.0,
             monotone: bool = True, **where: str) -> GridTable:  # fmt: skip
        """A CSV with one column an axis and `value`, in `unit` seconds: one row for every point of the grid, in any
        order. Only rows that have the values `where` in their other columns count."""
        path = Path(path)
        points: dict[tuple[float, ...], float] = {}
        columns = (*axes, value)
        rows = rows_with(path, *columns, *where)
        named = itemgetter(*where) if where else lambda row: None
        wanted = named(where)
        for number, row in enumerate(rows, 2):
            if named(row) != wanted:
                continue
            numbers = [_number(path, number, name, row[name]) for name in columns]
            if tuple(numbers[:-1]) in points:
                raise ValueError(f"{path}, row {number}: this point of the grid appears twice")
            points[tuple(numbers[:-1])] = numbers[-1] * unit
        if where and not points:
            raise ValueError(f"{path}: has no row with {', '.join(f'{k} {v}' for k, v in where.items())}")
        grid = [sorted({p[i] for p in points}) for i in range(len(axes))]
        values = np.full([len(axis) for axis in grid], np.nan)
        for point, seconds in points.items():
            values[tuple(axis.index(x) for axis, x in zip(grid, point, strict=True))] = seconds
        if np.isnan(values).any():
            where = np.argwhere(np.isnan(values))[0]
            gap = ", ".join(f"{n} {grid[i][where[i]]:g}" for i, n in enumerate(axes))
            raise ValueError(f"{path}: not a full grid, {gap} is missing")
        return cls(grid, values, monotone=monotone)


def rows_with(path: Path, *columns: str) -> list[dict[str, str]]:
    """All rows of a CSV that has these columns."""
    names, rows = _rows(*files.state(path))
    if missing := [name for name in columns if name not in names]:
        raise ValueError(f"{path}: lacks the column {', '.join(missing)}")
    return rows


@lru_cache(maxsize=4)
def _rows(path: Path, *now: int) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a CSV and its rows. One file has a dozen tables in it: models, operators, kernels."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames or []), list(reader)


def _number(path: Path, row: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{path}, row {row}, column {column}: got {text!r}, allowed are finite numbers >= 0")
    return value

"""Every table of data/, and the one way to read them.

    recorded/<gpu>/   measured on that GPU, and reviewed
    repeats/<day>-<gpu's id>/<gpu>/   the same once more, on another day or another GPU of that kind
    fresh/<gpu>/      measured on your GPU; git does not see it
    computed/         simulated, emulated or counted by a compiler: no GPU is needed to make it again

Figures show what was recorded on an H200. `choose("fresh")`, or POD_FROM=fresh in the environment, lets them show what
was measured here instead; where several GPUs were, fresh/h100 says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path

from pod.files import ROOT, environment, state

DATA = ROOT / "data"
RECORDED, FRESH, COMPUTED = DATA / "recorded", DATA / "fresh", DATA / "computed"
REPEATS = DATA / "repeats"
SHOWN = "recorded/h200"  # unless somebody chooses


class Missing(ValueError):
    """A table that was not made yet."""


def choose(place: str) -> None:
    """Read measurements from here on from this place: recorded, fresh, or one GPU's folder of either, or a repeat."""
    os.environ["POD_FROM"] = place  # processes that this one starts read from there as well
    folder()


@contextmanager
def chosen(place: str) -> Iterator[None]:
    """For what is read meanwhile."""
    with environment("POD_FROM", place):
        folder()
        yield


def folder() -> Path:
    """Where the measurements lie that figures show."""
    kind, _, gpu = os.environ.get("POD_FROM", SHOWN).partition("/")
    places = {"recorded": RECORDED, "fresh": FRESH, "repeats": REPEATS}
    if kind not in places:
        raise ValueError(f"from: got {kind!r}, allowed are recorded, fresh, or a GPU's folder of these, as fresh/h100")
    known = sorted(path.name for path in places[kind].glob("*") if path.is_dir())
    if not gpu and kind == "recorded":
        gpu = SHOWN.partition("/")[2]
    if not gpu and len(known) == 1:
        gpu = known[0]
    if not known and kind != "recorded":
        raise ValueError(f"from: nothing lies in data/{kind}/; `make measure` on a GPU fills it")
    if gpu not in known and kind == "fresh":
        raise ValueError(f"from: got {kind}/{gpu}, allowed are {', '.join(f'{kind}/{name}' for name in known)}")
    return places[kind] / gpu


def path_of(name: str, measured: Path | None = None) -> Path:
    """The file of a table: computed, or measured (in the folder that figures show, unless another is named)."""
    computed = COMPUTED / f"{name}.csv"
    return computed if computed.is_file() else (measured or folder()) / f"{name}.csv"


def read(name: str):
    """A table by its name, as a pandas.DataFrame."""
    return _parsed(*_now(name)).copy()


def repeated(name: str) -> list:
    """The same table of each repeat on that GPU, the oldest first."""
    return [_parsed(*state(path)).copy() for path in sorted(REPEATS.glob(f"*/{folder().name}/{name}.csv"))]


def _now(name: str) -> tuple[Path, int, int]:
    """The file of a table, as it is now."""
    path = path_of(name)
    try:
        return state(path)
    except FileNotFoundError:
        where = path.parent.relative_to(DATA) if path.is_relative_to(DATA) else path.parent
        raise Missing(f"{name}: is not in {where}; `python -m pod measure {name}` on that GPU makes it") from None


@cache
def _parsed(path: Path, *now: int):
    """A figure and its claims ask for the same table five times."""
    import pandas as pd

    return pd.read_csv(path, float_precision="round_trip")


def kept(of: str | Callable[[], Path]) -> Callable:
    """functools.cache, anew for another table: another GPU's, or one that was measured again. `of`: its name, or what
    tells its path. Whoever asks gets the same object, and leaves it as it is."""
    now = (lambda: state(of())) if callable(of) else (lambda: _now(of))

    def around(call: Callable) -> Callable:
        known = cache(lambda _, *args: call(*args))
        return wraps(call)(lambda *args: known(now(), *args))

    return around


def card() -> str:
    """The GPU whose measurements figures show, as people write it: H200."""
    return folder().name.upper()


def a_card() -> str:
    """The same with its article: an H200, a B200."""
    return f"{'an' if card()[0] in 'AEFHILMNORSX8' else 'a'} {card()}"


def hardware():
    """What pod.hardware knows of that GPU."""
    from pod.hardware import gpu

    return gpu(folder().name)


def sidecar_of(path: str | Path) -> Path:
    """x.csv -> x.meta.json"""
    path = Path(path)
    return path.with_name(path.stem + ".meta.json")

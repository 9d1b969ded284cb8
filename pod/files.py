"""Where files lie that are made once and kept: in the checkout's .cache, or wherever else can be written.

The environment variable POD_CACHE names another folder for all of them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parent
ROOT = PACKAGE.parent
INSTALLED = (PACKAGE / "csrc").is_dir()  # from a wheel, which has it inside; a clone has it beside
CSRC = (PACKAGE if INSTALLED else ROOT) / "csrc"


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """An environment variable for what runs meanwhile, and for processes that it starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def places() -> Iterator[Path]:
    """The folders in which the cache may lie, best first."""
    if chosen := os.environ.get("POD_CACHE"):
        yield Path(chosen).absolute()
        return
    if not INSTALLED:
        yield ROOT / ".cache"
    if base := os.environ.get("XDG_CACHE_HOME"):
        yield Path(base) / "pod"
    elif home := os.environ.get("HOME"):
        yield Path(home) / ".cache" / "pod"


def folder(name: str) -> Path:
    """The cache's folder of this name in the first place that can be written; without any, a folder that will go."""
    best, *others = (place / name for place in places())
    if os.environ.get("POD_CACHE"):
        best.mkdir(parents=True, exist_ok=True)  # who names a folder hears what is wrong with it
    for place in (best, *others):
        if writable(place):
            break
    else:
        place = Path(_passing().name) / name
        place.mkdir(exist_ok=True)
    if place != best:
        _say(f"{best.parent} cannot be written, so the cache is {place.parent} (POD_CACHE=folder chooses another)")
    return place


def ready(folder: Path) -> Path:
    """The folder of an option --out, made; refused before any work when nothing can be written there."""
    if not writable(folder):
        raise ValueError(f"--out: got {folder}, allowed is a folder that can be written")
    return folder


def writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def need(*packages: str, extra: str) -> None:
    """Refuse, where one is missing, with what brings it: the extra of a clone, or the package beside a wheel."""
    if missing := [name for name in packages if find_spec(name) is None]:
        what = " ".join(missing) if INSTALLED else f"-e '.[{extra}]'"
        raise ValueError(f"packages: {', '.join(missing)} not installed; mend it: pip install {what}")


@cache
def _passing() -> tempfile.TemporaryDirectory:
    """A folder of this process alone: in one that outlives it, anybody could have put a library."""
    return tempfile.TemporaryDirectory(prefix="pod-")


@cache
def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- files that are whole


def keep(made: Path, path: Path) -> None:
    """Move a file that is complete to its place, and note its sum: power may go before the disk has all of it."""
    total = sha256(made)
    _note(path).unlink(missing_ok=True)
    os.replace(made, path)
    _note(path).write_text(total)


def replace(path: Path, content: str | bytes) -> None:
    """Write a file at once: whoever is killed meanwhile, or finds the disk full, keeps what was there."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def replace_rows(path: Path, columns: Sequence[str], rows: Iterable[dict]) -> None:
    """The same for a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace(path, text.getvalue())


def rows(path: Path) -> list[dict[str, str]]:
    """Those of a table, as they stand there."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def state(path: Path) -> tuple[Path, int, int]:
    """A file as it is now: what is remembered of its content hangs on this."""
    seen = path.stat()
    return path, seen.st_mtime_ns, seen.st_size


def whole(path: Path) -> bool:
    """Whether this is the file that was kept, and not what an accident left of it."""
    try:
        return _note(path).read_text() == sha256(path)
    except OSError:
        return False


def kept(path: str) -> Path | None:
    """A whole file of the cache, e.g. "kernels/x.so", from any place: a read-only one may hold it already."""
    return next((file for place in places() if whole(file := place / path)), None)


def _note(path: Path) -> Path:
    return path.with_suffix(".sum")


def toml(text: str) -> dict:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads(text)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

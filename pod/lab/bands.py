"""When each band of data/claims.toml was fixed, and when what it judges was first seen, both by this repository's
history. `python -m pod claims --dates` writes data/bands.csv: id, low, high, since, seen.

since  author date of the commit from which on the band has been this one
seen   start of the first recording that the claim reads, as the oldest sidecar in the history says; for what is not
       recorded, the commit that first computed it. "" while nobody has. A band counts as fixed before only if its
       commit is earlier: a simulation, and a recording that was thrown away, leave no trace
"""

import json
import subprocess
from datetime import datetime, timezone
from functools import cache

from pod import files
from pod.data import DATA, path_of, sidecar_of
from pod.files import ROOT
from pod.lab import registry

FILE = DATA / "bands.csv"
COLUMNS = ("id", "low", "high", "since", "seen")


def _git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout


def is_complete() -> bool:
    """Whether the history is here, down to its first commit."""
    try:
        return _git("rev-parse", "--is-shallow-repository").strip() == "false"
    except (OSError, subprocess.CalledProcessError):
        return False


def _utc(date: str) -> str:
    return datetime.fromisoformat(date).astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _versions(path: str) -> list[tuple[str, str]]:
    """(date, contents) of a file, commit by commit, the oldest first."""
    commits = map(str.split, _git("log", "--reverse", "--format=%H %aI", "--", path).splitlines())
    return [(_utc(date), _git("show", f"{commit}:{path}")) for commit, date in commits]


@cache
def _recorded(name: str) -> str:
    """When the first recording of this name in the history began."""
    path = sidecar_of(path_of(name)).relative_to(ROOT).as_posix()
    commits = _git("log", "--reverse", "--format=%H", "--", path).split()
    return _utc(json.loads(_git("show", f"{commits[0]}:{path}"))["started"]) if commits else ""


def parse(text: str) -> list[dict]:
    """The rows of data/claims.toml, as they stand there."""
    try:
        return files.toml(text).get("claim", [])
    except ValueError as error:
        raise ValueError(f"data/claims.toml: {error}") from None


def dated() -> list[dict[str, str]]:
    """One row a claim of the last commit."""
    since: dict[str, tuple] = {}
    judged: dict[str, str] = {}
    rows: list[dict] = []
    for date, text in _versions("data/claims.toml"):
        rows = parse(text)
        for row in rows:
            if since.get(row["id"], ("", None))[1] != row["band"]:
                since[row["id"]] = date, row["band"]
            if row.get("ours"):
                judged.setdefault(row["id"], date)
    return [_row(row, since[row["id"]][0], judged.get(row["id"], "")) for row in rows]


def _row(row: dict, since: str, judged: str) -> dict[str, str]:
    low, high = (f"{end:g}" for end in row["band"])
    return dict(zip(COLUMNS, (row["id"], low, high, since, _seen(row.get("ours", ""), judged)), strict=True))


def _seen(ours: str, judged: str) -> str:
    if not ours:
        return ""
    figure = registry.page(ours.partition(":")[0]).FIGURE
    if figure.state != "recorded":
        return judged
    return min(filter(None, map(_recorded, figure.data)), default="")


def write() -> None:
    if not is_complete():
        raise ValueError("git history: got none or a part, allowed is all of it, which dates the bands")
    files.replace_rows(FILE, COLUMNS, dated())

"""What claims come to where their recordings were measured once more, on another day or another GPU of that kind.
`python -m pod claims --repeats` writes data/repeats.csv: id, place, value; place is a folder of data/repeats."""

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from pod import data, files
from pod.files import ROOT
from pod.lab import bands, registry
from pod.lab.measure import provenance

FILE = data.DATA / "repeats.csv"
COLUMNS = ("id", "place", "value")


def places() -> list[Path]:
    """Every folder with recordings of one GPU and day."""
    return sorted({path.parent for path in provenance.recordings(data.REPEATS)})


def judged(place: Path) -> list[dict[str, str]]:
    """The claims that read what was repeated there, and their values; NaN is a peer that was not there."""
    name = place.relative_to(data.REPEATS).as_posix()
    there = {path.stem for path in provenance.recordings(place)}
    settled = {
        row["id"]
        for row in bands.parse((data.DATA / "claims.toml").read_text(encoding="utf-8"))
        if (page := row.get("ours", "").partition(":")[0]) and there & set(registry.page(page).FIGURE.data)
    }
    rows = [(row["id"], row["ours"]) for row in _claims(name) if row["id"] in settled and row["ours"] is not None]
    rows = [(claim, value) for claim, value in rows if not math.isnan(value)]
    return [dict(zip(COLUMNS, (claim, name, f"{value:.6g}"), strict=True)) for claim, value in rows]


def _claims(place: str) -> list[dict]:
    """All claims as they come out there: pages keep what they read, so a process of its own settles them."""
    command = [sys.executable, "-m", "pod", "claims", "--json"]
    env = os.environ | {"POD_FROM": f"repeats/{place}"}
    return json.loads(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout)


def write() -> None:
    rows = [row for place in places() for row in judged(place)]
    files.replace_rows(FILE, COLUMNS, rows)


@cache
def values() -> dict[str, list[float]]:
    """By claim, what the repeats give."""
    found = defaultdict(list)
    for row in files.rows(FILE) if FILE.is_file() else ():
        found[row["id"]].append(float(row["value"]))
    return dict(found)

"""What a reader has solved so far, in a file of this machine; pod/learn/scores.py shows it."""

import json
import sys
from functools import cache
from pathlib import Path

from pod import files


def path() -> Path:
    return files.folder("progress") / "answers.json"


def note(name: str, state: str) -> None:
    """Keep what a judge said, or which option of a question was chosen; a stub that was only run is no try."""
    if state == "not yet":
        return
    kept = read()
    before = kept.get(name, {"tries": 0, "state": ""})
    best = "right" if "right" in (before["state"], state) else state
    _write(kept | {name: {"tries": before["tries"] + 1, "state": best}})


def note_score(name: str, score: float) -> float:
    """Keep what a contest gave, and return the best so far; less is better."""
    kept, key = read(), f"contest {name}"
    before = kept.get(key, {"tries": 0, "best": score})
    best = min(before["best"], score)
    _write(kept | {key: {"tries": before["tries"] + 1, "best": best}})
    return best


def _write(kept: dict) -> None:
    """Where nothing can be written, a verdict is worth as much without being kept."""
    try:
        files.replace(path(), json.dumps(kept, indent=1))
    except OSError as error:
        _say(f"your progress is not kept: {error}")


@cache
def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read() -> dict[str, dict]:
    """By name: how often it was tried, and the best that came of it. What we have not written so is forgotten."""
    try:
        kept = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in kept.items() if _is_ours(entry)} if isinstance(kept, dict) else {}


def _is_ours(entry) -> bool:
    kinds = {key: type(value) for key, value in entry.items()} if isinstance(entry, dict) else {}
    return kinds in ({"tries": int, "state": str}, {"tries": int, "best": float})


def forget() -> None:
    path().unlink(missing_ok=True)

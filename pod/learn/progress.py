"""What a reader has solved so far, in a file of this machine: `python -m pod progress` shows it."""

from __future__ import annotations

import json
import os
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
    part = path().with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    os.replace(part, path())


def read() -> dict[str, dict]:
    """By name: how often it was tried, and the best that came of it."""
    try:
        return json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def configure(parser) -> None:
    parser.add_argument("--forget", action="store_true", help="begin anew")


def run(args) -> int:
    if args.forget:
        path().unlink(missing_ok=True)
    print(table())
    return 0


def table() -> str:
    from pod.learn import judge, questions
    from pod.walk import CHAPTERS

    kept, lines = read(), []
    for chapter in CHAPTERS:
        of = chapter.name.partition("_")[2]
        mine = [e.name for e in judge.exercises().values() if e.chapter == of]
        asked = [name for name, q in questions.questions().items() if q.chapter == of]
        if mine or asked:
            lines.append(f"{chapter.title}: {_count(mine, kept)} exercises, {_count(asked, kept)} predictions right")
            lines += [f"  {name:<24} {_said(kept.get(name))}" for name in mine]
    return "\n".join(lines)


def _count(names: list[str], kept: dict) -> str:
    return f"{sum(kept.get(name, {}).get('state') == 'right' for name in names)} of {len(names)}"


def _said(entry: dict | None) -> str:
    if not entry:
        return "-"
    tries = f"{entry['tries']} {'try' if entry['tries'] == 1 else 'tries'}"
    return f"right, {tries}" if entry["state"] == "right" else f"not right yet, {tries}"

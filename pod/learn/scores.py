"""`python -m pod progress`: which exercises and predictions a reader has got right so far. A chapter of several
notebooks has the name of its first."""

from pod.lab.chapters import CHAPTERS
from pod.learn import judge, questions
from pod.learn.progress import forget, read


def configure(parser) -> None:
    parser.add_argument("--forget", action="store_true", help="begin anew")


def run(args) -> int:
    if args.forget:
        forget()
    print(table())
    return 0


def table(last: str = "99") -> str:
    """All chapters, or those up to the one of number `last`."""
    kept, lines = read(), []
    for chapter in (c for c in CHAPTERS if c.number <= last):
        of = chapter.name.partition("_")[2]
        mine = [e.name for e in judge.exercises().values() if e.chapter == of]
        asked = [name for name, q in questions.questions().items() if q.chapter == of]
        if mine or asked:
            right = f"{_count(mine, kept)} exercises, {_count(asked, kept)} predictions right"
            lines.append(f"{chapter.number} {chapter.words}: {right}")
            lines += [f"  {name:<24} {_said(kept.get(name))}" for name in mine]
    return "\n".join(lines)


def _count(names: list[str], kept: dict) -> str:
    return f"{sum(kept.get(name, {}).get('state') == 'right' for name in names)} of {len(names)}"


def _said(entry: dict | None) -> str:
    if not entry:
        return "-"
    tries = f"{entry['tries']} {'try' if entry['tries'] == 1 else 'tries'}"
    return f"right, {tries}" if entry["state"] == "right" else f"not right yet, {tries}"

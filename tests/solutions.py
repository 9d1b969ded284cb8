"""notebooks/solutions: of each exercise the solution, and answers that are wrong with the hint that they deserve."""

import re
from functools import cache
from pathlib import Path

from pod.lab import notebooks

BLOCK = re.compile(r"(?:^([^\n`<]+)\n\n)?```(cuda|python)\n(.*?)```", re.DOTALL | re.MULTILINE)


def named(verb: str, path: Path) -> list[str]:
    """What a notebook asks for by `learn.ask("name")`, `learn.check("name", answer)`."""
    code = "\n".join(cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code")
    return re.findall(rf'\blearn\.{verb}\("([\w-]+)"', code)


@cache
def solutions() -> dict[str, list[tuple[str, str, str]]]:
    """By exercise: (hint, language, text); the solution has no hint."""
    found = {}
    for file in sorted((notebooks.FOLDER / "solutions").glob("*.md")):
        for part in file.read_text(encoding="utf-8").split("\n## ")[1:]:
            found[part.partition("\n")[0].strip()] = BLOCK.findall(part)
    return found

"""What a picture says, in words: those over it in the chapter that draws it, unless its page has words of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from pod.lab import notebooks, registry


def words(figure_id: str) -> str:
    """The takeaway of a figure; empty where its own panels say it."""
    return registry.find(figure_id).says or _in_chapters().get(figure_id, "")


@cache
def _in_chapters() -> dict[str, str]:
    """What chapters say over pages that they draw, the first time."""
    cells = (cell for path in notebooks.find([]) for cell in notebooks.sources(path))
    said: dict[str, str] = {}
    for page, line in (pair for cell in cells for pair in _said(cell)):
        said.setdefault(page.replace("_", "-"), line)
    return said


def _said(source: str) -> Iterator[tuple[str, str]]:
    """(page, words) of each `says(page.draw(...), "words")`."""
    if "says(" not in source:  # a cell of CUDA is no Python
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name("says"),
                args=[ast.Call(func=ast.Attribute(ast.Name(page), "draw")), ast.Constant(str(line))],
            ):
                yield page, line

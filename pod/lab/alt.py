"""What the pictures of a cell show, for whoever does not see them.

The cell says it in its metadata, under `alt`; one that draws a page of pod/experiments may leave it to the title and
the method of that page. Saved beside each picture, it is what a site makes of it and what nbconvert reads."""

from __future__ import annotations

import re

from pod.lab import registry

PAGE = re.compile(r"\b(\w+)\.draw\w*\(|registry\.show\(\"([\w-]+)\"\)")


def words(cell) -> str:
    """One text for all pictures of a cell; empty if nobody has said it."""
    return cell.metadata.get("alt") or next(map(_of_page, _pages(cell.source)), "")


def _pages(source: str) -> list[str]:
    names = (drawn.replace("_", "-") or shown for drawn, shown in PAGE.findall(source))
    return [name for name in names if name in registry.pages() and hasattr(registry.page(name), "FIGURE")]


def _of_page(name: str) -> str:
    figure = registry.page(name).FIGURE
    method = figure.method[0].upper() + figure.method[1:].rstrip(".")
    return f"{figure.title.rstrip('.')}. {method}."

"""Every page of pod/experiments by its id, which is the name of its file, and by the table that it makes."""

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import ModuleType

from pod.files import ROOT
from pod.lab.figure import OURS, SOURCES, Figure

FOLDER = ROOT / "pod" / "experiments"


@cache
def pages() -> dict[str, str]:
    """The module of every page."""
    files = sorted(FOLDER.glob("*/*.py"), key=lambda path: path.stem)
    files = [path for path in files if path.stem not in ("__init__", "shared")]
    return {path.stem.replace("_", "-"): f"pod.experiments.{path.parent.name}.{path.stem}" for path in files}


def page(name: str) -> ModuleType:
    if name not in pages():
        raise ValueError(f"page: got {name!r}, allowed are the files of pod/experiments, as pod-06")
    return import_module(pages()[name])


# ---------------------------------------------------------------- tables


@cache
def _makers(kind: str) -> dict[str, str]:
    """The module that makes each table, as the files say: to import them all takes a second."""
    found = {}
    for module in pages().values():
        text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        found |= dict.fromkeys(re.findall(rf'^{kind} = "([\w-]+)"$', text, re.MULTILINE), module)
    return dict(sorted(found.items()))


def measured() -> dict[str, str]:
    """The module that makes each recording. vllm-timeline is last: a profiler that was attached slows what follows."""
    return _makers("RECORDING")


def computed() -> dict[str, str]:
    """The module that makes each table for which no GPU is needed."""
    return _makers("COMPUTED")


def maker(table: str) -> ModuleType:
    return import_module((measured() | computed())[table])


# ---------------------------------------------------------------- figures


@cache
def figures() -> tuple[Figure, ...]:
    """All figures and tables, in the order of the sources, then this repository's own."""
    drawn = (name for name in pages() if {"FIGURE", "draw"} <= vars(page(name)).keys())
    return tuple(sorted((replace(page(name).FIGURE, id=name) for name in drawn), key=_place))


def _place(figure: Figure) -> tuple[int, bool, int]:
    if figure.source == OURS:
        return len(SOURCES), False, 0
    prefix, _, number = figure.id.partition("-")
    return list(SOURCES).index(prefix), number.startswith("t"), int(number.lstrip("t"))


def drawable() -> list[Figure]:
    """Those whose tables are here."""
    return [figure for figure in figures() if not figure.lacks]


def find(figure_id: str) -> Figure:
    for figure in figures():
        if figure.id == figure_id:
            return figure
    raise ValueError(f"unknown figure {figure_id!r}; known: {', '.join(figure.id for figure in figures())}")


def load(figure_id: str) -> ModuleType:
    """The page of a figure that can be drawn; a ValueError says what it lacks otherwise."""
    figure = find(figure_id)
    if figure.lacks:
        raise ValueError(f"figure {figure_id!r}: {figure.state_text}")
    return page(figure_id)


def show(figure_id: str):
    """Draw a figure and return its table."""
    df = load(figure_id).table()
    page(figure_id).draw(df)
    return df

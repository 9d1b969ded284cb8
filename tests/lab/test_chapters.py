"""The plan of chapters and the chapters agree."""

import re

from pod.lab import chapters, notebooks


def test_chapters_are_numbered_in_order():
    assert [c.name[:3] for c in chapters.CHAPTERS] == [f"{i:02d}_" for i in range(19)]


def test_names_are_spelled_as_people_do():
    titles = [c.title for c in chapters.CHAPTERS]
    assert "17 POD on Hopper" in titles and "07 SM aware scheduling" in titles


def test_every_notebook_is_in_the_plan():
    assert {path.stem for path in notebooks.find([])} == {c.name for c in chapters.CHAPTERS}


def test_every_notebook_asks_the_question_of_the_plan():
    for c in chapters.CHAPTERS:
        opening = notebooks.read(c.path).cells[0].source
        assert f"> **{c.question}**" in opening and f"{c.minutes} minutes" in opening, c.name


def test_the_map_links_every_chapter():
    links = re.findall(r"\[(.*?)\]\((.*?)\)", chapters.markdown("notebooks/"))
    assert links == [(c.title, f"notebooks/{c.path.name}") for c in chapters.CHAPTERS]


def test_chapter_00_shows_the_present_map():
    outputs = [o for cell in notebooks.read(chapters.CHAPTERS[0].path).cells for o in cell.get("outputs", ())]
    shown = [o.data["text/markdown"] for o in outputs if "text/markdown" in o.get("data", {})]
    assert shown == [chapters.markdown()], "a chapter came or went: `make notebooks NB=00` redraws the map"

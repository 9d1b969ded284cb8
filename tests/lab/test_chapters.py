"""The plan of chapters and the chapters agree, and the map says honestly what is here."""

import re

from pod.lab import chapters, notebooks


def test_chapters_are_numbered_in_order():
    assert [c.name[:3] for c in chapters.CHAPTERS] == [f"{i:02d}_" for i in range(18)]


def test_names_are_spelled_as_people_do():
    titles = [c.title for c in chapters.CHAPTERS]
    assert "16 POD on Hopper" in titles and "06 SM aware scheduling" in titles


def test_every_notebook_is_in_the_plan():
    assert {path.stem for path in notebooks.find([])} <= {c.name for c in chapters.CHAPTERS}


def test_every_notebook_asks_the_question_of_the_plan():
    for c in chapters.CHAPTERS:
        if c.path.exists():
            opening = notebooks.read(c.path).cells[0].source
            assert f"> **{c.question}**" in opening and f"{c.minutes} minutes" in opening, c.name


def test_map_links_what_is_here_and_marks_what_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(chapters, "FOLDER", tmp_path)
    (tmp_path / "02_tiling.ipynb").touch()
    text = chapters.markdown()
    assert re.findall(r"\[(.*?)\]\((.*?)\)", text) == [("02 tiling", "02_tiling.ipynb")]
    assert text.count("*(to come)*") == 17 and len(text.splitlines()) == 2 + 18


def test_chapter_00_shows_the_present_map():
    outputs = [o for cell in notebooks.read(chapters.CHAPTERS[0].path).cells for o in cell.get("outputs", ())]
    shown = [o.data["text/markdown"] for o in outputs if "text/markdown" in o.get("data", {})]
    assert shown == [chapters.markdown()], "a chapter came or went: `make notebooks NB=00` redraws the map"

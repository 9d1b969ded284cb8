"""The plan of chapters and the chapters agree."""

import re
from collections import Counter

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from pod.lab import chapters, gallery, minutes, notebooks, registry

TIMED = chapters.CHAPTERS


LETTERS = "abcdefgh"


def test_chapters_are_numbered_in_order_and_their_sittings_lettered():
    numbers = [c.number for c in chapters.CHAPTERS]
    assert list(dict.fromkeys(numbers)) == [f"{i:02d}" for i in range(19)] and numbers == sorted(numbers)
    for number, count in Counter(numbers).items():
        labels = [c.label for c in chapters.CHAPTERS if c.number == number]
        assert labels == ([number + letter for letter in LETTERS[:count]] if count > 1 else [number])


def test_names_are_spelled_as_people_do():
    titles = [c.title for c in chapters.CHAPTERS]
    assert "17a POD on Hopper" in titles and "07 SM aware scheduling" in titles
    hopper = next(c for c in chapters.CHAPTERS if c.label == "17a")
    assert (hopper.number, hopper.words) == ("17", "POD on Hopper")


def test_a_notebook_is_a_sitting():
    assert not [c.name for c in TIMED if c.minutes > minutes.SITTING]


def test_a_number_means_all_notebooks_of_its_chapter():
    every = [c.path for c in chapters.CHAPTERS if c.number == "17"]
    assert len(every) == 4 and notebooks.find(["17"]) == every
    assert notebooks.find(["17b", "03"]) == [every[1], notebooks.FOLDER / "03_two_phases.ipynb"]
    with pytest.raises(ValueError, match="'1': [0-9]+ fit; known: 00"):
        notebooks.find(["1"])


SHOWN = {"hopper-trace": "17c", "hopper-sweep": "17c", "hopper-peers": "17d", "hopper-ladder": "17b", "waves": "05",
         "hopper-band": "17c"}  # fmt: skip


@pytest.mark.parametrize("figure, label", SHOWN.items())
def test_a_figure_leads_to_the_notebook_that_shows_it(figure, label):
    assert gallery.chapter_of(registry.find(figure)).label == label


@pytest.mark.parametrize("number", dict.fromkeys(c.number for c in chapters.CHAPTERS))
def test_sections_are_numbered_in_order_through_all_sittings(number):
    cells = (cell for path in notebooks.find([number]) for cell in notebooks.sources(path, "markdown"))
    found = [int(n) for cell in cells for n in re.findall(r"^## (\d+)\. ", cell, re.MULTILINE)]
    assert found == list(range(1, len(found) + 1)) and found


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
    shown = [text for o in outputs if (text := o.get("data", {}).get("text/markdown", "")).startswith("| | chapter |")]
    assert shown == [chapters.markdown()], "a chapter came or went: `make notebooks NB=00` redraws the map"


@pytest.mark.parametrize("chapter", TIMED, ids=lambda c: c.name)
def test_a_chapter_states_the_minutes_that_are_counted_in_it(chapter):
    cells = notebooks.read(chapter.path).cells
    counted = minutes.stated(minutes.reading(cells)), minutes.stated(minutes.exercises(cells))
    assert (chapter.minutes, chapter.more) == counted, "minutes in pod/lab/chapters.py"
    assert f"{chapter.minutes} minutes, and {chapter.more} more for the exercises" in cells[0].source


@pytest.mark.parametrize("chapter", TIMED, ids=lambda c: c.name)
def test_nobody_reads_longer_than_a_sitting_without_a_place_to_stop(chapter):
    longest = max(minutes.sittings(notebooks.read(chapter.path).cells))
    assert longest < minutes.SITTING + minutes.STEP / 2, f"{longest:.0f} minutes without {minutes.BREAK!r}"


def test_minutes_come_from_words_lines_pictures_and_guesses():
    figure = new_output("display_data", data={"image/png": "", "text/plain": "<Figure>"})
    cuda = new_output("display_data", data={"text/markdown": "`a.cu`\n```cpp\n" + "x = 1;\n" * 8 + "```"})
    prose = new_markdown_cell("**Predict.** " + "word " * 149 + "<details>" + "folded " * 999 + "</details>")
    drawing = new_code_cell("x = 1\n\n" * 12, outputs=[figure, cuda])
    asking = new_code_cell('learn.ask("name")')
    assert minutes.reading([prose]) == 150 / minutes.WORDS + 1
    assert minutes.reading([drawing]) == 1 + 8 / minutes.CUDA + minutes.PICTURE
    assert minutes.reading([asking]) == pytest.approx(1 + 1 / minutes.LINES)
    assert minutes.sittings([prose, new_markdown_cell(minutes.BREAK), prose])[1] == 2


def test_exercises_are_counted_apart():
    stub, answer = new_code_cell('learn.check("merge", merge)'), "<details><summary>Answer</summary>\n4\n</details>"
    cells = [stub, new_markdown_cell(answer * 3)]
    assert minutes.exercises(cells) == minutes.STUB + 3 * minutes.EXERCISE
    assert minutes.reading(cells) == 0 and [minutes.stated(x) for x in (21, 22.4, 22.6)] == [20, 20, 25]

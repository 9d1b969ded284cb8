"""Predictions: options first, and what is to be said on them only in another cell; progress is kept."""

from importlib import import_module

import nbformat
import pytest
from ipywidgets import Button, VBox

from pod import learn
from pod.lab import chapters, notebooks
from pod.learn import judge, progress, questions
from tests.solutions import named

NAMES = list(questions.questions())


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.setattr(questions, "_chosen", {})


@pytest.mark.parametrize("name", NAMES)
def test_the_question_gives_nothing_away_and_the_answer_speaks_of_every_option(name):
    question = questions.find(name)
    asked, told = learn.ask(name)._repr_markdown_(), learn.answer(name)._repr_markdown_()
    assert 2 <= len(question.options) <= 4 and asked.startswith("**Predict.**")
    assert not any(sentence in asked for sentence in question.options.values())
    assert asked.count("\n- ") == told.count("<details>") == len(question.options)
    assert told.count("Right. ") == 1 and all(sentence in told for sentence in question.options.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_holds_a_prediction_and_its_answer(name):
    cells = [c for path in notebooks.find([]) for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    asks = [i for i, c in enumerate(cells) if f'learn.ask("{name}")' in c.source]
    tells = [i for i, c in enumerate(cells) if f'learn.answer("{name}")' in c.source]
    assert len(asks) == len(tells) == 1 and asks[0] + 1 < tells[0], "asked once, and answered when something has run"


@pytest.mark.parametrize("verb, known", [("ask", questions.questions()), ("check", judge.exercises())])
def test_a_question_and_an_exercise_are_in_a_notebook_of_their_chapter(verb, known):
    numbers = {c.name.partition("_")[2]: c.number for c in chapters.CHAPTERS}
    found = {name: path.name[:2] for path in notebooks.find([]) for name in named(verb, path)}
    assert found == {name: numbers[one.chapter] for name, one in known.items()}


@pytest.mark.parametrize("path", notebooks.find([]), ids=lambda path: path.stem)
def test_every_notebook_has_something_to_guess_and_something_to_write(path):
    assert named("ask", path) and named("check", path)


def test_every_prediction_is_a_question():
    cells = [c for path in notebooks.find([]) for c in nbformat.read(path, 4).cells if c.cell_type == "markdown"]
    assert [c.source for c in cells if "**Predict.**" in c.source] == []


def test_an_unknown_question_names_the_known():
    with pytest.raises(ValueError, match=f"question: got 'x', allowed are {NAMES[0]}"):
        learn.ask("x")


def test_a_right_option_must_be_one():
    with pytest.raises(ValueError, match="right: got 'c', allowed are a, b"):
        questions.Question("toys", "?", {"a": "", "b": ""}, "c")


def test_in_a_live_notebook_options_are_buttons_and_the_answer_replies(monkeypatch):
    shown = []
    monkeypatch.setattr(import_module("pod.lab.show.explore"), "is_live", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    question = questions.find("steps-of-a-sum")
    assert learn.ask("steps-of-a-sum") is None
    page, box = shown
    assert isinstance(box, VBox) and question.text in page._repr_markdown_()
    buttons = [child for child in box.children if isinstance(child, Button)]
    assert [b.description for b in buttons] == list(question.options)
    buttons[0].click()
    assert box.children[-1].value == "You say: 31. Run on to see."
    assert learn.answer("steps-of-a-sum").text.startswith("**Not 31, but 5.** That is one lane")
    buttons[2].click()
    assert learn.answer("steps-of-a-sum").text.startswith("**Right.** Each step doubles")
    assert progress.read() == {"steps-of-a-sum": {"tries": 2, "state": "right"}}

"""Predictions as questions: `ask` shows the options, and only a later cell's `answer` says which is right, and why not
the others. In a live notebook the options are buttons; on a page the answers are folded."""

from dataclasses import dataclass
from functools import cache

from pod import files
from pod.learn import progress


@dataclass(frozen=True)
class Question:
    """options: each with a sentence on it. The first line of `text` asks."""

    chapter: str
    text: str
    options: dict[str, str]
    right: str

    def __post_init__(self) -> None:
        if self.right not in self.options:
            raise ValueError(f"right: got {self.right!r}, allowed are {', '.join(self.options)}")


@dataclass(frozen=True)
class Page:
    """Markdown that a notebook shows."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """A page that shows Markdown keeps this as well, and need not hold the text twice."""
        return self.text.partition("\n")[0]


@cache
def questions() -> dict[str, Question]:
    """All of questions.toml, by name."""
    chapters = files.toml((files.PACKAGE / "learn" / "questions.toml").read_text(encoding="utf-8"))
    return {name: Question(chapter, **one) for chapter, of in chapters.items() for name, one in of.items()}


def find(name: str) -> Question:
    if name not in questions():
        raise ValueError(f"question: got {name!r}, allowed are {', '.join(questions())}")
    return questions()[name]


def ask(name: str) -> Page | None:
    """The question and its options."""
    from pod.lab.show.explore import is_live

    question = find(name)
    if is_live():
        return _buttons(name, question)
    return Page(f"**Predict.** {question.text}\n\n" + "\n".join(f"- {option}" for option in question.options))


def answer(name: str) -> Page:
    """What is to be said on each option, folded; above them, the one that was chosen here."""
    from pod.lab.show.explore import is_live

    question = find(name)
    folded = "\n\n".join(_folded(option, question) for option in question.options)
    chosen = _chosen.get(name) if is_live() else None
    return Page(f"{_reply(chosen, question)}\n\n{folded}" if chosen else folded)


def _folded(option: str, question: Question) -> str:
    mark = "right. " if option == question.right else ""
    return (
        f"<details><summary>You said: {option}</summary>\n\n{mark.capitalize()}{question.options[option]}\n</details>"
    )


def _reply(option: str, question: Question) -> str:
    verdict = "Right" if option == question.right else f"Not {option}, but {question.right}"
    return f"**{verdict}.** {question.options[option]}"


_chosen: dict[str, str] = {}  # in this notebook


def choose(name: str, option: str) -> str:
    """Note a choice; whether it is right comes later."""
    question = find(name)
    _chosen[name] = option
    progress.note(name, "right" if option == question.right else "wrong")
    return f"You say: {option}. Run on to see."


def _buttons(name: str, question: Question) -> None:
    import ipywidgets
    from IPython.display import display

    said = ipywidgets.HTML()
    buttons = [ipywidgets.Button(description=option, layout={"width": "auto"}) for option in question.options]
    for button in buttons:
        button.on_click(lambda pressed: setattr(said, "value", choose(name, pressed.description)))
    display(Page(f"**Predict.** {question.text}"))
    display(ipywidgets.VBox([*buttons, said]))

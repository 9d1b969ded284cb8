"""The glossary: notebooks/glossary.md as a page, and each of its words linked where a chapter first says it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from pod.lab.notebooks import FOLDER
from pod.lab.site.frame import Page, slug
from pod.lab.site.places import Places
from pod.lab.site.prose import markdown, plain

FILE = FOLDER / "glossary.md"
PATH = "glossary.html"
UNLINKED = re.compile(r"(<(a|pre|code|h[1-6]|math|summary|button)\b.*?</\2>|<[^>]+>)", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """`names`: as the text may say it, the heading's first."""

    names: tuple[str, ...]
    text: str

    @property
    def anchor(self) -> str:
        return slug(self.names[0])

    @property
    def short(self) -> str:
        """The first sentence, without the other names."""
        words = plain(markdown(re.sub(r"^\*Also: .*?\*\s", "", self.text, flags=re.DOTALL)))
        return re.match(r".*?[.:](?=\s|$)", " ".join(words.split()))[0]


def entries() -> list[Entry]:
    _, *parts = FILE.read_text(encoding="utf-8").split("\n## ")
    return [_entry(*part.split("\n", 1)) for part in parts]


def _entry(name: str, text: str) -> Entry:
    also = re.match(r"\*Also: (.*?)\.\*", text, re.DOTALL)
    others = re.split(r",\s+", also[1]) if also else []
    return Entry((name, *others), text.strip())


def page(places: Places) -> Page:
    body = markdown(FILE.read_text(encoding="utf-8"), lambda url: places.link(url, FOLDER, PATH))
    return Page(PATH, "Glossary", f'<article class="glossary">{body}</article>')


def mentions(root: str) -> Callable[[str, set[str]], str]:
    """A function that links each term once: `seen` holds those that a chapter has linked already."""
    known = {name.lower(): entry for entry in entries() for name in entry.names}
    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    term = re.compile(rf"(?<![\w-])({names})(s?)(?![\w-])", re.IGNORECASE)

    def link(html: str, seen: set[str]) -> str:
        def one(match: re.Match) -> str:
            entry = known[match[1].lower()]
            if entry.anchor in seen:
                return match[0]
            seen.add(entry.anchor)
            return f'<a class="term" href="{root}{PATH}#{entry.anchor}" title="{escape(entry.short)}">{match[0]}</a>'

        pieces = UNLINKED.split(html)  # text, then what must stay as it is and the name of its element
        return "".join(
            term.sub(one, piece) if at % 3 == 0 else piece if at % 3 == 1 else "" for at, piece in enumerate(pieces)
        )

    return link

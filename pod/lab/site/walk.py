"""A chapter as a page: its prose, its code, what that showed when it was last run, and its questions to click."""

import base64
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from pod.lab import notebooks
from pod.lab.chapters import CHAPTERS, PARTS, Chapter
from pod.lab.site.frame import Page, chapter_path, slug
from pod.lab.site.places import Places, relative
from pod.lab.site.prose import highlighted, inline, markdown, plain

ASKS = re.compile(r'^learn\.(ask|answer)\("([\w-]+)"\)\Z', re.MULTILINE)
NEIGHBOURS = re.compile(r"^(?=.*→).*$\n?", re.MULTILINE)  # the page has its own way to them


@dataclass(frozen=True)
class Picture:
    path: str
    png: bytes


class Walk:
    """One chapter; `pictures` are found while its page is made."""

    def __init__(self, chapter: Chapter, places: Places, mention: Callable[[str, set[str]], str]) -> None:
        self.chapter, self.places = chapter, places
        self.path = chapter_path(chapter.name)
        self.cells = notebooks.read(chapter.path).cells
        self.pictures: list[Picture] = []
        self.mention, self.mentioned = mention, set()

    def page(self, outside: dict[str, str]) -> Page:
        body = "".join(self._cell(i, cell) for i, cell in enumerate(self.cells) if cell.source.strip())
        head, _, rest = body.partition("</h1>")
        text = f"{head}</h1>{self._facts(outside)}{rest}{self._steps()}"
        return Page(self.path, self.chapter.title, f"<article>{text}</article>", aside=_contents(body))

    def link(self, url: str) -> str:
        return self.places.link(url, notebooks.FOLDER, self.path)

    # ------------------------------------------------------------ cells

    def _cell(self, i: int, cell) -> str:
        if cell.cell_type == "markdown":
            return _parts(self._prose(cell.source)) if i else self._prose(NEIGHBOURS.sub("", cell.source))
        source = notebooks.MARKER.sub("", cell.source).strip("\n")
        asked = ASKS.search(source)
        if asked and asked[1] == "ask":
            return self._question(asked[2], cell)
        shown = "".join(self._outputs(cell))
        if asked:
            return f'<div class="answer" data-question="{asked[2]}">{shown}</div>'
        return f'<div class="cell">{highlighted(source, "ipython")}{shown}</div>\n'

    def _prose(self, text: str) -> str:
        return self.mention(markdown(text, self.link), self.mentioned)

    def _question(self, name: str, cell) -> str:
        """The options of a prediction as buttons; the page remembers which was taken."""
        asked, _, options = cell.outputs[0].data["text/markdown"].partition("\n\n- ")
        taken = "".join(
            f'<button type="button" aria-pressed="false">{inline(option)}</button>' for option in options.split("\n- ")
        )
        return f'<div class="question" data-question="{name}">{markdown(asked, self.link)}<div>{taken}</div></div>\n'

    # ------------------------------------------------------------ outputs

    def _outputs(self, cell) -> Iterator[str]:
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                yield _text(output.text)
            elif notebooks.PICTURE in data:
                yield self._picture(data[notebooks.PICTURE], output.metadata[notebooks.PICTURE]["alt"])
            elif "text/markdown" in data:
                yield f'<div class="out">{markdown(data["text/markdown"], self.link)}</div>'
            elif "text/html" in data:
                yield _table(data["text/html"])
            elif "text/plain" in data:
                yield _text(data["text/plain"])

    def _picture(self, png: str, words: str) -> str:
        number = len(self.pictures) + 1
        made = Picture(f"chapters/pictures/{self.chapter.label}-{number:02}.png", base64.b64decode(png))
        self.pictures.append(made)
        return figure(relative(made.path, self.path), made.png, words)

    # ------------------------------------------------------------ around

    def _facts(self, outside: dict[str, str]) -> str:
        part = next(part for part, chapters in PARTS.items() if self.chapter in chapters)
        there = {name: escape(url.format(name=self.chapter.name)) for name, url in outside.items()}
        links = "".join(f'<a href="{url}">{name}</a>' for name, url in there.items())
        return f'<p class="facts"><span>{part}</span><span>{self.chapter.minutes} minutes</span>{links}</p>'

    def _steps(self) -> str:
        at = CHAPTERS.index(self.chapter)
        before, after = CHAPTERS[max(at - 1, 0) : at], CHAPTERS[at + 1 : at + 2]
        steps = [f'<a rel="prev" href="{c.name}.html">← {escape(c.title)}</a>' for c in before]
        steps += [f'<a rel="next" href="{c.name}.html">{escape(c.title)} →</a>' for c in after]
        return f'<nav class="steps" aria-label="Neighbours">{"".join(steps)}</nav>'


def figure(path: str, png: bytes, words: str) -> str:
    """A picture with its size, so that nothing jumps when it comes."""
    width, height = Image.open(io.BytesIO(png)).size
    image = f'<img src="{path}" alt="{escape(plain(inline(words)))}" width="{width}" height="{height}" loading="lazy">'
    return f'<a class="plate" href="{path}">{image}</a>'


def _parts(html: str) -> str:
    """A chapter has one title; what it calls its second part is a heading."""
    return html.replace("<h1 ", '<h2 class="part" ').replace("</h1>", "</h2>")


def _contents(body: str) -> str:
    heads = re.findall(r'<h2 (?:class="part" )?id="([^"]*)">(.*?)</h2>', body)
    links = "".join(f'<a href="#{anchor}">{plain(text)}</a>' for anchor, text in heads)
    return f'<nav class="contents" aria-label="On this page"><h2>On this page</h2>{links}</nav>'


def _text(text: str) -> str:
    return f'<pre class="out" tabindex="0">{escape(text.rstrip())}</pre>'


def _table(html: str) -> str:
    bare = re.sub(r"<style.*?</style>| border=\"1\" class=\"dataframe\"| style=\"[^\"]*\"", "", html, flags=re.DOTALL)
    return f'<div class="scroll out" tabindex="0">{bare}</div>'


# ---------------------------------------------------------------- their solutions


def solutions(places: Places) -> list[Page]:
    return [_solution(path, places) for path in sorted((notebooks.FOLDER / "solutions").glob("*.md"))]


def _solution(file: Path, places: Places) -> Page:
    page = f"chapters/solutions/{file.stem}.html"
    body = markdown(file.read_text(encoding="utf-8"), lambda url: places.link(url, file.parent, page))
    return Page(page, f"Solutions, {slug(file.stem).replace('_', ' ')}", f"<article>{body}</article>")

"""What every page of the site has around it: its head, the way to the other pages, and the switch for the dark."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from pod.lab.chapters import PARTS

STATIC = Path(__file__).with_name("static")
NAME = "POD-Attention, rebuilt"
ROOMS = {"index.html": "Start", "gallery.html": "Gallery", "claims.html": "Claims", "explore/index.html": "Explore",
         "glossary.html": "Glossary", "api.html": "API"}  # fmt: skip
# Before the first paint, or a dark page would flash white.
EARLY = "try{var t=localStorage.getItem('theme');if(t)document.documentElement.dataset.theme=t}catch(e){}"


@dataclass(frozen=True)
class Page:
    """`path` from the site's root; `data` is JSON that the page's scripts find in #data."""

    path: str
    title: str
    body: str
    scripts: tuple[str, ...] = ()
    data: Mapping | None = None
    aside: str = ""
    wide: bool = False
    links: Mapping[str, str] = field(default_factory=dict)  # beside the title, to other sites

    @property
    def root(self) -> str:
        """The way from this page to the site's root."""
        return "../" * self.path.count("/")


def chapter_path(name: str) -> str:
    return f"chapters/{name}.html"


def html(page: Page) -> str:
    root = page.root
    scripts = "".join(f'<script defer src="{root}static/{name}"></script>' for name in ("site.js", *page.scripts))
    data = f'<script type="application/json" id="data">{_json(page.data)}</script>' if page.data is not None else ""
    title = page.title if page.path == "index.html" else f"{page.title} · {NAME}"
    width = ' class="wide"' if page.wide else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><script>{EARLY}</script>
<link rel="icon" href="data:,"><link rel="stylesheet" href="{root}static/site.css">{scripts}</head><body>
<a class="skip" href="#main">Skip to the text</a>
<header class="top"><a class="home" href="{root}index.html">{NAME}</a>
<details class="menu"><summary>Menu</summary><nav aria-label="Rooms">{_rooms(page)}{_chapters(page)}</nav></details>
<nav class="rooms" aria-label="Rooms of the site">{_rooms(page)}</nav>
<button id="theme" type="button" aria-label="Light or dark">◐</button></header>
<div class="frame"><nav class="walk" aria-label="Chapters">{_chapters(page)}</nav>
<main id="main"{width}>{page.body}</main>{page.aside}</div>
<footer>MIT licence. The papers belong to their authors; only numbers and ideas are quoted, always with their place.
Built by <code>make site</code>; nothing on these pages comes from the network.</footer>{data}</body></html>
"""


def _rooms(page: Page) -> str:
    return "".join(_link(page, path, name) for path, name in ROOMS.items())


def _chapters(page: Page) -> str:
    parts = (
        f"<h2>{escape(part)}</h2>" + "".join(_link(page, chapter_path(c.name), c.title) for c in chapters)
        for part, chapters in PARTS.items()
    )
    return "".join(parts)


def _link(page: Page, path: str, name: str) -> str:
    here = ' aria-current="page"' if path == page.path else ""
    return f'<a href="{page.root}{path}"{here}>{escape(name)}</a>'


def _json(data: Mapping) -> str:
    """Inside of a script element nothing may look like its end."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")


def slug(text: str) -> str:
    """GitHub's: what a link to this heading says."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")

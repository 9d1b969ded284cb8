"""Where a file of the repository is on the site, and the pages of those that are only read: sources and data."""

import os
import re
from html import escape
from pathlib import Path, PurePosixPath

from pod.files import ROOT
from pod.lab.site.frame import Page, chapter_path
from pod.lab.site.prose import highlighted

ROWS = 400  # of a long table
ELSEWHERE = re.compile(r"[a-z]+:|#")
OWN = {"README.md": "index.html", "notebooks/glossary.md": "glossary.html", "notebooks": "index.html"}


class Places:
    """Notes which files were linked, so that just these get a page."""

    def __init__(self) -> None:
        self.wanted: dict[str, Path] = {}

    def of(self, file: Path) -> str:
        """The site's path of a file or folder of the repository."""
        name = file.relative_to(ROOT).as_posix()
        if not file.exists():
            raise ValueError(f"site: got a link to {name}, allowed are files that are here")
        if name in OWN:
            return OWN[name]
        if file.suffix == ".ipynb":
            return chapter_path(file.stem)
        if name.startswith("notebooks/solutions/"):
            return f"chapters/solutions/{file.stem}.html"
        path = f"source/{name}.html"
        self.wanted[path] = file
        return path

    def link(self, url: str, folder: Path, page: str) -> str:
        """What a link of a text in `folder` says on the page."""
        if ELSEWHERE.match(url):
            return url
        target, hash_, anchor = url.partition("#")
        file = Path(os.path.normpath(folder / target))
        return relative(self.of(file), page) + hash_ + anchor

    def pages(self) -> list[Page]:
        return [Page(path, file.relative_to(ROOT).as_posix(), _body(file)) for path, file in self.wanted.items()]


def relative(path: str, page: str) -> str:
    """The way from one page of the site to another."""
    return PurePosixPath(os.path.relpath(path, os.path.dirname(page) or ".")).as_posix()


def _body(file: Path) -> str:
    head = f"<h1><code>{escape(file.relative_to(ROOT).as_posix())}</code></h1>"
    if file.is_dir():
        names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in file.iterdir() if p.name[0] not in "._")
        return head + "<ul>" + "".join(f"<li><code>{escape(name)}</code></li>" for name in names) + "</ul>"
    lines = file.read_text(encoding="utf-8").splitlines()
    if file.suffix == ".csv" and len(lines) > ROWS:
        return f"{head}<p>The first {ROWS} of {len(lines)} lines.</p>" + highlighted("\n".join(lines[:ROWS]), "")
    return head + highlighted("\n".join(lines), file.suffix.lstrip("."))

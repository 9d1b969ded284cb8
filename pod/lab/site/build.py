"""All pages of the site: chapters, gallery, claims, glossary, the public call and three explorers."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from pod import files
from pod.files import ROOT
from pod.lab import claims, gallery, registry
from pod.lab.chapters import CHAPTERS, PARTS
from pod.lab.site import colab, doors, explorers, moving, shelves, walk, words
from pod.lab.site.frame import STATIC, Page, chapter_path, html
from pod.lab.site.places import Places
from pod.lab.site.prose import markdown

GITHUB = "https://github.com/{repository}/blob/main/notebooks/{{name}}.ipynb"
BINDER = "https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/notebooks/{{name}}.ipynb"
LIMIT = 30e6  # bytes, which a phone may load
OUTSIDE = {"GitHub": GITHUB, "Binder": BINDER, "for Colab": "colab/{{name}}.ipynb"}


def build(out: Path, figures: Iterable[str], repository: str = "") -> list[str]:
    """The whole site into `out`, with these figures drawn; returns the ids of those that failed."""
    outside = {name: url.format(repository=repository) for name, url in OUTSIDE.items()} if repository else {}
    drawn = out / "figures"
    failed, judged = gallery.reproduce(figures, drawn)
    results, places = claims.results(judged=judged), Places()
    walks = [walk.Walk(chapter, places, words.mentions("../")) for chapter in CHAPTERS]
    pages = [w.page(outside) for w in walks]
    pages += [_start(results), shelves.gallery(results, drawn, places), shelves.claims_page(results, drawn)]
    pages += [words.page(places), doors.page(places), *walk.solutions(places), *explorers.pages()]
    for page in [*pages, *places.pages()]:
        _write(out / page.path, html(page))
    for picture in (picture for w in walks for picture in w.pictures):
        _keep(out / picture.path, picture.png)
    for chapter in CHAPTERS if repository else ():
        _write(out / colab.path(chapter), colab.chapter(chapter, repository))
    shutil.copytree(STATIC, out / "static", ignore=shutil.ignore_patterns("*.py"), dirs_exist_ok=True)
    _write(out / ".nojekyll", "")
    return failed


def _write(path: Path, text: str) -> None:
    _keep(path, text.encode())


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# ---------------------------------------------------------------- the first page


def _start(results: list[claims.Result]) -> Page:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = readme.partition("<!-- stutter:")[0].partition("\n")[2].strip()
    read = readme.partition("<!-- end of stutter -->")[2].partition("\n## ")[0].strip()
    doors_ = "".join(
        f'<a class="door" href="{path}"><h3>{name}</h3><p>{text}</p></a>' for path, name, text in explorers.DOORS
    )
    holds = sum(r.verdict == claims.HOLDS for r in results)
    body = f"""<article class="start"><h1>POD-Attention, explained and rebuilt</h1>{markdown(told)}{moving.stutter()}
{markdown(read)}<p><a class="go" href="{chapter_path(CHAPTERS[0].name)}">Begin with chapter 00</a>
<a class="go quiet" href="explore/index.html">Play first</a></p>
<h2>Three things to move</h2><div class="doors">{doors_}</div><h2>The chapters</h2>{"".join(map(_part, PARTS))}
<h2>Is it true?</h2><p><a href="{shelves.CLAIMS}">{len(results)} claims</a> of two papers, four posts and our own were
judged here; {holds} hold. Those that do not stay on display, with the reason. The <a href="{shelves.PATH}">gallery</a>
has every figure with its data.</p></article>"""
    return Page("index.html", "POD-Attention, explained and rebuilt", body)


def _part(part: str) -> str:
    rows = "".join(
        f'<li><a href="{chapter_path(c.name)}">{c.title}</a><span>{c.question}</span>'
        f"<small>{c.minutes} min</small></li>"
        for c in PARTS[part]
    )
    return f'<h3>{part}</h3><ol class="toc">{rows}</ol>'


# ---------------------------------------------------------------- the verb


def run(args) -> int:
    """Made beside and then moved, so that nothing of an older site stays."""
    begin = time.perf_counter()
    files.ready(args.out)
    if any(args.out.iterdir()) and not (args.out / ".nojekyll").is_file():
        raise ValueError(f"--out: got {args.out}, allowed is a folder that is empty or holds a site")
    with tempfile.TemporaryDirectory(dir=args.out.absolute().parent) as made:
        failed = build(Path(made) / "site", [figure.id for figure in registry.drawable()], args.repository)
        os.replace(args.out, Path(made) / "older")
        os.replace(Path(made) / "site", args.out)
    size = _size(args.out)
    print(f"{args.out}/index.html: {size / 1e6:.1f} MB in {time.perf_counter() - begin:.0f} s")
    if size > LIMIT:
        print(f"size: got {size / 1e6:.2f} MB, allowed are {LIMIT / 1e6:g}; {_largest(args.out)}", file=sys.stderr)
    return 1 if failed or size > LIMIT else 0


def _largest(out: Path) -> str:
    """The three folders to begin with."""
    sizes = {folder.name: _size(folder) for folder in out.iterdir() if folder.is_dir()}
    first = sorted(sizes, key=sizes.get, reverse=True)[:3]
    return "the largest folders are " + ", ".join(f"{name} ({sizes[name] / 1e6:.1f} MB)" for name in first)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

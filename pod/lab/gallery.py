"""`python -m pod figures`: draw figures into figures/<id>.png and .csv, and write the gallery figures/index.html."""

import base64
import gc
import io
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd
from matplotlib import pyplot as plt

from pod import files
from pod.data import DATA, choose, path_of, sidecar_of
from pod.lab import claims, notebooks, paper, pixels, registry, takeaway
from pod.lab.chapters import CHAPTERS, Chapter
from pod.lab.figure import OURS, Figure
from pod.lab.show.says import says
from pod.lab.show.still import stays
from pod.sweep import sweep

BADGES = {"done": "computed", "simulated": "simulated", "recorded": "recorded on", "missing": "still missing"}
STYLE = Path(__file__).with_name("gallery.css")
ROWS_SHOWN = 24
FEW = 8  # figures, for which it is not worth to start processes
PICTURE = 50_000  # objects, after which Python looks for some that are gone
SHOWN = ("gpu", "uuids", "power_limit_w", "driver", "cuda", "torch", "packages", "python", "started", "timer", "l2",
         "repeats", "commit", "tree", "command", "reads", "held", "part", "corrected")  # fmt: skip

# ---------------------------------------------------------------- drawing


@dataclass(frozen=True)
class Task:
    """A figure to draw, what it says, and the claims that its page settles: they ask for the same tables."""

    id: str
    words: str
    claims: tuple[claims.Claim, ...]
    out: Path


@dataclass(frozen=True)
class Drawn:
    """Seconds that a figure took, why it failed, and its claims with their verdicts."""

    id: str
    seconds: float
    error: str = ""
    results: tuple[claims.Result, ...] = ()


def reproduce(ids: Iterable[str], out: Path) -> tuple[list[str], list[claims.Result]]:
    """Draw each figure and write its table; returns the ids that failed, after the others are done, and the claims that
    were judged on the way."""
    by_page = defaultdict(tuple)
    for claim in claims.load():
        by_page[claim.ours.partition(":")[0]] += (claim,)
    tasks = [Task(name, takeaway.words(name), by_page[name], out) for name in ids]
    for task in tasks:
        registry.load(task.id)  # one that cannot be drawn ends it before any work
    files.ready(out)
    how_long = ": about a minute on 2 cores" if len(tasks) > FEW else ""
    print(f"drawing {len(tasks)} of {len(registry.drawable())} figures into {out}/{how_long}", flush=True)
    failed, results = [], []
    for drawn in sweep(_drawn, tasks, None if len(tasks) > FEW else 1):
        results += drawn.results
        if drawn.error:
            failed.append(drawn.id)
            print(f"{drawn.id:<14} FAILED  {drawn.error}", file=sys.stderr, flush=True)
        else:
            print(f"{drawn.id:<14} {drawn.seconds:5.1f} s  {registry.find(drawn.id).title}", flush=True)
    return failed, results


def _drawn(task: Task) -> Drawn:
    """One that is broken must not hide the others."""
    begin = time.perf_counter()
    try:
        with _collected_seldom():
            _draw(task)
            results = tuple(map(claims.judge, task.claims))
        return Drawn(task.id, time.perf_counter() - begin, results=results)
    except Exception as error:
        return Drawn(task.id, 0.0, f"{type(error).__name__}: {error}")


@contextmanager
def _collected_seldom() -> Iterator[None]:
    """A picture is some hundred thousand objects that go together. Python looks for some that are gone each time that
    there are 700 more, which took about a tenth of all the time."""
    first, *others = gc.get_threshold()
    gc.set_threshold(PICTURE, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


def _draw(task: Task) -> None:
    plt.switch_backend("Agg")
    page = registry.page(task.id)
    table = page.table()
    picture = page.draw(table)
    if task.words:
        says(picture, task.words)
    with stays():
        drawn = _pixels(picture)
    plt.close(picture)
    files.replace(task.out / f"{task.id}.csv", table.to_csv(index=False, float_format="%.6g"))
    files.replace(task.out / f"{task.id}.png", pixels.small(drawn))


def _pixels(picture) -> bytes:
    """A PNG, cut to what is drawn. savefig(bbox_inches="tight") gives the same pixels, but draws all of it once more,
    unseen, in order to know where it ends; with the layout made, it is known. To press it as far as matplotlib does
    takes twice the time, for files that are 7 % smaller."""
    png = io.BytesIO()
    picture.set_dpi(150)
    if engine := picture.get_layout_engine():
        engine.execute(picture)
    picture.set_layout_engine(None)
    edge = picture.get_tightbbox(picture.canvas.get_renderer()).padded(plt.rcParams["savefig.pad_inches"])
    picture.savefig(png, format="png", dpi=150, bbox_inches=edge, facecolor="white",
                    pil_kwargs={"compress_level": 1})  # fmt: skip
    return png.getvalue()


# ---------------------------------------------------------------- the page


def write_index(out: Path, judged: Iterable[claims.Result] = ()) -> Path:
    """The gallery: one file that needs no network and no neighbour."""
    page = out / "index.html"
    files.replace(page, _page(out, claims.results(judged=judged)))
    return page


def _page(out: Path, results: list[claims.Result]) -> str:
    by_figure = defaultdict(list)
    for result in results:
        by_figure[result.claim.shown_in].append(result)
    sections = defaultdict(list)
    for figure in registry.figures():
        sections[figure.source.split(",")[0]].append(figure)
    body = "".join(_section(name, figures, by_figure, out) for name, figures in sections.items())
    nav = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>POD-Attention, rebuilt: the gallery</title><style>{STYLE.read_text(encoding="utf-8")}</style></head><body>
<header><h1>POD-Attention, rebuilt</h1>
<p class="lead">Every figure and table of two papers and four posts, beside what this repository gets. A badge says
how: <b class="badge done">computed</b> exactly, <b class="badge simulated">simulated</b> by a model,
<b class="badge recorded">recorded</b> on the GPU it names, or <b class="badge simulated">composed</b> from recordings
of its parts.</p>
{_progress(registry.figures(), results)}<nav>{nav}</nav></header>
<main>{body}</main>
<footer>Made by <code>make reproduce-figures</code>. {escape(claims.foreseen(results))} Claims and bands:
<code>data/claims.toml</code>, <code>data/bands.csv</code>. Paper numbers: <code>data/paper/</code>.</footer>
</body></html>
"""


def _progress(figures, results) -> str:
    states = Counter(figure.badge for figure in figures)
    bar = "".join(f'<i class="{s}" style="flex:{states[s]}"></i>' for s in BADGES if states[s])
    legend = "".join(
        f'<span><b class="dot {s}"></b>{states[s]} {label.removesuffix(" on")}</span>' for s, label in BADGES.items()
    )
    return f'<div class="bar">{bar}</div><p class="legend">{legend}</p>{_tally(results)}'


def _tally(results) -> str:
    """How many claims hold, by whose they are and on what evidence."""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("claims", "evidence", *claims.PLURAL.values()))
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in (whose, evidence, *counts))}</tr>"
        for whose, evidence, *counts in claims.tally(results)
    )
    return f'<div class="scroll tally"><table><tr>{head}</tr>{rows}</table></div>'


def _section(name: str, figures, by_figure, out: Path) -> str:
    drawn = [figure for figure in figures if not figure.lacks and (out / f"{figure.id}.png").is_file()]
    others = [figure for figure in figures if figure not in drawn]
    cards = "".join(_card(figure, by_figure[figure.id], out) for figure in drawn)
    rows = "".join(_row(figure, by_figure[figure.id]) for figure in others)
    rest = f'<h3>Not drawn</h3><div class="rows">{rows}</div>' if others else ""
    count = f"{len(drawn)} of {len(figures)}"
    return f'<section id="{_anchor(name)}"><h2>{escape(name)} <small>{count}</small></h2>{cards}{rest}</section>'


def _card(figure: Figure, results, out: Path) -> str:
    label = f"{figure.how} {figure.gpu}" if figure.gpu else BADGES[figure.state]
    where = "" if figure.source == OURS else f"<span>{escape(figure.source)}</span>"
    return f"""<article id="{figure.id}">
<p class="meta"><b class="badge {figure.badge}">{label}</b>{where}<code>{figure.id}</code>{_chapter(figure)}</p>
<h3>{escape(figure.title)}</h3>
<p class="method">{escape(figure.method)}</p>
<a class="plate" href="{figure.id}.png"><img alt="{escape(figure.title)}" src="{_image(out / f"{figure.id}.png")}"></a>
{_claims(results)}<div class="folds">{_data(out / f"{figure.id}.csv")}{_stated(figure.id)}{_provenance(figure)}</div>
</article>"""


def _row(figure: Figure, results) -> str:
    inside = _claims(results) + _stated(figure.id, fold=False)
    when = figure.state_text if figure.lacks else "not drawn in this run"
    head = f"<code>{figure.id}</code><span>{escape(figure.title)}</span><em>{when}</em>"
    return f"<details><summary>{head}</summary>{inside}</details>" if inside else f'<div class="row">{head}</div>'


def _claims(results) -> str:
    if not results:
        return ""
    css = {claims.HOLDS: "holds", claims.FAILS: "fails", claims.CANNOT: "open", claims.OPEN: "open"}
    rows = "".join(
        f"<tr><td>{escape(r.claim.statement)}{_note(r.base)}{_note(r.why)}</td>{_value(r.claim.number)}"
        f'<td class="n">{r.spread_text}</td><td>{r.evidence}</td><td class="n">{r.band_text}</td>'
        f'<td><b class="verdict {css[r.verdict]}">{r.verdict}</b></td></tr>'
        for r in results
    )
    head = "<tr><th>claim</th><th>paper</th><th>ours</th><th>evidence</th><th>holds within</th><th>verdict</th></tr>"
    return f'<div class="scroll"><table>{head}{rows}</table></div>'


def _value(number: paper.Number) -> str:
    css = "" if number.unit == "label" else ' class="n"'
    return f"<td{css}>{escape(number.text)}</td>"


def _note(text: str) -> str:
    return f"<br><small>{escape(text)}</small>" if text else ""


def _data(path: Path) -> str:
    table = pd.read_csv(path)
    more = f"<p>First {ROWS_SHOWN} of {len(table)} rows.</p>" if len(table) > ROWS_SHOWN else ""
    html = table.head(ROWS_SHOWN).to_html(index=False, border=0, na_rep="", float_format=lambda v: f"{v:.5g}")
    link = f'<p><a href="{path.name}">{path.name}</a></p>'
    return f'<details><summary>Data</summary><div class="scroll">{html}</div>{more}{link}</details>'


def _stated(figure_id: str, fold: bool = True) -> str:
    stated = paper.of_figure(figure_id)
    if not stated:
        return ""
    rows = "".join(
        f"<tr><td>{escape(n.quantity)}</td>{_value(n)}"
        f'<td class="n">{escape(n.where)}</td><td>{escape(n.note)}</td></tr>'
        for n in stated
    )
    head = "<tr><th>stated</th><th>value</th><th>where</th><th>note</th></tr>"
    table = f'<div class="scroll"><table>{head}{rows}</table></div>'
    return f"<details><summary>What the source states</summary>{table}</details>" if fold else table


def _provenance(figure: Figure) -> str:
    lines = []
    for path in map(path_of, figure.data):
        meta = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
        shown = {name: meta[name] for name in SHOWN if name in meta}
        where = path.relative_to(DATA).as_posix()
        lines.append(f"<p><code>{escape(where)}</code></p><pre>{escape(json.dumps(shown, indent=1))}</pre>")
    return f"<details><summary>Provenance</summary>{''.join(lines)}</details>" if lines else ""


def _chapter(figure: Figure) -> str:
    chapter = chapter_of(figure)
    text = f"chapter {chapter.label if chapter else figure.chapter}"
    return f'<a href="../notebooks/{chapter.path.name}">{text}</a>' if chapter else f"<span>{text}</span>"


def chapter_of(figure: Figure) -> Chapter | None:
    """Of its chapter's notebooks the one that draws it, or else the first whose code, or whose text, names it, or else
    the first."""
    of = [chapter for chapter in CHAPTERS if chapter.number == figure.chapter and chapter.path.exists()]
    name = figure.id.replace("-", "_")
    drawn, named, told = rf'\b{name}\.draw|show\("{figure.id}"', rf"\b{name}\b", rf"`{figure.id}`"
    signs = (drawn, "code"), (named, "code"), (told, "markdown"), ("", "code")
    return next(
        (c for sign, kind in signs for c in of if re.search(sign, "\n".join(notebooks.sources(c.path, kind)))), None
    )


def _image(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _anchor(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


# ---------------------------------------------------------------- the verb


def configure(parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="e.g. pod-06; every figure that is here when left out")
    parser.add_argument("--list", action="store_true", help="name these figures, or all, with their state, one a line")
    parser.add_argument("--from", dest="place", metavar="PLACE", help="whose measurements: recorded (default), fresh, "
                        "or one GPU's folder of these, as fresh/h100")  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder to write to (default: figures)")


def run(args) -> int:
    if args.list and args.out:
        raise ValueError(f"--out: got {args.out} beside --list, which writes nothing, allowed is one of them")
    if args.place:
        choose(args.place)
    if args.list:
        print("\n".join(figure.line for figure in [*map(registry.find, args.ids)] or registry.figures()))
        return 0
    out = args.out or Path("figures")
    ids = list(dict.fromkeys(args.ids)) or [figure.id for figure in registry.drawable()]
    failed, judged = reproduce(ids, out)
    for figure in registry.figures():
        if figure.lacks and not args.ids:
            print(f"{figure.id:<14} left out: {figure.state_text}")
    print(f"gallery: {write_index(out, judged)}")
    return 1 if failed else 0

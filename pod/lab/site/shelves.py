"""The gallery and the claims: every figure and every verdict, to be filtered and searched in the page itself."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from pod.files import ROOT
from pod.lab import claims, registry
from pod.lab.claims import Result
from pod.lab.figure import OURS, Figure
from pod.lab.gallery import BADGES, chapter_of
from pod.lab.site.frame import Page, chapter_path
from pod.lab.site.places import Places
from pod.lab.site.prose import inline
from pod.lab.site.walk import figure as shown

STATES = {"done": "computed", "simulated": "simulated", "recorded": "recorded", "missing": "missing"}
CSS = {claims.HOLDS: "holds", claims.FAILS: "fails", claims.CANNOT: "open", claims.OPEN: "open"}
PATH, CLAIMS = "gallery.html", "claims.html"


def source_of(text: str) -> str:
    """POD-Attention, Figure 6 -> POD-Attention."""
    return text.split(",")[0]


def _filters(**options: Iterable[str]) -> str:
    """A select each, a search, and how many are left."""
    selects = "".join(
        f'<label>{name}<select name="{name}"><option value="">all</option>'
        + "".join(f'<option value="{escape(o)}">{escape(o)}</option>' for o in dict.fromkeys(values))
        + "</select></label>"
        for name, values in options.items()
    )
    search = '<label>search<input name="search" type="search" placeholder="words or an id"></label>'
    return f'<form class="filters" role="search">{selects}{search}<output aria-live="polite"></output></form>'


def verdict(result: Result) -> str:
    return f'<b class="verdict {CSS[result.verdict]}">{result.verdict}</b>'


# ---------------------------------------------------------------- gallery


def gallery(results: list[Result], drawn: Path, places: Places) -> Page:
    """Of the figures that lie in `drawn` as <id>.png and <id>.csv."""
    figures = [figure for figure in registry.figures() if (drawn / f"{figure.id}.png").is_file()]
    settled = {figure.id: [r for r in results if r.claim.shown_in == figure.id] for figure in figures}
    cards = "".join(_card(figure, settled[figure.id], drawn, places) for figure in figures)
    choose = _filters(source=[source_of(f.source) for f in figures], state=[STATES[f.badge] for f in figures],
                      verdict=[*CSS, "no claim"])  # fmt: skip
    body = f"""<h1>Gallery</h1><p class="lead">Every figure and table of two papers and four posts that is here, beside
what this repository gets, and our own. A badge says how: <b class="badge done">computed</b> exactly,
<b class="badge simulated">simulated</b> by a model, or <b class="badge recorded">recorded</b> on the GPU it names.</p>
{choose}<div class="cards" id="list">{cards}</div>"""
    return Page(PATH, "Gallery", body, scripts=("filter.js",), wide=True)


def _card(figure: Figure, results: list[Result], drawn: Path, places: Places) -> str:
    label = f"{figure.how} {figure.gpu}" if figure.gpu else BADGES[figure.state]
    module = ROOT.joinpath(*registry.pages()[figure.id].split(".")).with_suffix(".py")
    chapter = chapter_of(figure)
    links = [f'<a href="{chapter_path(chapter.name)}">chapter {chapter.label}</a>'] if chapter else []
    links += [f'<a href="figures/{figure.id}.csv" download>CSV</a>', f'<a href="{places.of(module)}">experiment</a>']
    verdicts = "".join(
        f'<li><a href="{CLAIMS}#{r.claim.id}">{escape(r.claim.statement)}</a> {verdict(r)}</li>' for r in results
    )
    count = f"{len(results)} claim{'s' * (len(results) != 1)}"
    told = f"<details><summary>{count}</summary><ul>{verdicts}</ul></details>" if results else ""
    image = shown(f"figures/{figure.id}.png", (drawn / f"{figure.id}.png").read_bytes(),
                  f"{figure.title}. {figure.method}")  # fmt: skip
    where = "" if figure.source == OURS else f"<span>{escape(figure.source)}</span>"
    verdicts = "|".join(dict.fromkeys(r.verdict for r in results)) or "no claim"
    return f"""<article id="{figure.id}" data-source="{escape(source_of(figure.source))}" data-verdict="{verdicts}"
data-state="{STATES[figure.badge]}">{image}<h2>{escape(figure.title)}</h2>
<p class="facts"><b class="badge {figure.badge}">{label}</b>{where}<code>{figure.id}</code></p>
<p class="method">{inline(figure.method)}</p>{told}<p class="facts">{"".join(links)}</p></article>"""


# ---------------------------------------------------------------- claims


def claims_page(results: list[Result], drawn: Path) -> Page:
    choose = _filters(source=[source_of(r.claim.source) for r in results], verdict=CSS,
                      evidence=sorted({r.evidence for r in results if r.evidence}))  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in ("claims", "evidence", *claims.PLURAL.values()))
    tally = "".join("<tr>" + "".join(f"<td>{x}</td>" for x in row) + "</tr>" for row in claims.tally(results))
    rows = "".join(_claim(r, (drawn / f"{r.claim.shown_in}.png").is_file()) for r in results)
    body = f"""<h1>Claims</h1><p class="lead">A claim holds when our value lies in its band. One that does not hold
stays here, with the reason; <em>cannot tell</em> means that our value would be the same whether the claim is true or
not.</p>
<p>{escape(claims.foreseen(results))}</p><div class="scroll" tabindex="0"><table><tr>{head}</tr>{tally}</table></div>
{choose}<div id="list">{rows}</div>"""
    return Page(CLAIMS, "Claims", body, scripts=("filter.js",), wide=True)


def _claim(r: Result, drawn: bool) -> str:
    number = r.claim.number
    facts = {"stated": number.text, "here": r.ours_text, "band": r.band_text, "evidence": r.evidence}
    cells = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)
    figure = f'<a href="{PATH}#{r.claim.shown_in}">figure {r.claim.shown_in}</a>' if drawn else ""
    why = f'<p class="why">{escape(r.why)}</p>' if r.why else ""
    return f"""<article class="claim" id="{r.claim.id}" data-source="{escape(source_of(r.claim.source))}"
data-verdict="{r.verdict}" data-evidence="{r.evidence}"><h2>{escape(r.claim.statement)} {verdict(r)}</h2>
<dl>{cells}</dl>{why}<p class="method">{escape(r.base)}</p>
<p class="facts"><span>{escape(r.claim.source)}</span><code>{r.claim.id}</code>{figure}</p></article>"""

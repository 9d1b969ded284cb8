"""The site: every link leads somewhere, nothing comes from the network, and what an explorer computes is what the
repository's functions say. The pages are opened in a real Chromium where there is one; CHROMIUM=path names it.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.request import urlopen

import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_markdown_cell

from pod import kernels
from pod.__main__ import main
from pod.batch import MODELS, HybridBatch
from pod.files import ROOT
from pod.hardware import GPUS
from pod.kernels.trace import both_share
from pod.lab import chapters, claims, notebooks, registry
from pod.lab.show import style, tickets
from pod.lab.site import verb
from pod.schedule import binding, waves
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.loop import serve
from pod.serving.request import Request
from pod.serving.schedulers import VLLM, Orca, Sarathi, Static
from pod.simulate import scenarios

for library in verb.NEEDS:
    pytest.importorskip(library, reason=f"{library} is not installed here, so no site can be built")

from pod.lab.site import build, doors, explorers, walk, words  # noqa: E402
from pod.lab.site.frame import STATIC  # noqa: E402
from pod.lab.site.places import Places  # noqa: E402
from pod.lab.site.prose import markdown  # noqa: E402
from tests.notebooks.test_browser import CHROMIUM, NAMES, Page, until  # noqa: E402

pytestmark = pytest.mark.any_processor
DRAWN = ("band", "pod-t1")
WITHOUT_FIGURES = 18e6  # bytes; build.LIMIT is for all of it
SETTLED = ("pod-t1", "pod-t4")
EXAMPLE = STATIC / "example.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two figures drawn and few claims judged: the others take most of a minute."""
    few = [claims.judge(c) if c.shown_in in SETTLED else claims.Result(c, None) for c in claims.load()]
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "results", lambda judged: few)
        assert build.build(out, DRAWN, "somebody/something") == []
    return out


class Read(HTMLParser):
    """What a page says about itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loads, self.images, self.heads = set(), [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs) -> None:
        known = dict(attrs)
        self.ids.add(known.get("id"))
        if tag == "a":
            self.links.append(known["href"])
        if tag in ("img", "script", "link", "iframe", "source") and (known.get("src") or known.get("href")):
            self.loads.append(known.get("src") or known["href"])
        if tag == "img":
            self.images.append(known)
        if re.fullmatch("h[1-6]", tag):
            self.heads.append(int(tag[1]))


@pytest.fixture(scope="module")
def pages(site):
    return {path: Read(path) for path in sorted(site.rglob("*.html"))}


def names(site, pages) -> set[str]:
    return {path.relative_to(site).as_posix() for path in pages}


# ---------------------------------------------------------------- files


def test_every_chapter_figure_and_room_has_its_page(site, pages):
    wanted = {f"chapters/{c.name}.html" for c in chapters.CHAPTERS} | {path for path, *_ in explorers.DOORS}
    wanted |= {"index.html", "gallery.html", "claims.html", "glossary.html", "api.html", "explore/index.html"}
    assert wanted <= names(site, pages)
    shown = pages[site / "gallery.html"].ids
    assert {*DRAWN} <= shown and {c.id for c in claims.load()} <= pages[site / "claims.html"].ids


def test_links_lead_somewhere(pages):
    wrong = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            target, _, anchor = link.partition("#")
            if re.match(r"https?:|data:|mailto:", link):
                continue
            there = (path.parent / target).resolve() if target else path
            if not there.is_file() or (anchor and there in pages and anchor not in pages[there].ids):
                wrong.append(f"{path.name}: {link}")
    assert wrong == [] and sum(len(page.links) for page in pages.values()) > 1000


def test_a_figure_leads_to_its_chapter_its_data_its_experiment_and_its_claims(site, pages):
    text = (site / "gallery.html").read_text(encoding="utf-8")
    card = re.search(r'<article id="pod-t1".*?</article>', text, re.DOTALL)[0]
    chapter = next(c for c in chapters.CHAPTERS if c.name.startswith(registry.find("pod-t1").chapter))
    for link in (f"chapters/{chapter.name}.html", "figures/pod-t1.csv",
                 "source/pod/experiments/pod/pod_t1.py.html", "claims.html#pod-c0-memory-bound"):  # fmt: skip
        assert f'href="{link}"' in card, link


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert [load for page in pages.values() for load in page.loads if re.match("(https?:)?//", load)] == []
    for path in (*site.glob("static/*.css"), *site.glob("static/*.js")):
        assert not re.search(r"@import|fetch\(|https?://(?!www\.w3\.org)", path.read_text(encoding="utf-8")), path.name


def test_all_of_it_is_small(site):
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size < WITHOUT_FIGURES


def test_every_picture_says_what_it_shows_and_how_large_it_is(pages):
    images = [image for page in pages.values() for image in page.images]
    assert len(images) > 150
    assert [image for image in images if len(image.get("alt", "")) < 20] == []
    assert [image["src"] for image in images if not (image.get("width") and image.get("height"))] == []


def test_a_page_has_one_first_heading_and_skips_no_rank(pages):
    for path, page in pages.items():
        assert page.heads.count(1) == 1, path
        body = page.heads[page.heads.index(1) :]
        assert [pair for pair in zip(body, body[1:], strict=False) if pair[1] > pair[0] + 1] == [], path


@pytest.mark.parametrize("chapter", chapters.CHAPTERS, ids=lambda c: c.name)
def test_a_chapter_is_whole(site, chapter):
    text = (site / f"chapters/{chapter.name}.html").read_text(encoding="utf-8")
    cells = notebooks.read(chapter.path).cells
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    assert text.count('class="plate"') == sum("image/png" in data for data in outputs)
    asked = [cell for cell in cells if re.search(r"^learn\.ask", cell.source, re.MULTILINE)]
    assert text.count('class="question"') == len(asked)
    prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\$[^$\n]*\\\w+[^$\n]*\$|NBVAL|dataframe", prose)
    assert "/somebody/something/blob/main/" in text


def test_a_second_title_is_a_part(site):
    made = walk.Walk(chapters.CHAPTERS[0], Places(), lambda html, seen: html)
    made.cells = [new_markdown_cell("# 00 · One\n\na → b\n\nText."), new_markdown_cell("# Part two\n\nMore.")]
    page = made.page({})
    assert page.body.count("<h1 ") == 1 and "→ b" not in page.body
    assert '<h2 class="part" id="part-two">Part two</h2>' in page.body and 'href="#part-two"' in page.aside


def test_a_formula_becomes_mathml():
    html = markdown(r"so $e^{a} = \sqrt{2}$ and $$\frac{1}{2}$$")
    assert html.count("<math") == 2 and 'display="block"' in html and "<mfrac>" in html and "$" not in html


# ---------------------------------------------------------------- the glossary


def test_the_glossary_is_in_order_and_each_word_is_said_where_it_sends():
    known = words.entries()
    assert len(known) > 40
    heads = [entry.names[0].lower() for entry in known]
    assert heads == sorted(heads, key=lambda name: name.replace(":", ""))
    for entry in known:
        chapter = re.search(r"\[(\d\d[a-z]?)\]\((\1_\w+\.ipynb)\)$", entry.text)
        assert chapter and len(entry.short) > 15, entry.names
        prose = (notebooks.FOLDER / chapter[2]).read_text(encoding="utf-8").lower()
        assert any(name.lower() in prose for name in entry.names), f"{entry.names} in {chapter[2]}"


def test_a_word_is_linked_once_and_never_inside_of_code_or_links():
    link, seen = words.mentions("../"), set()
    text = '<p>Warps, a <a href="x">tile</a> and <code>warp</code>; a warp. A tile.</p><h2>SM</h2>'
    html = link(text, seen)
    assert re.sub(r' title="[^"]*"', "", html) == (
        '<p><a class="term" href="../glossary.html#warp">Warps</a>, a <a href="x">tile</a> and <code>warp</code>; '
        'a warp. A <a class="term" href="../glossary.html#tile">tile</a>.</p><h2>SM</h2>'
    )
    assert link("<p>One warp.</p>", seen) == "<p>One warp.</p>"


# ---------------------------------------------------------------- the public call


def test_every_door_is_on_the_page(site, pages):
    import pod

    assert {*pod.__all__} <= pages[site / "api.html"].ids
    text = (site / "api.html").read_text(encoding="utf-8")
    assert "Decide who computes what" in text and "softmax_scale" in text
    assert doors._parameter(inspect.signature(pod.plan).parameters["method"]) == "method: str = 'auto'"
    marked = doors.WORD.sub(r"<\1>", "q_len 1 on 9.0, page_size=None: pod.plan(batch)")
    assert marked == "<q_len> 1 on 9.0, <page_size=None>: <pod.plan(batch)>"


@pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
def test_the_example_runs():
    done = subprocess.run([sys.executable, EXAMPLE], cwd=ROOT, capture_output=True, text=True, timeout=300)
    said = re.fullmatch(r"\(34, 4, 64\), at most (0\.\d+) off\n", done.stdout)
    assert said and float(said[1]) < 0.02, done.stderr


# ---------------------------------------------------------------- elsewhere


@pytest.mark.parametrize("chapter", chapters.CHAPTERS[:1], ids=lambda c: c.name)
def test_a_chapter_for_colab_installs_itself_first(site, chapter, tmp_path):
    notebook = nbformat.read(site / f"chapters/colab/{chapter.name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    first, *rest = [cell for cell in notebook.cells if cell.cell_type == "code"]
    code = [cell for cell in notebooks.read(chapter.path).cells if "outputs" in cell]
    assert rest == [dict(cell, outputs=[], execution_count=None) for cell in code]
    assert "https://github.com/somebody/something" in first.source
    assert "GPU" in first.source and not [cell for cell in rest if cell.outputs]
    shell = InteractiveShell.instance()
    here, path = os.getcwd(), [*sys.path]
    assert shell.run_cell(first.source).success, "elsewhere it does nothing"
    assert (os.getcwd(), sys.path) == (here, path)


def test_what_other_places_read_names_what_is_here():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    workflow = (ROOT / ".github" / "workflows" / "pages.yml").read_text()
    for command in (container["postCreateCommand"], re.search(r"run: (.*)", workflow)[1]):
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)
    assert "path: site" in workflow
    binder = (ROOT / ".binder" / "requirements.txt").read_text().splitlines()
    assert "-c ../constraints.txt" in binder and "-e .[notebooks]" in binder


# ---------------------------------------------------------------- the verb


def test_what_is_not_installed_is_named(monkeypatch, refused):
    monkeypatch.setattr(verb, "NEEDS", ("json", "frobnicate"))
    assert refused("site").startswith("python -m pod site: packages: got none of frobnicate, allowed")


@pytest.mark.parametrize("name", ["nonsense", "a/b/c", '"><script>/x', "a/"])
def test_a_repository_has_an_owner_and_a_name(name, tmp_path, refused):
    said = refused("site", "--out", tmp_path / "site", "--repository", name)
    assert said == f"python -m pod site: --repository: got {name!r}, allowed is OWNER/NAME\n"


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, refused):
    (tmp_path / "letters.txt").write_text("dear")
    assert refused("site", "--out", tmp_path).endswith("allowed is a folder that is empty or holds a site\n")
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.parametrize("limit, code", [(30e6, 0), (1e6, 1)])
def test_a_new_site_replaces_the_old_one_and_a_large_one_is_said(tmp_path, monkeypatch, capsys, limit, code):
    def make(out, figures, repository):
        out.mkdir()
        (out / ".nojekyll").write_text("some words")
        (out / "figures").mkdir()
        (out / "figures" / "large.png").write_bytes(bytes(1_200_000))
        return []

    monkeypatch.setattr(build, "build", make)
    monkeypatch.setattr(build, "LIMIT", limit)
    (tmp_path / "site").mkdir()
    for name in (".nojekyll", "old.html"):
        (tmp_path / "site" / name).touch()
    assert main(["site", "--out", str(tmp_path / "site")]) == code
    assert {path.name for path in tmp_path.rglob("*")} == {"site", ".nojekyll", "figures", "large.png"}
    told = "size: got 1.20 MB, allowed are 1; the largest folders are figures (1.2 MB)\n"
    assert capsys.readouterr().err == (told if code else "")


# ---------------------------------------------------------------- colours


def themes() -> dict[str, dict[str, str]]:
    """The variables of each theme, as site.css has them."""
    css = (STATIC / "site.css").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *:root(.*?) \{(.*?)\}", css, re.DOTALL | re.MULTILINE)
    light, *dark = (dict(re.findall(r"--(\w+): ([^;]+);", block)) for _, block in blocks)
    assert len(dark) == 2 and dark[0] == dark[1], "chosen or by the system, dark is the same"
    return {"light": light, "dark": light | dark[0]}


def test_hues_are_those_of_the_pictures():
    for theme in themes().values():
        assert (theme["prefill"], theme["decode"]) == (style.PREFILL, style.DECODE)
        assert theme["hybrid"] == style.KINDS["hybrid"]


# ---------------------------------------------------------------- in a browser

ROOMS = ("index.html", "gallery.html", "claims.html", "glossary.html", "api.html", "explore/index.html")
OPENED = (*ROOMS, *(path for path, *_ in explorers.DOORS), *(f"chapters/{c.name}.html" for c in chapters.CHAPTERS))
# Of each text: the colour of its letters over the first opaque colour behind it, as WCAG 2 counts.
CONTRAST = """(() => {
  const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const pale = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const e = node.parentElement, s = getComputedStyle(e);
    if (!node.textContent.trim() || !e.getClientRects().length || e.closest("script, [disabled], .skip")) continue;
    const bar = e.parentElement.matches("g") && e.parentElement.querySelector("rect");
    const over = bar ? rgb(getComputedStyle(bar).fill) : behind(e);
    const letters = rgb(e.namespaceURI.endsWith("svg") ? s.fill : s.color);
    const [a, b] = [light(letters), light(over)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(s.fontSize), large = size >= 24 || (size >= 18.66 && Number(s.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5))
      pale.add(`${e.tagName}.${e.className.baseVal ?? e.className}: ${ratio.toFixed(2)} ${node.textContent.trim()}`);
  }
  return [...pale];
})()"""


class Browser(Page):
    """Chromium at pages of the site."""

    def visit(self, site: Path, path: str) -> None:
        self.heard.clear()
        address = (site / path).as_uri()
        self.command("Page.navigate", url=address)
        until(lambda: self.value(f"document.readyState === 'complete' && location.href === '{address}'"))

    def wrong(self) -> list[str]:
        """What the console said, and what was asked of the network."""
        events = [(event.get("method"), event.get("params", {})) for event in self.heard]
        said = [p for method, p in events if method in ("Runtime.exceptionThrown", "Log.entryAdded")]
        calls = [p for method, p in events if method == "Runtime.consoleAPICalled"]
        said += [p for p in calls if p["type"] in ("error", "warning")]
        asked = [p["request"]["url"] for method, p in events if method == "Network.requestWillBeSent"]
        return [json.dumps(p)[:300] for p in said] + [u for u in asked if not u.startswith(("file:", "data:"))]

    def dark(self, dark: bool) -> None:
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[theme])

    def width(self, width: int, height: int = 900) -> None:
        phone = {"mobile": width < 600, "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)

    def set(self, name: str, value) -> None:
        """Move a control, as a hand would."""
        self.value(f"""(() => {{ const e = control("{name}"); e.value = {json.dumps(value)};
            e.dispatchEvent(new Event("input", {{bubbles: true}})); }})()""")

    def all_of(self, expression: str, cases: list) -> list:
        """A function of the page's scripts, for each case."""
        return self.value(f"{json.dumps(cases)}.map((x) => ({expression})(x))")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip(f"no browser here: looked for {', '.join(NAMES)} and $CHROMIUM")
    home = tmp_path_factory.mktemp("browser")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={home}")  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([CHROMIUM, *options, "about:blank"], **quiet)
    try:
        known = home / "DevToolsActivePort"
        until(lambda: known.exists() and known.read_text().count("\n"), 60)
        with urlopen(f"http://127.0.0.1:{known.read_text().splitlines()[0]}/json") as listed:
            page = Browser(next(x for x in json.load(listed) if x["type"] == "page")["webSocketDebuggerUrl"])
        for domain in ("Page", "Log", "Runtime", "Network"):
            page.command(f"{domain}.enable")
        yield page
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def explorer(browser, site):
    """Opens one of the three."""
    browser.width(1280)

    def open_(name: str) -> Browser:
        browser.visit(site, f"explore/{name}.html")
        return browser

    return open_


@pytest.mark.parametrize("path", OPENED)
def test_a_page_is_quiet_legible_and_fits_a_phone(browser, site, path):
    browser.width(390)
    browser.visit(site, path)
    assert browser.wrong() == []
    assert browser.value("document.documentElement.scrollWidth") <= 390
    for dark in (False, True):
        browser.dark(dark)
        assert browser.value(CONTRAST) == [], "dark" if dark else "light"


def test_contrast_is_seen_when_it_is_too_low(browser, site):
    browser.visit(site, "index.html")
    browser.value("document.querySelector('h1').style.color = '#ddd'")
    browser.dark(False)
    assert [line[:3] for line in browser.value(CONTRAST)] == ["H1."]


def test_the_button_changes_the_theme_and_the_next_page_remembers(browser, site):
    browser.dark(False)
    browser.visit(site, "index.html")
    browser.value("localStorage.removeItem('theme')")
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(background)
    browser.value("document.getElementById('theme').click()")
    dark = browser.value(background)
    assert dark != light
    # a browser writes to its storage in its own time: on a busy machine a page may open before
    until(lambda: browser.visit(site, "claims.html") or browser.value(background) == dark)
    browser.value("localStorage.removeItem('theme')")


def test_the_stutter_moves_once_says_its_waits_and_moves_again_when_asked(browser, site):
    browser.visit(site, "index.html")
    running = "document.getAnimations().filter((a) => a.animationName === 'sweep')"
    assert browser.value(f"{running}.length") == 3
    stutter = registry.page("stutter")
    said = browser.value("document.querySelector('.stutter svg').textContent")
    assert all(f"{1000 * gap:.0f} ms of silence" in said for gap in stutter.gaps(stutter.table()).values())
    browser.value(f"{running}.forEach((a) => a.finish())")
    assert browser.value(f"{running}.length") == 0
    browser.value("document.getElementById('again').click()")
    assert browser.value(f"{running}.length") == 3


def test_a_prediction_opens_its_answer(browser, site):
    browser.visit(site, "chapters/07_sm_aware_scheduling.html")
    browser.value("localStorage.clear()")
    browser.value("document.querySelectorAll('.question button')[1].click()")
    opened = "[...document.querySelector('.answer').querySelectorAll('details')].map((d) => d.open)"
    assert browser.value(opened) == [False, True, False]

    def is_remembered() -> bool:
        browser.visit(site, "index.html")
        browser.visit(site, "chapters/07_sm_aware_scheduling.html")
        return browser.value(opened) == [False, True, False]

    until(is_remembered)  # a page in a process of its own may read what was before, for a moment


def test_claims_are_filtered_and_searched(browser, site):
    browser.visit(site, "claims.html")
    total, shown = len(claims.load()), "document.querySelectorAll('#list > article:not([hidden])').length"
    choose = "(() => {{ const e = form.elements['{}']; e.value = '{}'; filter(); }})()"
    assert browser.value(shown) == total
    browser.value(choose.format("verdict", claims.HOLDS))
    some = browser.value(shown)
    assert 0 < some < total
    browser.value(choose.format("search", "pod-c0-memory-bound"))
    assert browser.value(shown) == 1
    assert browser.value("document.querySelector('.filters output').textContent") == f"1 of {total}"
    browser.value("filter()")
    assert "verdict=holds" in browser.value("location.search")


# ---------------------------------------------------------------- the band


def test_the_band_has_the_numbers_of_the_first_chapter(explorer):
    stutter, page = registry.page("stutter"), explorer("band")
    told = page.value("document.querySelector('.say').textContent")
    gaps = ", ".join(f"{1000 * gap:.0f}" for gap in stutter.gaps(stutter.table()).values())
    assert f"waits up to {gaps} ms" in told
    prefill, decode = (1e6 * t for t in stutter.batch().times(GPUS["a100"]))
    assert f"prefill {prefill:.0f} µs, decode {decode:.0f} µs" in told


def test_halves_of_any_batch_are_those_of_the_roofline(explorer):
    stutter, page, random = registry.page("stutter"), explorer("band"), np.random.default_rng(1)
    cases = [(int(c), int(c + random.integers(0, 12000)), int(n), gpu) for c in (256, 512, 1024, 2048)
             for n in random.integers(1, 200, 4) for gpu in ("a100", "h200")]  # fmt: skip
    heads = MODELS[explorers.MODEL].heads()
    batches = (HybridBatch.of(chunk, end, chats, stutter.CONTEXT, **heads) for chunk, end, chats, _ in cases)
    exact = [batch.times(GPUS[gpu]) for batch, (*_, gpu) in zip(batches, cases, strict=True)]
    np.testing.assert_allclose(page.all_of("(x) => halves(...x)", cases), exact, rtol=1e-12)


def after_each(page, **settings) -> list[str]:
    """What an explorer shows after each of these settings in turn."""
    seen = []
    for name, value in settings.items():
        page.set(name, value)
        seen.append(page.value("document.querySelector('.explorer').innerHTML"))
    return seen


def test_the_band_reacts(explorer):
    page = explorer("band")
    seen = after_each(page, chats=20, chunk="512", hidden=50, gpu="h200", step=3)
    assert len(set(seen)) == len(seen)
    assert page.value("document.querySelectorAll('#picture circle').length") == 3
    page.value("control('next').click()")
    assert page.value("document.querySelectorAll('#picture circle').length") == 4
    page.value("control('play').click()")
    until(lambda: page.value("Number(control('step').value)") > 4, 20)
    assert page.wrong() == []


# ---------------------------------------------------------------- tickets


def setups(count: int = 60) -> list[dict]:
    random = np.random.default_rng(2)
    policies = ["by index", *binding.POLICIES]
    return [{"policy": policies[i % len(policies)],
             "sms": int(random.integers(1, 9)), "slots": int(random.integers(1, 5)),
             "prefill": random.integers(1, 9, random.integers(0, 40)).tolist(),
             "decode": random.integers(1, 9, random.integers(1, 40)).tolist()} for i in range(count)]  # fmt: skip


def test_tables_are_dealt_as_the_planner_deals_them(explorer):
    cases = [case for case in setups() if case["policy"] in binding.POLICIES]
    dealt = explorer("tickets").all_of("(x) => deal(x.policy, x.prefill, x.decode, x.sms)", cases)
    exact = [binding.deal(x["policy"], x["prefill"], x["decode"], x["sms"]).tolist() for x in cases]
    assert dealt == exact and len({tuple(table) for table in exact}) > 30


def test_ctas_draw_and_run_as_in_the_repository(explorer):
    page, cases = explorer("tickets"), setups()
    for case, ran in zip(cases, page.all_of("run", cases), strict=True):
        work = (case["prefill"], case["decode"])
        if case["policy"] in binding.POLICIES:
            table = binding.deal(case["policy"], *work, case["sms"])
            drawn = binding.draw(table, [c["sm"] for c in ran], *map(len, work), case["sms"])
            exact = [(a.sm, a.op, a.id, a.ticket, a.draws) for a in drawn]
            assert [(c["sm"], c["op"], c["id"], c["ticket"], c["draws"]) for c in ran] == exact
        else:
            assert [(c["op"], c["id"]) for c in ran] == [(op, i) for op in (0, 1) for i in range(len(work[op]))]
        placed = waves.run([work[c["op"]][c["id"]] for c in ran], case["sms"] * case["slots"])
        assert [(c["cta"], c["slot"], c["start"], c["end"]) for c in ran] == [tuple(r) for r in placed]


def test_what_is_said_of_a_run_is_what_the_chapter_computes(explorer):
    page, cases = explorer("tickets"), [case for case in setups(24) if case["prefill"]]
    shares = page.all_of("(x) => both(run(x), x.sms)", cases)
    for ran, both in zip(page.all_of("run", cases), shares, strict=True):
        table = pd.DataFrame(ran).replace({"op": dict(enumerate(binding.OPS))})
        assert both == pytest.approx(both_share(table) * table.sm.nunique(), abs=1e-9)
    batches = explorers.tickets_data()["presets"]
    gaps = {"40 equal prefills, 76 decodes": (53, 53, 26), "40 causal prefills, 120 decodes": (72, 33, 23)}
    for name, wanted in gaps.items():
        work = batches[name]
        for policy, percent in zip(("50:50", "integer ratio", "proportional"), wanted, strict=True):
            shares = tickets.dealt_shares(policy, work["prefill"], work["decode"], 4)
            (gap,) = page.all_of("gap", [{"policy": policy, "sms": 4, "slots": 2, **work}])
            assert gap == pytest.approx(np.abs(shares[0] - shares[1]).max()) and round(gap) == percent


def test_tickets_react(explorer):
    page = explorer("tickets")
    page.set("preset", "my own")
    seen = after_each(page, policy="proportional", sms=3, slots=4, prefills=5, decodes=9, long=4, step=6)
    assert len(set(seen)) == len(seen)
    assert page.value("document.querySelectorAll('#picture .cta').length") == 6
    page.value("control('back').click()")
    assert page.value("document.querySelectorAll('#picture .cta').length") == 5
    assert page.wrong() == []


# ---------------------------------------------------------------- schedulers


class Longer:
    """A tick an iteration, and more for its prompt tokens."""

    def __init__(self, prompt: float) -> None:
        self.prompt = prompt

    def submit(self, batch, event) -> float:
        return event.scheduled + 1 + self.prompt * sum(chunk.tokens for chunk in batch.prefills)


def scheduler(case: dict):
    paged, reserved = PagedPool(1000, 16, watermark=0), ReservedPool(1000, 100)
    made = {"static": lambda: Static(reserved, case["slots"]), "orca": lambda: Orca(reserved, case["slots"]),
            "vllm": lambda: VLLM(paged, case["slots"], max_tokens=10**6),
            "sarathi": lambda: Sarathi(paged, case["slots"], chunk=case["chunk"])}  # fmt: skip
    return made[case["scheduler"]]()


def days(count: int = 80) -> list[dict]:
    random = np.random.default_rng(3)

    def some() -> list[tuple]:
        """Requests as a day may bring them."""
        prompts, answers, halves = (random.integers(1, most, 11).tolist() for most in (30, 9, 40))
        rows = zip(prompts, answers, (half / 2 for half in halves), strict=True)
        return list(rows)[: random.integers(1, 12)]

    return [{"scheduler": list(explorers.KNOWN)[i % 4], "requests": some(), "slots": int(random.integers(1, 9)),
             "chunk": int(random.integers(2, 20)), "prompt": int(random.integers(0, 5)) / 4}
            for i in range(count)]  # fmt: skip


def test_schedulers_form_the_batches_of_the_repository(explorer):
    cases = days()
    for case, log in zip(cases, explorer("schedulers").all_of("serve", cases), strict=True):
        requests = [Request(i, *row) for i, row in enumerate(case["requests"])]
        exact = serve(requests, [scheduler(case)], Longer(case["prompt"])).iterations
        assert [(e["start"], e["end"], [tuple(c) for c in e["prefills"]], e["decodes"], e["idle"]) for e in log] == [
            (e.scheduled, e.end, [c[:2] for c in e.prefills], e.decodes, e.idle) for e in exact
        ], case


def test_the_dozen_takes_as_many_iterations_as_in_its_chapter(explorer):
    page, trace = explorer("schedulers"), explorers.TRACES["the dozen of chapter 12"]
    cases = [{"scheduler": name, **trace} for name in ("static", "orca")]
    logs = scenarios.slots().values()
    assert [len(log) for log in page.all_of("serve", cases)] == [len(log.iterations) for log in logs] == [24, 17]
    wasted = page.all_of("(x) => wasted(serve(x), x.slots)", cases)
    assert [f"{100 * share:.0f} %" for share in wasted] == ["39 %", "13 %"]


def test_schedulers_react_and_say_what_the_chapter_says_of_the_chat_server(explorer):
    page = explorer("schedulers")
    seen = after_each(page, trace="two long prompts", scheduler="sarathi", slots=3, chunk=6, prompt=0.5, step=4)
    assert len(set(seen)) == len(seen) and page.wrong() == []
    table = registry.page("pod-02").table().set_index("system")
    row = [cell for cell in page.value("[...document.querySelectorAll('tr')].map((r) => r.innerText)") if "POD" in cell]
    assert f"{table.tbt_max_ms['Sarathi+POD']:.0f} ms" in row[0]

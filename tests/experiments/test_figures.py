"""The pages name everything, the verb draws what is here, and the gallery stands alone."""

import json
import re
import subprocess
import sys
from collections import Counter
from html import escape
from html.parser import HTMLParser

import pytest
from matplotlib import pyplot as plt
from matplotlib.patches import Patch
from matplotlib.text import Text

from pod import data
from pod.lab import claims, gallery, paper, pixels, registry, takeaway
from pod.lab.chapters import CHAPTERS
from pod.lab.figure import OURS, Figure
from pod.lab.show import style
from pod.lab.show.says import says
from pod.serving.loop import Loop

pytestmark = pytest.mark.any_processor  # what figures show, tests of pages and claims compute
DRAWABLE = [figure.id for figure in registry.drawable()]


def test_registry_names_every_figure_of_the_sources():
    figures = registry.figures()
    assert len(figures) == len({figure.id for figure in figures})
    numbered = Counter(re.sub(r"\d+$", "", figure.id) for figure in figures if figure.source != OURS)
    assert numbered == {"pod-": 15, "pod-t": 7, "lean-": 13, "lean-t": 1, "sarathi-": 9, "sarathi-t": 1,
                        "orca-": 3, "vllm-": 4, "plus34-": 7, "plus34-t": 1}  # fmt: skip
    assert {figure.chapter for figure in figures} <= {chapter.name[:2] for chapter in CHAPTERS}


def test_figures_come_in_the_order_of_the_sources():
    ids = [figure.id for figure in registry.figures()]
    order = ["pod-01", "pod-15", "pod-t1", "pod-t7", "lean-01", "lean-13", "lean-t1", "plus34-t1", "band", "waves"]
    assert sorted(order, key=ids.index) == order and (ids[0], ids[-1]) == ("pod-01", "waves")


SMALLEST, WIDTH = 8, 9.5  # points, at so many inches: a wider picture is shown smaller
LARGEST = 150e3  # bytes of a picture; the site holds all of them, and pod/lab/site/build.py says how large it may be
FAINTEST = 3.6  # contrast of letters on a bar; of white and ink, the better one has 3.67 at least


LOOPS = {"sarathi-01", "sarathi-02"}  # four requests through a small pipeline, which takes a millisecond


@pytest.fixture
def drawing_only(monkeypatch, name):
    """What is simulated is read."""
    if registry.find(name).state != "done" and name not in LOOPS:
        monkeypatch.setattr(Loop, "launch", lambda *_: pytest.fail("a picture runs the engine's loop"))


@pytest.mark.parametrize("name", DRAWABLE)
def test_a_figure_is_drawn_and_its_words_are_large_and_plain_enough_to_read(name, drawing_only, tmp_path, monkeypatch):
    """All of it in one test: a run draws every figure once."""
    figure, pictures, cut = registry.find(name), [], gallery._pixels
    assert figure.title and figure.method and "\n" not in figure.method
    monkeypatch.setattr(gallery, "_pixels", lambda picture: pictures.append(picture) or cut(picture))
    gallery._draw(gallery.Task(name, takeaway.words(name), (), tmp_path))
    drawn = (tmp_path / f"{name}.png").read_bytes()
    assert drawn[:8] == b"\x89PNG\r\n\x1a\n" and len(drawn) < LARGEST, f"{len(drawn)} bytes"
    table = (tmp_path / f"{name}.csv").read_text()
    assert len(table.splitlines()) > 1
    assert registry.page(name).table().to_csv(index=False, float_format="%.6g") == table, "drawing changed its table"
    assert unreadable(*pictures) == ({}, {})


def unreadable(drawn) -> tuple[dict, dict]:
    """Words that are too small, with their size, and too faint, with their contrast."""
    written = [text for text in drawn.findobj(Text) if text.get_visible() and text.get_text().strip()]
    shown = min(1, WIDTH / drawn.get_size_inches()[0])
    small = {text.get_text(): text.get_fontsize() for text in written if shown * text.get_fontsize() < SMALLEST}
    return small, {text.get_text(): contrast for text, contrast in contrasts(drawn) if contrast < FAINTEST}


def contrasts(drawn) -> list[tuple[Text, float]]:
    """Of all words whose middle lies on a bar or a box, in a picture that is laid out."""
    return [(text, contrast(text.get_color(), below[-1].get_facecolor()))
            for ax in drawn.axes for text in ax.texts if (below := under(text, ax))]  # fmt: skip


def under(text: Text, ax) -> list[Patch]:
    box = text.get_window_extent()
    middle = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    boxes = [x for x in ax.findobj(Patch) if x is not ax.patch and x.axes is ax and x.get_facecolor()[3] > 0.5]
    return sorted((x for x in boxes if x.contains_point(middle)), key=lambda x: x.zorder)


def contrast(one, other) -> float:
    dark, light = sorted(style.luminance(x) + 0.05 for x in (one, other))
    return light / dark


def test_letters_of_a_bar_s_own_brightness_are_found():
    _, ax = plt.subplots()
    ax.bar([0], [2], color="#663366")
    ax.text(0, 1, "faint", color=style.INK, va="center")
    ax.text(0, 1, "plain", color="white", va="center")
    ax.figure.canvas.draw()
    faint, plain = (how for _, how in contrasts(ax.figure))
    plt.close(ax.figure)
    assert faint < FAINTEST < plain


PANELS_SAY_IT = {"band", "stutter", "pod-10", "pod-t1", "roofline", "engine-load",
                 "hopper-roofs", "joules", "joules-model", "joules-roof"}  # fmt: skip


def test_every_picture_says_what_to_take_away():
    silent = {name for name in DRAWABLE if not takeaway.words(name)}
    assert silent == PANELS_SAY_IT


def test_a_takeaway_is_read_from_the_chapter_that_draws_the_picture():
    cell = '_ = says(\n    lean_01.draw(hand), "Only equal ranges"\n)\nsays(grid.figure, "no page")'
    assert list(takeaway._said(cell)) == [("lean_01", "Only equal ranges")]
    assert list(takeaway._said("%%cuda\nint x = 1;")) == []


def test_the_gallery_puts_the_takeaway_over_the_picture(tmp_path, monkeypatch):
    over = []
    monkeypatch.setattr(gallery, "says", lambda figure, words: over.append(words))
    gallery.reproduce(["lean-01"], tmp_path)
    assert over == [takeaway.words("lean-01")] != [""]


def test_a_figure_that_is_drawn_judges_its_claims_on_the_way(tmp_path, monkeypatch):
    _, judged = gallery.reproduce(["pod-t1"], tmp_path)
    alone = [claims.judge(claim) for claim in claims.load() if claim.ours.startswith("pod-t1:")]
    assert judged == alone != []
    asked = []
    monkeypatch.setattr(claims, "judge", lambda claim: asked.append(claim) or claims.Result(claim, None))
    results = claims.results(judged=judged)
    assert len(results) == len(claims.load()) and [r for r in results if r in alone] == alone
    assert len(asked) == len(results) - len(alone)


def test_every_page_has_a_name_of_its_own():
    names = [path.stem for path in registry.FOLDER.glob("*/*.py") if path.stem not in ("__init__", "shared")]
    assert sorted(names) == sorted(name.replace("-", "_") for name in registry.pages())


def test_every_table_has_a_page_that_makes_it():
    recorded = {path.stem for path in (data.DATA / data.SHOWN).glob("*.csv")}
    assert recorded <= set(registry.measured()) and not set(registry.measured()) & set(registry.computed())
    assert list(registry.measured())[-1] == "vllm-timeline", "a profiler that was attached slows what follows"
    for table, kind in [(t, "RECORDING") for t in registry.measured()] + [(t, "COMPUTED") for t in registry.computed()]:
        page = registry.maker(table)
        assert getattr(page, kind) == table and {"KEYS", "cases", "measure"} <= set(dir(page)), table


def test_a_figure_knows_its_source():
    source = lambda name: registry.find(name).source  # noqa: E731
    assert source("pod-06") == "POD-Attention, Figure 6" and source("lean-t1") == "LeanAttention, Table 1"
    assert source("check-numbers") == source("roofline") == source("lean-tiles") == OURS


def test_list_prints_one_line_each_and_loads_nothing_heavy():
    code = (
        "import sys; from pod.__main__ import main; main(['figures', '--list']);"
        "print('torch' if 'torch' in sys.modules else '', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert done.stderr.strip() == "", "a page imports this at its top; import it inside its functions"
    assert [line.split()[0] for line in lines] == [figure.id for figure in registry.figures()]
    state = r"done|simulated|(recorded on|composed from) \S+|lacks \S+ of an? \S+"
    assert all(re.match(rf"\S+ +({state}) +\S", line) for line in lines)


def test_unknown_id_is_one_line_that_lists_the_known(tmp_path, refused):
    error = refused("figures", "pod-99", "--out", tmp_path / "out")
    assert "'pod-99'" in error and "pod-06" in error and "check-numbers" in error


def test_a_figure_whose_recording_is_not_here_says_what_it_lacks(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(data, "RECORDED", tmp_path)
    assert "figure 'pod-11': lacks methods-sweep of an H200" in refused("figures", "pod-11", "--out", tmp_path / "out")


@pytest.mark.parametrize("figure_id", ["lean-04", "pod-06", "engine-online"])  # bare, and a legend above the panels
def test_a_picture_is_cut_as_matplotlib_would(figure_id, tmp_path):
    gallery.reproduce([figure_id], tmp_path)
    page = registry.page(figure_id)
    picture = says(page.draw(page.table()), takeaway.words(figure_id))
    theirs = {"facecolor": "white", "pil_kwargs": {"compress_level": 1}}
    picture.savefig(tmp_path / "theirs.png", dpi=150, bbox_inches="tight", **theirs)
    assert (tmp_path / f"{figure_id}.png").read_bytes() == pixels.small((tmp_path / "theirs.png").read_bytes())


def test_recorded_figures_name_their_data():
    with pytest.raises(ValueError, match="recorded figure names the recordings"):
        Figure("t", "00", "m", state="recorded")
    with pytest.raises(ValueError, match="allowed: done, simulated, recorded"):
        Figure("t", "00", "m", state="imagined")
    assert Figure("t", "00", "m", "recorded", ("build",)).state_text == "recorded on H200"


def test_one_broken_figure_does_not_hide_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry.page("pod-t1"), "table", lambda: 1 / 0)
    assert gallery.reproduce(["pod-t1", "lean-t1"], tmp_path)[0] == ["pod-t1"]
    assert (tmp_path / "lean-t1.png").exists() and not (tmp_path / "pod-t1.png").exists()
    assert "pod-t1" in capsys.readouterr().err


class Page(HTMLParser):
    """Collects ids and links, and fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs[k] for k in ("href", "src") if k in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("figures")
    gallery.reproduce(["pod-t1", "lean-04"], out)
    text = gallery.write_index(out).read_text(encoding="utf-8")
    return text, Page(text)


def test_gallery_stands_alone(page):
    text, parsed = page
    outside = [link for link in parsed.links if not link.startswith(("data:image/png;base64,", "#"))]
    assert not any("//" in link for link in outside), "a link leaves the machine"
    assert not {"script", "link", "iframe"} & parsed.tags
    assert "url(" not in text and "@import" not in text


def test_gallery_shows_what_is_drawn_and_names_the_rest(page):
    text, parsed = page
    assert {"pod-t1", "lean-04"} <= set(parsed.ids)
    assert not {"pod-t5", "lean-t1"} & set(parsed.ids)
    assert all(f"<code>{entry.id}</code>" in text for entry in registry.figures())
    assert "Batch C1 is balanced" in text and 'class="verdict holds"' in text
    assert str(paper.value("pod.t5.0.95.sarathi.ttft_p99")) in text


def test_a_recorded_figure_shows_its_gpu_and_provenance(tmp_path, monkeypatch, page):
    import pandas as pd

    meta = {"gpu": "NVIDIA H200", "driver": "570.1", "telemetry": "not shown"}
    monkeypatch.setattr(data, "RECORDED", tmp_path)
    monkeypatch.setattr(gallery, "DATA", tmp_path)
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "x.csv").touch()
    (tmp_path / "h200" / "x.meta.json").write_text(json.dumps(meta))
    (tmp_path / "made.png").write_bytes(b"")
    pd.DataFrame({"x": range(99)}).to_csv(tmp_path / "made.csv", index=False)
    figure = Figure("title <1>", "08", "method", "recorded", ("x",), id="made")
    card = gallery._card(figure, [], tmp_path)
    assert '<b class="badge recorded">recorded on H200</b>' in card
    assert "NVIDIA H200" in card and "not shown" not in card and "h200/x.csv" in card and "title &lt;1&gt;" in card
    assert f"First {gallery.ROWS_SHOWN} of 99 rows" in card
    more = {"part": "a sample", "corrected": {"timer": "wrong"}}
    (tmp_path / "h200" / "x.meta.json").write_text(json.dumps(meta | more))
    composed = Figure("title", "08", "method", "recorded", ("x",), composed=True, id="made")
    card = gallery._card(composed, [], tmp_path)
    assert '<b class="badge simulated">composed from H200</b>' in card and "a sample" in card and "corrected" in card


def test_gallery_splits_its_totals_and_gives_each_claim_its_base(page):

    text, rows = page[0], claims.results()
    for whose, evidence, *counts in claims.tally(rows):
        assert f"<td>{whose}</td><td>{evidence}</td>" + "".join(f"<td>{n}</td>" for n in counts) in text
    assert escape(claims.foreseen(rows)) in text
    assert all(escape(r.base) in text for r in rows if r.claim.shown_in)


def test_latency_ratios():
    from pod.experiments.checks import check_latency

    df = check_latency.table().set_index(["step", "metric", "load"]).ratio
    assert len(df) == 2 * 6 * 4
    assert df["Sarathi+POD / Sarathi", "TTFT, P99", "arXiv, QPS 0.95"] == pytest.approx(27.38 / 144.2)
    assert df["Sarathi / vLLM", "TBT, P99", "internal, QPS 1.2"] == pytest.approx(0.16 / 1.76)


def test_fusion_helps_prefill_only():
    from pod.experiments.lean import lean_t1

    df = lean_t1.table().set_index(["phase", "operation"]).flops_per_byte
    assert df["decode", lean_t1.FUSED] < 1.1
    assert df["prefill", "query x key"] < lean_t1.A100.ridge < df["prefill", lean_t1.FUSED]


def test_merge_error_notices_a_forgotten_rescale(monkeypatch):
    from pod.experiments.lean import lean_04

    assert lean_04.merge_error() < 1e-12
    wrong = lambda a, b: lean_04.State(a.m, a.l + b.l, a.o + b.o)  # noqa: E731
    monkeypatch.setattr(lean_04.State, "merge", wrong)
    assert lean_04.merge_error() > 0.01

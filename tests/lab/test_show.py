"""What the pictures show: counts of bars and cells, places of lines, words. One test a promise of pod/lab/show."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from IPython.core.events import EventManager, available_events
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from pod.files import ROOT
from pod.hardware import A100, H200
from pod.lab.show import band, causal_cells, explore, gantt, idle_share, lanes, overlap, roofline, says, style, tiles
from pod.lab.show.explore import PAUSE, _draw_in_one_thread, is_live, soon
from pod.lab.show.gantt import Span, slots, spans
from pod.lab.show.lanes import longest_gap
from pod.lab.show.tiles import CELLS

WORK = [(0, 0, 2, "prefill", "P0"), (0, 1, 3, "decode"), (1, 0, 4, "prefill"), (3, 1, 2, "decode")]


def bars(ax, kind):
    return [p for p in ax.patches if isinstance(p, Rectangle) and to_hex(p.get_facecolor()) == style.KINDS[kind]]


def words(ax):
    return [t.get_text() for t in ax.texts]


# ---------------------------------------------------------------- gantt


def test_every_record_is_one_bar_of_its_colour_length_and_row():
    ax = gantt(WORK, unit="ms")
    assert len(bars(ax, "prefill")) == len(bars(ax, "decode")) == 2
    longest = max(bars(ax, "prefill"), key=Rectangle.get_width)
    assert (longest.get_x(), longest.get_width()) == (0, 4) and int(longest.get_y()) == 1
    assert [t.get_text() for t in ax.get_yticklabels()] == ["SM 0", "SM 1", "SM 2", "SM 3"]
    assert ax.get_xlabel() == "time, ms"
    assert "P0" in words(ax)


def test_bars_of_one_row_never_hide_each_other():
    ax = gantt(WORK)
    boxes = [p.get_bbox() for kind in ("prefill", "decode") for p in bars(ax, kind)]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            wide = min(a.x1, b.x1) - max(a.x0, b.x0)
            high = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert wide <= 1e-9 or high <= 1e-9


def test_a_slot_is_taken_again_when_it_is_free():
    row = [Span(0, 0, 1, "prefill"), Span(0, 0, 3, "decode"), Span(0, 1, 2, "prefill"), Span(0, 2, 3, "prefill")]
    assert slots(row) == [0, 1, 0, 0]


def test_gantt_accepts_mappings_and_frames():
    columns = ["row", "start", "end", "kind"]
    frame = pd.DataFrame([w[:4] for w in WORK], columns=columns)
    assert spans(frame) == spans(frame.to_dict("records")) == spans([w[:4] for w in WORK])


def test_rows_can_be_roles_and_rows_without_work_stay_visible():
    ax = gantt([("producer", 0, 1, "load"), ("consumer", 0, 1, "prefill")], rows=["producer", "consumer", "decode"])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["producer", "consumer", "decode"]
    assert ax.get_ylim()[0] == 3


def test_all_sms_of_a_big_gpu_are_readable():
    ax = gantt([(sm, 0, 1 + sm % 3, "prefill" if sm % 2 else "decode", f"tile {sm}") for sm in range(132)])
    assert len(bars(ax, "prefill")) == len(bars(ax, "decode")) == 66
    assert 8 <= len(ax.get_yticks()) <= 12 and not words(ax)
    rows = ax.figure.get_figheight() * style.DPI / 132
    assert 3 <= rows <= 6, "pixels a row"


def test_words_that_do_not_fit_are_left_out():
    ax = gantt([(0, 0, 1, "prefill", "short"), (0, 1, 1.01, "decode", "much too long")])
    assert words(ax) == ["short"]


def test_marks_are_dashed_lines_at_their_time():
    ax = gantt(WORK, marks={"oracle": 2.5})
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == [2.5] and "oracle" in words(ax)


def test_idle_share_counts_empty_slots_and_rows():
    assert idle_share([(0, 0, 2, "prefill"), (1, 0, 1, "prefill")]) == pytest.approx(1 / 4)
    assert idle_share([(0, 0, 2, "prefill")], rows=range(4)) == pytest.approx(3 / 4)
    assert idle_share([(0, 0, 2, "prefill")], slots_per_row=2) == pytest.approx(1 / 2)
    assert idle_share([(0, 5, 6, "prefill"), (0, 6, 7, "decode")]) == 0


@pytest.mark.parametrize(("records", "options", "message"), [
    ([], {}, "records: got none"),
    ([(0, 1)], {}, "allowed is (row, start, end, kind[, label])"),
    ([(0, 2, 1, "prefill")], {}, "end after they start"),
    ([(0, float("nan"), 1, "prefill")], {}, "end after they start"),
    ([(0, 0, 1, "lunch")], {}, "kind: got 'lunch', allowed are prefill"),
    ([(7, 0, 1, "prefill")], {"rows": range(4)}, "also {7}"),
])  # fmt: skip
def test_gantt_refuses(records, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gantt(records, **options)


# ---------------------------------------------------------------- lanes


def test_lanes_show_tokens_arrivals_and_the_longest_wait():
    work = [("Ann", 0, 9, "decode"), ("Ben", 2, 6, "prefill")]
    ax = lanes(work, tokens={"Ann": [1, 2, 7, 8]}, arrivals={"Ben": 1.5}, gap_of="Ann", unit="s")
    tokens = next(line for line in ax.lines if line.get_label() == "token")
    assert list(tokens.get_xdata()) == [1, 2, 7, 8] and set(tokens.get_ydata()) == {0.5}
    arrival = next(line for line in ax.lines if line.get_label() == "arrival")
    assert (arrival.get_xdata()[0], arrival.get_ydata()[0]) == (1.5, 1.5)
    assert "5 s without a token" in words(ax)
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {"decode", "prefill", "token", "arrival"}


def test_longest_gap():
    assert longest_gap([0, 3, 1]) == (1, 3)
    with pytest.raises(ValueError, match="got 1 tokens"):
        longest_gap([1.0])


# ---------------------------------------------------------------- roofline


def test_roofs_bend_at_the_ridge_and_points_lie_on_them():
    ax = roofline((A100, H200), [("chunk", 3000, "prefill"), ("decode", 4, "decode")])
    for gpu in (A100, H200):
        roof = next(line for line in ax.lines if line.get_label() == gpu.name)
        assert roof.get_xdata()[1] == gpu.ridge
        assert roof.get_ydata()[1:] == pytest.approx([gpu.tensor_flops / 1e12] * 2)
        assert roof.get_ydata()[0] == pytest.approx(gpu.dram_bytes_per_s * roof.get_xdata()[0] / 1e12)
    at = {(line.get_xdata()[0], round(line.get_ydata()[0], 3)) for line in ax.lines if line.get_marker() in "os"}
    rates = {(x, round(gpu.attainable(x) / 1e12, 3)) for x in (3000, 4) for gpu in (A100, H200)}
    assert {point for point in at if point[0] in (3000, 4)} == rates
    assert {"chunk", "decode"} <= set(words(ax))


def test_a_measured_rate_is_drawn_where_it_was_measured():
    ax = roofline((A100,), [("kernel", 1000, "prefill", 200e12)])
    marker = [line for line in ax.lines if line.get_marker() == "o"]
    assert [line.get_ydata()[0] for line in marker] == [200]


def test_a_point_off_the_page_is_refused():
    with pytest.raises(ValueError, match="got 0.01 FLOPs per byte for 'x'"):
        roofline((A100,), [("x", 0.01, "decode")])


# ---------------------------------------------------------------- tiles


@pytest.mark.parametrize(("q_len", "kv_len", "rows"), [(4, 12, 8), (5, 5, 5), (1, 7, 16)])
def test_causal_cells_agree_with_the_batch(q_len, kv_len, rows):
    from pod.batch import HybridBatch

    cells = causal_cells(q_len, kv_len, rows)
    visible = np.isin(cells, ["in this chunk", "in the KV cache", "one new token"]).sum()
    assert visible == HybridBatch([q_len], [kv_len], 1, 1, 64).visible_pairs
    assert (cells == "padding").sum() == (rows - q_len) * kv_len
    assert (cells == "masked").sum() == q_len * (q_len - 1) // 2


def test_every_cell_is_drawn_once_with_its_colour():
    cells = causal_cells(2, 4, 3)
    ax = tiles(cells, first_row=2)
    assert len(ax.patches) == 12
    for patch in ax.patches:
        name = cells[int(patch.get_y()), int(patch.get_x())]
        face, hatch = CELLS[name]
        assert (patch.get_label(), patch.get_hatch()) == (name, hatch)
        assert to_hex(patch.get_facecolor()) == (face if face.startswith("#") else "#ffffff")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["2", "3", "4"]


@pytest.mark.parametrize("cells", [["masked"], [["masked", "lunch"]]])
def test_tiles_refuses(cells):
    with pytest.raises(ValueError, match="^cells: got"):
        tiles(cells)


def test_causal_cells_refuses_more_queries_than_keys():
    with pytest.raises(ValueError, match="^q_len: got 5, allowed is 1 to .* = 4"):
        causal_cells(5, 4)


# ---------------------------------------------------------------- band


def test_overlap_is_0_for_the_sum_and_1_for_the_maximum():
    assert overlap(7, 3, 4) == 0 and overlap(4, 3, 4) == 1 and overlap(8.5, 3, 4) == -0.5
    for times, message in (((5, 0, 4), "a: got 0"), ((5, 3, float("nan")), "b: got nan"), ((-1, 3, 4), "time: got -1")):
        with pytest.raises(ValueError, match=f"{message}, allowed are times above 0"):
            overlap(*times)
    with pytest.raises(ValueError, match="fused: got 0"):
        band({"C1": (4, 3, {"fused": 0})})


def test_band_marks_what_is_possible():
    ax = band({"C1": (3, 4)})
    guide = next(line for line in ax.lines if list(line.get_xdata()) == [0.75, 0.75])
    assert list(guide.get_ydata()) == [1, 1.75]
    assert "C1\nup to 1.75×" in words(ax)
    top = next(line for line in ax.lines if len(line.get_xdata()) == 201)
    assert top.get_ydata().max() == pytest.approx(2) and top.get_xdata()[top.get_ydata().argmax()] == pytest.approx(1)


def test_band_places_each_method():
    ax = band({"C1": (4, 3, {"serial": 7, "fused": 5})})
    at = {(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1}
    assert at == {(4 / 3, 7 / 4), (4 / 3, 5 / 4)} and {"serial", "fused"} <= set(words(ax))


# ---------------------------------------------------------------- explore


def draw(ax, n, label="x"):
    ax.plot(range(n), label=label)


def test_strip_has_one_panel_a_setting():
    figure = explore(draw, show=[{"n": 2}, {"n": 5}], n=(1, 9))
    assert [ax.get_title() for ax in figure.axes] == ["n 2", "n 5"]
    assert [len(ax.lines[0].get_xdata()) for ax in figure.axes] == [2, 5]


@pytest.mark.parametrize(("show", "ranges", "message"), [
    ([], {"n": (1, 2)}, "show: got no setting"),
    ([{"n": 1}], {"n": 3}, "n: got 3, allowed are (low, high)"),
    ([{"n": 1}], {"n": (1, 2, 3, 4)}, "n: got (1, 2, 3, 4)"),
    ([{"n": 1}], {"label": ["a", "b"]}, "show: got a setting without 'label'"),
])  # fmt: skip
def test_explore_refuses(show, ranges, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        explore(draw, show=show, **ranges)


def shell(**content):
    kernel = SimpleNamespace(get_parent=lambda channel: {"content": content})
    return lambda: SimpleNamespace(kernel=kernel, events=EventManager(None, available_events))


@pytest.fixture
def shown(monkeypatch):
    """What a live notebook shows."""
    seen: list = []
    monkeypatch.setattr("IPython.get_ipython", shell(allow_stdin=True))
    monkeypatch.setattr("IPython.display.display", seen.append)
    return seen


def test_only_a_front_end_that_can_answer_is_live(monkeypatch):
    assert not is_live()
    for content, live in (({"allow_stdin": True}, True), ({"allow_stdin": False}, False), ({}, False)):
        monkeypatch.setattr("IPython.get_ipython", shell(**content))
        assert is_live() == live


def test_a_live_notebook_gets_the_strip_then_sliders_that_redraw(shown):
    import ipywidgets

    calls = []

    def fn(ax, n, label):
        calls.append((n, label))

    figure = explore(fn, show=[{"n": 2, "label": "a"}, {"n": 5, "label": "b"}], n=(1, 9), label=["a", "b", "c"])
    assert shown[0] is figure and isinstance(shown[1], ipywidgets.VBox) and len(shown) == 2
    number, choice = shown[1].children[:2]
    assert (number.min, number.max, number.value) == (1, 9, 5)
    assert (choice.options, choice.value) == (("a", "b", "c"), "b")
    number.value, choice.value = 7, "c"
    assert calls[-1] == (7, "c")


def test_a_strip_says_its_takeaway_before_a_live_notebook_shows_it(shown, monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda drawn: shown.append(getattr(drawn, "get_suptitle", str)()))
    explore(draw, show=[{"n": 2}], takeaway="It rises", n=(1, 9))
    assert shown[0] == "It rises"


def test_a_slider_at_which_drawing_fails_says_why(shown):
    explore(lambda ax, n: ax.plot([1 / (n - 2)]), show=[{"n": 3}], n=(1, 9))
    number, picture = shown[1].children
    assert picture.outputs[0]["output_type"] == "display_data"
    number.value = 2
    assert picture.outputs[0]["text"] == "ZeroDivisionError: division by zero\n" and not plt.get_fignums()


def test_moves_of_a_slider_in_another_thread_are_drawn_once_by_the_thread_of_the_cells():
    drawn, value = [], 0

    async def notebook():
        nonlocal value
        moved = soon(lambda: drawn.append((value, threading.current_thread())))

        def move():
            nonlocal value
            for value in range(20):  # noqa: B007
                moved()

        for _ in range(2):
            thread = threading.Thread(target=move)
            thread.start()
            thread.join()  # the cell is at work: nothing may be drawn beside it
            assert len(drawn) % 2 == len(drawn)
            await asyncio.sleep(3 * PAUSE)

    asyncio.run(notebook())
    assert drawn == [(19, threading.current_thread())] * 2


def test_a_slider_moved_beside_a_cell_is_drawn_before_the_next_cell():
    ran = []

    async def notebook():
        moved, one_at_a_time = soon(lambda: ran.append("picture")), asyncio.Lock()

        async def cell(number):
            async with one_at_a_time:
                await asyncio.sleep(0)  # the other one comes and waits
                if number == 1:
                    hand = threading.Thread(target=moved)
                    hand.start()
                    hand.join()
                time.sleep(2 * PAUSE)
                ran.append(number)

        await asyncio.gather(cell(1), cell(2))

    asyncio.run(notebook())
    assert ran == [1, "picture", 2]


def test_messages_of_widgets_draw_no_figure_of_a_running_cell(monkeypatch):
    """ipykernel ends them as it ends cells, and JupyterLab has them handled in a thread of their own."""
    events, drawn = EventManager(None, available_events), []
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(events=events))

    flush, other = (lambda: drawn.append(threading.current_thread())), (lambda: drawn.append("other"))
    flush.__module__ = "matplotlib_inline.backend_inline"
    for each in (flush, other):
        events.register("post_execute", each)
    for _ in range(2):  # two pictures with sliders
        _draw_in_one_thread()
    message = threading.Thread(target=events.trigger, args=["post_execute"])
    message.start()
    message.join()
    assert drawn == ["other"]
    events.trigger("post_execute")
    assert sorted(map(str, drawn[1:])) == sorted(map(str, ["other", threading.current_thread()]))


def test_sliders_beside_running_cells_draw_without_mistakes():
    """As in JupyterLab: cells draw in one thread, the moves of sliders come from another, 50 of each."""
    wrong = []

    def formula(i: int) -> None:
        figure, ax = plt.subplots(figsize=(2, 2), dpi=40)
        ax.set_title(f"$10^{{{i}}} + \\frac{{{i}}}{{2}}$")
        figure.tight_layout()  # parses the formula
        plt.close(figure)

    def slide(moved) -> None:
        for _ in range(50):
            moved()
            time.sleep(0.001)

    def draw() -> None:
        try:
            formula(len(drawn))
        except Exception as error:
            wrong.append(error)
        drawn.append(True)

    async def notebook():
        slider = threading.Thread(target=slide, args=[soon(draw)])
        slider.start()
        for i in range(50):
            formula(i)
            await asyncio.sleep(0)
        await asyncio.to_thread(slider.join)
        await asyncio.sleep(3 * PAUSE)

    drawn: list = []
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns in the middle of everything
    try:
        asyncio.run(notebook())
    finally:
        sys.setswitchinterval(switch)
    assert not wrong and 1 <= len(drawn) < 50


@pytest.mark.parametrize(("by_hand", "outputs"), [(False, ["image/png"]), (True, ["image/png", "widget"])])
def test_explore_in_a_real_kernel(by_hand, outputs):
    """Executed by nbclient there is the strip and nothing else; only the offer of input brings the sliders."""
    import nbformat
    from nbclient import NotebookClient

    source = "from pod.lab.show import explore\n_ = explore(lambda ax, n: ax.plot(range(n)), show=[{'n': 3}], n=(1, 9))"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])

    class ByHand(NotebookClient):
        async def async_start_new_kernel_client(self):
            client = await super().async_start_new_kernel_client()
            client.allow_stdin = by_hand
            return client

    client = ByHand(notebook, kernel_name="python3", timeout=120)
    client.execute()
    kinds = [next(k for k in o.data if k != "text/plain") for o in notebook.cells[0].outputs if "data" in o]
    assert [("widget" if "widget-view" in kind else kind) for kind in kinds] == outputs


def test_words_at_the_ends_of_lines_keep_apart():
    moved = style.apart([1.5, 1.0, 1.01, 1.02], 0.05)
    assert np.diff(sorted(moved)).min() > 0.049 and np.argsort(moved).tolist() == [1, 2, 3, 0] and moved[0] == 1.5


@pytest.mark.parametrize("place", ["outside upper center", "outside lower center"])
def test_a_takeaway_stands_above_the_panels_and_beside_no_legend(place):
    ax = style.axes(5, 2)
    ax.plot([0, 1], label="POD")
    legend = ax.figure.legend(loc=place)
    says(ax.figure, "POD is ahead").canvas.draw()
    entry, *_ = legend.get_texts()
    (heading,) = [t for t in ax.figure.findobj(Text) if t.get_text() == "POD is ahead"]
    box, panel = heading.get_window_extent(), ax.get_window_extent()
    assert ax.figure.bbox.y1 >= box.y1 and box.y0 >= panel.y1
    assert not box.overlaps(entry.get_window_extent()) and panel.height > 80


# ---------------------------------------------------------------- fonts

LOGARITHMIC = """
import matplotlib
matplotlib.use("Agg")
{style}
from matplotlib import pyplot as plt
plt.loglog([1, 1e6], [1, 1e6])
plt.savefig(__import__("io").BytesIO())
"""


@pytest.mark.parametrize("style", ["", "from pod.lab.show import style"])
def test_a_list_of_fonts_that_lacks_matplotlibs_own_is_completed(style, tmp_path):
    """As another installation wrote it: all chapters with a logarithmic axis failed, strict as they are."""
    env = {**os.environ, "MPLCONFIGDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], env=env, check=True, capture_output=True)
    (kept,) = tmp_path.glob("fontlist*.json")
    fonts = json.loads(kept.read_text())
    fonts["ttflist"] = [font for font in fonts["ttflist"] if font["name"] == "DejaVu Sans"]
    kept.write_text(json.dumps(fonts))
    command = [sys.executable, "-c", LOGARITHMIC.format(style=style)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    assert said == "" if style else "not found" in said

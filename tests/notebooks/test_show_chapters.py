"""The pictures of chapters 01, 02, 04 to 06 show what the code computes: which cells glow, who merges, what fits."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import same_color
from matplotlib.patches import FancyBboxPatch

from pod.experiments.lean import lean_04
from pod.experiments.pod import pod_10
from pod.hardware import A100, H200
from pod.kernels import fusion
from pod.lab import claims
from pod.lab.show import style
from pod.lab.show.blocks import moved_lines, sm_fill, tile_budget, tile_padding, tile_walk
from pod.lab.show.fold import folded
from pod.lab.show.launch import threads
from pod.lab.show.serving import request_grid
from pod.lab.show.slots import on_sms, then, ways
from pod.lab.show.states import SHARES, error_lines, merge_trees, state_table
from pod.lab.show.verdicts import verdicts, with_bases
from pod.reference import State
from pod.schedule.waves import Ran, run
from pod.simulate.scenarios import crowded
from pod.simulate.tiling import Tile


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_state_table_lights_every_rise_of_the_maximum():
    scores, values = np.array([1.0, 3, 2, 0, 5, 2, -np.inf, -np.inf]), np.repeat(np.eye(2), 4, axis=0)
    ax = state_table([(str(a), State.of(scores[None, a : a + 2], values[a : a + 2])) for a in range(0, 8, 2)])
    rows = {round(p.get_y()) for p in ax.patches if same_color(p.get_facecolor(), style.LIT)}
    assert rows == {2, 4}, "block 0 follows nothing, block 2 brings the 5; the header and the start are rows 0 and 1"
    added = {round(p.get_y()) for p in ax.patches if same_color(p.get_facecolor(), style.DIM)}
    assert added == {2, 3, 4}, "the masked block adds nothing"
    total = np.exp(scores[:6] - 5).sum()
    assert texts(ax).count(f"{total:.3f}") == 2


def test_merge_trees_leave_merges_between_sms_hollow():
    trees, sm_of = [(((0, 1), (2, 3)), 4), (5, ((6, 7), (8, 9)))], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    (ax,) = merge_trees({"stream-K": (trees, sm_of)}).axes
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert (len(dots), sum(same_color(d.get_color(), style.INK) for d in dots)) == (8, 4)
    assert [same_color(d.get_markerfacecolor(), "white") for d in dots] == [
        same_color(d.get_color(), style.INK) for d in dots
    ], "no SM's colour is told from black by the eye alone"
    boxes = [p for p in ax.patches if isinstance(p, FancyBboxPatch)]
    assert [SHARES.index(style_of(b)) for b in boxes] == sm_of
    assert texts(ax).count("answer") == 2 and ax.get_title().endswith("busiest SM: 2 blocks")


def style_of(patch):
    return next(colour for colour in SHARES if same_color(colour, patch.get_facecolor()))


def test_error_lines_name_each_state_and_each_way_of_merging():
    lost = {"bf16": np.array([[1e-2, 4e-3], [2e-1, 4e-3]]), "fp32": np.array([[1e-7, 5e-8], [6e-7, 5e-8]])}
    (ax,) = error_lines([256, 16384], lost).axes
    assert texts(ax) == [f"{name} state, {how}" for name in lost for how in ("chain", "balanced tree")]
    assert [line.get_ydata()[-1] for line in ax.lines] == [2e-1, 4e-3, 6e-7, 5e-8]


def test_threads_lie_where_they_say_that_they_are():
    i = np.arange(128)
    ax = threads(i // 64, i % 64 // 32, i % 32, 100)
    (marked,) = [p for p in ax.patches if same_color(p.get_facecolor(), style.LIT)]
    beside = ax.patches[101]
    assert (beside.get_x() - marked.get_x(), beside.get_y()) == (1, marked.get_y()) and marked.get_y() > 0
    assert texts(ax) == [
        "CTA 0: i = 0 to 63",
        "CTA 1: i = 64 to 127",
        "warp 0",
        "warp 1",
        "i = 100: CTA 1, warp 1, lane 4",
    ]


def test_moved_lines_end_in_their_megabytes():
    moved = {
        "standard": [2e6, 138.4e6],
        "tiles": [1e6, 69.2e6],
        "the future skipped": [9e5, 36.7e6],
        "once": [5e5, 4.2e6],
    }
    (ax,) = moved_lines([512, 4096], moved).axes
    assert texts(ax) == ["standard: 138 MB", "tiles: 69.2 MB", "the future skipped: 36.7 MB", "once: 4.2 MB"]


def test_tile_walk_hatches_the_diagonal():
    axes = tile_walk(8, 12, Tile(4, 3, 64), stops=(1, 7)).axes
    assert [sum(p.get_hatch() is not None for p in ax.patches) for ax in axes] == [3, 3]
    assert [len(ax.patches) for ax in axes] == [7, 7], "one of the eight blocks lies in the future"
    done = [sum(same_color(p.get_facecolor(), style.PREFILL) for p in ax.patches) for ax in axes]
    assert done == [0, 6]
    assert "stays on chip" in axes[0].get_title() and "store" in axes[1].get_title()


def test_tile_padding_is_to_scale():
    figure = tile_padding({"a": ("prefill", 128, 128), "b": ("decode", 4, 64)})
    heights = [[p.get_height() for p in ax.patches] for ax in figure.axes]
    assert heights == [[128, 128], [64, 4]]
    assert [ax.patches[0].get_height() for ax in tile_padding().axes] == [128, 128, 64, 16]


def test_tile_budget_stacks_what_the_tile_holds():
    (ax,) = tile_budget({"small": Tile(128, 64), "all keys": Tile(128, 12_288)}, (A100, H200)).axes
    widths = [bar.get_width() for bar in ax.patches[:3]]
    assert widths == [32, 16, 16]
    assert {"64", "6176", "2", "0"} <= set(texts(ax))
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) < 1.1 * 227, "the one that does not fit is cut off"
    assert [t.get_position()[1] for t in ax.texts if "goes on" in t.get_text()] == [1], "and says so"


@pytest.mark.parametrize(("rows", "cols", "fits"), [(16, 32, 7), (128, 64, 2), (256, 128, 0)])
def test_sm_fill_draws_each_cta(rows, cols, fits):
    ax = plt.subplots()[1]
    sm_fill(ax, rows, cols)
    assert len(ax.patches) == 2 * max(fits, 1)
    assert (f"{fits} CTAs" if fits else "does not fit") in ax.get_title()
    full = max(bar.get_y() + bar.get_height() for bar in ax.patches)
    assert full <= 100 + 1e-9


def test_lean_04_merges_two_unequal_pieces_exactly():
    df = lean_04.table().set_index("state")
    assert df.error["merged"] < 1e-12 and df.error["all keys at once"] < 1e-12
    assert df.error.iloc[:2].min() > 1e-3, "a piece alone is not the answer"
    assert df.l["merged"] < df.l.iloc[:2].sum(), "one piece had to be rescaled"


def test_pod_10_is_rows_over_ridge_and_near_the_paper():
    df = pod_10.table()
    for gpu in (A100, H200):
        mine = df[df.gpu == gpu.key]
        np.testing.assert_allclose(mine.compute_util, 100 * mine.rows / gpu.ridge, rtol=2e-3)
        assert (mine.dram_util == 100).all()
    stated = df.dropna(subset="paper")
    assert list(stated.rows) == [16, 128]
    assert (abs(stated.compute_util / stated.paper - 1) < 0.25).all()


def test_ctas_stand_in_their_slots_under_their_time_and_idle_part():
    ax = plt.subplots()[1]
    on_sms(ax, run([1.0] * 5, slots=4), ["decode"] * 4 + ["prefill"], "5 tiles", until=3)
    assert ax.get_title() == "5 tiles: time 2, idle 38 %" and ax.get_xlim() == (0, 3) and ax.get_legend() is None
    blue = [p.get_bbox().bounds for p in ax.patches if same_color(p.get_facecolor(), style.PREFILL)]
    assert [(x, width) for x, _, width, _ in blue] == [(1, 1)]
    assert texts(ax) == [f"tile {i}" for i in range(5)]


def test_a_second_kernel_waits_for_the_first():
    first, second = run([1.0, 3.0], slots=4), run([2.0], slots=4)
    assert then(first, second) == [*first, Ran(2, 0, 3.0, 5.0)]


def test_ways_are_a_panel_each_with_their_time_over_the_oracle(monkeypatch):
    bars = [(0, 0.0, 6.0, 0), (0, 6.0, 12.0, 1)]
    trace = pd.DataFrame(bars, columns=["sm", "start", "end", "op"]).assign(id=0)
    trace["op"] = [fusion.OPS[i] for i in trace.op]
    monkeypatch.setattr(fusion, "record", lambda work, method: trace)
    monkeypatch.setattr(fusion, "oracle", lambda work: 8.0)
    axes = ways("work", "streams", "warp").axes
    (ax,) = ways("work", "interleaved").axes
    assert ax.get_title(loc="left").endswith("SMs hold both at most 0 % of the time")
    words = [ax.get_title(loc="left") for ax in axes]
    assert words == [
        f"{name}: 1.50 × oracle, SMs hold both 0 % of the time" for name in ("two streams", "halves of a CTA")
    ]


def test_verdicts_list_the_papers_claims_and_fold_all():
    rows = verdicts("pod-07", "pod-t2").data.splitlines()
    assert rows[0].startswith("| claim") and sum(row.startswith("| ") for row in rows) == 4
    assert "<details><summary>All 8</summary>" in rows


def test_claims_that_share_a_base_show_it_once():
    judged = [claims.judge(c) for c in claims.load() if c.id in ("plus34-total", "plus34-smem", "ladder-adds")]
    own = [result for result in judged if result.claim.id == "ladder-adds"]
    stated, fold = with_bases([result for result in judged if result not in own], own).data.split("<details>")
    assert stated.count("each rung run whole") == 1 and [row[-4:] for row in stated.splitlines()[2:4]] == [" a |"] * 2
    assert "the post" in stated and "ladder-adds" in fold and "the post" not in fold


def test_who_is_there_and_gets_nothing_waits():
    logs = crowded()
    counts = {mode: texts(request_grid(log, waits="waits")).count("waits") for mode, log in logs.items()}
    assert counts == {"recompute": 2, "swap": 0}
    assert "waits" not in texts(request_grid(logs["recompute"]))


def test_a_folded_table_opens_under_its_line():
    html = folded("parts", pd.DataFrame({"ms": [1, 2]})).data
    assert html.startswith("<details><summary>parts</summary>") and html.endswith("</details>") and "<td>2</td>" in html

"""What Figure 7, Table 2 and their claims make of a recording with known numbers, and how the suite cuts the work."""

import time
from dataclasses import replace
from itertools import combinations, product

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod import kernels
from pod.experiments.methods import micro_cuts, micro_held
from pod.experiments.pod import pod_07, pod_t2
from pod.kernels import fusion
from pod.kernels.fusion import ALONE, METHODS
from pod.kernels.trace import both_share
from pod.lab import takeaway
from pod.lab.show import style

emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
MS = {"serial": 2.0, "streams": 1.9, "cta": 1.6, "alternate": 1.5, "in turn": 1.28, "interleaved": 1.0, "warp": 1.2,
      "sm-aware": 1.1}  # fmt: skip


def row(case, iterations, **ms):
    times = {"compute": 1.0, "memory": 0.8, **MS, **ms}
    spread = {f"{m}_{end}": t for m, t in times.items() for end in ("p10", "p90")}
    together = {f"{m} together": round(2.2 - MS[m], 3) / 2 for m in METHODS}
    return {"case": case, "iterations": iterations, "multiplications": 16, **times, **spread, **together}


@pytest.fixture
def recording(recorded):
    """Ten points at which every method takes what MS says, but twice as long for all at the first."""
    rows = [row("figure 7", n, **({m: 2 * t for m, t in MS.items()} if n == 20 else {})) for n in range(20, 201, 20)]
    rows += [row(case, 100) for case in ("equal tiles", "a full wave")]
    rows += [row("long compute tiles", 100, warp=2.2), row("long memory tiles", 100, warp=1.65)]
    rows += [row("4 tiles more", 100, serial=2.2, **{"sm-aware": 1.111})]
    recorded("micro-fusion", rows)
    held = [(m, i, 10.0 * i, 1, 40, 40, 51) for m in METHODS for i in range(3)]
    columns = ["method", "moment", "us", "nothing", "compute", "memory", "both"]
    recorded("micro-fusion-trace", pd.DataFrame(held, columns=columns))


def test_claims_of_figure_7(recording):
    assert pod_07.cta_over_serial() == pytest.approx(25)
    assert pod_07.intra_over_serial() == pytest.approx(56.25)
    assert pod_07.intra_over_cta() == pytest.approx(25)
    assert pod_07.in_turn_over_interleaved() == pytest.approx(1.28)
    assert pod_07.same_sm() == pytest.approx(-1)


def test_claims_of_table_2(recording):
    assert pod_t2.sm_aware_over_oracle() == pytest.approx(1.1)
    assert pod_t2.stragglers() == pytest.approx(1.5)
    assert pod_t2.quantization() == pytest.approx(10 - 1)


def test_pictures_show_what_the_tables_say(recording):
    axes = pod_t2.draw(pod_t2.table()).axes[0]
    words = [t.get_text() for t in axes.texts]
    assert {"halves of a CTA", "2.20", "1.65", pod_t2.BASE} <= set(words)
    assert not any(word in ("yes", "no") for word in words), "the marks are in the folded table"
    marks = pod_t2.promises(pod_t2.table()).set_axis(["place", "held", "holes", "step"], axis=1)
    assert {"+10", "+1"} <= set(marks.step) and list(marks.place).count("yes") + list(marks.holes).count("yes") == 8
    (ax,) = pod_07.draw(pod_07.table()).axes
    assert len(ax.lines) == len(METHODS) + 1 and set(fusion.NAMES.values()) <= {t.get_text() for t in ax.texts}
    panels = micro_held.draw(micro_held.table()).axes
    assert [ax.get_title() for ax in panels] == [f"{name}\n39 % both" for name in fusion.NAMES.values()]


def test_every_method_of_a_case_has_the_same_work(monkeypatch):
    monkeypatch.setattr(pod_07, "slots", lambda: 1056)
    assert pod_07.ctas() == 2504  # 2,048 for 864 slots, as the artifact has on an A100
    for case in pod_07.cases():
        works = {m: pod_07.work(case["case"], m) for m in (*ALONE, *METHODS)}
        assert len({(w.compute, w.memory) for w in works.values()}) == 1
        if case["case"] != "figure 7":
            assert len({w.tiles for w in works.values()}) == 1
    halves, whole = (pod_07.work("figure 7", m).tiles for m in ("cta", "serial"))
    assert sum(halves) == 2504 and whole == (2504, 2504)
    more, wave = (pod_07.work(case, "serial") for case in ("4 tiles more", "a full wave"))
    assert more.tiles[0] - wave.tiles[0] == 4 and more.compute / more.tiles[0] == wave.compute / wave.tiles[0]


@pytest.mark.parametrize("times, rounds", [(1, 16), (23, 16), (25, 32), (360, 352), (364.5, 368)])
def test_multiplications_come_in_unrolled_rounds(times, rounds):
    assert pod_07.unrolled(times) == rounds


def test_the_slider_of_the_cuts_only_reads(monkeypatch):
    """Each of its places is in the table: a move draws, and runs nothing on the emulator."""
    monkeypatch.setattr(fusion, "record", None)
    begin = time.process_time()
    for compute, memory in product(micro_cuts.TILES, repeat=2):
        ax = style.axes(7, 3.4)
        micro_cuts.cut(ax, compute, memory)
        assert len(ax.patches) == len(METHODS) and ax.texts[0].get_text().startswith("2.0")
        plt.close(ax.figure)
    assert (time.process_time() - begin) / len(micro_cuts.TILES) ** 2 < 0.75, "a processor's seconds a move"


def test_only_sm_aware_ctas_stay_near_the_oracle_where_computes_tiles_are_the_longer_ones():
    """What the page of the cuts says over its picture, in every cut of the slider."""
    cuts = micro_cuts.table()
    equal = cuts[cuts.compute_tiles.eq(16) & cuts.memory_tiles.eq(16)].set_index("method").over_oracle
    assert equal[list(micro_cuts.FUSED)].max() < 1.25
    longer = cuts[cuts.compute_tiles < cuts.memory_tiles]
    aware = longer.method.eq("sm-aware")
    assert longer[aware].over_oracle.max() < 1.3 and longer[~aware].over_oracle.min() > 1.49


def test_sm_aware_ctas_are_best_in_both_unequal_cuts_that_chapter_06_shows():
    cuts = micro_cuts.table().set_index(["compute_tiles", "memory_tiles"])
    long_compute, long_memory = (cuts.loc[cut].set_index("method") for cut in micro_cuts.SHOWN[1:])
    assert long_compute.over_oracle.idxmin() == long_memory.over_oracle.idxmin() == "sm-aware"
    assert long_compute.together.idxmax() == "sm-aware", "the title of the picture of three ways"


def test_sm_aware_and_interleaved_stay_within_a_fifth_of_the_oracle():
    """The title of Figure 7's picture: these two, and nobody else."""
    assert takeaway.words("pod-07") == "SM-aware and interleaved stay within a fifth of the oracle"
    most = pod_07.table().groupby("method").over_oracle.max()
    assert set(most[most <= 1.2].index) == {"sm-aware", "interleaved"}


def test_sm_aware_ctas_hold_both_and_stay_near_the_oracle_however_the_work_is_cut():
    """The takeaway of Table 2."""
    ways = pod_t2.table().set_index("method")
    worst = ways[["equal_tiles", "long_compute_tiles", "long_memory_tiles"]].max(axis=1)
    assert ways.together_least_percent["sm-aware"] > 75 and ways.together_least_percent.drop("sm-aware").max() < 60
    assert round(ways.together_least_percent["interleaved"]) == 54, "chapter 06 quotes it, as an upper bound"
    assert worst["sm-aware"] < 1.35 and worst.drop("sm-aware").min() > 1.7


def test_sm_aware_ctas_pay_about_the_step_that_the_longer_loop_pays_alone():
    """Chapter 06 on the last column of Table 2."""
    ways = pod_t2.table().set_index("method").step_percent
    assert (round(pod_t2.oracle_step()), round(ways["sm-aware"]), round(ways["serial"])) == (11, 10, 10)
    marks = pod_t2.promises(pod_t2.table())
    assert marks.iloc[-1].tolist() == ["", "", "", "+11"]
    assert marks.loc[fusion.NAMES["interleaved"]].tolist() == ["yes", "≤ 54", "no", "+10"]


def test_the_picture_of_table_2_begins_with_the_oracle_and_the_shortest_worst_time():
    words = [t.get_text() for t in pod_t2.draw(pod_t2.table()).axes[0].texts]
    names = [word for word in words if word in (pod_t2.BASE, *fusion.NAMES.values())]
    assert names[:2] == [pod_t2.BASE, fusion.NAMES["sm-aware"]] and len(names) == 1 + len(METHODS)
    after = words.index(fusion.NAMES["sm-aware"])
    assert words[after + 1 : after + 4] == ["1.12", "1.24", "1.34"], "chapter 06 has them in the picture's alt text"


@emulated
def test_equal_tiles_of_sm_aware_ctas_do_not_end_together():
    """Chapter 06 on why they lose to halves of a CTA: tiles of 25 and 20 µs, and two compute tiles side by side."""
    with kernels.machine(micro_cuts.SMS):
        trace = fusion.record(micro_cuts.halves(), "sm-aware")
    long = {op: (mine.end - mine.start).mean() for op, mine in trace.groupby("op")}
    assert (round(long["compute"]), round(long["memory"])) == (25, 20)
    computing = trace[trace.op == "compute"].groupby("sm")
    pairs = sum(max(0, min(a.end, b.end) - max(a.start, b.start)) for _, on_sm in computing
                for a, b in combinations(on_sm.itertuples(), 2))  # fmt: skip
    assert round(100 * pairs / micro_cuts.SMS / trace.end.max()) == 7


@emulated
def test_a_long_memory_tile_ends_before_the_compute_tiles_dealt_with_it():
    """Chapter 06 on its third cut: what is on an SM, in percent of the time, and what lasts how long."""
    with kernels.machine(micro_cuts.SMS):
        trace = fusion.record(replace(micro_cuts.halves(), tiles=(64, 16)), "sm-aware")
    both, end = both_share(trace, fusion.ALONE), trace.end.max()
    compute, memory = (trace[trace.op == op] for op in fusion.ALONE)
    assert round(100 * both) == 47 and round((memory.end - memory.start).mean()) == 21
    assert round(end - compute.end.max()) in (18, 19)
    pairs = sum(max(0, min(a.end, b.end) - max(a.start, b.start)) for _, on_sm in compute.groupby("sm")
                for a, b in combinations(on_sm.itertuples(), 2))  # fmt: skip
    assert round(100 * pairs / micro_cuts.SMS / end) == 32
    beside = [tile.end - tile.start for tile in compute.itertuples()
              if ((memory.sm == tile.sm) & (memory.start < tile.start) & (memory.end > tile.end)).any()]  # fmt: skip
    assert round(4 * sum(beside) / len(beside)) == 31

"""Chapter 08: its pictures say what the kernel does, and its table what the compiler reported."""

import numpy as np
import pandas as pd
import pytest

from pod.data import read
from pod.experiments.checks import resources
from pod.experiments.ladder import ladder
from pod.experiments.methods import methods_halves
from pod.files import ROOT
from pod.lab.show import kernel as pictures
from pod.lab.show.code import piece


def test_rooms_are_the_kernels_files_and_the_picture_names_each():
    headers = ("binding", "tile_attention", "softmax", "merge", "ptx", "trace")
    files = ["csrc/sm80/hybrid.cu", *(f"csrc/include/{name}.cuh" for name in headers)]
    assert [room.file for room in pictures.ROOMS] == files and all((ROOT / file).is_file() for file in files)
    words = " ".join(t.get_text() for t in pictures.rooms().axes[0].texts)
    assert all(name in words for name in (*(room.name for room in pictures.ROOMS), "prefill", "decode"))


def test_shared_keys_are_read_once_when_heads_share_a_tile():
    batch = ladder.BATCHES["decode"]
    assert len(batch.q_lens) * batch.num_kv_heads == pictures.UNITS and batch.group == pictures.HEADS
    assert set(batch.kv_lens) == {pictures.KEYS * 1024}
    read = [sum(end - begin for _, begin, end in ctas) for ctas in pictures.SHARED.values()]
    assert read == [pictures.HEADS * pictures.KEYS, pictures.KEYS, pictures.KEYS]
    titles = [ax.get_title() for ax in pictures.shared_keys().axes]
    assert [title.partition(": ")[2].split()[-4] for title in titles] == ["256", "64", "128"]


def test_who_ran_where_shows_every_cta_in_the_order_in_which_it_came():
    """Two slots on SM 0: a prefill and then a decode on the first, a prefill on the second."""
    rows = [("prefill", 0, 0, 0, 0.0), ("decode", 0, 0, 0, 5.0), ("prefill", 1, 0, 1, 0.0), ("prefill", 2, 1, 0, 0.0)]
    trace = pd.DataFrame(rows, columns=["op", "id", "sm", "slot", "start"])
    (panel,) = pictures.ran_where({"one": trace, "other": trace}).axes[:1]
    panel.figure.canvas.draw()
    places = {text.get_text(): text.get_position()[0] for text in panel.texts}
    assert places == {"prefill 0": 0.5, "prefill 1": 0.5, "prefill 2": 0.5, "decode 0": 1.5}


def test_of_ctas_that_came_together_the_first_stands_above():
    rows = [("decode", 0, 0, 0, 0.0), ("prefill", 5, 0, 1, 0.0), ("prefill", 9, 1, 0, 0.0), ("prefill", 6, 1, 1, 0.0)]
    trace = pd.DataFrame(rows, columns=["op", "id", "sm", "slot", "start"])
    (panel,) = pictures.ran_where({"one": trace, "other": trace}).axes[:1]
    panel.figure.canvas.draw()
    high = {text.get_text(): panel.transData.transform(text.get_position())[1] for text in panel.texts}
    assert sorted(high, key=high.get, reverse=True) == ["prefill 5", "decode 0", "prefill 6", "prefill 9"]


@pytest.mark.parametrize("slots", [3, 4, 6, 8])
def test_ring_fetches_every_panel_once_and_never_over_one_that_is_still_to_be_read(slots):
    blocks, fetched, lies = 7, [], {}
    first = ["K0"] if slots == 3 else [f"{x}{i}" for i in range(slots // 2 - 1) for x in "KV"]  # before the first step
    lies = dict(enumerate(first))
    for step, cells in enumerate(pictures.ring_steps(slots, blocks)):
        for slot, (panel, what) in cells.items():
            if what in ("fetch", "late"):
                old = lies.get(slot)
                assert old is None or int(old[1:]) < step, f"{panel} overwrites {old} in step {step}"
                lies[slot] = panel
                fetched.append(panel)
        reads = {panel for panel, what in cells.values() if what in ("read", "late")}
        assert reads == {f"K{step}", f"V{step}"} <= set(lies.values())
    assert sorted(first + fetched) == sorted(f"{x}{i}" for i in range(blocks) for x in "KV")


def test_ring_slots_are_those_of_the_source():
    used = resources.table()
    alone = used[(used.binding == "prefill alone") & (used.ctas_per_sm == 2)]
    for row in alone.itertuples():
        slots = pictures.ring_slots(int(row.smem_kb * 1024), 128, 64, 128)
        assert int(row.smem_kb * 1024) == 128 * 256 + slots * 64 * 256, "queries and whole panels, nothing else"
        assert slots == 3 or slots % 2 == 0, "as Tile asserts"


def test_lanes_hold_scores_as_the_wrapper_of_the_instruction_says():
    row, column = np.mgrid[:16, :8]
    lanes = pictures.lane_of(row, column)
    assert (np.bincount(lanes.ravel()) == 4).all() and len(set(lanes.ravel())) == 32
    for lane in range(32):  # d[0], d[1] = D[g][c, c+1], d[2], d[3] = D[g+8][c, c+1]
        g, c = lane // 4, 2 * (lane % 4)
        assert (lanes[[g, g, g + 8, g + 8], [c, c + 1, c, c + 1]] == lane).all()


def test_operands_of_mma_are_held_as_the_wrapper_of_the_instruction_says():
    """A[g, 2t], A[g + 8, 2t], A[g, 2t + 8] ... and B[2t, g], B[2t + 8, g], two neighbours each."""
    row, column = np.mgrid[:16, :16]
    assert (np.bincount(pictures.lane_of(row, column).ravel()) == 8).all()
    for lane in range(32):
        g, t = lane // 4, 2 * (lane % 4)
        assert {pictures.lane_of(r, c) for r in (g, g + 8) for c in (t, t + 1, t + 8, t + 9)} == {lane}
        assert {pictures.lane_of(g, k) for k in (t, t + 1, t + 8, t + 9)} == {lane}, "of B, key g"
    for ax, columns in zip(pictures.fragments().axes, (16, 8, 8), strict=True):
        assert {t.get_text() for t in ax.texts} == {str(lane) for lane in range(32)} and len(ax.texts) == 16 * columns


def test_swizzle_is_that_of_the_source_and_spreads_eight_rows():
    source = str(piece("csrc/include/tile_attention.cuh", "DEV static int place("))
    assert "r * kRowBytes + ((c ^ (r & 7)) << 4)" in source
    for head_dim in (64, 128):
        row, chunk = np.mgrid[:8, : head_dim // 8]
        where = pictures.place(row, chunk, 2 * head_dim)
        assert len(set(where.ravel())) == where.size, "no two chunks in one place"
        assert (where // (2 * head_dim) == row).all(), "and each in its row"
        assert pictures.bank_conflicts(head_dim, swizzled=False) == 8
        assert pictures.bank_conflicts(head_dim, swizzled=True) == 1


def test_banks_are_drawn_as_the_rungs_place_their_pieces():
    plain, swizzled = (str(piece(f"csrc/ladder/{file}.cu", "DEV int place(")) for file in ("4_ahead", "5_swizzle"))
    assert "r * kRowBytes + c * 16" in plain and "r * kRowBytes + (c ^ r % 8) * 16" in swizzled
    left, right = pictures.banks().axes
    assert "8 accesses" in left.get_title() and right.get_title().endswith("1 access")
    lit = [{int(text.get_position()[0]) for text in ax.texts if text.get_text() == "3"} for ax in (left, right)]
    assert lit == [{3}, set(range(8))]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_a_stage_is_never_filled_while_it_is_read_and_no_block_before_it_is_there(stages):
    times = pictures.ring_times(stages, 9)
    for block, (begins, there, reads, done) in enumerate(times):
        assert begins < there <= reads < done
        assert block < stages or begins >= times[block - stages][3]
    assert sorted(times, key=lambda t: t[2]) == times, "one after the other"
    assert times[-1][3] == {1: 9 * 3, 2: 2 + 9 * 2 - 1, 3: 2 + 9, 5: 2 + 9}[stages]
    pictures.ring_in_time((1, max(2, stages)))


def test_resources_are_the_recorded_ones_and_fit_the_sm():
    df = resources.table()
    raw = read("resources")
    raw = raw[raw.ctas_per_sm < 8]  # eight are never chosen
    assert list(df.registers) == list(raw.registers[(raw.dtype == "bfloat16") & (raw.head_dim == 128)])
    assert (df.registers_percent <= 100).all() and (df.smem_percent <= 100).all()
    two = df[df.ctas_per_sm == 2].set_index(["arch", "binding"])
    for arch in resources.ARCHITECTURES:
        ticket = two.loc[arch, "SM-aware CTAs"]
        alone = two.loc[[(arch, "prefill alone"), (arch, "decode alone")]]
        assert ticket.smem_kb == alone.smem_kb.max(), "the larger of both, not the sum"
        assert two.loc[arch, "halves of a CTA"].smem_kb == alone.smem_kb.sum() or arch == "sm_90"
    for ax, rows in zip(resources.draw(df).axes, (two.loc[arch] for arch in resources.ARCHITECTURES), strict=True):
        assert len(ax.patches) == 2 * (2 * len(rows) - 1), "a box a CTA, two an SM, and one of two halves"
        ends = {round(box.get_x() + box.get_width(), 6) for box in ax.patches}
        assert {round(x, 6) for x in rows.registers_percent} <= ends


RATES = {
    "prefill": {"ours": 330, "ours_4": 280, "fa2": 300},
    "decode": {"ours": 4000, "ours_4": 3900, "fa2": 2000, "read": 4400},
}


@pytest.fixture
def halves(recorded):
    """A recording in which every way has one rate, TFLOP/s or GB/s, but FlashAttention-2 is fast at 8K."""
    rows = []
    for case in methods_halves.cases():
        batch = methods_halves.batch_of(case)
        work = batch.flops / 1e9 if case["side"] == "prefill" else batch.kv_bytes / 1e6
        fast = (case["side"], case["tokens"]) == ("prefill", 8192)
        rates = RATES[case["side"]] | ({"fa2": 340} if fast else {})
        times = {way: work / rate for way, rate in rates.items()}
        rows.append(case | {"flops": batch.flops, "kv_bytes": batch.kv_bytes} | times)
    recorded("methods-halves", rows)
    return methods_halves.table()


def test_each_half_is_judged_by_its_own_measure(halves):
    ways = sum(len(RATES[case["side"]]) for case in methods_halves.cases())
    assert len(halves) == ways, "a way that a side does not have makes no row"
    assert methods_halves.prefill_over_fa2() == pytest.approx(330 / 340)
    assert methods_halves.decode_of_read() == pytest.approx(100 * 4000 / 4400)


def test_the_picture_of_the_halves_shows_every_batch_of_decode_by_its_name(halves):
    left, right = methods_halves.draw(halves).axes
    assert [t.get_text() for t in left.get_xticklabels()] == ["2K", "4K", "8K", "16K"]
    names = [t.get_text() for t in right.get_yticklabels()]
    assert sorted(names) == sorted(f"{n} × {t // 1024}K" for *_, n, t in methods_halves.DECODES)
    assert [t.get_text() for t in right.texts] == ["91 %"] * len(methods_halves.DECODES)
    requests = [int(name.partition(" ")[0]) for name in names]
    assert requests == sorted(requests, reverse=True), "the fewest below"
    (peer,) = right.lines
    assert peer.get_label() == methods_halves.NAMES["fa2"] and list(peer.get_xdata()) == pytest.approx([2.0] * 7)


def test_chapter_08c_says_what_tiles_of_128_rows_would_cost_flash_attention_2():
    df = methods_halves.table()
    fa2 = df[df.way == "fa2"]
    rate = fa2[fa2.side == "prefill"].tflops.max()
    decode = fa2[(fa2.side == "decode") & (fa2.sequences * fa2.kv_heads >= 256)]
    flops = 2 * 2 * 128 * 128 * decode.sequences * decode.kv_heads * decode.tokens  # two products of 128 rows
    share = 100 * flops / rate / 1e9 / decode.ms
    assert len(decode) == 6 and (round(rate), round(share.min()), round(share.max())) == (337, 71, 109)
    ((one, ms),) = zip(flops[decode.sequences == 64], decode.ms[decode.sequences == 64], strict=True)
    assert (round(one / 1e9), round(one / rate / 1e9, 2), round(ms, 2)) == (275, 0.82, 0.77)

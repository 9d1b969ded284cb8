"""Any batch beside FlashAttention-3: what is measured, on the emulator beside stand-ins, and what is said of it."""

import sys
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import pod
from pod.batch import HybridBatch
from pod.data import read
from pod.experiments.hopper import hopper_any as page
from pod.experiments.hopper import hopper_any_peers as more
from pod.experiments.hopper import hopper_any_roof as top
from pod.experiments.hopper import hopper_invariant as fixed
from pod.experiments.hopper import hopper_sweep
from pod.hardware import H200
from pod.lab import registry
from pod.lab.measure import green, ragged
from pod.lab.measure.timing import Time
from pod.schedule import choose
from pod.simulate.mixes import KINDS, Mix

BATCH = HybridBatch([20, 3, 3, 1, 1], [40, 19, 3, 33, 1], 4, 2, 64, 16)
LONG = HybridBatch([100, 3, 1], [120, 900, 900], 4, 2, 64, 16)  # the planner lets its drafts decode


# ---------------------------------------------------------------- a stand-in for FlashAttention-3


def attend(q, k_cache, v_cache, cache_seqlens, page_table, causal, cu_seqlens_q=None, max_seqlen_q=None, **rest):
    assert causal and set(rest) <= {"scheduler_metadata", "num_splits", "sm_margin"}
    if cu_seqlens_q is None:
        rows, starts = q.flatten(0, 1), range(0, q.shape[0] * q.shape[1] + 1, q.shape[1])
    else:
        rows, starts = q, cu_seqlens_q.tolist()
        assert max_seqlen_q == max(np.diff(starts)) and starts[0] == 0
    assert len(starts) == len(cache_seqlens) + 1 == len(page_table) + 1 and starts[-1] == len(rows)
    out = torch.empty_like(rows)
    for i, length in enumerate(cache_seqlens.tolist()):
        mine = rows[starts[i] : starts[i + 1]].double().transpose(0, 1)
        k, v = (x[page_table[i].long()].flatten(0, 1)[:length].double().transpose(0, 1) for x in (k_cache, v_cache))
        k, v = (x.repeat_interleave(mine.shape[0] // x.shape[0], 0) for x in (k, v))
        mask = torch.ones(mine.shape[1], length, dtype=torch.bool).tril(length - mine.shape[1])
        scores = (mine @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
        out[starts[i] : starts[i + 1]] = (torch.softmax(scores, -1) @ v).transpose(0, 1).to(q.dtype)
    return out.view(q.shape)


def metadata(batch, longest_q, longest_kv, q_heads, kv_heads, head_dim, lens, qkv_dtype, page_size, causal,
             cu_seqlens_q=None, num_splits=0, sm_margin=0):  # fmt: skip
    assert batch == len(lens) and longest_kv % page_size == 0 and longest_kv >= max(lens)
    return torch.zeros(1, dtype=torch.int32)


@pytest.fixture
def fa3(monkeypatch):
    module = ModuleType("flash_attn_interface")
    module.flash_attn_with_kvcache, module.get_scheduler_metadata = attend, metadata
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    return module


@pytest.fixture
def timer(monkeypatch):
    """Every call takes as many milliseconds as its name has letters."""

    def shuffled(calls, rounds, ms, least):
        return {name: Time(float(len(name)), 1.0, 9.0) for name in calls if calls[name]() is not None}

    monkeypatch.setattr("pod.lab.measure.timing.shuffled", shuffled)


# ---------------------------------------------------------------- the measurement


def test_all_ways_compute_the_same(fa3, timer):
    row = ragged.table_row(ragged.Ragged(BATCH, device="cpu"), page.WAYS, 2)
    assert row["holes"] == "ours_serial: the same: all is of one kind" and 0 < row["error"] < ragged.MARGIN
    assert all(row[name] == len(name) for name in (*ragged.FA3, "ours"))


def test_halves_in_turn_part_where_the_planner_does(monkeypatch):
    planned, plan = [], pod.plan
    monkeypatch.setattr(pod, "plan", lambda batch, **options: planned.append(batch.q_lens) or plan(batch, **options))
    calls, holes, errors = ragged.ready(ragged.Ragged(LONG, device="cpu"), {"ours_serial": ragged.ours_serial})
    assert choose.roles(LONG).tokens == 4 and planned == [(100,), (3, 1)]
    assert not holes and 0 < errors["ours_serial"] < ragged.MARGIN


def test_batches_share_one_cache_and_read_their_own_pages_of_it(fa3):
    small, large = (ragged.Ragged(b, 1 << 16, "cpu") for b in (HybridBatch([1], [17], 4, 2, 64, 16), BATCH))
    assert small.k.data_ptr() == large.k.data_ptr() and small.k.shape == (32, 16, 2, 64)
    assert ragged.ready(large, ragged.FA3)[1] == {}
    pages = [page for row, n in zip(large.table, BATCH.pages, strict=True) for page in row[:n].tolist()]
    assert len(set(pages)) == len(pages)


def test_a_way_that_is_another_one_is_no_second_time(fa3):
    s = ragged.Ragged(HybridBatch([20, 1], [20, 7], 4, 2, 64, 16), device="cpu")
    calls, holes, _ = ragged.ready(s, ragged.FA3)
    assert set(ragged.FA3) - set(calls) == set(holes) == {"fa3_short", "fa3_short_ahead", "fa3_short_whole"}
    assert holes["fa3_short"] == "the same: no sequence brings 2 to 16 tokens"


def test_who_refuses_or_is_wrong_is_a_hole_with_the_reason(fa3, timer):
    def refuse(s):
        raise ValueError("kv_lens: got 0, allowed are integers from 1 on")

    def wrong(s):
        return lambda: [x * 1.1 for x in ragged.fa3_one(s)()]

    def wrong_where_nobody_looks(s):
        def call():
            (out,) = ragged.fa3_one(s)()
            out[7] *= 1.1
            return [out]

        return call

    makers = {"fa3_one": ragged.fa3_one, "ours": refuse, "wrong": wrong, "hidden": wrong_where_nobody_looks}
    row = ragged.table_row(ragged.Ragged(BATCH, device="cpu"), makers, 2)
    holes = dict(hole.split(": ", 1) for hole in row["holes"].split("; "))
    assert holes["ours"] == "refused: ValueError: kv_lens: got 0, allowed are integers from 1 on"
    assert holes["wrong"].startswith("wrong result (error") and holes["hidden"].startswith("wrong result (error 0.")
    assert row["ours"] == row["wrong"] == row["error"] == "" and row["fa3_one"] == 7


def test_a_row_that_sees_much_counts_as_much_as_one_that_sees_little():
    want = torch.ones(2, 1, 64, dtype=torch.float64) * torch.tensor([1.0, 0.01]).view(2, 1, 1)
    peer, out = want * 1.002, want * torch.tensor([1.002, 1.02]).view(2, 1, 1)
    assert ragged._share(out.float(), [0, 1], want, peer) > 5 > 1.01 > ragged._share(peer.float(), [0, 1], want, peer)


def test_without_flash_attention_3_there_are_holes(monkeypatch, timer):
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    row = ragged.table_row(ragged.Ragged(BATCH, device="cpu"), {"fa3_one": ragged.fa3_one}, 2)
    assert row["holes"] == "fa3_one: not installed (flash_attn_interface)"


def test_rows_must_come_longest_first_and_in_pages():
    for batch in (HybridBatch([1, 2], [5, 5], 4, 2, 64, 16), HybridBatch([2, 1], [5, 5], 4, 2, 64)):
        with pytest.raises(ValueError, match="most new tokens first"):
            ragged.Ragged(batch, device="cpu")


# ---------------------------------------------------------------- more peers


def of_pages(q, cache, indptr, indices, last, q_starts=None):
    """What FlashInfer computes of the pages that it was told."""
    counts = indptr.diff()
    table = torch.nn.utils.rnn.pad_sequence(indices.split(counts.tolist()), batch_first=True)
    lens = (counts - 1) * cache[0].shape[1] + last
    if q_starts is None:
        return attend(q[:, None], *cache, lens, table, causal=True)[:, 0]
    return attend(q, *cache, lens, table, causal=True, cu_seqlens_q=q_starts, max_seqlen_q=int(q_starts.diff().max()))


class Decodes:
    def __init__(self, room, layout, use_tensor_cores):
        assert layout == "NHD" and use_tensor_cores

    def plan(self, *pages, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type):
        self.pages = pages

    def run(self, q, cache):
        return of_pages(q, cache, *self.pages)


class Pod:
    def __init__(self, room, layout):
        assert layout == "NHD"

    def plan(self, *pages, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type):
        assert (num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type) == (4, 2, 64, 16, torch.bfloat16)
        self.pages = pages

    def run(self, q, cache, q_decode, cache_decode, causal_p):
        starts, *prompts, decode_starts, indptr, indices, last = self.pages
        assert causal_p and decode_starts.diff().tolist() == [1] * len(last)
        return of_pages(q, cache, *prompts, starts), of_pages(q_decode, cache_decode, indptr, indices, last)


def xqa(q, cache, room, table, lens, longest, bmm1_scale, bmm2_scale):
    assert not room.any() and longest == max(lens) and bmm1_scale == q.shape[-1] ** -0.5
    return attend(q[:, None], *cache, lens, table, causal=True)[:, 0]


@pytest.fixture
def flashinfer(monkeypatch, fa3):
    module, decode = ModuleType("flashinfer"), ModuleType("flashinfer.decode")
    module.BatchPODWithPagedKVCacheWrapper, module.BatchDecodeWithPagedKVCacheWrapper = Pod, Decodes
    decode.xqa_batch_decode_with_kv_cache = xqa
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setitem(sys.modules, "flashinfer.decode", decode)
    monkeypatch.setattr(ragged, "workspace", lambda: torch.zeros(8))


HYBRID = HybridBatch([30, 20, 1, 1], [48, 20, 33, 16], 4, 2, 64, 16)
FLASHINFER = {"fi_pod": ragged.fi_pod, "fa3_fi": ragged.fa3_then_fi, "fa3_xqa": ragged.fa3_then_xqa}


def test_flashinfer_gets_the_pages_of_each_side(flashinfer):
    makers = {"fa3_one": ragged.fa3_one} | FLASHINFER
    calls, holes, _ = ragged.ready(ragged.Ragged(HYBRID, 1 << 16, "cpu"), makers)
    assert holes == {} and set(calls) == set(makers)


@pytest.mark.parametrize("batch, why", [
    (BATCH, "q_lens: got drafts beside a prompt"),
    (HybridBatch([3, 1], [9, 9], 4, 2, 64, 16), "batch: got one kind of work"),
])  # fmt: skip
def test_flashinfer_takes_prompts_beside_decodes_only(flashinfer, batch, why):
    _, holes, _ = ragged.ready(ragged.Ragged(batch, device="cpu"), FLASHINFER)
    assert set(holes) == set(FLASHINFER) and all(why in hole for hole in holes.values())


class Driver:
    """A GPU of 132 SMs, which are handed out in eights."""

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        def call(*arguments):
            self.called.append(name)
            known = {"cuDeviceGetDevResource": self.resource, "cuDevSmResourceSplitByCount": self.split}
            return known.get(name, lambda *rest: 0)(*(getattr(x, "_obj", x) for x in arguments))

        return call

    def resource(self, device, resource, kind):
        resource.type, resource.sms = kind, 132
        return 0

    def split(self, part, groups, whole, rest, flags, least):
        part.sms = -(-least.value // 8) * 8
        rest.sms = whole.sms - part.sms
        return 0 if groups.value == 1 and part.sms < whole.sms else 1


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(green, "_driver", lambda: driver)
    monkeypatch.setattr(green, "split", green.split.__wrapped__)
    streams = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda pointer: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return driver


def test_the_driver_splits_the_sms_as_it_can(driver):
    assert [sms for _, sms in green.split(60)] == [64, 68]
    assert driver.called.count("cuGreenCtxCreate") == driver.called.count("cuGreenCtxStreamCreate") == 2
    with pytest.raises(RuntimeError, match="cuDevSmResourceSplitByCount: got error 1 of the CUDA driver"):
        green.split(132)


def test_a_resource_lies_in_memory_as_the_driver_has_it():
    """144 bytes, of which the count of SMs begins at 96: cuda.h, RESOURCE_ABI_VERSION 1."""
    assert green.ctypes.sizeof(green.Resource) == 144 and green.Resource.sms.offset == 96


def test_each_call_is_told_how_many_sms_it_has(driver, fa3, monkeypatch):
    margins = []
    noting = lambda *a, **k: margins.append(k["sm_margin"]) or attend(*a, **k)  # noqa: E731
    monkeypatch.setattr(fa3, "flash_attn_with_kvcache", noting)
    s = ragged.Ragged(BATCH, device="cpu")
    calls, holes, _ = ragged.ready(s, {"green": lambda s: ragged.fa3_green(s, 60), "ahead": MORE["green 64_ahead"]})
    assert holes == {} and margins[:4] == [68, 64] * 2


MORE = {f"{family} {way}": maker for family, ways in more.WAYS.items() for way, maker in ways.items()}


def test_of_each_family_the_fastest_counts(driver, flashinfer, monkeypatch):
    row = one_batch(monkeypatch, HybridBatch([20, 3, 1], [40, 19, 33], 4, 2, 64, 16), order=reversed)
    assert row["ours"] == 1 and row["green"] == 2 and row["green_how"] == "120_ahead" and row["fi_pod"] == ""
    assert row["splits_how"] == "32_ahead" and row["fa3_how"] == "fa3_one_whole"
    holes = dict(hole.split(": ", 1) for hole in row["holes"].split("; "))
    assert set(holes) == {"fi_pod", "fa3_fi", "fa3_xqa"} and "drafts beside a prompt" in holes["fa3_xqa"]
    df = more.gains(pd.DataFrame([more.cases()[0] | row]))
    assert df.gain[0] == 2 and df.best[0] == more.NAMES["green"]
    assert more.summary(df)["batches"].to_dict()["FlashInfer's POD"] == 0
    more.draw(df)


def one_batch(monkeypatch, batch, page_of=more, order=list):
    """The page has this batch alone, and the clock is the order of the calls."""

    def shuffled(calls, *rest):
        return {name: Time(i + 1.0, 1.0, 9.0) for i, name in enumerate(order(calls)) if calls[name]() is not None}

    monkeypatch.setattr("pod.lab.measure.timing.shuffled", shuffled)
    monkeypatch.setattr(page, "drawn", lambda: [Mix("mixed", "tiny", 1, "chats", 64, batch)])
    monkeypatch.setattr(more, "BATCHES", (0,))
    monkeypatch.setattr(more.ragged, "Ragged", lambda batch, room: RAGGED(batch, room, "cpu"))
    return page_of.measure(page_of.cases()[0])


def test_prompts_beside_decodes_are_timed_for_every_family(driver, flashinfer, monkeypatch):
    row = one_batch(monkeypatch, HYBRID)
    holes = dict(hole.split(": ", 1) for hole in row["holes"].split("; ") if hole)
    assert holes == {} and all(row[family] != "" for family in more.WAYS)


def test_without_any_peer_ours_is_timed_and_all_holes_have_names(monkeypatch):
    for name in ("flash_attn_interface", "flashinfer", "flashinfer.decode"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(green, "_driver", lambda: (_ for _ in ()).throw(OSError("libcuda.so.1: cannot open")))
    monkeypatch.setattr(green, "split", green.split.__wrapped__)
    row = one_batch(monkeypatch, HYBRID)
    holes = dict(hole.split(": ", 1) for hole in row["holes"].split("; "))
    assert set(holes) == set(more.NAMES) and row["ours"] == 1.0
    assert holes["fa3"] == "not installed (flash_attn_interface)" and "OSError" in holes["green"]
    df = more.gains(pd.DataFrame([more.cases()[0] | row]))
    assert np.isnan(df.gain[0])
    more.summary(df)


def test_an_output_of_another_shape_is_a_hole(fa3):
    def fewer(s):
        return lambda: [ragged.fa3_one(s)()[0][:3]]

    _, holes, _ = ragged.ready(ragged.Ragged(BATCH, device="cpu"), {"fa3_one": ragged.fa3_one, "fewer": fewer})
    assert set(holes) == {"fewer"} and holes["fewer"].startswith("refused: IndexError")


def test_the_subset_is_what_its_comment_says():
    some = [page.drawn()[i] for i in more.BATCHES]
    assert len(some) == len(set(more.BATCHES)) == 24 and {mix.batch.head_dim for mix in some} == {128}
    assert {mix.batch.group for mix in some} == {4, 5, 7, 8, 16}
    assert sum(min(mix.batch.q_lens) == 1 < max(mix.batch.q_lens) for mix in some) == 16


# ---------------------------------------------------------------- the page


def test_every_case_is_named_by_what_it_is_and_fits_the_cache():
    cases = page.cases()
    assert len(cases) == len({tuple(case.values()) for case in cases}) == 300 and set(cases[0]) == set(page.KEYS)
    assert page.room() * 4 < 40e9, "keys and values, two bytes each"
    assert registry.maker("hopper-any") is page


def test_a_row_has_all_that_the_table_asks_for(fa3, timer, monkeypatch):
    mix = Mix("mixed", "tiny", 1, "chats", 64, BATCH)
    monkeypatch.setattr(page, "drawn", lambda: [mix])
    monkeypatch.setattr(page.ragged, "Ragged", lambda batch, room: RAGGED(batch, room, "cpu"))
    (case,) = page.cases()
    df = page.gains(pd.DataFrame([case | page.measure(case)]))
    assert df.gain[0] == 7 / 4 and df.way[0] == "fa3_two" and df.two[0] == df.one[0] == 7 and df.group[0] == 2


RAGGED = ragged.Ragged


@pytest.fixture
def rows():
    """Made up: batch i gains 0.8 to 1.6, the last is refused."""
    draw = np.random.default_rng(0)
    same = {"q_heads": 8, "kv_heads": 2, "error": 1.0, "holes": ""}
    df = pd.DataFrame([case | same for case in page.cases()[:60]])
    df = df.assign(head_dim=[128, 64] * 30, words=[mix.words for mix in page.drawn()[:60]])
    times = {name: 1 + draw.random(60) for name in ragged.FA3} | {"ours_serial": np.full(60, 1.25), "ours": np.ones(60)}
    df = df.assign(**times)
    df[["ours", "ours_serial", "holes"]] = df[["ours", "ours_serial", "holes"]].astype(object)
    df.loc[59, ["ours", "holes"]] = "", "ours: refused: ValueError: no"
    df.loc[df.index[::3], "fa3_short"] = np.nan
    df.loc[df.kind == "decode", ["ours_serial", "holes"]] = "", "ours_serial: the same: all is of one kind"
    return df


def test_gains_are_over_the_fastest_way(rows):
    df = page.gains(rows)
    np.testing.assert_allclose(df.gain[:59], rows[list(ragged.FA3)].min(axis=1)[:59])
    assert np.isnan(df.gain[59]) and (df[["two", "one"]].min(axis=1)[:59] == df.gain[:59]).all()
    assert set(page.TWO) | set(page.ONE) == set(ragged.FA3) and len(page.ONE) == 3


def test_what_is_of_one_kind_is_not_fused(rows):
    said = page.summary(page.gains(rows))
    assert said.fusing["decode"] == 1 and said["better halves"]["decode"] == said.gain["decode"]
    assert said.fusing["mixed"] == 1.25
    assert said["better halves"]["mixed"] == pytest.approx(said.gain["mixed"] / 1.25, abs=1e-3)


def test_a_refused_batch_is_counted_and_stands_first_among_the_worst(rows):
    df = page.gains(rows)
    total = page.summary(df).loc["all"]
    assert total.batches == 60 and total.refused == 1 and total["1st percentile"] < 0.6
    assert page.summary(df).loc[list(KINDS), "batches"].sum() == 60
    assert page.worst(df).batch.tolist()[0] == 59 and page.worst(df).gain.iloc[1] == df.gain.min()


def test_picture_has_a_row_a_kind_and_counts_what_is_lost_and_refused(rows):
    df = page.gains(rows)
    (ax,) = page.draw(df).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == list(KINDS)
    said = [text.get_text() for text in ax.texts][: len(KINDS)]
    for kind, words in zip(KINDS, said, strict=True):
        part = df[df.kind == kind]
        lost = (part.gain < page.LOST).sum()
        assert words.startswith(f"{page.geomean(part.gain):.2f}") and (f", {lost} lost" in words) == (lost > 0)
    assert sum("1 refused" in words for words in said) == 1
    assert sum(len(dots.get_offsets()) for dots in ax.collections) == 59


# ---------------------------------------------------------------- what no kernel could beat


def test_a_roof_is_the_start_and_the_longer_of_bytes_and_flops():
    ceilings = top.Ceilings(start=0.004, bytes=1e9, flops=1e12)
    decode, chunk = HybridBatch([1], [10_000], 8, 2, 128, 16), HybridBatch([4096], [4096], 8, 2, 128, 16)
    assert top.roof(decode, ceilings) == 0.004 + decode.bytes / 1e9 > 0.004 + decode.flops / 1e12
    assert top.roof(chunk, ceilings) == 0.004 + chunk.flops / 1e12 > 0.004 + chunk.bytes / 1e9


def test_the_ceilings_are_the_fastest_that_was_measured():
    ceilings, sheet = top.ceilings(), H200
    assert 0.9 < 1e3 * ceilings.bytes / sheet.dram_bytes_per_s < 1
    assert 0.9 < 1e3 * ceilings.flops / sheet.tensor_flops < 1
    assert 0.003 < ceilings.start < 0.005, "ms of a launch and two waits"


def test_no_measured_time_is_under_the_roof():
    """A batch that beats what none could would show a wrong roof, or a wrong time."""
    rows, ceilings = read("hopper-any"), top.ceilings()
    soonest = rows[[f"{name}_p10" for name in (*ragged.FA3, "ours")]].min(axis=1)
    roofs = [top.roof(page.drawn()[i].batch, ceilings) for i in rows.batch]
    assert len(rows) == 300 and (soonest > roofs).all()


def test_nor_is_one_of_the_papers_sweep():
    df = top.of_sweep(hopper_sweep.table())
    assert len(df) == 1811 and (df < 1).all(axis=None), "medians of milliseconds"


def test_like_the_best_quarter_is_between_today_and_the_roof(rows):
    df = top.beside(page.gains(rows), top.Ceilings(0.001, 1e10, 1e13))
    taken = df[df.gain.notna()]
    assert (taken.like >= taken.gain - 1e-12).all() and (taken.like <= taken.limit).all()
    table = top.bars(df)
    assert list(table.index) == list(top.BARS) and table.loc["1st percentile", "today"] < 0.6, "one was refused"
    assert top.sizes(df).batches.sum() == 60
    top.draw(df)


def test_the_best_quarter_is_that_of_the_nearest():
    place, shares = np.arange(100.0), np.where(np.arange(100) < 50, 0.2, 0.8)
    shares[:10] = 0.4
    best = top.best_quarter(place, shares)
    assert best[0] == 0.4 and best[25] == 0.2 and best[99] == 0.8


def test_what_is_said_of_the_bars_is_so():
    """In the notes of data/claims.toml: no roof forbids a bar, and like its best quarter each batch would meet them."""
    table = top.bars(top.table())
    assert (table["at the roof"] > 1.1 * table.bar).all()
    assert (table["as its best quarter"] > 0.995 * table.bar).all()


# ---------------------------------------------------------------- what invariance costs


def test_every_fifth_batch_has_all_kinds_alike():
    some = fixed.cases()
    assert [sum(case["kind"] == kind for case in some) for kind in KINDS] == [10] * len(KINDS)


def test_a_row_of_invariance_times_all_ways(fa3, monkeypatch):
    """The emulator has no Hopper method: a stand-in is asked for it."""
    asked = []
    monkeypatch.setattr(fixed.ragged, "Ragged", lambda batch, room: RAGGED(batch, room, "cpu"))
    ways = {name: partial(stand_in, asked, way) for name, way in fixed.WAYS.items()}
    monkeypatch.setattr(fixed, "WAYS", ways)
    row = one_batch(monkeypatch, HYBRID, fixed)
    assert [row[name] for name in ways] == [1, 2, 3, 4, 5] and row["holes"] == ""
    assert asked == [{"invariant": True}]
    df = fixed.costs(pd.DataFrame([page.cases()[0] | row] * 2).assign(kind="mixed"))
    assert df.cost[0] == 2 and df.whole[0] == 3 and df.gain[0] == 1.5
    assert fixed.summary(df).loc["all", "cost"] == 2 and fixed.summary(df).loc["over 100 µs", "batches"] == 2
    fixed.draw(df)


def stand_in(asked, way, s):
    if getattr(way, "func", way) is not ragged.ours:
        assert way.keywords["num_splits"] == 1
        return way(s)
    asked += [way.keywords] if hasattr(way, "keywords") else []
    return ragged.ours(s)


def test_the_plain_ways_are_two_and_the_faster_counts(monkeypatch):
    rows = {"fa3_two": [4.0, "", 1.0], "fa3_one": [2.0, 8.0, 3.0], "fa3_one_ahead": [0.1, 0.1, 0.1],
            "ours": [1.0, 1.0, ""], "head_dim": [128, 64, 128]}  # fmt: skip
    monkeypatch.setattr(page, "read", lambda name: pd.DataFrame(rows))
    mean, of_128, least = page.over_plain()
    assert (round(mean, 6), of_128) == (4.0, 2.0) and least < 0.1  # what was refused gains nothing

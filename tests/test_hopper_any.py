"""Any batch beside FlashAttention-3: what is measured, on the emulator beside a stand-in, and what is said of it."""

import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt

from pod.batch import HybridBatch
from pod.experiments import registry
from pod.experiments.hopper import hopper_any as page
from pod.measure import ragged
from pod.measure.timing import Time
from pod.serving.mixes import KINDS, Mix

BATCH = HybridBatch([20, 3, 3, 1, 1], [40, 19, 3, 33, 1], 4, 2, 64, 16)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


# ---------------------------------------------------------------- a stand-in for FlashAttention-3


def attend(q, k_cache, v_cache, cache_seqlens, page_table, causal, cu_seqlens_q=None, max_seqlen_q=None, **rest):
    assert causal and set(rest) <= {"scheduler_metadata", "num_splits"}
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
             cu_seqlens_q=None, num_splits=0):  # fmt: skip
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

    monkeypatch.setattr("pod.measure.timing.shuffled", shuffled)


# ---------------------------------------------------------------- the measurement


def test_all_ways_compute_the_same(fa3, timer):
    row = ragged.table_row(ragged.Ragged(BATCH, device="cpu"), ragged.FA3 | {"ours": ragged.ours}, 2)
    assert row["holes"] == "" and 0 < row["error"] < ragged.MARGIN
    assert all(row[name] == len(name) for name in (*ragged.FA3, "ours"))


def test_batches_share_one_cache_and_read_their_own_pages_of_it(fa3):
    small, large = (ragged.Ragged(b, 1 << 16, "cpu") for b in (HybridBatch([1], [17], 4, 2, 64, 16), BATCH))
    assert small.k.data_ptr() == large.k.data_ptr() and small.k.shape == (32, 16, 2, 64)
    assert ragged.ready(large, ragged.FA3)[1] == {}
    pages = [page for row, n in zip(large.table, BATCH.pages, strict=True) for page in row[:n].tolist()]
    assert len(set(pages)) == len(pages)


def test_a_way_that_is_another_one_is_no_second_time(fa3):
    s = ragged.Ragged(HybridBatch([20, 1], [20, 7], 4, 2, 64, 16), device="cpu")
    calls, holes, _ = ragged.ready(s, ragged.FA3)
    assert set(ragged.FA3) - set(calls) == set(holes) == {"fa3_short", "fa3_short_ahead"}
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


def test_without_flash_attention_3_there_are_holes(monkeypatch, timer):
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    row = ragged.table_row(ragged.Ragged(BATCH, device="cpu"), {"fa3_one": ragged.fa3_one}, 2)
    assert row["holes"] == "fa3_one: not installed (flash_attn_interface)"


def test_rows_must_come_longest_first_and_in_pages():
    for batch in (HybridBatch([1, 2], [5, 5], 4, 2, 64, 16), HybridBatch([2, 1], [5, 5], 4, 2, 64)):
        with pytest.raises(ValueError, match="most new tokens first"):
            ragged.Ragged(batch, device="cpu")


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
    times = {name: 1 + draw.random(60) for name in ragged.FA3} | {"ours": np.ones(60)}
    df = df.assign(**times)
    df[["ours", "holes"]] = df[["ours", "holes"]].astype(object)
    df.loc[59, ["ours", "holes"]] = "", "ours: refused: ValueError: no"
    df.loc[df.index[::3], "fa3_short"] = np.nan
    return df


def test_gains_are_over_the_fastest_way(rows):
    df = page.gains(rows)
    np.testing.assert_allclose(df.gain[:59], rows[list(ragged.FA3)].min(axis=1)[:59])
    assert np.isnan(df.gain[59]) and (df[["two", "one"]].min(axis=1)[:59] == df.gain[:59]).all()
    assert set(page.TWO) | set(page.ONE) == set(ragged.FA3) and len(page.ONE) == 2


def test_a_refused_batch_is_counted_and_stands_first_among_the_worst(rows):
    df = page.gains(rows)
    total = page.summary(df).loc["all"]
    assert total.batches == 60 and total.refused == 1 and total["1st percentile"] < 0.6
    assert page.summary(df).loc[list(KINDS), "batches"].sum() == 60
    assert page.worst(df).batch.tolist()[0] == 59 and page.worst(df).gain.iloc[1] == df.gain.min()


def test_picture_lists_the_worst_and_labels_every_kind(rows):
    texts = [text.get_text() for ax in page.draw(page.gains(rows)).axes for text in ax.texts]
    assert sum(any(text.startswith(kind + " ") for kind in KINDS) for text in texts) == len(KINDS)
    assert "refused" in texts and sum("TP" in text for text in texts) == 10

"""The figures of chapters 00, 03 and 05 say what their chapters say."""

import numpy as np
import pytest

from pod.batch import TABLE1
from pod.data import read
from pod.experiments.basics import band, roofline, stutter, wave_step, waves
from pod.experiments.gpu import memory_map, strides
from pod.experiments.methods import methods_fa2
from pod.experiments.pod import pod_03, pod_05, pod_06
from pod.experiments.sarathi import sarathi_04
from pod.hardware import A100, H200
from pod.reference import attention


def test_chunks_shorten_the_wait_and_overlap_shortens_it_again():
    gaps = stutter.gaps(stutter.table())
    assert list(gaps) == [stutter.WHOLE, stutter.CHUNKS, stutter.OVERLAP]
    assert gaps[stutter.WHOLE] > 5 * gaps[stutter.CHUNKS] > 5 * gaps[stutter.OVERLAP]


def test_every_way_computes_the_whole_prompt_and_gives_the_chats_their_tokens():
    for way in (stutter.WHOLE, stutter.CHUNKS, stutter.OVERLAP):
        steps = stutter.iterations(way)
        assert sum(n for n, _, _ in steps) == stutter.PROMPT
        done = np.cumsum([0] + [n for n, _, _ in steps])[:-1]
        assert all(before == d for (n, before, _), d in zip(steps, done, strict=True) if n)
    chat_tokens = {way: sum(chats for *_, chats in stutter.iterations(way)) for way in (stutter.WHOLE, stutter.CHUNKS)}
    assert chat_tokens[stutter.CHUNKS] - chat_tokens[stutter.WHOLE] == stutter.PROMPT // stutter.CHUNK


def test_stutter_states_each_gap_in_its_panel():
    df = stutter.table()
    titles = [ax.get_title("left") for ax in stutter.draw(df).axes[::2]]
    assert titles == [f"{stutter.SAID[way]}: {1000 * gap:.0f} ms of silence" for way, gap in stutter.gaps(df).items()]


def test_of_waits_that_are_equally_long_the_last_is_marked():
    df = stutter.table()
    prompt = df[df.row == stutter.ROWS[0]].groupby("way").end.max()
    for way in (stutter.CHUNKS, stutter.OVERLAP):
        assert stutter._longest(df)[way][1] == prompt[way], "the panels on the right look into the last chunk"


def test_stutter_is_the_layer_of_chapter_03_in_all_layers():
    """One cost model: whoever multiplies chapter 03's layer gets the iteration of the first picture."""
    layers = stutter.SHAPES["yi-6b"].layers
    last = [part for part in stutter.parts(stutter.CHUNKS) if part["prefill"]][-1]
    assert last["linear"] + last["attention"] == pytest.approx(layers * pod_03.table().hybrid_us.sum() / 1e6, rel=1e-9)
    assert [last[k] for k in ("prefill", "decode")] == pytest.approx([layers * t for t in stutter.batch().times(A100)])


def test_at_the_rates_that_kernels_reach_the_waits_are_longer_and_overlap_is_worth_less():
    public, ideal = stutter.at_public_rates(), stutter.gaps(stutter.table())
    a, b = stutter.batch().times(A100)
    assert all(public[way] > 1.5 * ideal[way] for way in ideal) and public["at most"] < (a + b) / max(a, b)


def test_the_chat_server_fits_its_gpu():
    from pod.serving.shapes import SHAPES

    yi = SHAPES["yi-6b"]
    tokens = stutter.CHATS * stutter.CONTEXT + stutter.PROMPT
    assert 2 * yi.parameters + tokens * yi.kv_bytes_per_token < 0.9 * A100.memory_bytes


def test_best_speedup_is_sum_over_maximum():
    df = band.table().set_index(["batch", "gpu"])
    assert df.speedup_at_best.between(1, 2).all()
    prefill, decode = TABLE1["C1"].times(H200)
    assert df.loc["C1", "h200"].speedup_at_best == pytest.approx((prefill + decode) / max(prefill, decode))
    assert {t.get_text().split("\n")[0] for t in band.draw(band.table()).axes[0].texts} >= {"C0", "C1", "C2", band.CHAT}


def test_a_whole_prompt_gains_what_chapter_03_says():
    axes = band.draw_prompt().axes
    assert [ax.get_title() for ax in axes] == [
        "10 chats, chunk 1,024: 1.23× in all",
        "80 chats, chunk 1,024: 1.50× in all",
        "80 chats, chunk 4,096: 1.42× in all",
    ]
    marked = [[line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"] for ax in axes]
    best = [max(range(len(lines)), key=lambda i: max(lines[i].get_ydata())) for lines in marked]
    assert best[:2] == [1, 11], "the second of twelve beside 10 chats, the last beside 80"


def test_other_settings_gain_what_chapter_00_says():
    titles = [ax.get_title() for ax in band.draw_settings().axes]
    assert [title.partition("up to ")[2] for title in titles] == ["1.13×", "1.96×", "1.25×"]


def test_chunks_of_20_to_210_tokens_reach_the_ridges():
    (ax,) = roofline.draw_chunks().axes
    curves = [line for line in ax.lines if len(line.get_xdata()) == 12]
    first = [[np.interp(gpu.ridge, c.get_ydata(), c.get_xdata()) for c in curves] for gpu in (A100, H200)]
    assert 18 < min(map(min, first)) < 21 and 200 < max(map(max, first)) < 212


def test_only_weights_profit_from_a_hybrid_batch():
    df = pod_03.table()
    saved = pod_03.saved(df)
    assert saved[pod_03.APART] == pytest.approx(0) and saved[pod_03.SHARED] > 50
    assert df[df.reads == pod_03.APART].hybrid_us.sum() > df.hybrid_us.sum() / 3


def test_roofline_puts_decode_under_the_slope_and_prompts_under_the_roof():
    df = roofline.table()
    assert (df[df.kind == "decode"].flops_per_byte < 10).all()
    long = df[df.batch == "chunk of 12,288"]
    assert list(long.attainable_tflops) == [A100.tensor_flops / 1e12, H200.tensor_flops / 1e12]
    c2 = df[df.batch == "C2"].set_index("gpu")
    assert c2.loc["a100"].flops_per_byte > A100.ridge and c2.loc["h200"].flops_per_byte < H200.ridge


def test_chunks_equal_the_whole_and_the_test_would_notice():
    assert sarathi_04.largest_difference() < 1e-12
    q, k, v = sarathi_04.prompt_tensors()
    whole = attention(q, k, v)[0]
    blind = np.concatenate([attention(q[c], k[c], v[c])[0] for c in sarathi_04.chunks()])  # forgets earlier chunks
    assert np.abs(blind - whole).max() > 0.1
    assert sarathi_04.table().pairs.sum() == 1024 * 1025 // 2


def test_errors_of_wrong_masks_start_at_the_second_chunk():
    q, k, v = sarathi_04.prompt_tensors()
    errors = sarathi_04.errors(lambda c: sarathi_04.sdpa(q[c], k[: c.stop], v[: c.stop], is_causal=True))
    assert errors == ["below 1e-12", "246 %", "310 %", "370 %"]


@pytest.mark.parametrize("chunk", [1, 100, 1024])
def test_any_chunk_size_will_do(chunk):
    assert sarathi_04.difference(chunk).max() < 1e-12


def test_masks_of_all_chunks_make_the_whole_triangle():
    cells = [p.get_label() for p in sarathi_04.draw(sarathi_04.table()).axes[0].patches]
    seen = sum(label in ("in this chunk", "in the KV cache") for label in cells)
    size = sarathi_04.PROMPT // sarathi_04.DRAWN
    assert len(cells) == size**2 and seen == size * (size + 1) // 2


def test_the_step_is_where_the_paper_saw_it():
    assert waves.last_in_a_wave(A100.sms) == [54, 108] and waves.last_in_a_wave(H200.sms) == [66, 132]
    assert waves.ctas(54) == 2 * A100.sms and waves.ctas(55) == 2 * A100.sms + 4
    assert waves.time(55, A100.sms) / waves.time(54, A100.sms) == pytest.approx(1.25)


def test_staircase_lies_between_the_work_and_whole_waves():
    df = waves.table()
    assert (df.work <= df.shared_dram + 1e-9).all() and (df.shared_dram <= df.steady + 1e-9).all()
    words = [t.get_text() for ax in waves.draw(df).axes for t in ax.texts]
    assert words == ["54 → 55: +25 %", "66 → 67: +25 %"]


def test_execution_model_shows_what_the_hardware_table_says():
    df = pod_05.table().set_index("launched")
    assert df.loc["kernel", "a100"] == "108 SMs" and df.loc["CTA", "h200"] == "228 KiB"
    assert df.loc["warp", "a100"] == "64 warps per SM"
    words = " ".join(t.get_text() for t in pod_05.draw(pod_05.table()).axes[0].texts)
    assert all(level in words for level in df.index)


def test_the_recorded_step_is_there_for_whole_heads_and_not_for_equal_ranges():
    assert 20 < wave_step.step() < 35
    assert abs(wave_step.step(wave_step.RANGES)) < 5
    words = [t.get_text() for t in wave_step.draw(wave_step.table()).axes[0].texts]
    assert sum("%" in w for w in words) == 2 and f"{wave_step.step():+.0f} %" in " ".join(words)


def test_flash_attention_3_is_two_waves_of_one_cta_an_sm():
    """Chapter 05: its last four CTAs take over half a wave of 132, the reach is 1.8, and torch's copy steps by 56 %."""
    ms = wave_step.table().query("method == @wave_step.SERIAL").set_index("requests").ms
    last, wave = ms[67] - ms[66], ms[66] / 2
    assert waves.ctas(66) == 2 * H200.sms and round(last / wave, 2) == 0.56 and round(wave / last, 1) == 1.8
    assert round(wave_step.step()) == 28 and round(pod_06.decode_step()) == 56


def test_last_waves_of_three_kernels_take_more_than_half_a_full_one():
    """Chapter 05's picture: what its bars and words say."""
    rows = methods_fa2.last_waves()
    assert [round(x, 2) for x in rows["last"]] == [0.56, 0.56, 0.60] and list(rows.waves) == [1, 2, 1]
    (ax,) = methods_fa2.draw_last(rows).axes
    words = [t.get_text() for t in ax.texts]
    assert "step 28 %, over two full waves" in words and "paper, A100: over a quarter" in words and waves.reach() == 4


def test_a_lone_cta_that_only_reads_gets_what_is_under_way():
    """Chapter 05: a CTA alone draws less than one that has 64 KB under way, and more than one with 16."""
    reads = read("gpusim-calibrate").query("probe == 'read' and ctas == 1 and size > 0")
    rate = (reads.bytes / reads.ms / 1e6).set_axis(reads["shape"].astype(int) * 4)  # GB/s, by KB under way
    assert [round(rate[kb]) for kb in (16, 64)] == [32, 95]


def test_dram_gives_no_more_from_some_4_mb_under_way_on():
    """Chapter 04's table, and 16 bytes for each thread."""
    rows = memory_map.filling()
    assert list(rows.index) == [0.5, 1.1, 2.2, 4.3, 8.7] and rows["TB/s"].idxmax() == 4.3
    assert round(4.3e6 / (H200.sms * H200.threads_per_sm)) == 16
    waits = rows["one load waits, µs"]
    assert waits.is_monotonic_increasing and round(waits[8.7] / waits[4.3]) == 2


def test_the_map_has_a_row_of_numbers_for_each_place():
    places = memory_map.places(memory_map.table())
    words = [t.get_text() for t in memory_map.draw_map(places).axes[0].texts]
    assert words.count("registers") == 3 and words.count("DRAM, of all SMs") == 1
    assert {"658 cycles, 332 ns", "518 TB/s", "33 MiB of both"} <= set(words)


def test_torchs_flash_attention_2_waits_for_its_sm_and_a_tile_of_64_rows_for_dram():
    """Chapter 05: padded multiplications and bytes of 264 CTAs of 16K keys."""
    df = pod_06.table()
    ms = {n: pod_06.of(df, n).fa2_decode.median() for n in (54, 66)}
    padded = 264 * 128 * 16384 * 4 * 128 / ms[66] / 1e9  # TFLOP/s, of 128 rows
    assert round(padded) == 365 and round(ms[54] / ms[66], 2) == 0.99
    prefill = methods_fa2.table()
    assert round((prefill.flops / prefill.fa2_prefill / 1e9).max()) == 344 and padded > 344
    kv_bytes = 264 * 16384 * 2 * 128 * 2
    ours = prefill[(prefill["set"] == methods_fa2.PROMPT) & (prefill.decodes == 66)].decode_64.median()
    assert round(kv_bytes / ms[66] / 1e9, 1) == 2.9 and round(kv_bytes / ours / 1e9, 1) == 4.3
    assert round(methods_fa2.decode_step()) == 60


def test_loads_apart_past_l1_get_the_rate_of_l2_as_often_as_a_sector_is_fetched():
    past, near = (strides.rates(strides.table())[f"TB/s, {place}"] for place in ("past L1", "L1"))
    l2 = memory_map.places(memory_map.table()).tb_per_s["L2"]
    assert [stride * past[stride] for stride in (4, 8)] == pytest.approx([l2] * 2, rel=0.02)
    assert near[8] > 0.85 * near[1] and near[32] == pytest.approx(near[1] / 4, rel=0.06)
    assert near[16] == pytest.approx(2 * near[32], rel=0.02) and past[32] < past[8]

"""The GPU model: its engine by arithmetic on a page, its binding by the kernel, its fit by the recording."""

import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.batch import TABLE1, HybridBatch
from pod.experiments.gpu.gpu_calibration import KEYS, PARTS, cases, even_batch
from pod.files import ROOT
from pod.hardware import A100, GPUS, H200, TOY
from pod.schedule import binding
from pod.simulate import gpusim
from pod.simulate.gpusim import ByRole, ByTicket, Chip, Cta, InOrder, Kind, Pace, Piece, balance, simulate

K = 1024
CHIP = Chip(sms=4, dram=400.0, l2=1e9, miss=1e-3, hit=1e-3)  # DRAM gives each of 100 CTAs 4 bytes a second
HEAVY = Kind("prefill", warps=4, busy=1.0, alone=1.5, bytes=1.0, misses=0.0, in_flight=1.0)  # a second of its SM a key
LIGHT = Kind("decode", warps=1, busy=0.01, alone=0.01, bytes=10.0, misses=1.0, in_flight=1.0)  # ten bytes a key


def run(ctas, kinds=(HEAVY, LIGHT), slots=2, chip=CHIP, source=InOrder, quantum=1e-9):
    return simulate(chip, kinds, source(ctas), slots, 4, quantum)


def heavy(n, keys=2.0):
    return [Cta(i, [Piece(0, keys)]) for i in range(n)]


def light(n, keys=2.0, pieces=1):
    return [Cta(i, [Piece(1, keys)] * pieces) for i in range(n)]


def makespan(ran):
    return max(r.end for r in ran)


# ---------------------------------------------------------------- one SM


def test_a_worker_alone_has_its_own_pace_and_two_fill_the_sm():
    assert makespan(run(heavy(4))) == pytest.approx(3.0)  # one on each SM: 2 keys of 1.5 s
    assert makespan(run(heavy(8))) == pytest.approx(4.0)  # two on each: 4 keys of 1 s


def test_waves_are_paid_in_full():
    assert makespan(run(heavy(9))) == pytest.approx(4.0 + 3.0)  # the ninth starts when the first wave is over, alone
    ran = run(heavy(9))
    assert [r.start for r in sorted(ran, key=lambda r: r.id)] == pytest.approx([0.0] * 8 + [4.0])


def test_who_wants_little_gets_it_and_the_rest_is_for_the_others():
    pace = Pace(Chip(1, 1e9, 1e9, 0.01, 0.01), [HEAVY, LIGHT]).on_sm([2, 1], wait=1.0)
    light_busy = pace[1] * LIGHT.busy
    assert pace[1] == pytest.approx(1 / 10 / 1.01) and pace[0] == pytest.approx((1 - light_busy) / 2)


# ---------------------------------------------------------------- memory


def test_dram_is_shared_and_one_cta_cannot_use_it_up():
    chip = Chip(4, dram=400.0, l2=1e9, miss=0.02, hit=0.02)  # a byte every 20 ms: 50 bytes a second
    assert makespan(run(light(1), chip=chip)) == pytest.approx(2 * 10 / 50)
    assert makespan(run(light(8), chip=chip)) == pytest.approx(8 * 2 * 10 / 400)


def test_hits_wait_behind_misses():
    """Whoever reads from L2 slows down with those who saturate DRAM; the wait is Little's law."""
    reader = Kind("prefill", 1, 1e-9, 1e-9, bytes=1.0, misses=0.0, in_flight=1.0)
    alone, beside = (Pace(CHIP, [reader, LIGHT]) for _ in "ab")
    assert alone(np.array([[1, 0]] * 4))[0, 0] == pytest.approx(1 / CHIP.hit)
    n = 200
    slow = beside(np.array([[1, n]] * 4))[0, 0]
    assert slow == pytest.approx(400 / (4 * n), rel=0.01)  # everybody's one byte comes once in (bytes under way) / rate


def test_l2_has_a_limit_too():
    chip = Chip(4, dram=1e9, l2=100.0, miss=1e-3, hit=1e-3)
    reader = Kind("prefill", 1, 1e-9, 1e-9, bytes=1.0, misses=0.0, in_flight=1.0)
    ran = simulate(chip, [reader], InOrder(Cta(i, [Piece(0, 50.0)]) for i in range(8)), 2, 1, 1e-9)
    assert makespan(ran) == pytest.approx(8 * 50 / 100, rel=0.01)


@given(st.floats(0.01, 100), st.floats(0, 200))
def test_balance_finds_the_shortest_wait(scale, guess):
    load = lambda wait: scale / (1 + wait)  # noqa: E731
    wait = balance(load, guess)
    assert wait == 0 if scale <= 1 else wait == pytest.approx(scale - 1, rel=5e-3, abs=1e-6)


# ---------------------------------------------------------------- binding


def test_a_cta_of_two_halves_holds_its_slot_until_both_are_done():
    ran = run([Cta(0, [Piece(0, 2.0), Piece(1, 0.5)]), *(Cta(i, [Piece(1, 0.5)]) for i in range(1, 9))], slots=1)
    first = {r.op: r for r in ran if r.id == 0}
    assert first["decode"].end < first["prefill"].end == pytest.approx(3.0, rel=0.01)
    assert all(r.sm != first["prefill"].sm for r in ran if r.id > 0)


def test_tickets_bind_as_the_kernel_does():
    prefill, decode = heavy(6), light(10)
    deal = binding.deal("50:50", [2] * 6, [1] * 10, CHIP.sms)
    ran = simulate(CHIP, [HEAVY, LIGHT], ByTicket(deal, prefill, decode, CHIP.sms), 2, 1, 1e-9)
    order = sorted(ran, key=lambda r: (r.start, binding.OPS.index(r.op), r.id))
    at_once = [r for r in order if r.start == 0]
    assert [sum(r.op == op for r in at_once) for op in binding.OPS] == [4, 4]
    expected = binding.draw(deal, [0, 1, 2, 3] * 2, 6, 10, CHIP.sms)
    assert {(a.sm, binding.OPS[a.op], a.id) for a in expected} == {(r.sm, r.op, r.id) for r in at_once}
    assert len(ran) == 16


def test_roles_draw_from_their_own_queue():
    ran = simulate(CHIP, [HEAVY, LIGHT], ByRole(heavy(8), light(8)), 2, 1, 1e-9)
    assert sorted(r.sm for r in ran if r.op == "prefill") == [0, 0, 1, 1, 2, 2, 3, 3]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 12))
def test_nothing_is_lost_and_no_slot_holds_two(lengths, slots, decodes):
    ran = run([*(Cta(i, [Piece(0, n)]) for i, n in enumerate(lengths)), *light(decodes, pieces=3)], slots=slots)
    asked = [("prefill", i) for i in range(len(lengths))] + [("decode", i) for i in range(decodes)]
    assert sorted((r.op, r.id) for r in ran) == sorted(asked)
    for sm in range(CHIP.sms):
        events = sorted([(r.start, 1) for r in ran if r.sm == sm] + [(r.end - 1e-9, -1) for r in ran if r.sm == sm])
        assert max(np.cumsum([change for _, change in events]), default=0) <= slots
    work = sum(lengths) * HEAVY.busy / CHIP.sms
    assert makespan(ran) >= max(work, max(lengths) * HEAVY.alone) * (1 - 1e-6)


@given(st.integers(1, 40), st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_taking_close_events_together_changes_little(prefills, decodes):
    ctas = [*heavy(prefills, 3.3), *light(decodes, 7.7)]
    exact = makespan(run(ctas))
    assert makespan(run(ctas, quantum=exact / 400)) == pytest.approx(exact, rel=0.02)


# ---------------------------------------------------------------- our kernels on real GPUs


def test_the_model_returns_what_it_was_fitted_to():
    """Prefill and decode alone, where the calibration looked: within 3 %."""
    rows = _recorded()
    prefill = [("prefill", 2, 132, 4224), ("prefill", 2, 264, 4224), ("prefill", 4, 528, 4224)]
    decode = [("decode", 2, 33, 4096), ("decode", 2, 264, 4096), ("decode", 4, 528, 4096)]
    for probe, shape, ctas, size in prefill + decode:
        batch = even_batch(probe, shape, ctas, size)
        choice = {"ctas_per_sm": shape, "prefill_splits": "none", "decode_splits": 1}
        measured = rows[probe, str(shape), ctas, size]
        assert 1e3 * gpusim.seconds(batch, H200, "serial", **choice) == pytest.approx(measured, rel=0.03)


def _recorded():
    import csv

    with gpusim.RECORDING.open() as file:
        return {(r["probe"], r["shape"], int(r["ctas"]), int(r["size"])): float(r["ms"]) for r in csv.DictReader(file)}


def test_parameters_are_what_they_are_called():
    c = gpusim.calibration()
    assert 0.8 < c.dram < 1 and 0.5 < c.mma < 0.75 and c.hit < c.miss < 1e-6 and c.start < 1e-5
    assert all(0 < e.alone < e.full < 1 for e in c.efficiency.values())
    assert c.tensor_flops(A100) * A100.sms == A100.tensor_flops  # of Ampere, mma.sync is all there is


@pytest.mark.parametrize("method", [*gpusim.calibration().launch, "hopper"])
@pytest.mark.parametrize("gpu", [A100, H200, TOY], ids=lambda g: g.key)
def test_no_method_beats_the_roofline(gpu, method):
    batch = HybridBatch.of(512, 4 * K, 6 if gpu is TOY else 40, 4 * K, 8, 2)
    ran = gpusim.trace(batch, gpu, method)
    assert {r.sm for r in ran} <= set(range(gpu.sms)) and {r.op for r in ran} == set(binding.OPS)
    assert gpusim.seconds(batch, gpu, method) > max(batch.times(gpu))


def test_serial_runs_one_after_the_other_and_pod_side_by_side():
    serial, pod = (gpusim.trace(TABLE1["C0"], H200, m) for m in ("serial", "pod"))
    end = max(r.end for r in serial if r.op == "prefill")
    assert min(r.start for r in serial if r.op == "decode") == pytest.approx(end)
    at_once = [{r.sm for r in pod if r.op == op and r.start == 0} for op in binding.OPS]
    assert len(at_once[0] & at_once[1]) > H200.sms / 2


def test_one_decode_more_than_a_wave_holds():
    """FlashAttention-2's tiles have a step at 54 (A100) and 66 (H200) decodes of four KV heads; ours cut the keys."""
    for gpu, edge in ((A100, 54), (H200, 66)):
        decodes = [HybridBatch.of(0, 0, edge + more, 16 * K, 32, 4) for more in (0, 1)]
        flash = [gpusim.seconds(b, gpu, "serial", kernel="flash2") for b in decodes]
        ours = [gpusim.seconds(b, gpu, "serial") for b in decodes]
        assert flash[1] > 1.15 * flash[0] and ours[1] < 1.15 * ours[0]


def test_a_straggler_shows():
    """A few long prefill tiles that nobody cuts run on after everything else."""
    batch = HybridBatch.of(512, 32 * K, 60, 8 * K, 16, 4)
    whole, cut = (gpusim.seconds(batch, H200, "pod", prefill_splits=n) for n in (1, 4))
    assert whole > 1.5 * cut


def test_a_full_batch_takes_well_under_a_second():
    gpusim.calibration()

    def spent() -> float:
        begin = time.process_time()
        gpusim.seconds(TABLE1["C2"], H200, "pod")
        return time.process_time() - begin

    assert min(spent() for _ in range(3)) < 0.8  # beside others, whose work slows a core down, it counts more


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda g: g.key)
def test_time_grows_with_the_work(gpu):
    times = [gpusim.seconds(HybridBatch.of(256, 2 * K, n, 2 * K, 8, 2), gpu, "serial") for n in (8, 32, 64)]
    assert times == sorted(times)


def test_bad_method_is_named():
    with pytest.raises(ValueError, match="method: got 'magic', allowed are serial, streams, cta, warp, pod, hopper"):
        gpusim.seconds(TABLE1["C0"], H200, "magic")
    with pytest.raises(ValueError, match="kernel: got 'flash3', allowed are ours, flash2, flash2 torch"):
        gpusim.seconds(TABLE1["C0"], H200, "serial", kernel="flash3")


# ---------------------------------------------------------------- what is measured


def test_every_row_of_the_calibration_is_recorded_once():
    rows = [tuple(case[key] for key in KEYS) for case in cases()]
    assert max(Counter(rows).values()) == 1
    assert {(probe, str(shape), ctas, size) for probe, shape, ctas, size in rows} == set(_recorded())


@pytest.mark.parametrize("case", [c for c in cases() if c["probe"].split()[0] in ("prefill", "decode")], ids=str)
def test_calibration_batches_are_even_and_as_many_as_they_say(case):
    probe, shape, ctas, size = (case[key] for key in KEYS)
    parts = PARTS if probe.endswith("split") else 1
    choice = {"ctas_per_sm": shape, "prefill_splits": parts, "decode_splits": parts}
    made = gpusim.program(even_batch(probe, shape, ctas, size), H200, "serial", **choice)
    handed_out = [cta for grid in made.grids for cta in grid.ctas]
    keys = {piece.keys for cta in handed_out for piece in cta.pieces}
    assert len(handed_out) == ctas and max(keys) - min(keys) <= 64, keys
    assert {len(cta.pieces) for cta in handed_out} == {1 if probe.startswith("prefill") else made.workers}


def test_a_window_shortens_what_hopper_reads_and_what_has_no_price_is_refused():
    whole = HybridBatch((1,) * 64, (8 * K,) * 64, 8, 2, 128)
    near = replace(whole, window=K)
    times = [gpusim.seconds(batch, H200, "hopper") for batch in (whole, near, replace(whole, kv_lens=(K,) * 64))]
    assert times[1] == pytest.approx(times[2], rel=0.2) and times[1] < times[0] / 3
    for name, value in (("softcap", 30.0), ("kv_dtype", "float8_e4m3fn")):
        with pytest.raises(ValueError, match=f"^{name}: got {value!r}, allowed in this model is None"):
            gpusim.seconds(replace(whole, **{name: value}), H200, "hopper")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["rates", "memory"])
def test_the_microbenchmarks_compile(tmp_path, name, arch):
    source = ROOT / "csrc" / "micro" / f"{name}.cu"
    command = ["nvcc", "-std=c++20", f"-arch={arch}", "-cubin", str(source), "-o", str(tmp_path / f"{name}.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


# ---------------------------------------------------------------- figures


def test_what_is_predicted_stands_beside_what_was_measured(monkeypatch):
    """Each cell of Figures 13 and 14 once a place; the model is asked for the same batches on both GPUs."""
    from pod.experiments.gpu import gpu_choices
    from pod.experiments.pod import pod_13, pod_14

    asked = []
    predict = lambda cases: [asked.append(c) or 2.0 for c in cases]  # noqa: E731
    monkeypatch.setattr(gpu_choices, "milliseconds", predict)
    df = gpu_choices.table()
    cells = df.groupby(["question", "place"]).size().unstack()
    assert (cells.loc[gpu_choices.CTAS] == 5 * len(gpu_choices.DECODES)).all()
    assert (cells.loc[gpu_choices.POLICY] == len(pod_14.table())).all()
    assert (df[df.place != "measured"].value.isin((0.0, 1.0))).all(), "equal times: a ratio of 1, a gain of 0"
    assert {c.gpu for c in asked} == {"a100", "h200"}
    assert len({c.batch for c in asked}) == 15 + 10 - 2, "two batches belong to both figures"
    seen = df[(df.place == "measured") & (df.question == gpu_choices.CTAS)].set_index(["context", "decodes"]).value
    recorded = pod_13.table().set_index(["context", "decodes"]).loc[(K, 32)]
    assert seen[K, 32] == recorded.pod_4 / recorded.pod_2


def test_least_and_most_stand_in_the_row_and_place_that_they_are_of():
    """pandas mixes the cells of a table up when it is asked to leave the order of its columns alone."""
    from pod.experiments.gpu import gpu_choices

    df, shown = gpu_choices.table(), gpu_choices.ranges()
    for place, name in gpu_choices.PLACES.items():
        own = df[(df.question == gpu_choices.POLICY) & (df.place == place)].value
        four = df[(df.question == gpu_choices.CTAS) & (df.place == place) & (df.context == K)].value
        for row, values in ((gpu_choices.POLICY, own), (f"{gpu_choices.CTAS}, the shortest context", four)):
            assert shown.loc[row, name] == f"{round(values.min(), 2):g} to {round(values.max(), 2):g}"


def test_ranges_are_compared_with_pieces_of_the_same_batch(monkeypatch):
    from pod.experiments.gpu import gpu_ranges

    predict = lambda cases: [c.batch.q_lens[0] * (1.25 if c.choice else 1.0) for c in cases]  # noqa: E731
    monkeypatch.setattr(gpu_ranges, "milliseconds", predict)
    df, grid = gpu_ranges.table(), gpu_ranges.recorded("methods-grid")
    assert (df.model == 25).all(), "a quarter longer than the pieces of the same chunk"
    assert df.measured[3] == pytest.approx(100 * (grid.ranges[3] / grid["pod"][3] - 1))

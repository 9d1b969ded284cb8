"""The CUDA machine for the CPU: each instruction against its definition, each check on a kernel that breaks a rule."""

import re

import numpy as np
import pytest
from emulator import HERE, bits16, call, events_in_order, library

LANE = np.arange(32)
GROUP, PAIR = LANE // 4, LANE % 4 * 2  # the PTX manual's groupID, and 2 x threadID_in_group


def run(name, function, *args):
    assert call(name, function, *args) is None


def pairs(low, high):
    """Two arrays of 16-bit values -> packed 32-bit registers."""
    return np.uint32(low) | np.uint32(high) << np.uint32(16)


# ---------------------------------------------------------------- instructions


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("trans", [0, 1])
def test_ldmatrix_gives_lane_l_row_l_over_4_and_columns_twice_l_mod_4(count, trans):
    rng = np.random.default_rng(count)
    x = rng.integers(0, 2**16, (32, 8), dtype=np.uint16)
    order = rng.permutation(32).astype(np.int32)  # rows may lie anywhere
    out = np.zeros((32, count), np.uint32)
    run("instructions", "run_ldmatrix", count, trans, x, order, out)
    matrices = x[order].reshape(4, 8, 8)
    if trans:
        matrices = matrices.transpose(0, 2, 1)
    for i in range(count):
        np.testing.assert_array_equal(out[:, i], pairs(matrices[i][GROUP, PAIR], matrices[i][GROUP, PAIR + 1]))


@pytest.mark.parametrize("half", [0, 1])
def test_mma_multiplies_the_fragments_of_the_ptx_manual(half):
    rng = np.random.default_rng(half)
    a = rng.integers(-8, 9, (16, 16)).astype(np.float32) / 8
    b = rng.integers(-8, 9, (16, 8)).astype(np.float32) / 8
    c = rng.standard_normal((16, 8)).astype(np.float32)
    ha, hb = bits16(a, half), bits16(b, half)
    rows, cols = [GROUP, GROUP + 8, GROUP, GROUP + 8], [PAIR, PAIR, PAIR + 8, PAIR + 8]
    fa = np.stack([pairs(ha[r, k], ha[r, k + 1]) for r, k in zip(rows, cols, strict=True)], 1)
    fb = np.stack([pairs(hb[k, GROUP], hb[k + 1, GROUP]) for k in (PAIR, PAIR + 8)], 1)
    fd = np.stack([c[GROUP, PAIR], c[GROUP, PAIR + 1], c[GROUP + 8, PAIR], c[GROUP + 8, PAIR + 1]], 1)
    run("instructions", "run_mma", half, fa, fb, fd := np.ascontiguousarray(fd))
    d = np.empty((16, 8), np.float32)
    d[GROUP, PAIR], d[GROUP, PAIR + 1], d[GROUP + 8, PAIR], d[GROUP + 8, PAIR + 1] = fd.T
    np.testing.assert_allclose(d, c.astype(np.float64) + a.astype(np.float64) @ b, rtol=1e-6, atol=1e-6)


def test_lanes_exchange_values():
    x = np.random.default_rng(0).integers(0, 2**32, 32, dtype=np.uint32)
    x[9] = 5
    out = np.zeros((9, 32), np.uint32)
    run("instructions", "run_lanes", x, out)
    matrix = np.stack([x & 0xFFFF, x >> 16], 1).reshape(8, 8)  # lane l holds row l / 4, columns 2 (l % 4) and + 1
    np.testing.assert_array_equal(out[0], pairs(matrix.T[GROUP, PAIR], matrix.T[GROUP, PAIR + 1]))
    np.testing.assert_array_equal(out[1], x[(LANE * 7 + 3) % 32])
    np.testing.assert_array_equal(out[2], x[LANE ^ 5])
    np.testing.assert_array_equal(out[3], np.where(LANE < 3, x, np.roll(x, 3)))
    np.testing.assert_array_equal(out[4], np.where(LANE > 28, x, np.roll(x, -3)))
    np.testing.assert_array_equal(out[5], np.full(32, sum(int(v & 1) << i for i, v in enumerate(x))))
    np.testing.assert_array_equal(out[6], np.full(32, 1))  # some lane holds 5, none 0xdead
    np.testing.assert_array_equal(out[7], np.full(32, 1))  # all differ from 0xdead, not all are odd
    assert out[8].sum() == 1


def test_cp_async_copies_or_zeroes_16_bytes():
    x = np.random.default_rng(0).integers(0, 2**32, (128, 4), dtype=np.uint32)
    out = np.zeros((192, 4), np.uint32)
    run("instructions", "run_cp_async", x, out)
    np.testing.assert_array_equal(out[:64], x[:64])
    np.testing.assert_array_equal(out[64:128], np.where(np.arange(64)[:, None] % 2 == 0, x[64:], 0))
    np.testing.assert_array_equal(out[128:], x[:64][::-1])


def unpack(half, packed):
    back = np.zeros((len(packed), 2), np.float32)
    library("instructions").run_unpack(half, packed.ctypes, len(packed), back.ctypes)
    return back


def pack(half, x):
    packed, back = np.zeros(len(x), np.uint32), np.zeros((len(x), 2), np.float32)
    library("instructions").run_pack(half, len(x), x.ctypes, packed.ctypes, back.ctypes)
    return packed, back


def test_every_fp16_value_converts_as_in_numpy():
    bits = np.arange(2**16, dtype=np.uint32)
    expected = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(unpack(1, bits)[:, 0], expected)
    finite = expected[np.isfinite(expected)].astype(np.float64)
    x = np.concatenate([finite, (finite[:-1] + finite[1:]) / 2, [65519.996, 65520, 1e30]]).astype(np.float32)
    x = np.concatenate([x, *(np.nextafter(x, np.float32(to)) for to in (-1e38, 1e38))])  # ties and their neighbours
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(pack(1, x)[1][:, 0], wanted)
    assert np.isnan(pack(1, np.full(1, np.nan, np.float32))[1]).all()


def test_bf16_rounds_to_nearest_even():
    torch = pytest.importorskip("torch")
    bits = np.arange(2**16, dtype=np.uint32) << 16
    x = np.concatenate([bits + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001)]).astype(np.uint32).view(np.float32)
    wanted = torch.from_numpy(x.copy()).bfloat16().float().numpy()
    packed, back = pack(0, x)
    np.testing.assert_array_equal(back[:, 0], wanted)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(back[finite, 1], -wanted[finite])


def test_ex2_is_two_to_the_x_without_denormals():
    x = np.array([0, 1, -1, 0.5, -126, -126.5, -200, -np.inf, 10.25], np.float32)
    y = np.zeros_like(x)
    library("instructions").run_ex2(len(x), x.ctypes, y.ctypes)
    np.testing.assert_allclose(y, np.where(x < -126, 0, np.exp2(x)), rtol=1e-6)


# ---------------------------------------------------------------- the machine


def busy(work, sms=4, slots=2, smem_per_sm=164 << 10, warps=1, smem=0):
    """Rows (CTA, SM, start, end) in order of ending, of CTAs that issue work[i] products each."""
    n = len(work)
    rows, ticket = np.zeros((n, 5), np.int32), np.zeros(1, np.int32)
    run("machine", "run_busy", sms, slots, smem_per_sm, n, warps, smem, np.array(work, np.int32), rows, ticket)
    assert ticket[0] == n
    return rows[:, :4]


def by_cta(rows):
    return rows[np.argsort(rows[:, 0])]


def test_first_ctas_go_breadth_first_over_the_sms():
    rows = by_cta(busy([50] * 8))
    assert rows[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len(set(rows[:, 2])) == 1  # all slots start at once


def test_next_cta_goes_to_the_slot_that_is_free_first():
    rows = by_cta(busy([4000, 3000, 500, 2000, 10, 10, 10], slots=1))
    assert rows[4:, 1].tolist() == [2, 2, 2]  # SM 2 ends first, and each short one frees it again
    assert (rows[4:, 2] > rows[2:3, 3]).all()
    rows = by_cta(busy([500, 1000, 1500, 2000, 2500, 10], slots=1))
    assert rows[4:, 1].tolist() == [0, 1]


def test_at_most_as_many_ctas_run_on_an_sm_as_fit():
    def most_at_once(rows):
        events = sorted([(s, 1, sm) for _, sm, s, _ in rows] + [(e, -1, sm) for _, sm, _, e in rows])
        held, most = {}, 0
        for _, step, sm in events:
            held[sm] = held.get(sm, 0) + step
            most = max(most, held[sm])
        return most

    work = [200] * 40
    assert most_at_once(busy(work, slots=2)) == 2
    assert most_at_once(busy(work, slots=32, smem=40 << 10)) == 4  # 41 KB of 164 KB
    assert most_at_once(busy(work, slots=32, smem=40 << 10, smem_per_sm=100 << 10)) == 2
    assert most_at_once(busy(work, slots=32, warps=16)) == 4  # 2048 threads


def test_resident_ctas_follow_threads_and_shared_memory():
    resident = library("machine").run_resident
    assert [resident(32, 0), resident(128, 0), resident(1024, 0)] == [32, 16, 2]
    assert [resident(128, 81 << 10), resident(128, 82 << 10), resident(128, 40 << 10)] == [2, 1, 4]


def test_tensor_cores_of_an_sm_are_shared_and_those_of_two_sms_are_not():
    def makespan(rows):
        return rows[:, 3].max() - rows[:, 2].min()

    alone = makespan(busy([2000], slots=2, warps=4))
    apart = makespan(busy([2000, 2000], sms=2, slots=2, warps=4))
    together = makespan(busy([2000, 2000], sms=1, slots=2, warps=4))
    assert apart == pytest.approx(alone, rel=0.02)
    assert together == pytest.approx(2 * alone, rel=0.1)


def test_machine_repeats_itself_exactly():
    work = [37, 5, 90, 41, 8, 77, 12, 60, 33]
    np.testing.assert_array_equal(busy(work, sms=3, warps=2), busy(work, sms=3, warps=2))


def test_seed_gives_another_order_and_repeats_it():
    work = [37, 5, 90, 41, 8, 77, 12, 60, 33]
    orders = []
    for seed in (0, 1, 1, 2):
        with events_in_order(seed):
            orders.append(busy(work, sms=3, warps=2).tolist())
    assert orders[0] == busy(work, sms=3, warps=2).tolist() != orders[1] == orders[2] != orders[3]


def test_numbers_of_sms_may_have_gaps():
    rows, ticket = np.zeros((3, 5), np.int32), np.zeros(1, np.int32)
    run("machine", "run_gaps", 3, 2, np.full(3, 9, np.int32), rows, ticket)
    assert sorted(rows[:, 1]) == [0, 2, 4]


def streams(first, second, ctas, work, sms=4, slots=2):
    rows, ticket = np.zeros((2 * ctas, 5), np.int32), np.zeros(1, np.int32)
    run("machine", "run_streams", first, second, sms, slots, ctas, np.array(work, np.int32), rows, ticket)
    return [by_cta(rows[rows[:, 4] == launch]) for launch in (0, 1)]


def test_launches_of_one_stream_follow_each_other():
    a, b = streams(0, 0, 4, [300, 100, 100, 100])
    assert b[:, 2].min() >= a[:, 3].max()


def test_launches_of_two_streams_share_the_room_that_is_left():
    a, b = streams(1, 2, 4, [300] * 4)
    assert a[:, 2].tolist() == b[:, 2].tolist()  # 8 slots for 8 CTAs
    assert b[:, 1].tolist() == [0, 1, 2, 3]
    a, b = streams(1, 2, 12, [300] * 12)  # the first launch alone takes a wave and a half
    assert b[:, 2].min() >= a[:, 2].max()


def test_atomics_lose_nothing_and_hand_out_each_ticket_once():
    ctas, threads = 6, 96
    cells, old = np.zeros(4, np.int32), np.zeros(ctas * threads, np.int32)
    run("machine", "run_atomics", ctas, threads, cells, old)
    n = ctas * threads
    assert cells.tolist() == [n, n * (n - 1) // 2, n - 1, 2 * n]
    assert sorted(old.tolist()) == list(range(n))


def test_cta_can_wait_for_a_flag_of_a_later_one():
    flag, data, seen = np.zeros(1, np.int32), np.zeros(64, np.int32), np.zeros(64, np.int32)
    run("machine", "run_flag", 8, flag, data, seen)
    np.testing.assert_array_equal(seen, 7 + np.arange(64))


def test_named_barriers_hand_a_slot_back_and_forth():
    out = np.zeros((5, 2, 32), np.int32)
    run("machine", "run_pipeline", 5, out)
    np.testing.assert_array_equal(out, np.arange(5)[:, None, None] * 100 + (31 - LANE) + np.zeros((1, 2, 1), int))


def test_dependent_loads_cost_a_latency_each_and_independent_ones_one():
    n, out = 16, np.zeros(3, np.int32)
    x = np.zeros(n, np.int32)
    run("machine", "run_latency", n, x, out)
    chained, independent, _ = out
    assert chained >= n * 500
    assert independent < 2 * 500


def test_shared_memory_starts_as_nan():
    out = np.zeros(32, np.uint32)
    run("machine", "run_poison", out)
    assert (out == 0xFFFFFFFF).all()
    assert np.isnan(out.view(np.float32)).all() and np.isnan(out.view(np.float16)).all()


def test_impossible_launch_is_refused():
    assert "48 threads" in call("machine", "run_shape", 48, 0)
    assert "2048 threads" in call("machine", "run_shape", 2048, 0)
    assert "1048576 bytes" in call("machine", "run_shape", 32, 1 << 20)


# ---------------------------------------------------------------- the checks

RULES = {
    "missing_barrier": r"race: \w+ 4 bytes of shared memory",
    "missing_syncwarp": r"race: \w+ 4 bytes of shared memory",
    "overwritten_too_early": r"race: \w+ 4 bytes of shared memory",
    "shared_past_end": r"out of bounds: 4 bytes of shared memory at byte 1024, but the CTA has 1024",
    "global_past_end": r"out of bounds: 4 bytes of in at byte 512, which has 512",
    "global_before_start": r"out of bounds: 16 bytes of out at byte -16",
    "null_pointer": r"out of bounds: 4 bytes of a null pointer",
    "copy_past_end": r"out of bounds: 16 bytes of in at byte 512",
    "misaligned_row": r"misaligned: 16 bytes of shared memory",
    "copy_not_awaited": r"un-awaited copy: reads 4 bytes of shared memory at byte 0",
    "awaited_one_group_too_few": r"un-awaited copy: reads 4 bytes of shared memory at byte 128",
    "awaited_without_barrier": r"race: reads 4 bytes of shared memory",
    "refilled_too_early": r"race: \w+ \d+ bytes of shared memory",
    "barrier_in_half_a_warp": r"divergence: 16 lanes have left the kernel while others wait for them at bar.sync",
    "barrier_in_one_warp": r"deadlock: no warp can go on",
    "lanes_at_different_instructions": r"divergence: this lane is at __shfl_xor_sync while others",
    "barrier_of_wrong_count": r"barrier of 32 threads reached by more, or for another count: 32 of 64",
    "barrier_waits_for_too_many": r"deadlock: no warp can go on",
    "flag_never_raised": r"endless: waits for something that never comes",
    "constant_that_was_written": r"stale: __ldg reads 4 bytes of out .* wrote at checks.cu:\d+ in this launch",
    "combine_without_release": r"race: reads 4 bytes of out .* CTA \d warp . lane \d+ wrote",
    "combine_without_acquire": r"race: reads 4 bytes of out .* CTA \d warp . lane \d+ wrote",
    "combine_without_barrier": r"race: reads 4 bytes of out .* CTA \d warp . lane \d+ wrote",
}


def check(name, wrong):
    arrays = np.zeros(128, np.int32), np.zeros(128, np.int32), np.zeros(1, np.int32)
    return call("checks", "run_check", name, wrong, *arrays)


def bad_line(name):
    source = (HERE / "checks.cu").read_text().splitlines()
    mark = "combine" if name.startswith("combine") else name
    return next(i for i, line in enumerate(source, 1) if line.endswith(f"// BAD {mark}"))


def test_every_kernel_of_checks_is_tried():
    listed = re.findall(r"X\((\w+)\)", (HERE / "checks.cu").read_text())
    assert sorted(listed) == sorted(RULES)


@pytest.mark.parametrize("name", RULES)
def test_right_kernel_passes(name):
    assert check(name, 0) is None


@pytest.mark.parametrize("name", RULES)
def test_wrong_kernel_is_reported_with_kernel_cta_warp_and_line(name):
    text = check(name, 1)
    assert text and re.search(RULES[name], text), text
    place = rf"at checks\.cu:\d+ in kernel {name}(<true>)?, CTA \(\d, 0, 0\) on SM \d, warp \d, lane \d+$"
    assert re.search(place, text), text
    assert f"checks.cu:{bad_line(name)} " in text  # of a race's two lines it may be either


def test_machine_works_again_after_a_report():
    assert check("missing_barrier", 1)
    assert check("missing_barrier", 0) is None

"""Hopper's asynchronous instructions in the emulator: TMA, mbarriers, wgmma, setmaxnreg, and their rules."""

import ctypes
import re

import numpy as np
import pytest
from emulator import HERE, bits16, call, library, pointer


def run(function, *args):
    assert call("hopper", function, *args) is None


def swizzled(rows):
    """[n, 64] 16-bit rows as a 128-byte-swizzled panel has them: 16-byte chunk c of row r lies at chunk c ^ (r % 8)."""
    n = len(rows)
    chunks = np.ascontiguousarray(rows).reshape(n, 8, 8)
    lines = np.arange(n)[:, None]
    out = np.empty_like(chunks)
    out[lines, np.arange(8) ^ lines % 8] = chunks
    return out.reshape(n, 64)


@pytest.mark.parametrize("row, head, page", [(0, 0, 0), (8, 2, 1), (20, 1, 1), (-4, 0, 1), (0, 1, 7)])
def test_tma_brings_a_swizzled_box_with_zeros_outside_the_tensor(row, head, page):
    x = np.random.default_rng(row + 9).integers(1, 2**16, (2, 32, 3, 64), dtype=np.uint16)
    out = np.zeros((16, 64), np.uint16)
    run("run_tma", x, 2, 32, 3, row, head, page, out)
    wanted = np.zeros((16, 64), np.uint16)
    for i in range(16):
        if page < 2 and 0 <= row + i < 32:
            wanted[i] = x[page, row + i, head]
    np.testing.assert_array_equal(out, swizzled(wanted))


MAP = {"address": 0, "dims": [64, 8, 4, 2], "strides": [128, 1024, 4096], "box": [64, 8, 1, 1]}


@pytest.mark.parametrize("change, allowed", [
    ({}, True),
    ({"address": 16}, True),
    ({"address": 8}, False),
    ({"strides": [144, 1024, 4096]}, True),
    ({"strides": [136, 1024, 4096]}, False),
    ({"strides": [128, 1024, 1 << 40]}, False),
    ({"dims": [64, 0, 4, 2]}, False),
    ({"dims": [64, 8, 4, (1 << 32) + 1]}, False),
    ({"box": [64, 256, 1, 1]}, True),
    ({"box": [64, 257, 1, 1]}, False),
    ({"box": [128, 8, 1, 1]}, False),
])  # fmt: skip
def test_only_maps_that_the_driver_makes_can_be_made(change, allowed):
    m = MAP | change
    sizes = [np.array(m["dims"], np.uint64), np.array(m["strides"], np.uint64), np.array(m["box"], np.uint32)]
    assert library("hopper").can_map(ctypes.c_void_p(4096 + m["address"]), 4, *map(pointer, sizes)) == allowed


def numbers(rng, *shape):
    """float32 values that 16 bits hold exactly, with exact products and sums."""
    return rng.integers(-8, 9, shape).astype(np.float32) / 8


def from_fragments(d, n):
    """[128, n / 2] accumulators of a warpgroup -> [64, n], as the PTX manual lays them out."""
    thread = np.arange(128)
    row, pair = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    out = np.empty((64, n), np.float32)
    for j in range(n // 8):
        for e in range(4):
            out[row + e // 2 * 8, 8 * j + pair + e % 2] = d[:, 4 * j + e]
    return out


def wgmma(form, half, operands, n, registers=None):
    out = np.zeros((128, n // 2), np.float32)
    operands = np.ascontiguousarray(np.concatenate([x.reshape(-1) for x in operands]))
    registers = np.zeros((128, 4), np.uint32) if registers is None else np.ascontiguousarray(registers)
    run("run_wgmma", form, half, operands, operands.nbytes, registers, out, out.size)
    return from_fragments(out, n)


@pytest.mark.parametrize("half", [0, 1])
def test_wgmma_of_two_k_major_operands(half):
    rng = np.random.default_rng(half)
    a, b = numbers(rng, 64, 64), numbers(rng, 128, 64)
    d = wgmma("ss", half, [swizzled(bits16(a, half)), swizzled(bits16(b, half))], 128)
    np.testing.assert_array_equal(d, 2 * a @ b.T)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("n", [64, 128])
def test_wgmma_with_a_in_registers_and_b_mn_major(half, n):
    rng = np.random.default_rng(half)
    a, b = numbers(rng, 64, 16), numbers(rng, 16, n)
    thread = np.arange(128)
    row, k, x = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2, bits16(a, half).astype(np.uint32)
    registers = [x[row + i % 2 * 8, k + i // 2 * 8] | x[row + i % 2 * 8, k + i // 2 * 8 + 1] << 16 for i in range(4)]
    panels = [swizzled(bits16(b, half)[:, c : c + 64]) for c in range(0, n, 64)]
    np.testing.assert_array_equal(wgmma(f"rs{n}", half, panels, n, np.stack(registers, 1)), a @ b)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("n", [8, 16])
def test_wgmma_with_few_columns_both_ways(n, half):
    rng = np.random.default_rng(half)
    a, b = numbers(rng, 64, 64), numbers(rng, n, 64)
    d = wgmma(f"n{n}", half, [swizzled(bits16(a, half)), swizzled(bits16(b, half))], n)
    np.testing.assert_array_equal(d, a[:, :16] @ b[:, :16].T)
    a, b = numbers(rng, 16, 64), numbers(rng, 16, n)
    octets = [bits16(np.ascontiguousarray(b[:, i : i + 8]), half) for i in range(0, n, 8)]
    d = wgmma(f"n{n}mn", half, [swizzled(bits16(a, half)), *octets], n)
    np.testing.assert_array_equal(d, a.T @ b)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_ring_passes_its_stages_round(stages):
    out = np.zeros((7, 32), np.int32)
    run("run_ring", stages, 7, out)
    np.testing.assert_array_equal(out, np.arange(7)[:, None] * 100 + 31 - np.arange(32))


def test_setmaxnreg_waits_for_registers_that_others_give():
    out, x = np.zeros(2, np.int32), np.zeros(1, np.int32)
    run("run_registers", out, x)
    assert out[1] >= out[0] > 10 * 500  # ten dependent loads before the first warpgroup gives


def test_voting_barrier_tells_everyone():
    out = np.zeros((3, 64), np.int32)
    run("run_any", out)
    assert out.all(axis=1).tolist() == [True, True, False] and not out[2].any()


RULES = {
    "tma_not_awaited": r"un-awaited copy: reads 16 bytes of shared memory .* a TMA copy",
    "waited_for_the_wrong_phase": r"un-awaited copy: reads 16 bytes of shared memory .* a TMA copy",
    "tma_refills_too_early": r"un-awaited copy: reads 16 bytes of shared memory .* a TMA copy|race: overwrites",
    "mbarrier_not_fenced": r"no fence_mbar_init",
    "mbarrier_not_initialised": r"no mbarrier was initialised at this address",
    "one_arrival_too_many": r"mbarrier reached by more than the 1 it was initialised for",
    "too_few_bytes_announced": r"deadlock: no warp can go on",
    "no_proxy_fence": r"wgmma reads 2 bytes .* with no fence.proxy.async",
    "proxy_fence_after_the_barrier": r"wgmma reads 2 bytes .* with no fence.proxy.async",
    "no_wgmma_fence": r"wgmma without a wgmma_fence",
    "freed_before_the_product_is_done": r"race: a wgmma reads 2 bytes .* overwrote .* before the wgmma was waited for",
    "member_without_barrier": r"race: \w+ 4 bytes of shared memory",
    "member_written_by_two": r"race: writes 4 bytes of shared memory",
    "member_past_the_end": r"out of bounds: element 4 of 4 in shared memory",
    "registers_that_nobody_gives": r"deadlock: no warp can go on",
}


def check(name, wrong):
    return call("hopper", "run_check", name, wrong, np.ones((16, 64), np.uint16), np.zeros(128, np.float32))


def test_every_rule_is_tried():
    listed = re.findall(r"X\((\w+)\)", (HERE / "hopper.cu").read_text())
    assert sorted(listed) == sorted(RULES)


@pytest.mark.parametrize("name", RULES)
def test_kernel_that_keeps_the_rule_passes(name):
    assert check(name, 0) is None


@pytest.mark.parametrize("name", RULES)
def test_kernel_that_breaks_the_rule_is_reported_with_its_line(name):
    text = check(name, 1)
    source = (HERE / "hopper.cu").read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if text.endswith(f"// BAD {name}"))
    assert text and re.search(RULES[name], text), text
    assert f"hopper.cu:{line} " in text.replace(",", " ") and f" in kernel {name}" in text  # of two lines, either

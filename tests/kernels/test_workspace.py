"""Plans that the GPU makes: the kernel in the emulator beside pod/schedule, list by list."""

import ctypes
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from emulator import call
from worklists import HEADS

from pod.batch import HybridBatch
from pod.files import CSRC
from pod.kernels import sm90, workspace
from pod.kernels.launch import flat
from pod.kernels.workspace import Limits
from pod.schedule import choose, decide
from pod.schedule.decode import MOST_PARTS
from pod.schedule.work import PERSISTENT, Pack

BATCHES, THREADS = 1000, 64


def made_on_device(q_lens, kv_lens, limits: Limits) -> np.ndarray:
    """Its lists, over whatever was there before."""
    lists = np.full(workspace.ints(limits), -7, np.int32)
    numbers = (ctypes.c_int * len(limits))(*limits)
    report = call("plan", "run", np.array(q_lens, np.int32), np.array(kv_lens, np.int32), lists, len(q_lens), numbers)
    assert report is None, report
    return lists


def split(lists: np.ndarray, limits: Limits) -> dict[str, np.ndarray]:
    """Yields, records of prefill, records of decode, where pieces begin."""
    ends = np.cumsum([4, 12 * (limits.prefill_works + limits.sms), 12 * limits.decode_works])
    yields, prefill, decode, pieces = np.split(lists, ends)
    return {"yields": yields[:1], "prefill": prefill, "decode": decode, "pieces": pieces}


def specified(batch: HybridBatch, limits: Limits, roles: choose.Roles, pack: Pack) -> dict[str, np.ndarray]:
    made = decide.hopper(batch, limits.sms, roles=roles, pack=pack, causal=batch.causal)
    prefill = flat([sm90.records(made.prefill, made, "prefill", limits.prefill_counters)])
    decode = flat([sm90.records(made.decode, made, "decode", limits.decode_counters)])
    pieces = np.append(made.decode.pieces, np.full(2 * limits.sms + 1, made.decode.pieces[-1]))
    space = workspace.room(batch, limits.sms, roles, pack)
    assert made.prefill.partials <= space.slots and made.prefill.groups <= space.groups
    assert made.decode.partials <= 2 * limits.sms and made.decode.groups <= limits.sms
    prefill = np.append(prefill, np.zeros(12 * limits.sms, np.int32))
    return {"yields": [made.yields], "prefill": prefill, "decode": decode, "pieces": pieces[: 2 * limits.sms + 1]}


def check(q_lens, kv_lens, fullest: HybridBatch, sms: int, draft: int) -> None:
    roles, pack = workspace.roles_for(fullest.group, draft), workspace.pack_for(fullest)
    limits = workspace.limits(fullest, sms, roles, pack)._replace(ctas=2, threads=max(THREADS, 32 * -(-sms // 32)))
    got = split(made_on_device(q_lens, kv_lens, limits), limits)
    wanted = specified(replace(fullest, q_lens=q_lens, kv_lens=kv_lens), limits, roles, pack)
    for name, numbers in wanted.items():
        np.testing.assert_array_equal(got[name][: len(numbers)], numbers, err_msg=name)


def a_case(draw: random.Random) -> tuple:
    """Lengths as engines have them, with padding, on a workspace with some room to spare."""
    heads, head_dim, causal = draw.choice(HEADS), draw.choice((64, 128)), draw.random() < 0.8
    count, longest = draw.choice((1, 2, 3, 8, 40)), draw.choice((300, 3000, 40_000))
    all_kinds = ("decode", "draft", "chunk", "nobody", "padding")
    sides = draw.choice((("decode",), ("chunk",), ("decode", "chunk"), all_kinds))
    lens = [_sequence(draw, draw.choice(sides), longest) for _ in range(count)]
    if not any(q for q, _ in lens):
        lens.append((1, longest))
    q_lens, kv_lens = zip(*lens, strict=True)
    tokens, sequences = sum(q_lens) + draw.choice((0, 100)), len(lens) + draw.choice((0, 5))
    most = max(*kv_lens, -(-tokens // sequences)) + draw.choice((0, 1000))
    rest = {"kv_dtype": draw.choice((None, "float8_e4m3fn"))}
    if causal and draw.random() < 0.5:
        rest = {"window": draw.choice((1, 16, 128, draw.randint(1, 700), draw.randint(1, longest)))}
    fullest = workspace.fullest(tokens, sequences, most, num_q_heads=heads[0], num_kv_heads=heads[1],
                                head_dim=head_dim, causal=causal, **rest)  # fmt: skip
    return q_lens, kv_lens, fullest, draw.choice((1, 3, 4, 16, 132)), draw.choice((1, 2, 4))


def _sequence(draw: random.Random, kind: str, longest: int) -> tuple[int, int]:
    kv_len = min(longest, draw.choice((draw.randint(1, longest), int(longest ** draw.random()), longest)))
    new = {"decode": 1, "draft": draw.randint(2, 8), "chunk": draw.randint(1, 1500)}
    return {"nobody": (0, draw.choice((0, kv_len))), "padding": (1, 0)}.get(kind) or (min(new[kind], kv_len), kv_len)


@pytest.mark.parametrize("tenth", range(10))
def test_the_device_makes_the_lists_that_python_specifies(tenth):
    draw = random.Random(tenth)
    for _ in range(BATCHES // 10):
        check(*a_case(draw))


@pytest.mark.parametrize("heads, q_len, before, window, sms", [
    ((14, 2), 130, 1920, 1919, 132), ((8, 1), 130, 2944, 2816, 16), ((4, 4), 300, 5120, 4351, 132),
    ((4, 4), 300, 5377, 1281, 132), ((32, 8), 1500, 0, 1, 16), ((8, 1), 1500, 384, 128, 16),
])  # fmt: skip
def test_a_window_whose_keys_begin_and_end_at_once(heads, q_len, before, window, sms):
    """With the same tile both come to the next block: between them lies a run of no tiles, which must weigh nothing."""
    shape = {"num_q_heads": heads[0], "num_kv_heads": heads[1], "head_dim": 128, "window": window}
    check([q_len], [q_len + before], workspace.fullest(q_len, 1, q_len + before, **shape), sms, 1)


def test_lengths_over_the_limits_are_cut_off():
    """Whatever stands in the lengths: what is planned is what Python plans for what is left of them."""
    draw = random.Random(11)
    fullest = workspace.fullest(900, 12, 3000, num_q_heads=8, num_kv_heads=2, head_dim=128)
    roles, pack = workspace.roles_for(4, 1), workspace.pack_for(fullest)
    limits = workspace.limits(fullest, 16, roles, pack)._replace(ctas=2, threads=THREADS)
    for _ in range(60):
        lens = [[draw.choice((-(2**31), -1, 0, 1, 2, 400, 5000, 2**31 - 1)) for _ in range(12)] for _ in "qk"]
        left, q_lens, kv_lens = limits.tokens, [], []
        for q, kv in zip(*lens, strict=True):
            first = max(0, min(q, limits.tokens, limits.kv_len))
            kv_lens.append(0 if first == 1 and kv <= 0 else min(max(kv, first), limits.kv_len))
            q_lens.append(min(first, left))
            left -= q_lens[-1]
        if not any(q_lens):
            continue
        got = split(made_on_device(*lens, limits), limits)
        for name, numbers in specified(replace(fullest, q_lens=q_lens, kv_lens=kv_lens), limits, roles, pack).items():
            np.testing.assert_array_equal(got[name][: len(numbers)], numbers, err_msg=name)


def test_lengths_of_64_bits_are_cut_off_and_not_their_upper_half():
    bare = workspace.Workspace.__new__(workspace.Workspace)
    bare.device, bare.limits = torch.device("cpu"), SimpleNamespace(sequences=4)
    q_lens, kv_lens = bare._lengths(torch.tensor([1, 1, 1, 2]), torch.tensor([2**32 + 5, -(2**32), 2**62, 7]))
    assert q_lens.tolist() == [1, 1, 1, 2] and q_lens.dtype == kv_lens.dtype == torch.int32
    assert kv_lens.tolist() == [2**31 - 1, 1 - 2**31, 2**31 - 1, 7]


def test_the_kernel_hears_of_the_window():
    fullest = workspace.fullest(8, 2, 64, num_q_heads=4, num_kv_heads=2, head_dim=64, window=9)
    roles, pack = workspace.roles_for(2, 1), workspace.pack_for(fullest)
    limits = workspace.limits(fullest, 4, roles, pack)
    assert limits.window == workspace.header(fullest, limits, roles, pack).window == 9


@pytest.mark.parametrize("tokens, sequences, kv_len, message", [
    (512, 5000, 4096, "workspace: got 512 tokens of 5000 sequences"),
    (512, 8, 1 << 25, "allowed are up to 4096 sequences of up to 16777216"),
    (512, 4, 100, "tokens: got 512, allowed are up to sequences x kv_len = 400"),
    (1 << 22, 4096, 1 << 12, "their plan would not fit into shared memory"),
    (512, 4096, 1 << 24, "sums of lengths would not fit 32 bits"),
])  # fmt: skip
def test_a_workspace_that_is_too_large_is_refused(tokens, sequences, kv_len, message):
    with pytest.raises(ValueError, match=message):
        fullest = workspace.fullest(tokens, sequences, kv_len, num_q_heads=4, num_kv_heads=2, head_dim=64)
        roles, pack = workspace.roles_for(2, 1), workspace.pack_for(fullest)
        workspace.check_room(workspace.limits(fullest, 132, roles, pack))


def test_a_workspace_needs_hopper():
    import pod

    with pytest.raises(ValueError, match="device: got 'cpu'"):
        pod.workspace(64, 4, 256, 8, 2, 64, device="cpu")


def test_the_kernel_weighs_with_the_numbers_of_python():
    """A number that seldom decides might differ for a thousand batches."""
    text = (CSRC / "sm90" / "plan.cu").read_text(encoding="utf-8")
    numbers = {name: int(value) for name, value in re.findall(r"\b(k\w+) = (\d+)\b", text)}
    wanted = {"kDecodeKeys": PERSISTENT.decode_keys, "kPrefillKeys": PERSISTENT.prefill_keys,
              "kPieceCost": choose.PIECE_COST, "kPartCost": choose.PART_COST, "kMergeCost": choose.MERGE_COST,
              "kFan": choose.FAN, "kShortestPart": choose.SHORTEST_PART, "kMostParts": MOST_PARTS,
              "kBeside": choose.BESIDE, "kFraction": choose.FRACTION, "kBins": choose.BINS,
              "kLengths": len(choose.prefill_lengths(1, 1, 1))}  # fmt: skip
    assert {name: numbers.get(name) for name in wanted} == wanted
    assert numbers["kMostThreads"] == workspace.THREADS

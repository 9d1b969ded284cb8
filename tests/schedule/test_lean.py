"""Stream-K decode: every cut of the line gives the same attention, nobody waits, and the paper's slips show."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from emulator import library, pointer
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pod
from pod import kernels
from pod.batch import HybridBatch
from pod.kernels import build, lean
from pod.kernels.launch import flat
from pod.reference import State, hybrid_attention
from pod.schedule import algorithm2, choose, decide
from pod.schedule import decode as lines
from pod.schedule.execute import execute, rows
from pod.schedule.work import SHAPES, Side, empty

torch = pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
K = 1024


# ---------------------------------------------------------------- the line and its cuts
def loads(work):
    """Keys of each worker."""
    return work.costs.tolist()


def decode(kv_lens, heads, workers=1, **how):
    return decide.warp_ranges(side(kv_lens, heads), workers, **how)


def side(kv_lens, heads) -> Side:
    n = np.arange(len(kv_lens))
    return Side(n, np.ones_like(n), np.array(kv_lens), n, *heads)


def split(kv_lens, heads, parts):
    return lines.split_k(side(kv_lens, heads), parts, SHAPES[2].decode_keys, SHAPES[2].decode_rows)


def same(a, b) -> bool:
    return all((a.columns[name] == b.columns[name]).all() for name in a.columns)


def test_five_sms_take_five_three_or_two_tiles():
    """Figure 1: two heads of five tiles on five SMs."""
    blocks = np.array([5, 5])
    assert np.diff(lines.split_cuts(blocks, 1), prepend=0).tolist() == [5, 5]
    assert np.diff(lines.split_cuts(blocks, 2), prepend=0).tolist() == [3, 2, 3, 2]
    assert np.diff(lines.equal_cuts(blocks, 5), prepend=0).tolist() == [2] * 5


@pytest.mark.parametrize("splits", [1, 2, 4, 8])
def test_fixed_split_is_a_grid_of_so_many_times_the_heads(splits):
    """FlashAttention-2 and FlashDecoding are stream-K with as many workers as parts, where parts divide evenly."""
    lens, heads = [16 * 64] * 3, (4, 2)
    lean_list = decode(lens, heads, workers=3 * 2 * splits)
    split_list = decode(lens, heads, splits=splits)
    assert same(lean_list, split_list)
    np.testing.assert_array_equal(lean_list.pieces, split_list.pieces)
    theirs = split(lens, heads, splits)
    ranges = ["token", "head", "begin", "end"]
    as_set = lambda work: set(zip(*(work.columns[name].tolist() for name in ranges), strict=True))  # noqa: E731
    assert as_set(lean_list) == as_set(theirs)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=6), st.integers(1, 12))
def test_a_fixed_split_cuts_every_head_at_multiples_of_one_length(lens, splits):
    blocks = np.array(lens)
    ends = lines.split_cuts(blocks, splits)
    part = -(-max(lens) // splits)
    wanted = [start + min(i + part, n) for start, n in zip(np.cumsum(lens) - lens, lens, strict=True)
              for i in range(0, n, part)]  # fmt: skip
    assert ends.tolist() == wanted


def test_one_very_long_and_many_short_requests_are_shared_equally():
    lens = [K * K] + [K] * 63
    work = decode(lens, (32, 8), workers=132 * 8)
    blocks = np.array(loads(work)) // decide.STREAM_K
    assert len(blocks) == 132 * 8 and np.ptp(blocks) <= 1
    assert blocks.sum() == 8 * sum(lens) // decide.STREAM_K
    assert len(work) <= 132 * 8 + 64 * 8, "a cut makes at most one part more"
    whole = split(lens, (32, 8), 1)
    assert whole.costs.max() > 100 * work.costs.max(), "whole heads leave one worker with the long one"
    tiles = decide.hopper_ranges(side(lens, (32, 8)), 132)
    sizes = np.add.reduceat(tiles.blocks(64), tiles.pieces[:-1])
    assert len(sizes) == 132 and np.ptp(sizes) <= 1


def test_neighbouring_heads_are_read_side_by_side():
    """A CTA's four warps read the same keys of four neighbouring heads, and all ranges are equally long."""
    lens = [5000, 64, 700, 4096]
    work = decode(lens, (32, 8), workers=64)
    assert len(loads(work)) == 64 and np.ptp(-(-np.array(loads(work)) // decide.STREAM_K)) <= 1
    columns = {name: column[work.pieces[:-1]].reshape(-1, 8) for name, column in work.columns.items()}
    assert (columns["kv_head"] == np.arange(8)).all()
    assert not np.ptp(columns["seq"], axis=1).any() and not np.ptp(columns["begin"], axis=1).any()
    for how in ({"packed": False}, {"alike": 1}):  # the paper's line: one head after the other
        alone = decode(lens, (32, 8), workers=64, **how)
        heads = alone.kv_head[alone.seq == 0]
        assert (np.diff(heads) >= 0).all()


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=6),
    st.sampled_from([(1, 1), (4, 2), (6, 6), (8, 8), (40, 2), (12, 3)]),
    st.integers(1, 70),
    st.sampled_from([None, 1, 3]),
)
def test_every_head_is_covered_once_whatever_is_cut_alike(lens, heads, workers, splits):
    work = decode(lens, heads, workers, splits=splits)
    partials = set()
    for parts in _by_head(work).values():
        parts = sorted(parts, key=lambda row: row["part"])
        ends = [row["end"] for row in parts]
        assert [row["begin"] for row in parts] == [0, *ends[:-1]] and ends[-1] == lens[parts[0]["seq"]]
        assert [row["part"] for row in parts] == list(range(parts[0]["parts"]))
        assert len({(row["partial"], row["group"]) for row in parts}) == 1
        if len(parts) > 1:
            mine = {parts[0]["partial"] + i for i in range(len(parts))}
            assert not mine & partials
            partials |= mine
    passes = len(lines.passes(side(lens, heads), 16)[0])
    assert partials == set(range(work.partials)) and len(_by_head(work)) == len(lens) * passes


def _by_head(work) -> dict:
    """The rows of each (request, first query head)."""
    heads: dict = {}
    for row in rows(work):
        heads.setdefault((row["seq"], row["head"]), []).append(row)
    return heads


@pytest.mark.parametrize(
    "units, parts",
    [(256, 4), (264, 4), (268, None), (320, None), (512, 2), (1024, 1), (2048, 1), (56, 18), (640, None), (1056, 1)],
)
def test_parts_fill_the_last_wave_or_the_line_is_cut_equally(units, parts):
    """1,056 warps of an H200: 64, 66, 67 x 16K with 4 KV heads, 80 x 12K, 32 x 8K with 16, and so on."""
    assert choose.full_parts(units, 1056) == parts


def test_the_plan_takes_whole_parts_where_heads_are_equally_long():
    even, odd = (HybridBatch([1] * n, [16 * K] * n, 32, 4, 128) for n in (64, 67))
    ragged = HybridBatch([1] * 64, [16 * K] * 63 + [K], 32, 4, 128)
    parts = [decide.lean(b, 132, "auto").decode.parts for b in (even, odd, ragged)]
    assert set(parts[0].tolist()) == {4} and len(set(parts[1].tolist())) > 1 and len(set(parts[2].tolist())) > 1
    loads_of = decide.lean(odd, 132, "auto").decode.costs
    assert len(loads_of) == 1056 and np.ptp(loads_of) <= decide.STREAM_K


def test_sequences_without_a_new_token_are_no_heads():
    alone, beside = (HybridBatch(q_lens, [16 * K] * len(q_lens), 4, 2, 64) for q_lens in ([1], [0, 1, 0]))
    assert choose.whole_parts(alone, 8) == choose.whole_parts(beside, 8) > 1


def test_large_batches_of_many_heads_go_to_warps():
    many, few = (HybridBatch([1] * n, [16 * K] * n, 32, 4, 128) for n in (64, 1))
    ragged, small = (HybridBatch([1] * 64, [n] * 63 + [K], 32, 4, 128) for n in (16 * K, 2 * K))
    long = HybridBatch([1], [K * K], 32, 4, 128)
    assert choose.decode_worker(many, on_hopper=False) == "warp"
    workers = [choose.decode_worker(batch, on_hopper=True) for batch in (many, ragged, few, small, long)]
    assert workers == ["warp", "warp", "hopper", "hopper", "hopper"]
    assert {choose.decode_worker(many, True, splits) for splits in ("stream-k", 1, 3)} == {"hopper"}


def test_lengths_that_are_no_multiple_of_a_block_count_as_whole_blocks():
    work = decode([65, 1, 130], (1, 1), workers=3)
    assert np.diff(work.pieces).tolist() == [1, 2, 1] and work.end.tolist() == [65, 1, 64, 130]


@pytest.mark.parametrize("units, blocks, sms, old, now", [
    (112, 1024, 108, 1, 5),  # 56 heads, batch 2, 256K on an A100: the paper's largest gain
    (128, 1024, 108, 1, 3),  # 32 heads, batch 4
    (288, 256, 132, 1, 1),  # 48 heads, batch 6 on an H100: unsplit under either rule
    (8, 512, 132, 14, 29),
])  # fmt: skip
def test_flash_decodings_rule(units, blocks, sms, old, now):
    assert choose.flash_splits(units, blocks, sms, 1) == old
    assert choose.flash_splits(units, blocks, sms, 2) == now


# ---------------------------------------------------------------- the paper's algorithm
def heads_of(count, keys, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(0, 2, (1, keys)), rng.normal(size=(keys, 8))) for _ in range(count)]


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 12))
def test_hosts_find_all_parts(count, tiles, ctas):
    heads = heads_of(count, 4 * tiles)
    got = algorithm2.run(heads, 4, ctas)
    for out, (scores, values) in zip(got, heads, strict=True):
        np.testing.assert_allclose(out, State.of(scores, values).finish()[0], atol=1e-12)


def test_printed_last_cta_loses_parts_in_figure_1():
    from pod.lab import paper

    cuts = lines.equal_cuts(np.array([5, 5]), 5)
    for head, right in ((0, 2), (1, 4)):
        assert algorithm2.last(5 * (head + 1), 5, cuts) == right
        assert algorithm2.printed_last(5 * (head + 1), 5, cuts) == paper.value(f"lean.a2.last_cta_head{head}")
    heads = heads_of(2, 40)
    right, printed = (algorithm2.run(heads, 8, 5, rule) for rule in (algorithm2.last, algorithm2.printed_last))
    assert all(np.abs(a - b).max() > 0.01 for a, b in zip(right, printed, strict=True))


@pytest.mark.parametrize("heads, parts", [(4, 3), (1, 5), (6, 2)])
def test_hosts_need_a_slot_more_than_there_are_heads(heads, parts):
    by_head = [(head, part) for head in range(heads) for part in range(parts)]
    by_part = [(head, part) for part in range(parts) for head in range(heads)]
    assert algorithm2.ended(by_part, heads) == [] and algorithm2.ended(by_head, 1) == []
    for grid in (by_head, by_part):
        assert sorted(algorithm2.ended(grid, heads + 1)) == by_head


# ---------------------------------------------------------------- the kernel of csrc/lean/lean.cu
def check(batch, sms=3, merge="last", **how):
    """Run twice on poisoned memory; returns the trace."""
    with kernels.machine(sms):
        plan = lean.plan(batch, "cpu", merge=merge, **how)
    q, k, v, table = batch.tensors(1)
    plan.placed().partials.fill_(torch.nan)
    want, sums = hybrid_attention(q, k, v, batch.q_lens, batch.kv_lens, table)
    first, lse = plan.run(q, k, v, table, return_lse=True)
    again, rows = plan.run(q, k, v, table, trace=True)
    assert np.linalg.norm(first.double().numpy() - want) <= 2 * torch.finfo(q.dtype).eps * np.linalg.norm(want)
    np.testing.assert_allclose(lse.numpy(), sums, atol=1e-4)
    assert torch.equal(first, again) and not plan.placed().counters.any()
    return plan, rows


@st.composite
def batches(draw):
    lens = draw(st.lists(st.sampled_from([1, 15, 16, 17, 63, 64, 65, 128, 200, 333]), min_size=1, max_size=4))
    heads = draw(st.sampled_from([(1, 1), (8, 8), (4, 1), (6, 2), (18, 1)]))
    page, dtype = draw(st.sampled_from([None, 16, 64])), draw(st.sampled_from(["float16", "bfloat16"]))
    return HybridBatch([1] * len(lens), lens, *heads, draw(st.sampled_from([64, 128])), page, dtype)


LONE = HybridBatch([1], [1], 1, 1, 64)


@emulated
@settings(max_examples=25)
@given(batches(), st.sampled_from([1, 3, 7]), st.sampled_from(["auto", 1, 3]), st.sampled_from(list(lean.MERGES)))
@example(LONE, 7, "stream-k", "host")
def test_random_batches(batch, sms, splits, merge):
    if merge == "host" and splits == 3:
        splits = 1  # more parts than workers fit would wait forever: see below
    check(batch, sms, merge, splits=splits)


@emulated
@pytest.mark.parametrize("worker", ["cta64", "cta128"])
@pytest.mark.parametrize("how", [{}, {"splits": 1}, {"splits": 3}, {"block": 128}], ids=str)
def test_papers_tile(worker, how):
    batch = HybridBatch([1] * 3, [300, 77, 513], 4, 2, 64, page_size=16)
    plan, rows = check(batch, worker=worker, **how)
    assert len(rows) == len(plan.schedule().decode) and (rows[:, 5] >= rows[:, 4]).all()
    merged = rows[:, lean.TRACE_FIELDS.index("merges")].sum()
    assert merged == plan.schedule().decode.groups


@emulated
def test_grid_choices_of_the_kernel_give_the_same_bits():
    """As many warps as heads: stream-K is then FlashAttention-2, record by record and bit by bit."""
    batch = HybridBatch([1] * 4, [256] * 4, 8, 4, 64)
    q, k, v, _ = batch.tensors()
    with kernels.machine(2):  # 2 SMs x 2 CTAs x 4 warps = 16 heads
        plans = [lean.plan(batch, "cpu", splits) for splits in ("stream-k", 1)]
    assert same(*(plan.schedule().decode for plan in plans))
    assert torch.equal(*(plan.run(q, k, v) for plan in plans))


@emulated
def test_hosts_merge_first_tiles_and_wait_for_the_rest():
    batch = HybridBatch([1], [40 * 64], 2, 2, 64)
    for merge in lean.MERGES:
        plan, rows = check(batch, sms=1, merge=merge, worker="cta64")
        work = plan.schedule().decode
        merges = rows[:, lean.TRACE_FIELDS.index("merges")].bool().numpy()
        if merge == "host":
            np.testing.assert_array_equal(merges, (work.part == 0) & (work.parts > 1))
        end = rows[:, lean.TRACE_FIELDS.index("end")].numpy()
        for group in range(work.groups):
            mine = (work.group == group) & (work.parts > 1)
            assert end[mine & merges] == end[mine].max(), "whoever merges is the last to end"


@emulated
@pytest.mark.parametrize("hosts", [False, True])
def test_hosts_hang_where_their_parts_cannot_run_beside_them(hosts):
    """One SM holds two CTAs. This grid starts the first parts of all heads first: both CTAs are hosts, and
    wait for parts that wait for a slot. Who merges last waits for nobody."""
    heads, keys, parts = 4, 256, 4
    q, k, v = (torch.randn(n, heads, 64).bfloat16() for n in (1, keys, keys))
    batch = HybridBatch([1], [keys], heads, heads, 64)
    made = decide.lean(batch, 1, parts, "cta64")
    work, order = made.decode, np.argsort(made.decode.part, kind="stable")
    made = replace(made, decode=replace(work, **{name: column[order] for name, column in work.columns.items()}))
    lists = flat(lean.kernel("cta64").lay_out(made).lists)
    out, counters = torch.full_like(q, torch.nan), np.zeros(work.groups, np.int32)
    partials = np.zeros(work.partials * lean.TILE_ROWS * 65, np.float32)
    tensors = [pointer(x.view(torch.int16).numpy()) for x in (q, k, v, out)]
    sizes = [keys, heads, pointer(lists), len(order), pointer(counters), work.groups, pointer(partials), work.partials]
    function = library("hosts").run
    function.restype = ctypes.c_char_p
    report = function(*tensors, *sizes, int(hosts))
    if hosts:
        assert b"endless" in report
        return
    assert report is None and not counters.any()
    want, _ = hybrid_attention(q, k[None], v[None], [1], [keys])
    np.testing.assert_allclose(out.double().numpy(), want, atol=0.01)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.timeout(300)
def test_kernels_keep_all_in_registers(tmp_path):
    """Two CTAs an SM leave a thread 255 registers, and no kernel spills."""
    tiles = ((64, "warp"), (128, "warp"), (64, "cta64"), (64, "cta128"))
    kinds = [lean.kind("float16", head_dim, worker) for head_dim, worker in tiles]
    (tmp_path / "lean.cu").write_text(build.sources(lean.LEAN, tuple(kinds))[1])
    command = ["nvcc", *build.flags(lean.LEAN, (9, 0))["extra_cuda_cflags"], "-Xptxas", "-v", f"-I{build.CSRC}",
               "-cubin", str(tmp_path / "lean.cu"), "-o", str(tmp_path / "lean.cubin")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr + done.stdout)
    assert len(spills) == len(kinds) and set(spills) == {("0", "0")}


# ---------------------------------------------------------------- the Hopper kernel, cut as a fixed split
@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (4, 2), (6, 6), (16, 1)]),
    st.integers(1, 9),
)
def test_hopper_lists_of_a_fixed_split_give_attention(lens, heads, splits):
    q_heads, kv_heads = heads
    rng = np.random.default_rng(0)
    q = rng.normal(size=(len(lens), q_heads, 4))
    k, v = rng.normal(size=(2, len(lens), max(lens), kv_heads, 4))
    work = decide.hopper_ranges(side(lens, heads), 4, parts=splits)
    part = -(-max(-(-n // 64) for n in lens) // splits)
    assert len(work.pieces) - 1 == len(work), "a piece is one part of one head"
    assert set((work.begin % (64 * part)).tolist()) == {0}
    assert work.blocks(64).max() <= part
    got = execute(q, k, v, empty(), work)
    wanted = hybrid_attention(q, k, v, [1] * len(lens), lens)
    for mine, truth in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-10, atol=1e-12)


@emulated
def test_hopper_kernel_takes_the_lists_of_a_fixed_split():
    from emulator import library
    from emulator.hybrid90 import Case, Outcome

    outcome = Outcome(library("hybrid90"), Case(HybridBatch((1, 1), (700, 300), 4, 2, 64, page_size=64), 3, parts=3))
    assert outcome.report is None and outcome.error < 0.008 and outcome.lse_error < 1e-4


@pytest.mark.parametrize("units, tiles, tile_us, parts", [
    (128, 16, 0.5, 1),  # 128 short heads on 132 SMs: nothing to gain
    (128, 1024, 0.5, None),  # the same, long: four idle SMs are too many
    (268, 256, 1.0, None),  # one request too many for two waves
    (264, 256, 1.0, 1),  # two full waves
    (128, 256, 0.5, 1),  # in between, merging costs as much
    (8, 64, 1.0, 16),  # few heads: sixteen parts each, and no range crosses a border
    (56, 1024, 0.5, None),
])  # fmt: skip
def test_heads_are_cut_only_where_it_pays(units, tiles, tile_us, parts):
    assert choose.cheapest_parts(units, tiles, 132, tile_us) == parts


# ---------------------------------------------------------------- the method
@emulated
def test_method_lean_computes_decodes_and_refuses_chunks():
    batch = HybridBatch([1, 1], [100, 40], 4, 2, 64)
    q, k, v, _ = batch.tensors()
    want, sums = hybrid_attention(q, k, v, batch.q_lens, batch.kv_lens)
    for splits in ("auto", "stream-k", 1, 5):
        plan = pod.plan([1, 1], [100, 40], 4, 2, 64, device="cpu", method="lean", decode_splits=splits)
        out, lse = pod.hybrid_attention(q, k, v, plan, return_lse=True)
        np.testing.assert_allclose(out.double().numpy(), want, atol=0.01)
        np.testing.assert_allclose(lse.numpy(), sums, atol=1e-4)
    with pytest.raises(ValueError, match="q_lens: got a chunk of 30 tokens, allowed for method 'lean'"):
        pod.plan([30, 1], [100, 40], 4, 2, 64, device="cpu", method="lean")
    with pytest.raises(ValueError, match="decode_splits: got 0"):
        pod.plan([1], [40], 4, 2, 64, device="cpu", method="lean", decode_splits=0)


@emulated
def test_operators_pass_opcheck():
    batch = HybridBatch([1, 1], [100, 40], 4, 2, 64, page_size=16)
    q, k, v, table = batch.tensors()
    plan = lean.plan(batch, "cpu")
    work = plan.placed()
    operator = kernels.operator(lean.LEAN, lean.kind("bfloat16", 64), plan.device)
    arguments = (q, k, v, table, work.lists, work.counters, work.partials, work.header, 0.1, 0.0, None, True, False)
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(operator, arguments, test_utils=tests)


@pytest.mark.parametrize("q_lens, kv_lens", [([1, 1], [0, 0]), ([1, 0], [0, 100])])
def test_a_batch_in_which_no_token_sees_a_key_is_refused(q_lens, kv_lens):
    """A GPU launches no empty grid."""
    with pytest.raises(ValueError, match="^kv_lens: got 0 for every token, allowed for method 'lean'"):
        lean.plan(HybridBatch(q_lens, kv_lens, 4, 2, 64), "cpu")

"""The Hopper kernel itself, run by the emulator and compared with float64."""

import ctypes

import numpy as np
import pytest
from emulator import library

from pod.batch import HybridBatch
from pod.reference import hybrid_attention

torch = pytest.importorskip("torch")

FIELDS = {  # Inputs of csrc/include/inputs.h, then what Pod90Launch of csrc/hopper/launch.h adds
    "q k v table": ctypes.c_void_p,
    "q_token q_head kv_page kv_token kv_head table_stride": ctypes.c_int64,
    "tokens num_q_heads num_kv_heads head_dim pages page_tokens": ctypes.c_int,
    "out lse prefill_work decode_work decode_chunks counters prefill_arrived decode_arrived": ctypes.c_void_p,
    "prefill_part decode_part trace stream": ctypes.c_void_p,
    "half causal prefill_units n_decode_chunks prefill_yields pack_shift prefill_rows ctas": ctypes.c_int,
    "scale": ctypes.c_float,
}


class Launch(ctypes.Structure):
    """Pod90Launch of csrc/hopper/launch.h."""

    _fields_ = [(name, kind) for names, kind in FIELDS.items() for name in names.split()]


def inputs(q, k, v, table):
    """What csrc/include/operators.h reads off the tensors."""
    strides = dict(zip(("q_token", "q_head"), q.stride(), strict=False))
    strides |= dict(zip(("kv_page", "kv_token", "kv_head"), k.stride(), strict=False))
    sizes = dict(zip(("tokens", "num_q_heads", "head_dim"), q.shape, strict=True), num_kv_heads=k.shape[2])
    pages = {"table": None, "table_stride": 0}
    if table is not None:
        pages = {"table": table.data_ptr(), "table_stride": table.stride(0)}
    pointers = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr()}
    return pointers | strides | sizes | pages | {"pages": k.shape[0], "page_tokens": k.shape[1]}


def run(batch, sms, splits=None, yields=False, free_sms=None, rise=1, view=lambda *tensors: tensors):
    """Two launches, as the second finds the first one's counters. Returns error of output and of log-sum-exp.

    The work is cut for `sms` SMs; `free_sms` of them are there, all unless said otherwise. Scores grow towards the
    first keys, which prefill meets last, to `rise` times those of the last ones. `view` lays the tensors out anew.
    """
    from pod.hopper import Plan

    q, k, v, table = batch.tensors(seed=1)
    if rise > 1:
        k *= torch.linspace(rise, 1, k.shape[1]).to(k.dtype)[:, None, None]
    q, k, v, table = view(q, k, v, table)
    plan = Plan(batch, torch.device("cpu"), sms, splits=splits, yields=yields)
    made = plan.lists(batch.causal)
    units, works, chunks, split_tiles, prefill_floats, ctas, pack_shift, *rows = made.shape
    rows = rows[0] if units else 128
    lists, state, scratch = made.lists.data_ptr(), made.counters.data_ptr(), made.partials.data_ptr()
    expected, expected_lse = hybrid_attention(q, k, v, batch.q_lens, batch.kv_lens, table, causal=batch.causal)
    errors = []
    for _ in range(2):
        out, lse = torch.full(q.shape, torch.nan, dtype=q.dtype), torch.full(q.shape[:2], torch.nan)
        launch = Launch(
            **inputs(q, k, v, table), out=out.data_ptr(), lse=lse.data_ptr(),
            prefill_work=lists, decode_work=lists + 48 * units, decode_chunks=lists + 48 * (units + works),
            counters=state, prefill_arrived=state + 16, decode_arrived=state + 16 + rows // 4 * split_tiles,
            prefill_part=scratch, decode_part=scratch + 4 * prefill_floats,
            half=q.dtype == torch.half, causal=batch.causal,
            prefill_units=units, n_decode_chunks=chunks, prefill_yields=yields, pack_shift=pack_shift,
            prefill_rows=rows, ctas=ctas, scale=batch.head_dim**-0.5,
        )  # fmt: skip
        function = library("hybrid90").run
        function.restype = ctypes.c_char_p
        report = function(ctypes.byref(launch), free_sms or ctas)
        assert report is None, report.decode()
        assert not made.counters.any()  # counters are back at zero
        errors.append(np.abs(out.double().numpy() - expected).max())
        errors.append(np.abs(lse.double().numpy() - expected_lse).max())
    assert not np.isnan(errors).any()
    return max(errors[::2]), max(errors[1::2])


BATCHES = {
    "a chunk and four decodes": (HybridBatch((64, 1, 1, 1, 1), (256,) * 5, 4, 2, 64), 2, {}),
    "small pages, ragged": (HybridBatch((1, 64, 1, 1, 1), (300, 200, 77, 256, 1), 4, 2, 64, page_size=16), 2, {}),
    "fp16, head dim 128": (HybridBatch((1, 40, 1), (130, 150, 77), 4, 2, 128, page_size=64, dtype="float16"), 3, {}),
    "both sides split": (HybridBatch((130, 1), (520, 1500), 4, 2, 64), 6, {"splits": 2}),
    "prefill only, no mask": (HybridBatch((33, 20), (33, 90), 2, 2, 64, page_size=32, causal=False), 2, {}),
    "prefill only, three warpgroups, split": (HybridBatch((100, 70), (300, 513), 4, 2, 64), 6, {"splits": 2}),
    "three warpgroups, small pages": (HybridBatch((96,), (520,), 6, 3, 64, page_size=16, dtype="float16"), 2, {}),
    "decode only, prefill yields": (HybridBatch((1, 1, 1), (64, 65, 500), 8, 1, 64), 4, {"yields": True}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_hopper_kernel_is_right_and_breaks_no_rule(name):
    batch, sms, options = BATCHES[name]
    error, lse_error = run(batch, sms, **options)
    assert error < (0.001 if batch.dtype == "float16" else 0.008)
    assert lse_error < 1e-4


@pytest.mark.parametrize("q_lens, kv_lens", [((150, 1), (520, 400)), ((200,), (700,))])
def test_maxima_that_keep_rising_are_raised(q_lens, kv_lens):
    error, lse_error = run(HybridBatch(q_lens, kv_lens, 2, 1, 64, dtype="float16"), sms=2, rise=40)
    assert error < 0.004 and lse_error < 1e-3


def fused(q, k, v, table):
    """Views as engines keep them: q in a fused QKV, K and V interleaved, the table a corner of a wider one."""
    tokens, heads, dim = q.shape
    qkv = torch.full((tokens, heads + 2 * k.shape[2], dim), torch.nan, dtype=q.dtype)
    pools = torch.stack([k, v], 1)
    qkv[:, :heads] = q
    if table is not None:
        wide = torch.full((len(table), table.shape[1] + 5), 10**6, dtype=torch.int32)
        wide[:, : table.shape[1]] = table
        table = wide[:, : table.shape[1]]
    return qkv[:, :heads], pools[:, 0], pools[:, 1], table


def head_major(q, k, v, table):
    """Heads outside, tokens inside, in q and in the caches."""
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    return q.transpose(0, 1).contiguous().transpose(0, 1), k, v, table


@pytest.mark.parametrize("view", (fused, head_major))
@pytest.mark.parametrize("name", ("small pages, ragged", "fp16, head dim 128", "a chunk and four decodes"))
def test_strided_tensors_are_read_where_they_lie(name, view):
    batch, sms, options = BATCHES[name]
    if view is head_major and batch.page_size and batch.head_dim == 128:
        with pytest.raises(AssertionError, match="launch refused: -2"):
            run(batch, sms, **options, view=view)
        return
    error, lse_error = run(batch, sms, **options, view=view)
    assert error < (0.001 if batch.dtype == "float16" else 0.008) and lse_error < 1e-4


def test_prefill_alone_is_tried_with_two_and_with_three_warpgroups():
    from pod.hopper import Plan

    alone = {name: case for name, case in BATCHES.items() if not case[0].decode}
    plans = {name: Plan(batch, torch.device("cpu"), sms, **options) for name, (batch, sms, options) in alone.items()}
    rows = {name: plan.lists(plan.batch.causal).shape[7] for name, plan in plans.items()}
    assert {"three" in name: tile for name, tile in rows.items()} == {True: 192, False: 128}, rows


@pytest.mark.parametrize("name", ("both sides split", "a chunk and four decodes"))
def test_it_ends_when_other_work_holds_all_sms_but_one(name):
    """Its CTAs then run one after the other. Whoever waited for a later one would wait for ever."""
    batch, sms, options = BATCHES[name]
    error, lse_error = run(batch, sms, **options, free_sms=1)
    assert error < 0.008 and lse_error < 1e-4

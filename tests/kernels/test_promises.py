"""What any method keeps on the emulator: padding gets zeros, and an invariant plan the same bits in any company."""

import numpy as np
import pytest

import pod
from pod.batch import HybridBatch
from pod.kernels import build, sm80
from pod.reference import hybrid_attention as reference
from pod.schedule import decide
from pod.schedule.decide import METHODS
from pod.schedule.work import by_token, sides

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(build.mode().name == "recorded", reason=build.mode().reason)

HEADS = (4, 2, 64)
PADDED = {
    "beside both": [(1, 0), (20, 70), (1, 90), (1, 0), (0, 5), (1, 33)],
    "at the end": [(1, 64), (1, 1), (1, 0), (1, 0)],
    "a chunk": [(5, 5), (1, 0)],
    "nothing else": [(1, 0), (0, 0), (1, 0)],
}


def batch_of(rows, page_size=16) -> HybridBatch:
    return HybridBatch(*zip(*rows, strict=True), *HEADS, page_size)


def cases():
    for name, rows in PADDED.items():
        lean = ["lean"] if max(q for q, _ in rows) == 1 and any(kv for _, kv in rows) else []
        yield from ((name, method) for method in (*METHODS, *lean))


@pytest.mark.parametrize("name, method", list(cases()))
def test_rows_of_padding_are_zeros_and_the_others_right(name, method):
    batch = batch_of(PADDED[name])
    q, k, v, table = batch.tensors(seed=2)
    if not any(batch.kv_lens):
        table = torch.zeros(len(batch.kv_lens), 1, dtype=torch.int32)
    plan, out = pod.plan(batch, device="cpu", method=method), torch.full_like(q, 7.0)
    _, lse = pod.hybrid_attention(q, k, v, plan, table, out=out, return_lse=True)
    wanted, sums = reference(q, k, v, batch.q_lens, batch.kv_lens, table)
    assert np.abs(out.double().numpy() - wanted).max() < 0.01
    seen = np.isfinite(sums)
    np.testing.assert_array_equal(np.isfinite(lse.numpy()), seen)
    np.testing.assert_allclose(lse.numpy()[seen], sums[seen], atol=1e-3)


@pytest.mark.parametrize("splits", ["auto", "stream-k", 2])
def test_no_warp_is_sent_to_look_for_no_key(splits):
    for method, rows in (("pod", PADDED["beside both"]), ("lean", PADDED["at the end"])):
        with np.errstate(all="raise"):
            plan = pod.plan(batch_of(rows), device="cpu", method=method, decode_splits=splits)
        assert (plan.schedule().decode.kv_len > 0).all()


def test_padding_alone_is_refused_where_nothing_would_be_launched():
    with pytest.raises(ValueError, match="^kv_lens: got 0 for every token, allowed for method 'lean' is"):
        pod.plan([1, 1], [0, 0], *HEADS, device="cpu", method="lean")


MINE = [(20, 600), (1, 450), (3, 300)]  # each in several parts of the lengths below
OTHERS = [(30, 100), (1, 700), (1, 0), (9, 400), (1, 90)]


@pytest.mark.parametrize("method", [*METHODS, "lean"])
def test_an_invariant_plan_gives_the_same_bits_in_any_company(method, monkeypatch):
    monkeypatch.setattr(decide, "FIXED_KEYS", (256, 128))
    keep = [row for row in MINE if row[0] == 1 or method != "lean"]
    beside = [row for row in OTHERS if row[0] == 1 or method != "lean"]
    together = [beside[0], *keep, *beside[1:]]
    batch = batch_of(together)
    q, k, v, table = batch.tensors(seed=3)
    plan = pod.plan(batch, device="cpu", method=method, invariant=True)
    out, starts = pod.hybrid_attention(q, k, v, plan, table), np.cumsum([0, *batch.q_lens])
    assert max(plan.schedule().decode.parts) >= 4
    for i, row in enumerate(keep, start=1):
        own = slice(int(starts[i]), int(starts[i + 1]))
        alone = pod.plan(batch_of([row]), device="cpu", method=method, invariant=True)
        assert torch.equal(pod.hybrid_attention(q[own], k, v, alone, table[i : i + 1]), out[own])
    want = reference(q, k, v, batch.q_lens, batch.kv_lens, table)[0]
    assert np.abs(out.double().numpy() - want).max() < 0.01


def test_auto_stays_with_one_method_where_bits_are_promised():
    plans = [pod.plan(q_lens, kv_lens, *HEADS, device="cpu", invariant=True)
             for q_lens, kv_lens in (([1, 1], [64, 64]), ([9, 1], [64, 64]))]  # fmt: skip
    assert [plan.method for plan in plans] == ["pod", "pod"]


@pytest.mark.parametrize("name, value", [("prefill_splits", 2), ("decode_splits", "stream-k")])
def test_an_invariant_plan_has_no_splits_to_choose(name, value):
    with pytest.raises(ValueError, match=f"^{name}: got {value!r}, allowed in an invariant plan is"):
        pod.plan([5, 1], [64, 64], *HEADS, device="cpu", invariant=True, **{name: value})


DRAFTS = [(4, 300), (2, 40), (1, 500), (3, 3), (40, 90), (1, 0)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("causal", [True, False])
def test_drafts_may_count_as_decodes_token_by_token(method, causal):
    """A choice that pod.plan does not make: which side is faster has not been measured."""
    batch = batch_of(DRAFTS)
    q, k, v, table = batch.tensors(seed=4)
    plan = sm80.plan(batch, torch.device("cpu"), method, drafts=4)
    schedule = plan.schedule(causal)
    assert set(schedule.prefill.seq) == {4} and set(schedule.decode.seq) == {0, 1, 2, 3}
    out = plan.run(q, k, v, table, causal=causal)
    want = reference(q, k, v, batch.q_lens, batch.kv_lens, table, causal=causal)[0]
    assert np.abs(out.double().numpy() - want).max() < 0.01


def test_a_token_of_a_draft_sees_the_keys_up_to_its_own():
    draft = sides(batch_of([(1, 7), (3, 10)]), 4)[1]
    assert by_token(draft, True).kv_len.tolist() == [7, 8, 9, 10]
    assert by_token(draft, False).kv_len.tolist() == [7, 10, 10, 10]
    assert by_token(draft, True).token.tolist() == [0, 1, 2, 3]
    assert by_token(draft, True).seq.tolist() == [0, 1, 1, 1]


# ---------------------------------------------------------------- numbers that are not small, or none


def error_of(batch, q, k, v, table, method) -> float:
    out = pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu", method=method), table).double().numpy()
    wanted, _ = reference(q, k, v, batch.q_lens, batch.kv_lens, table)
    return float(np.linalg.norm(out - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", ["pod", "lean"])
def test_scores_up_to_a_hundred_million_are_right(dtype, method):
    """The kernels take the largest from each before 2^x, in one rounding: of the largest itself that leaves a rest."""
    rows = [(1, 90), (1, 33)] + ([(20, 70)] if method == "pod" else [])
    batch = HybridBatch(*zip(*rows, strict=True), *HEADS, 16, dtype)
    q, k, v, table = batch.tensors(seed=3)
    scores = torch.einsum("qhd,psgd->qhpsg", q.float(), k.float()).nan_to_num().abs().max() * batch.head_dim**-0.5
    more = float(1e8 / scores) ** 0.5
    assert error_of(batch, q * more, k * more, v, table, method) < 0.01


@pytest.mark.parametrize("where, reached", [("k", [False, False, True]), ("v", [True, True, True])])
def test_a_nan_stays_in_its_sequence_and_one_of_v_reaches_all_of_its_chunk(where, reached):
    batch = batch_of([(3, 20), (1, 33)])
    q, k, v, table = batch.tensors(seed=4)
    (k if where == "k" else v)[table[0, 1], 3] = torch.nan  # of the chunk's last token
    out = pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu"), table)
    assert out.isnan().all((1, 2)).tolist() == [*reached, False] and out[3:].isfinite().all()

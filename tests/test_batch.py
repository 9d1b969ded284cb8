import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod.batch import DTYPE_BYTES, MODELS, TABLE1, HybridBatch
from pod.hardware import A100, TOY


@st.composite
def batches(draw):
    q_lens = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    kv_lens = [q + draw(st.integers(0, 40)) for q in q_lens]
    group, num_kv_heads = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    head_dim, page_size = draw(st.sampled_from([64, 128])), draw(st.sampled_from([None, 1, 3, 16]))
    dtype, causal = draw(st.sampled_from(sorted(DTYPE_BYTES))), draw(st.booleans())
    return HybridBatch(q_lens, kv_lens, group * num_kv_heads, num_kv_heads, head_dim, page_size, dtype, causal)


def counted_by_hand(batch):
    """Walk over every query, head and key and count: FLOPs of the two products, and which elements are touched."""
    flops, touched = 0, set()
    for i, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        for h in range(batch.num_q_heads):
            for j in range(q_len):
                touched |= {("q", i, h, j), ("o", i, h, j)}
                position = kv_len - q_len + j
                for key in range(0 if batch.window is None else max(0, position + 1 - batch.window), kv_len):
                    if key <= position or not batch.causal:
                        touched |= {("k", i, h // batch.group, key), ("v", i, h // batch.group, key)}
                        flops += 2 * batch.head_dim  # q . k
                        flops += 2 * batch.head_dim  # o += p * v
    return flops, len(touched) * batch.head_dim * DTYPE_BYTES[batch.dtype]


@settings(max_examples=25, deadline=None)
@given(batches())
def test_flops_and_bytes_against_counting(batch):
    assert (batch.flops, batch.bytes) == counted_by_hand(batch)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_what_a_window_hides_and_what_brings_no_token_counts_for_nothing(window):
    batch = HybridBatch((4, 0, 1, 1, 7), (9, 5, 6, 0, 7), 4, 2, 64, window=window)
    assert (batch.flops, batch.bytes) == counted_by_hand(batch)


@settings(max_examples=50, deadline=None)
@given(batches())
def test_parts_add_up(batch):
    parts = [p for p in (batch.prefill, batch.decode) if p]
    for field in ("flops", "bytes", "kv_bytes", "visible_pairs"):
        assert sum(getattr(p, field) for p in parts) == getattr(batch, field)
    assert sum(len(p.q_lens) for p in parts) == len(batch.q_lens)
    assert batch.decode is None or set(batch.decode.q_lens) == {1}
    assert batch.prefill is None or min(batch.prefill.q_lens) > 1


def test_times_are_the_rooflines_of_the_parts():
    batch = TABLE1["C1"]
    prefill, decode = batch.times(A100)
    assert prefill == pytest.approx(batch.prefill.flops / A100.tensor_flops)
    assert decode == pytest.approx(batch.decode.bytes / A100.dram_bytes_per_s)
    assert batch.prefill.times(A100) == (prefill, 0.0)
    assert batch.decode.times(TOY)[0] == 0.0


def test_table1_is_bound_as_the_paper_says():
    """C0 memory-bound, C1 balanced, C2 compute-bound, by the two roofline times on the paper's A100."""
    ratio = {name: p / d for name, batch in TABLE1.items() for p, d in [batch.times(A100)]}
    assert ratio["C0"] < 0.5 < ratio["C1"] < 1 < ratio["C2"]
    assert [len(b.q_lens) for b in TABLE1.values()] == [81, 221, 251]
    assert {(b.num_q_heads, b.num_kv_heads) for b in TABLE1.values()} == {(16, 4)}


def test_of_counts_the_chunk_as_part_of_the_context():
    batch = HybridBatch.of(512, 16384, 3, 1000, **MODELS["yi-6b"].heads())
    assert (batch.q_lens, batch.kv_lens, batch.group) == ((512, 1, 1, 1), (16384, 1000, 1000, 1000), 8)
    assert HybridBatch.of(0, 0, 2, 9, 4, 4).prefill is None
    assert HybridBatch.of(8, 8, 0, 0, 4, 4).decode is None


def test_heads_per_gpu():
    assert MODELS["llama-3-8b"].heads() == {"num_q_heads": 16, "num_kv_heads": 4, "head_dim": 128}
    assert MODELS["llama-3-8b"].heads(tp=8)["num_kv_heads"] == 1
    with pytest.raises(ValueError, match="tp: got 3"):
        MODELS["llama-3-8b"].heads(tp=3)


@settings(max_examples=25, deadline=None)
@given(batches(), st.integers(0, 5))
def test_tensors_hold_the_tokens_and_poison_the_rest(batch, seed):
    q, *caches, table = batch.tensors(seed)
    assert tuple(q.shape) == (sum(batch.q_lens), batch.num_q_heads, batch.head_dim)
    for cache in caches:
        filled = (~cache.isnan()).all(dim=(2, 3))
        empty = cache.isnan().all(dim=(2, 3))
        assert (filled ^ empty).all()
        assert filled.sum() == sum(batch.kv_lens)
    if batch.page_size is None:
        assert table is None
        return
    used = [table[i, :n].tolist() for i, n in enumerate(batch.pages)]
    everywhere = [page for row in used for page in row]
    assert len(everywhere) == len(set(everywhere)), "two sequences share a page"
    spare = caches[0].shape[0] - 1
    assert spare not in everywhere and caches[0][spare].isnan().all()
    assert all((table[i, n:] == spare).all() for i, n in enumerate(batch.pages))


def test_tensors_repeat_with_the_seed():
    batch = HybridBatch((3, 1), (9, 5), 2, 1, 64, page_size=4)
    first, again, other = batch.tensors(1), batch.tensors(1), batch.tensors(2)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.float().numpy(), b.float().numpy())
    assert not np.array_equal(first[0].float().numpy(), other[0].float().numpy())


class Mute:
    def __repr__(self):
        raise KeyError("no words")


GOOD = dict(q_lens=(4, 1), kv_lens=(8, 9), num_q_heads=8, num_kv_heads=2, head_dim=128)


@pytest.mark.parametrize(("wrong", "message"), [
    (dict(q_lens=()), "q_lens: got no sequence"),
    (dict(q_lens=7), "q_lens: got 7, allowed is a sequence"),
    (dict(q_lens="41"), "q_lens: got '41', allowed is a sequence"),
    (dict(q_lens=(0, 0)), r"q_lens: got \(0, 0\), allowed is at least one new token"),
    (dict(q_lens=(4, -1)), "q_lens: got -1, allowed are integers from 0 on"),
    (dict(q_lens=(4, 1.5)), "q_lens: got 1.5, allowed are integers"),
    (dict(q_lens=(4, True)), "q_lens: got True"),
    (dict(q_lens={1, 4}), "q_lens: got {1, 4}, allowed is a sequence"),
    (dict(kv_lens={8: 1, 9: 1}), "kv_lens: got {8: 1, 9: 1}, allowed is a sequence"),
    (dict(kv_lens=(8, 10**5000)), "kv_lens: got an int that cannot be written, allowed are integers below 2\\^100"),
    (dict(page_size=10**5000), "page_size: got an int that cannot be written, allowed are integers below 2\\^100"),
    (dict(softcap=10**5000), "softcap: got an int that cannot be written, allowed are None and numbers"),
    (dict(causal=Mute()), "causal: got a Mute that cannot be written, allowed are True and False"),
    (dict(kv_lens=(8,)), "kv_lens: got 1 lengths, allowed is 2"),
    (dict(kv_lens=(3, 9)), r"kv_lens: got 3 at 0, allowed is at least q_lens\[0\] = 4"),
    (dict(kv_lens=(8, -1)), "kv_lens: got -1"),
    (dict(q_lens=(4, 2), kv_lens=(8, 0)), "kv_lens: got 0 at 1"),
    (dict(num_q_heads=7), "num_q_heads: got 7, allowed are multiples of num_kv_heads = 2"),
    (dict(num_kv_heads=0), "num_kv_heads: got 0"),
    (dict(num_kv_heads=16), "num_q_heads: got 8, allowed are multiples of num_kv_heads = 16"),
    (dict(head_dim=96), "head_dim: got 96, allowed are 64, 128"),
    (dict(page_size=0), "page_size: got 0"),
    (dict(page_size=16.0), "page_size: got 16.0"),
    (dict(dtype="int8"), "dtype: got 'int8', allowed are float16, bfloat16, float32"),
])  # fmt: skip
def test_bad_input(wrong, message):
    HybridBatch(**GOOD)
    with pytest.raises(ValueError, match=message):
        HybridBatch(**GOOD | wrong)


def test_bad_counts():
    with pytest.raises(ValueError, match="decodes: got -1"):
        HybridBatch.of(4, 8, -1, 8, 8, 2)
    with pytest.raises(ValueError, match="q_lens: got no sequence"):
        HybridBatch.of(0, 8, 0, 8, 8, 2)
    with pytest.raises(ValueError, match="decodes: got 1000000000000, allowed are 2\\^31 rows of queries, 8 a decode"):
        HybridBatch.of(0, 8, 10**12, 8, 8, 2)
    with pytest.raises(ValueError, match="kv_lens: got 4 at 0"):
        HybridBatch.of(8, 4, 1, 8, 8, 2)

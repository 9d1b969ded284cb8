"""The page of caches of 8 bits: its rows, what is stored, what FlashInfer is told, and what the table makes of rows."""

import math
import sys
from types import ModuleType

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod.batch import HybridBatch
from pod.experiments.hopper import hopper_fp8 as page
from pod.lab import claims
from pod.lab.measure import ragged
from pod.reference import hybrid_attention

torch = pytest.importorskip("torch")

BATCH = HybridBatch([1, 1, 1], [48, 33, 16], 4, 2, 64, 16)


def test_rows_are_named_once_and_are_what_they_say():
    keys = [tuple(case.values()) for case in page.cases()]
    assert len(keys) == len(set(keys)) and all(tuple(case) == page.KEYS for case in page.cases())
    batch = page.batch_of(page.cases()[-1])
    assert batch.q_lens[:2] == (2048, 1) and batch.kv_lens[:2] == (8192, 4096) and len(batch.q_lens) == 129
    assert max(page.batch_of(case).kv_bytes for case in page.cases()) <= 4 * page.room()


@pytest.fixture
def narrow():
    return page.Narrow(BATCH, device="cpu")


def test_what_8_bits_stand_for_is_exact_in_16(narrow):
    wide = ragged.Ragged(BATCH, device="cpu")
    assert torch.equal(narrow.q, wide.q) and torch.equal(narrow.table, wide.table)
    for stored, widened, was in ((narrow.k8, narrow.k, wide.k), (narrow.v8, narrow.v, wide.v)):
        assert str(stored.dtype) == f"torch.{page.KV}" and not widened.isnan().any()
        assert torch.equal(stored.double() * page.SCALE, widened.double())
        assert ((widened - was).abs() <= was.abs() / 15 + page.SCALE * 2.0**-10).all()  # half of 1/8, and subnormals


def test_rounding_and_the_kernels_errors_are_told_apart(narrow, monkeypatch):
    """A way that is exact on 8 bits is off by the rounding alone, and not wrong."""

    def exact(s):
        out, _ = hybrid_attention(s.q, s.k, s.v, BATCH.q_lens, BATCH.kv_lens, s.table)
        return lambda: [torch.from_numpy(out).to(s.q.dtype)]

    def rough(s):
        """Of queries in 8 bits, too."""
        out, _ = hybrid_attention(s.q.to(s.k8.dtype).to(s.q.dtype), s.k, s.v, BATCH.q_lens, BATCH.kv_lens, s.table)
        return lambda: [torch.from_numpy(out).to(s.q.dtype)]

    def wild(s):
        return lambda: [2 * rough(s)()[0]]

    monkeypatch.setattr(page, "batch_of", lambda case: BATCH)
    monkeypatch.setattr(page, "room", lambda: None)
    monkeypatch.setattr(page, "WAYS", {"ours": exact})
    monkeypatch.setattr(page, "WAYS8", {"ours8": exact})
    monkeypatch.setattr(page, "ALL8", {"rough": rough, "wild": wild})
    kinds = {"Ragged": ragged.Ragged, "Narrow": page.Narrow}
    for name, kind in kinds.items():
        place = ragged if name == "Ragged" else page
        monkeypatch.setattr(place, name, lambda *given, kind=kind: kind(*given, device="cpu"))
    time = page.timing.Time(1.0, 1.0, 1.0)
    monkeypatch.setattr(page.timing, "shuffled", lambda calls, *_: dict.fromkeys(calls, time))
    row = page.measure({})
    assert row["holes"].startswith("wild: wrong result") and row["ours_off"] < 4e-3 > row["ours8_off"]
    assert 0.01 < row["rounding"] < 0.1 and 5e-3 < row["rough_off"] < 0.1 and row["wild"] == row["wild_off"] == ""


class Decodes:
    """FlashInfer's decode, which says what it was told."""

    told = []

    def __init__(self, room, layout, use_tensor_cores):
        assert layout == "NHD" and use_tensor_cores

    def plan(self, starts, pages, last, **shape):
        assert starts.tolist() == [0, 3, 6, 7] and last.tolist() == [16, 1, 16]
        self.told.append(shape.get("kv_data_type"))

    def run(self, q, caches, **scales):
        self.told.append((caches[0].dtype, scales))
        return q


def test_flashinfer_is_told_of_8_bits(narrow, monkeypatch):
    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = Decodes
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(ragged, "workspace", lambda: torch.zeros(8))
    page.fi8(narrow)()
    page.fi(narrow)()
    kind, scales = getattr(torch, page.KV), {"k_scale": page.SCALE, "v_scale": page.SCALE}
    assert Decodes.told == [kind, (kind, scales), None, (torch.bfloat16, {})]
    with pytest.raises(ValueError, match="batch: got one kind of work"):
        page.fi(ragged.Ragged(HybridBatch([2, 2], [9, 9], 4, 2, 64, 16), device="cpu"))


def test_beside_a_chunk_flashinfer_computes_the_prompts_as_well(monkeypatch):
    told = []

    class Both:
        def __init__(self, room, layout, backend=None, use_tensor_cores=None):
            assert (backend, use_tensor_cores) in (("fa2", None), (None, True))

        def plan(self, *lists, **shape):
            told.append(([x.tolist() for x in lists], shape.get("kv_data_type"), "head_dim_qk" in shape))

        def run(self, q, caches, **scales):
            told.append((len(q), caches[0].dtype, scales))
            return q

    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = module.BatchPrefillWithPagedKVCacheWrapper = Both
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(ragged, "workspace", lambda: torch.zeros(8))
    narrow = page.Narrow(HybridBatch([20, 1, 1], [40, 33, 16], 4, 2, 64, 16), device="cpu")
    assert torch.equal(torch.cat(page.fi8(narrow)()), narrow.q)
    kind, scales = getattr(torch, page.KV), {"k_scale": page.SCALE, "v_scale": page.SCALE}
    (prompts, *first), (decodes, *second), *runs = told
    assert prompts[0] == [0, 20] and [x[-1] for x in prompts[1:]] == [3, prompts[2][-1], 8] and len(prompts[2]) == 3
    assert decodes[0] == [0, 3, 4] and decodes[2] == [1, 16] and first == [kind, True] and second == [kind, False]
    assert runs == [(20, kind, scales), (2, kind, scales)]


def test_flash_attention_3_is_told_what_8_bits_stand_for(narrow, monkeypatch):
    told = []

    def metadata(*given, qkv_dtype, **options):
        told.append((qkv_dtype, sorted(options)))
        return "plan"

    def attend(q, k, v, *, q_descale, k_descale, v_descale, **options):
        told.append((q.dtype, k.dtype, [x.unique().item() for x in (q_descale, k_descale, v_descale)], q_descale.shape))
        return q.to(torch.bfloat16)

    module = ModuleType("flash_attn_interface")
    module.flash_attn_with_kvcache, module.get_scheduler_metadata = attend, metadata
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    out = torch.cat(page.fa3_all8(narrow)())
    kind = getattr(torch, page.KV)
    assert out.dtype == torch.bfloat16 and torch.equal(out, narrow.q.to(kind).to(out.dtype)) and out.shape == (3, 4, 64)
    assert told == [(kind, ["causal", "page_size"]), (kind, kind, [1.0, page.SCALE, page.SCALE], (3, 2))]
    assert narrow.q.dtype == torch.bfloat16  # the batch itself stays


def test_the_table_and_the_picture_of_known_times():
    rows = [case | {"kv_bytes": 4e9, "ours": 2.0, "ours8": 1.0, "fa3": 3.0, "fi": 2.5, "fi8": "",
                    "fa3_two8": 2.0, "fa3_one8": 1.5, "xqa8": "", "fa3_one8_off": 0.05, "rounding": 0.03,
                    "ours_off": 2e-3, "ours8_off": 2e-3, "holes": ""} for case in page.cases()]  # fmt: skip
    df = page.speedups(pd.DataFrame(rows))
    assert set(df.speedup) == {2.0} and set(df.over_fa3) == {3.0} and df.over_fi8.isna().all()
    assert set(df.over_all8) == {1.5} and set(df.way) == {"fa3_one8"} and set(df.kernel_all8) == {0.05}
    assert set(df.tb_s) == {2.0} and df.batch.is_unique and df.chunk.sum() == 3
    assert df.batch[9] == "64 x 8K, 32/8, 4 tokens" and df.batch[10] == "512 @ 4K + 64 x 8K, 32/8"
    figure = page.draw(df)
    assert sum(text.get_text() == "2.00x" for text in figure.axes[0].texts) == len(df)
    plt.close(figure)


def test_the_fastest_other_kernel_is_taken_whatever_it_rounds(monkeypatch):
    made = pd.DataFrame({"chunk": [True, True, False], "over_fi8": [2.0, 8.0, 1.0], "over_all8": [4.0, None, 1.0]})
    monkeypatch.setattr(page, "table", lambda: made)
    assert page.over_peers() == 4.0 and page.least_over_peers() == 2.0
    assert (page.batches(), page.batches(chunk=True)) == (1, 2)


def test_a_repeat_without_the_kernels_all_in_8_bits_says_nothing_of_them(monkeypatch):
    kept = page.read("hopper-fp8")
    older = kept[[name for name in kept if not name.startswith(tuple(page.ALL8))]]
    monkeypatch.setattr(page, "table", lambda: page.speedups(older))
    assert math.isnan(page.over_peers()) and page.gain() == pytest.approx(1.66, abs=0.05)


def test_the_claim_counts_the_batches_with_a_chunk():
    (claim,) = (c for c in claims.load() if c.id == "hopper-fp8-peers")
    count = int((page.table().chunk).sum())
    assert count > 0 and f"; {count} batches of a chunk" in claims.judge(claim).base

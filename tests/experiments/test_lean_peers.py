"""FlashInfer and FlashAttention-3 beside LeanAttention's figures: stand-ins get what the pages give them."""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from pod import kernels
from pod.data import read
from pod.experiments.lean import lean_08, lean_09, lean_13
from pod.lab import paper
from pod.lab.measure import meter, peers, timing

torch = pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)


def attend(q, k, v):
    """One row [heads, D] against keys and values [tokens, kv_heads, D]."""
    k, v = (x.repeat_interleave(len(q) // x.shape[1], 1).transpose(0, 1).float() for x in (k, v))
    scores = torch.softmax(q.float()[:, None] @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1)
    return (scores @ v)[:, 0].to(q.dtype)


class Decodes:
    """FlashInfer's decode over pages."""

    made: list[bool] = []

    def __init__(self, room, layout, use_tensor_cores):
        self.made.append(use_tensor_cores)

    def plan(self, indptr, indices, last, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type):
        assert (page_size, q_data_type) == (peers.PAGE, torch.float16)
        self.tables = [indices[a:b] for a, b in zip(indptr, indptr[1:], strict=False)]
        self.lens = [(len(table) - 1) * page_size + int(n) for table, n in zip(self.tables, last, strict=True)]

    def run(self, q, cache):
        rows = zip(q, self.tables, self.lens, strict=True)
        return torch.stack([attend(x, *(c[table.long()].flatten(0, 1)[:n] for c in cache)) for x, table, n in rows])


def fa3(q, k, v, cache_seqlens, causal):
    return torch.stack(
        [attend(x[0], k[i, :n], v[i, :n]) for i, (x, n) in enumerate(zip(q, cache_seqlens, strict=True))]
    )[:, None]


@pytest.fixture
def installed(monkeypatch):
    """Both, on the CPU; a clock for which the last way is the fastest."""
    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = Decodes
    monkeypatch.setattr(Decodes, "made", [])
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_with_kvcache=fa3))
    monkeypatch.setattr(peers, "workspace", lambda: None)
    monkeypatch.setattr(peers, "Setting", partial(peers.Setting, device="cpu"))
    monkeypatch.setattr(timing, "shuffled", lambda calls, *_: {
        name: timing.Time(9.0 - i, 0.5, 99.0) for i, name in enumerate(calls)})  # fmt: skip


@emulated
@pytest.mark.parametrize("ratio", [1.0, 0.6])
def test_the_sweep_has_both_decodes_of_flashinfer_at_head_dimension_64(installed, ratio):
    case = dict(zip(lean_08.KEYS, ("8a", 2, 2, 64, 3, 300, ratio), strict=True))
    with kernels.machine(3):
        row = lean_08.measure(case)
    assert row["holes"] == "" and Decodes.made == [True, False]
    assert {"flashinfer", "flashinfer_plain", "flashinfer_plain_p90", "fa3", "paper_lean"} <= row.keys()


def test_figure_11_has_batches():
    cases = [case for case in lean_08.cases() if case["panel"] == "11"]
    assert {case["batch"] for case in cases} == {1, 4, 16} and {case["head_dim"] for case in cases} == {128}
    largest = max(lean_08.batch_of(case).kv_bytes for case in cases)
    assert largest < 40e9, "an H100 has room for it"


@pytest.mark.parametrize("way", lean_09.PEERS)
def test_the_shared_heads_have_every_peer(installed, way):
    case = dict(zip(lean_09.KEYS, ("9a", 2, 4, 3, 100), strict=True))
    calls, holes = peers.ready(peers.Setting(lean_09._shard(case, 2)), {way: partial(lean_09._maker, way)})
    assert way in lean_09.WAYS and holes == {} and set(calls) == {way}


# ---------------------------------------------------------------- energy


@pytest.fixture
def metered(monkeypatch):
    """A meter that counts visits: the n-th call takes n millijoules."""
    visits = []

    def visit(call, seconds, warm, gauge):
        visits.append(call)
        if call:
            call()
        return meter.Window(4.0, 4.0 * lean_13.IN_A_ROW * len(visits), 2.0, 1980, 50)

    monkeypatch.setattr(meter, "gauge", lambda: None)
    monkeypatch.setattr(meter, "visit", visit)
    monkeypatch.setattr(peers, "graphed", lambda make, calls: make)
    monkeypatch.setattr(lean_13, "HEADS", 2)
    lean_13.readings.cache_clear()
    return visits


@emulated
def test_five_readings_of_energy_each_in_rounds(installed, metered):
    with kernels.machine(3):
        rows = lean_13.readings(130)
    assert metered[0] is None and len(metered) == 1 + 5 * len(lean_13.WAYS)
    rounds = [metered[1 + i * 7 : 8 + i * 7] for i in range(5)]
    assert all(set(each) == set(rounds[0]) for each in rounds) and any(each != rounds[0] for each in rounds)
    assert sorted(r["millijoules"] for way in rows.values() for r in way) == list(range(2, len(metered) + 1))
    assert {way: row[0]["how"] for way, row in rows.items() if way not in lean_13.CUTS} == {
        "fa3": "", "flashinfer": "flashinfer_plain"}  # fmt: skip
    assert rows["lean"][0]["how"] == "stream-k" and rows["rule_256"][0]["how"] == rows["paper_rule_256"][0]["how"]
    assert rows["lean"][0]["ms"] == 1e3 * 2.0 / (4 * lean_13.IN_A_ROW)


@emulated
def test_what_is_not_installed_is_a_hole_in_every_reading(installed, metered, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with kernels.machine(3):
        found = [lean_13.measure(case | {"context": 130}) for case in lean_13.cases() if case["context"] == 32 << 10]
    holes = [row["hole"] for row in found if "hole" in row]
    assert holes == ["not installed (flashinfer)"] * 5 and len(found) == 5 * len(lean_13.WAYS)


def test_energies_are_medians_and_their_ratios_are_of_one_round():
    raw, df = read("lean-energy"), lean_13.table().set_index(["context", "way"])
    assert len(df) == len(lean_13.COMPARED) * raw.context.nunique() and "FlashInfer" in lean_13.COMPARED
    assert (df.pj_least <= df.pj_per_byte).all() and (df.pj_per_byte <= df.pj_most).all()
    part = raw[raw.context == 128 << 10].pivot(index="reading", columns="way", values="millijoules")
    row = df.loc[128 << 10, "paper's tile, equal ranges"]
    assert row.millijoules == part.paper_lean.median()
    assert row.ratio == (part.paper_lean / part.paper_rule_256).median()
    assert row.ratio_most == (part.paper_lean / part.paper_rule_256).max() < 1


def test_heads_of_the_energy_are_the_paper_s():
    assert lean_13.HEADS == paper.value("lean.f13.heads")

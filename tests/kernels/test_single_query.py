"""The kernels of csrc/micro/single_query.cu on the emulator, against float64; and what nvcc makes of them."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from pod import kernels
from pod.batch import HybridBatch
from pod.kernels import build, single_query
from pod.reference import hybrid_attention as reference

torch = pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
LENS = (1, 15, 16, 17, 64, 65, 200)
LONG = (2100,)  # more than 32 steps a warp, so that page numbers are read a second time


def work(lens, heads=2, dtype="bfloat16", seed=0):
    batch = HybridBatch((1,) * len(lens), lens, heads, heads, 128, page_size=16, dtype=dtype)
    q, k, v, table = batch.tensors(seed)  # what lies behind a sequence's last token is NaN
    return q, k, v, table, torch.tensor(lens, dtype=torch.int32)


@emulated
@pytest.mark.parametrize("idea", single_query.IDEAS)
@pytest.mark.parametrize(("lens", "dtype"), [(LENS, "bfloat16"), (LENS, "float16"), (LONG, "bfloat16")])
def test_every_idea_computes_attention(idea, lens, dtype):
    q, k, v, table, lens_tensor = work(lens, dtype=dtype)
    out = single_query.attention(q, *single_query.early_layout(k, v), table, lens_tensor, max(lens), idea)
    want, _ = reference(q, k, v, (1,) * len(lens), lens, table)
    exact = torch.from_numpy(want).to(q.dtype).double().numpy()
    error, rounding = (np.linalg.norm(x - want) for x in (out.double().numpy(), exact))
    assert error <= 1.5 * rounding


@emulated
def test_operators_pass_opcheck():
    q, k, v, table, lens = work((20, 30))
    caches = single_query.early_layout(*(x.nan_to_num() for x in (k, v)))
    operator = kernels.operator(single_query.FAMILY, "", torch.device("cpu"))
    torch.library.opcheck(operator, (q, *caches, table, lens, 32, 0.1, 1))
    slots = torch.tensor([3, 40], dtype=torch.int32)
    torch.library.opcheck(torch.ops.pod.write_cache, (q, q, *caches, slots))


@emulated
def test_ideas_agree_to_the_bit_where_they_add_in_the_same_order():
    q, k, v, table, lens = work(LENS)
    layout = single_query.early_layout(k, v)
    outs = [single_query.attention(q, *layout, table, lens, max(LENS), idea) for idea in single_query.IDEAS]
    same = [out for idea, out in zip(single_query.IDEAS, outs, strict=True) if idea != "atomics"]
    assert len(same) == 5 and all(torch.equal(same[0], out) for out in same)


@emulated
def test_written_tokens_lie_where_the_layout_says():
    heads, tokens = 3, 37
    slots = torch.randperm(4 * 16)[:tokens].int()
    packed = torch.randn(tokens, 3, heads, 128, dtype=torch.bfloat16)  # q, k, v side by side, as in a model
    today = [torch.zeros(4, 16, heads, 128, dtype=torch.bfloat16) for _ in range(2)]
    for cache, x in zip(today, (packed[:, 1], packed[:, 2]), strict=True):
        cache.view(-1, heads, 128)[slots.long()] = x
    caches = single_query.caches(4, heads, torch.bfloat16, "cpu")
    single_query.write(packed[:, 1].contiguous(), packed[:, 2], *caches, slots)
    for got, want in zip(caches, single_query.early_layout(*today), strict=True):
        assert torch.equal(got, want)


@emulated
def test_a_query_may_lie_inside_a_wider_row():
    q, k, v, table, lens = work(LENS)
    wide = torch.randn(len(LENS), 3, *q.shape[1:], dtype=q.dtype)
    wide[:, 0] = q
    layout = single_query.early_layout(k, v)
    a, b = (single_query.attention(x, *layout, table, lens, max(LENS)) for x in (q, wide[:, 0]))
    assert torch.equal(a, b)


@emulated
def test_wrong_arguments_are_named():
    q, k, v, table, lens = work((17, 5))
    k2, v2 = single_query.early_layout(k, v)
    for name, arguments in {
        "idea": (q, k2, v2, table, lens, 17, "magic"),
        "k_cache": (q, k, v2, table, lens, 17),
        "v_cache": (q, k2, v2.half(), table, lens, 17),
        "table": (q, k2, v2, table.long(), lens, 17),
        "lens": (q, k2, v2, table, lens[:1], 17),
        "q": (q[..., :64], k2, v2, table, lens, 17),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: got"):
            single_query.attention(*arguments)
    with pytest.raises(ValueError, match="^slots: got"):
        single_query.write(q, q, k2, v2, lens.long())


@emulated
def test_shared_memory_grows_with_the_longest_sequence():
    short, long = (single_query.resources("shared", n, device="cpu") for n in (256, 2048))
    assert long["smem_bytes"] - short["smem_bytes"] == 4 * (2048 - 256)
    assert long["ctas_per_sm"] <= short["ctas_per_sm"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_the_query_costs_registers(tmp_path):
    source = build.CSRC / "micro" / "single_query.cu"
    command = ["nvcc", "-std=c++20", "-O3", "-DNDEBUG", "-gencode=arch=compute_90,code=sm_90", "-Xptxas", "-v",
               f"-I{build.CSRC}", "-cubin", str(source), "-o", str(tmp_path / "x.cubin")]  # fmt: skip
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    one = r"single_query\w*bfloat16\w*?Idea(\d).*?(\d+) bytes spill stores.*?Used (\d+) registers"
    found = re.findall(one, report, re.S)
    registers = {list(single_query.IDEAS)[int(idea)]: int(n) for idea, spills, n in found if spills == "0"}
    assert len(registers) == 6
    assert registers["registers"] - registers["shared"] >= 32  # 16 loads of 8 bytes

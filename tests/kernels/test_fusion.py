"""The microbenchmark of Figure 7 on the emulator: every method computes the same, bit by bit, and the traces say who
ran beside whom."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pod import kernels
from pod.kernels import build, fusion
from pod.kernels.fusion import ALONE, METHODS, Work
from pod.kernels.trace import both_share, held
from pod.schedule import binding

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)

EQUAL = Work(compute=32, memory=128, multiplications=851, tiles=(16, 16))


def run(work, method, sms=4, **options):
    """What c and d hold afterwards, and what they should hold."""
    data = fusion.arrays(work)
    want = fusion.expected(work, *(x.clone().numpy() for x in data))
    with kernels.machine(sms):
        trace = fusion.record(work, method, data=data, **options)
    return [x.numpy() for x in data[2:]], want, trace


# ---------------------------------------------------------------- right results


@st.composite
def works(draw):
    rows = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    tiles = tuple(draw(st.integers(1, most)) for most in rows)
    return Work(*rows, draw(st.integers(1, 9)), tiles)


@settings(max_examples=12)
@given(works(), st.sampled_from([1, 3, 4]), st.sampled_from([None, 1, 2]))
def test_every_method_computes_the_same(work, sms, ctas_per_sm):
    for method in METHODS:
        got, want, trace = run(work, method, sms, ctas_per_sm=ctas_per_sm)
        for name, a, b in zip("cd", got, want, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name}, {method}")
        tiles = [("compute", t) for t in range(work.tiles[0])] + [("memory", t) for t in range(work.tiles[1])]
        done = [(op, r.id) for r in trace.itertuples() for op in (ALONE if r.op == "both" else (r.op,))]
        assert sorted(done) == tiles, method


def test_operator_passes_opcheck():
    data = fusion.arrays(Work(8, 16, 4, (4, 4)))
    deal = torch.from_numpy(binding.deal("50:50", np.ones(4), np.ones(4), 4))
    header = [fusion.METHODS.index("serial") + len(ALONE), 4, 4, 4, 4, fusion.LEAST_SMEM, 0]
    operator = kernels.operator(fusion.FUSION, "", torch.device("cpu"))
    torch.library.opcheck(operator, (*data, deal, torch.zeros(4 + 3, dtype=torch.int32), header, fusion.FACTOR))


@pytest.mark.parametrize("side", [0, 1])
def test_one_loop_alone_leaves_the_other_ones_numbers(side):
    work = Work(3, 5, 2, (2, 2))
    (c, d), want, _ = run(work, ALONE[side])
    before = [x.numpy() for x in fusion.arrays(work)[2:]]
    compute, memory = ((d, want[1], before[1]), (c, want[0], before[0]))
    done, left = (compute, memory) if side == 0 else (memory, compute)
    np.testing.assert_array_equal(done[0], done[1])
    np.testing.assert_array_equal(left[0], left[2])


def test_a_wrong_result_would_be_noticed():
    work = Work(2, 3, 5, (2, 3))
    (c, d), _, _ = run(work, "cta")
    fewer = fusion.expected(replace(work, multiplications=4), *(x.numpy() for x in fusion.arrays(work)))
    assert (d != fewer[1]).any() and (c == fewer[0]).all()


def test_tickets_are_ready_for_the_next_run():
    call = fusion.prepare(EQUAL, "sm-aware", fusion.arrays(EQUAL), ctas_per_sm=2, trace=True)
    assert torch.equal(call(), call())


# ---------------------------------------------------------------- who ran beside whom


def test_overlap_needs_the_same_sm():
    work = fusion.balanced(EQUAL, lambda w, side: fusion.record(w, side).end.max())
    compute, memory = (fusion.record(work, side).end.max() for side in ALONE)
    assert compute == pytest.approx(memory, rel=0.02) and fusion.oracle(work) == max(compute, memory)
    found = fusion.compare(work)
    of = dict(zip(found.method, found.over_oracle, strict=True))
    assert of["serial"] == pytest.approx(2, rel=0.05) and of["cta"] > 1.9 and of["streams"] > 1.9
    assert of["interleaved"] < of["warp"] < of["sm-aware"] < of["alternate"] < of["serial"]
    assert found.over_oracle.corr(found.together) < -0.9  # the more an SM holds both, the sooner all is done


def test_stragglers_cost_the_halves_of_a_cta_more_than_sm_aware_ctas():
    warp, interleaved, aware = fusion.compare(Work(64, 256, 851, (16, 64)), ("warp", "interleaved", "sm-aware")).us
    assert min(warp, interleaved) > 1.2 * aware


def test_alternating_ctas_start_on_sms_of_their_own():
    first = fusion.record(EQUAL, "alternate").query("start == 0")
    assert len(first) == 8 and set(first[first.op == "compute"].sm) == {0, 2} and set(first.sm) == {0, 1, 2, 3}
    assert both_share(first, ALONE) == 0


def test_dealing_one_to_one_needs_tiles_of_one_length():
    uneven = Work(64, 256, 851, (16, 64))
    by_ratio, one_to_one = (fusion.record(uneven, "sm-aware", policy=p).end.max() for p in ("integer ratio", "50:50"))
    assert one_to_one > 1.3 * by_ratio


def test_streams_overlap_when_the_first_kernel_leaves_room():
    few = Work(64, 256, 851, (32, 8))
    assert fusion.compare(few, ("streams",), ctas_per_sm=2).over_oracle[0] > 1.9
    assert fusion.compare(few, ("streams",), ctas_per_sm=4).over_oracle[0] < 1.2


def test_held_counts_every_sm_at_every_moment():
    trace = fusion.record(EQUAL, "sm-aware")
    times = np.linspace(0, trace.end.max(), 30, endpoint=False)
    counts = held(trace, times, ALONE)
    assert (counts.sum(axis=0) == 4).all()
    for time, (nothing, compute, memory, both) in zip(times, counts.T, strict=True):
        now = trace[(trace.start <= time) & (time < trace.end)]
        ops = now.groupby("sm").op.agg(lambda x: "+".join(sorted(set(x)))).value_counts()
        assert nothing == 4 - now.sm.nunique()
        assert (compute, memory) == (ops.get("compute", 0), ops.get("memory", 0))
        assert both == ops.get("compute+memory", 0)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_eight_ctas_fit_on_an_sm_without_spills(tmp_path):
    flags = build.flags(fusion.FUSION, (9, 0))["extra_cuda_cflags"]
    command = ["nvcc", *flags, "-Xptxas", "-v", f"-I{build.CSRC}", "-cubin", str(build.CSRC / fusion.FUSION.kernels),
               "-o", str(tmp_path / "fusion.cubin")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(registers) == 16 and max(registers) * fusion.THREADS * 8 <= 65536
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "bad, words",
    [({"multiplications": 0}, "multiplications: got 0"), ({"compute": 0}, "compute: got 0"),
     ({"tiles": (33, 16)}, r"tiles: got \(33, 16\).*\(32, 128\)"), ({"tiles": (16, 0)}, "tiles: got")],
)  # fmt: skip
def test_bad_work_is_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        replace(EQUAL, **bad)


def test_unknown_method_and_room_are_refused():
    with pytest.raises(ValueError, match="method: got 'magic', allowed are compute, memory, serial"):
        fusion.prepare(EQUAL, "magic", fusion.arrays(EQUAL))
    with pytest.raises(ValueError, match="ctas_per_sm: got 9"):
        fusion.prepare(EQUAL, "cta", fusion.arrays(EQUAL), ctas_per_sm=9)
    with pytest.raises(ValueError, match="policy: got 'mine', allowed are 50:50"):
        fusion.prepare(EQUAL, "sm-aware", fusion.arrays(EQUAL), policy="mine")

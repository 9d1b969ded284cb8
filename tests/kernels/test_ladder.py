"""The ladder: every rung is right in the emulator and compiles for its GPU, and a mistake in each is named."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from emulator import events_in_order

from pod import kernels
from pod.kernels import build, ladder
from pod.lab import ladder as parts

torch = pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
RUNGS = list(ladder.RUNGS)
SPLIT = [name for name, rung in ladder.RUNGS.items() if rung.splits]
MARGIN = 1.5


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(os.cpu_count()) as made:
        yield made


@pytest.fixture(scope="module")
def built(pool, request):
    """The libraries for the emulator: right ones, and those with a mistake. nvcc goes on beside what they run."""
    calls = [pool.submit(ladder.library, name) for name in RUNGS]
    calls += [pool.submit(parts.changed, name, mistake) for name, mistake in parts.MISTAKES.items()]
    if shutil.which("nvcc"):
        request.getfixturevalue("said")
    for call in calls:
        call.result()


def torch_attention(q, k, v):
    """torch's own in float32, rounded."""
    group, tokens, context = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    mask = torch.ones(tokens, context, dtype=torch.bool).tril(context - tokens)
    q, k, v = (x.transpose(1, 2).float() for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).bfloat16()


def check(name, shape, splits=1, launches=1):
    """As exact as torch, and the same bits from every launch of one call, whose counters must be zero again."""
    q, k, v = parts.batch(*shape)
    want, out = parts.exact(q, k, v), torch.empty_like(q)
    run = ladder.launch(name, q, k, v, out, splits)
    outs = [(run(), out.clone())[1] for _ in range(launches)]

    def error(x):
        return np.linalg.norm(x.double().numpy() - want) / np.linalg.norm(want)

    assert error(outs[0]) <= MARGIN * error(torch_attention(q, k, v))
    assert all(torch.equal(out, outs[0]) for out in outs)
    return outs[0]


@emulated
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 130, 150, (1, 1)), (2, 1, 300), (2, 20, 129, (4, 2))], ids=str)
@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_is_as_exact_as_torch(name, shape):
    check(name, shape)


@emulated
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("splits", [2, 3, 9])
@pytest.mark.parametrize("name", SPLIT)
def test_parts_become_one_also_where_some_are_empty(name, splits):
    check(name, (2, 1, 300), splits, launches=2)
    check(name, (1, 40, 200), splits)


@emulated
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("name", "splits"), [("two", 3), ("roles", 1), ("turns", 1)])
def test_the_order_of_events_changes_no_bit(name, splits):
    first = check(name, (1, 60, 400), splits)
    for seed in (1, 2):
        with events_in_order(seed):
            assert torch.equal(check(name, (1, 60, 400), splits), first)


@emulated
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", RUNGS)
def test_a_mistake_in_a_rung_is_named_with_its_line(name):
    said = parts.broken(name)
    assert re.search(parts.MISTAKES[name].caught, said), said
    assert re.search(rf"{ladder.RUNGS[name].file}.cu:\d+|ring.cuh:\d+", said), said


@emulated
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", ["split", "roles", "turns"])
def test_a_rung_without_a_mistake_passes_what_the_mistakes_fail(name):
    assert parts.outcome(name) == "right result"


@emulated
def test_rung_3_with_the_line_of_rung_5_has_the_swizzle_alone_and_computes_the_same():
    (line,) = parts.new_lines("swizzle")
    assert parts.SWIZZLED.new in parts.text_of("swizzle")[line]
    q, k, v = parts.batch(1, 70, 130)
    swizzled = ladder.attention("mma", q, k, v, given=parts.changed("mma", parts.SWIZZLED))
    assert torch.equal(swizzled, ladder.attention("mma", q, k, v))


# ---------------------------------------------------------------- what is refused


def refused(what, name="row", splits=1, **changed):
    q, k, v = (changed.get(key, x) for key, x in zip("qkv", parts.batch(1, 2, 3), strict=True))
    with pytest.raises(ValueError, match=what):
        ladder.attention(name, q, k, v, splits)


def test_what_a_rung_cannot_take_is_refused_in_one_line():
    q, k, _ = parts.batch(1, 2, 3)
    refused("rung: got 'stairs', allowed are row, tile", name="stairs")
    refused("splits: got 2 for 'row', allowed is 1", splits=2)
    refused("splits: got 0 for 'split', allowed is 1 or more", name="split", splits=0)
    refused("allowed is dense bfloat16", q=q.float())
    refused("allowed is dense bfloat16", q=q.transpose(1, 2).contiguous().transpose(1, 2))
    refused("allowed are", q=q[..., :64])
    refused("allowed are", k=k[:, :1])


@emulated
def test_heads_that_tma_cannot_pack_are_refused():
    q, (k, v) = torch.zeros(1, 2, 6, 128).bfloat16(), torch.zeros(2, 1, 3, 2, 128).bfloat16()
    with pytest.raises(RuntimeError, match="a power of two"):
        ladder.attention("tma", q, k, v)


# ---------------------------------------------------------------- what the files are


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_is_one_complete_kernel_of_40_to_150_lines(name):
    assert 40 <= parts.code_lines(name) <= 150
    text = ladder.source(name).read_text()
    assert text.count("__global__") == 1 and text.startswith("// ")
    assert text.rstrip().splitlines()[-1][:9] == "POD_RUNG("


def test_a_rung_differs_from_the_one_before_by_its_idea():
    new = {name: len(parts.new_lines(name)) for name in RUNGS}
    assert new["swizzle"] == 1
    assert all(count < 70 for name, count in new.items() if name not in ("mma", "wgmma")), new


ARCHS = {False: ("80", "90"), True: ("90a",)}  # Hopper's
SPILLS = {"row", "tile"}  # a thread's row and its output are 192 registers, and the next load wants some, too


@pytest.fixture(scope="module")
def said(pool, tmp_path_factory):
    """What ptxas says of each rung, by name and architecture, once it has."""
    folder = tmp_path_factory.mktemp("cubins")
    cases = [(name, arch) for name in RUNGS for arch in ARCHS[ladder.RUNGS[name].hopper] if not build.too_old(arch)]
    return {case: pool.submit(ladder.compiler_says, ladder.source(case[0]), case[1], folder) for case in cases}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_compiles_for_its_gpu_and_only_the_first_two_spill(name, said):
    for arch in ARCHS[ladder.RUNGS[name].hopper]:
        if build.too_old(arch):
            pytest.skip(build.too_old(arch))
        words = said[name, arch].result()
        counts = (r"Used (\d+) reg", r"(\d+) bytes spill stores")
        registers, spilled = (int(re.search(what, words)[1]) for what in counts)
        assert registers <= 255 and (spilled > 0) == (name in SPILLS), words

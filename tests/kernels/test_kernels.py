"""The kernels of csrc/sm80/hybrid.cu on the emulator: every method, policy, tile and split against float64."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from batches import SEEDS, batches
from emulator import events_in_order
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pod
from pod.batch import HybridBatch
from pod.files import ROOT
from pod.kernels import build
from pod.kernels.launch import Header
from pod.kernels.sm80 import HYBRID, kind
from pod.kernels.sm90 import HOPPER
from pod.kernels.trace import chrome, frame, held_both
from pod.lab.trace import record
from pod.reference import hybrid_attention as reference
from pod.schedule import binding
from pod.schedule.decide import METHODS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(build.mode().name == "recorded", reason=build.mode().reason)

MARGIN = 1.5


def plan_of(batch, **choice):
    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    dtype = getattr(torch, batch.dtype)
    return pod.plan(batch.q_lens, batch.kv_lens, *heads, page_size=batch.page_size, dtype=dtype, device="cpu", **choice)


def torch_attention(batch, q, k, v, table):
    """torch's own attention in float32, as not every processor's computes in 16 bits; rounded and packed as q is."""
    outs, start = [], 0
    for i, (n, length) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        rows = [x[i, :length] if table is None else x[table[i].long()].flatten(0, 1)[:length] for x in (k, v)]
        keys, values = (x.transpose(0, 1).repeat_interleave(batch.group, 0)[None] for x in rows)
        mask = torch.ones(n, length, dtype=torch.bool)
        mask = mask.tril(length - n) if batch.causal else mask
        part = q[start : start + n].transpose(0, 1)[None]
        part, keys, values = (x.float() for x in (part, keys, values))
        outs.append(torch.nn.functional.scaled_dot_product_attention(part, keys, values, mask)[0].transpose(0, 1))
        start += n
    return torch.cat(outs).to(q.dtype)


def check(batch, sms=4, seed=0, **choice):
    """Run a batch twice on poisoned memory. Returns the trace of the second run."""
    with build.machine(sms):
        plan = plan_of(batch, **choice)
    q, k, v, table = batch.tensors(seed)
    lists = plan.placed(batch.causal)
    lists.partials.fill_(torch.nan)
    out, lse = pod.hybrid_attention(q, k, v, plan, table, causal=batch.causal, return_lse=True)
    again, rows = pod.hybrid_attention(q, k, v, plan, table, causal=batch.causal, trace=True)
    want, sums = reference(q, k, v, batch.q_lens, batch.kv_lens, table, causal=batch.causal)

    def error(x):
        return np.linalg.norm(x.double().numpy() - want) / np.linalg.norm(want)

    exact = torch.finfo(q.dtype).eps / 8  # rounding of the result alone, as when a single token is seen
    assert error(out) <= MARGIN * max(error(torch_attention(batch, q, k, v, table)), exact)
    np.testing.assert_allclose(lse.numpy(), sums, atol=1e-4)
    assert torch.equal(out, again)
    assert int(lists.counters.abs().sum()) == 0
    return plan, rows


# ---------------------------------------------------------------- right results


choices = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "policy": st.sampled_from(list(binding.POLICIES)),
        "ctas_per_sm": st.sampled_from([2, 4]),
        "prefill_splits": st.sampled_from(["limited", "vanilla", "none", 3]),
        "decode_splits": st.sampled_from(["auto", "stream-k", 1, 5]),
    }
).map(lambda choice: {k: v for k, v in choice.items() if k != "policy" or choice["method"] == "pod"})
POD = dict(method="pod", policy="proportional", ctas_per_sm=2, prefill_splits=3, decode_splits=5)


@settings(max_examples=60)
@given(batches(), choices, st.sampled_from([1, 3, 16]), SEEDS)
@example(HybridBatch([1], [1], 1, 1, 64), POD, 1, 0)  # one token alone
@example(HybridBatch([130], [130], 2, 1, 128), POD, 1, 0)  # no decode
@example(HybridBatch([1] * 5, [190] * 5, 2, 1, 128, page_size=16), POD, 16, 0)  # no prefill, more SMs than work
@example(HybridBatch([40, 1], [300, 150], 2, 1, 64, page_size=128), POD, 3, 7)  # pages longer than a tile of keys
def test_random_batches_are_as_exact_as_torch(batch, choice, sms, seed):
    with events_in_order(seed):
        check(batch, sms, **choice)


MIXED = HybridBatch((70, 1, 1, 20, 1), (150, 77, 33, 20, 260), 4, 2, 64, page_size=16)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ctas", [2, 4])
def test_every_method_and_tile_with_and_without_splits(method, ctas):
    for splits in ({"prefill_splits": "none", "decode_splits": 1}, {"prefill_splits": 2, "decode_splits": "stream-k"}):
        check(MIXED, method=method, ctas_per_sm=ctas, **splits)


@pytest.mark.parametrize("policy", binding.POLICIES)
@pytest.mark.parametrize("sms", [1, 3])
def test_every_policy_binds_as_its_specification_says(policy, sms):
    batch = HybridBatch((200, *[1] * 12), (260, *[90] * 12), 4, 2, 64)
    plan, rows = check(batch, sms, method="pod", policy=policy, decode_splits=2)
    lists = plan.schedule()
    table, cells = lists.deal, frame(rows)
    names = {op: binding.OPS.index(op) for op in binding.OPS}
    for r in cells.itertuples():
        wish = binding.wish(table, r.ticket)
        assert names[r.op] == (wish if r.draws == 1 else 1 - wish)
    for _, on_sm in cells.groupby("sm"):
        assert sorted(on_sm.ticket) == list(range(len(on_sm)))
    slots = [len(lists.prefill), -(-(len(lists.decode.pieces) - 1) // 4)]
    for op, count in zip(binding.OPS, slots, strict=True):
        mine = cells[cells.op == op].sort_values("id")
        assert list(mine.id) == list(range(count))
        late = cells[(cells.op != op) & (cells.draws == 2)]  # wished for this operation, but nothing was left of it
        assert late.empty or late.start.min() >= mine.start.max() - 1
    if sms == 1:  # then the tickets give the order, and the specification says everything
        spec = binding.draw(table, [0] * len(cells), *slots, 1)
        cells = cells.sort_values("ticket")
        assert [(names[r.op], r.id, r.draws) for r in cells.itertuples()] == [(a.op, a.id, a.draws) for a in spec]


def test_methods_place_work_as_they_promise():
    batch = HybridBatch.of(320, 320, decodes=24, decode_context=320, num_q_heads=4, num_kv_heads=2, head_dim=64)
    table = {method: record(batch, method=method, ctas_per_sm=2) for method in METHODS}
    both = {method: held_both(rows) for method, rows in table.items()}
    assert both["serial"] == 0 and both["pod"] == both["warp"] == 4
    serial = table["serial"]
    assert serial[serial.op == "decode"].start.min() >= serial[serial.op == "prefill"].end.max()
    blocks = table["cta"].sort_values("block")
    assert list(blocks.op) == ["prefill"] * (blocks.op == "prefill").sum() + ["decode"] * (blocks.op == "decode").sum()
    halves = table["warp"].groupby("block")
    assert (halves.sm.nunique() == 1).all() and halves.op.nunique().max() == 2
    events = chrome(table["pod"])["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(table["pod"]) and all(e.get("dur", 0) >= 0 for e in events)
    assert table["pod"].slot.max() == 1  # two CTAs an SM


def test_trace_is_the_same_wherever_the_tensors_lie():
    batch, kept, traces = HybridBatch((200, *[1] * 12), (260, *[90] * 12), 4, 2, 64), [], []
    for size in (0, 1001, 33):
        kept.append(torch.zeros(size))  # other addresses for what follows
        traces.append(record(batch, method="pod", ctas_per_sm=2))
    assert traces[0].equals(traces[1]) and traces[0].equals(traces[2])


def test_scale_is_used_and_plans_serve_both_masks():
    batch = HybridBatch((40, 1), (50, 60), 2, 1, 64)
    q, k, v, _ = batch.tensors()
    plan = plan_of(batch)
    for causal, scale in itertools.product((True, False), (0.02, 0.5)):
        got = pod.hybrid_attention(q, k, v, plan, softmax_scale=scale, causal=causal)
        want, _ = reference(q, k, v, batch.q_lens, batch.kv_lens, causal=causal, scale=scale)
        np.testing.assert_allclose(got.double().numpy(), want, atol=0.02)


def test_large_scores_do_not_overflow():
    batch = HybridBatch((20, 1), (40, 60), 2, 1, 64)
    q, k, v, _ = batch.tensors()
    got, lse = pod.hybrid_attention(q * 100, k * 100, v, plan_of(batch, decode_splits=2), return_lse=True)
    want, sums = reference(q * 100, k * 100, v, batch.q_lens, batch.kv_lens)
    np.testing.assert_allclose(got.double().numpy(), want, atol=0.03)
    np.testing.assert_allclose(lse.numpy(), sums, rtol=1e-4)


def test_hybrid_batch_of_the_readme_takes_seconds_not_minutes():
    import time

    batch = HybridBatch.of(64, 256, decodes=4, decode_context=256, num_q_heads=4, num_kv_heads=2, head_dim=64)
    plan, tensors = plan_of(batch), batch.tensors()
    pod.hybrid_attention(*tensors[:3], plan)
    start = time.process_time()
    pod.hybrid_attention(*tensors[:3], plan)
    assert time.process_time() - start < 2


# ---------------------------------------------------------------- the torch operators


@pytest.mark.parametrize("trace", [False, True])
def test_operators_pass_opcheck(trace):
    q, k, v, table = MIXED.tensors()
    lists = plan_of(MIXED, decode_splits=3).placed()
    operator = build.operator(HYBRID, kind(MIXED.dtype, MIXED.head_dim, trace), torch.device("cpu"))
    rest = (lists.lists, lists.counters, lists.partials, lists.header, 0.1, 0.0, None, True, trace)
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    tests = tests[:3] if trace else tests  # the last compares two runs, and no two have the same times
    torch.library.opcheck(operator, (q, k, v, table, *rest), test_utils=tests)


# ---------------------------------------------------------------- what goes wrong


GOOD = HybridBatch((4, 1), (20, 30), 4, 2, 64, page_size=16)


@pytest.mark.parametrize("method", [*METHODS, "lean"])
def test_sequences_without_a_token_are_nobody(method):
    q_lens, kv_lens = ([1, 0, 1, 0], [90, 40, 33, 0]) if method == "lean" else ([20, 0, 1, 0], [90, 40, 33, 0])
    check(HybridBatch(q_lens, kv_lens, 4, 2, 64, page_size=16), method=method)


@pytest.mark.parametrize("method", [*METHODS, "lean"])
def test_failed_launch_leaves_counters_that_serve_the_next(method):
    batch = GOOD if method != "lean" else HybridBatch((1, 1), (20, 30), 4, 2, 64, page_size=16)
    plan, good = plan_of(batch, method=method, decode_splits=2), batch.tensors()
    want = pod.hybrid_attention(*good[:3], plan, good[3])
    lists = plan.placed().lists
    token = int(lists[0])
    lists[0] = 99
    with pytest.raises(RuntimeError, match="out of bounds: .* of q"):
        pod.hybrid_attention(*good[:3], plan, good[3])
    lists[0] = token
    assert torch.equal(pod.hybrid_attention(*good[:3], plan, good[3]), want)


def test_tickets_that_two_launches_have_shared_lead_to_no_work_that_is_not_there():
    """Both operations seem to be drawn up: nothing is computed, nothing read past the lists, and the next is right."""
    plan, (q, k, v, table) = pod.plan(GOOD, device="cpu", method="pod"), GOOD.tensors()
    want, work = pod.hybrid_attention(q, k, v, plan, table), plan.placed()
    sms = work.schedule.sms
    work.counters[sms : sms + 2] = 1 << 20
    out = torch.full_like(want, 7.0)
    pod.hybrid_attention(q, k, v, plan, table, out=out)
    assert (out == 7.0).all() and not work.counters.any()
    assert torch.equal(pod.hybrid_attention(q, k, v, plan, table), want)


@pytest.mark.parametrize("method", [*METHODS, "lean"])
@pytest.mark.parametrize("page", [99, -1, 2**31 - 1, -(2**31)])
def test_a_wrong_page_stays_in_the_pool_and_spoils_nobody_else(method, page, monkeypatch):
    """Where nobody checks the table, as on a GPU. The emulator would see a step out of the caches."""
    monkeypatch.setattr("pod.kernels.allowed._check_pages", lambda *_: None)
    batch = GOOD if method != "lean" else HybridBatch((1, 1), (20, 30), 4, 2, 64, page_size=16)
    plan, (q, k, v, table) = plan_of(batch, method=method, decode_splits=2), batch.tensors()
    want = pod.hybrid_attention(q, k, v, plan, table)
    table[0, 0] = page
    got = pod.hybrid_attention(q, k, v, plan, table)
    assert torch.equal(got[-1], want[-1]) and not torch.equal(got[0], want[0])


# ---------------------------------------------------------------- building


KIND = ("bfloat16_64",)


def test_missing_tools_are_named_in_one_line(monkeypatch):
    monkeypatch.setattr(build, "_path", lambda: "/nowhere")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = build.mode.__wrapped__()
    assert here.name == "recorded" and "no ninja here" in here.reason and "\n" not in here.reason
    with pytest.raises(build.BuildError, match="no ninja here, so the kernels cannot be built; .*doctor"):
        build._build(HYBRID, KIND, None, Path("never.so"))


def test_package_without_its_sources_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "CSRC", tmp_path / "csrc")
    with pytest.raises(build.BuildError, match="^no csrc, neither in pod nor beside it, so .*$"):
        build._load.__wrapped__(HYBRID, KIND, None)


def test_kernels_need_no_package_of_the_notebooks():
    code = """
import sys
for name in ("pandas", "matplotlib", "PIL", "IPython", "ipywidgets"):
    sys.modules[name] = None  # importing it now fails
import pod, torch
plan = pod.plan([20, 1], [20, 33], 2, 1, 64, device="cpu")
q, k, v = torch.randn(21, 2, 64).bfloat16(), *(torch.randn(2, 33, 1, 64).bfloat16() for _ in "kv")
print(tuple(pod.hybrid_attention(q, k, v, plan).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "(21, 2, 64)\n"


def test_gpu_build_without_nvcc_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(build, "nvcc", lambda: None)
    with pytest.raises(build.BuildError, match="^no nvcc here, so the kernels cannot be built; .*doctor.*$"):
        build._build(HOPPER, ("bfloat16_128_8_16",), (9, 0), Path("never.so"))


@pytest.mark.parametrize("release, allowed", [("12.4", False), ("12.5", True), ("13.0", True)])
def test_hopper_build_needs_a_cuda_that_knows_versions_of_functions(monkeypatch, tmp_path, release, allowed):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "nvcc", lambda: str(nvcc))
    build.require_tools(gpu=True)
    if allowed:
        return build.require_tools(gpu=True, arch=HOPPER.arch)
    with pytest.raises(build.BuildError, match="^nvcc: got CUDA 12.4, allowed for sm_90a is 12.5 and later, so .*$"):
        build._build(HOPPER, ("bfloat16_128_8_16",), (9, 0), Path("never.so"))


@pytest.fixture
def workshop(monkeypatch, tmp_path):
    """A copy of csrc and an empty cache, where a builder that only pretends writes down what it is given."""
    shutil.copytree(build.CSRC, tmp_path / "csrc")
    monkeypatch.setattr(build, "CSRC", tmp_path / "csrc")
    monkeypatch.setenv("POD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_lack", lambda *_: "")
    monkeypatch.setattr(build, "compiler", lambda: "some-c++")
    calls = []

    def pretend(folder, include, environment, **options):
        assert environment["CXX"] == "some-c++"
        calls.append((include, options))
        time.sleep(0.2)
        if "broken" in "".join(options["cpp_sources"] + options["cuda_sources"]):
            return "Error building extension:\nx.cu:3:4: error: no wine\n" + "much text\n" * 99
        Path(folder, "made.so").write_text("library")
        return ""

    monkeypatch.setattr(build.builder, "build", pretend)
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(build, "_register_fake", lambda family, kind: None)
    return tmp_path / "cache" / "kernels", calls


def test_library_changes_its_name_with_what_it_is_made_from(workshop):
    def names():
        return [build._library(HYBRID, KIND, None), build._library(HOPPER, ("bfloat16_128_8_16",), (9, 0))]

    before = names()
    for header, changed in {"include/softmax.cuh": (True, True), "emulate/warp.h": (True, False),
                            "sm90/prefill.cuh": (False, True)}.items():  # fmt: skip
        path = build.CSRC / header
        path.write_text(path.read_text() + "// changed\n")
        after = names()
        assert tuple(a != b for a, b in zip(after, before, strict=True)) == changed, header
        before = after
    assert build._library(HYBRID, KIND, (9, 0)) != build._library(HYBRID, KIND, (8, 0))


def test_two_that_build_at_once_build_once(workshop, monkeypatch, capsys):
    monkeypatch.delenv("POD_QUIET")
    folder, calls = workshop
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(build._load.__wrapped__, HYBRID, KIND, None) for _ in range(2)]
        [d.result() for d in done]
    assert len(calls) == 1 and sorted(p.suffix for p in folder.iterdir()) == [".lock", ".so", ".sum"]
    said = capsys.readouterr().err
    assert said.startswith("building the emulated kernels hybrid_bfloat16_64 (half a minute, once) ... done in")


def test_threads_that_ask_for_the_same_operator_register_it_once():
    code = """
import threading, time, torch
from pod.kernels import build
from pod.kernels.launch import Header
from pod.kernels.sm80 import HYBRID
start, names, register = threading.Barrier(8), [], torch.library.register_fake
def late(name, function):
    names.append(name)
    time.sleep(0.05)  # time enough for another thread to begin with it
    register(name, function)
torch.library.register_fake = late
def ask():
    start.wait()
    build.operator(HYBRID, "bfloat16_64", torch.device("cpu"))
threads = [threading.Thread(target=ask) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
print(len(names) - len(set(names)), "twice of", len(set(names)))
"""
    build.operator(HYBRID, KIND[0], torch.device("cpu"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == f"0 twice of {len(HYBRID.kinds)}\n", "some versions of torch refuse a second time"


def test_failed_build_is_one_line_and_leaves_nothing_behind(workshop, capsys, monkeypatch):
    monkeypatch.delenv("POD_QUIET")
    folder, calls = workshop
    environment, source = dict(os.environ), build.CSRC / HYBRID.kernels
    source.write_text(source.read_text() + "broken")
    for _ in range(2):
        with pytest.raises(build.BuildError, match="not be built: no wine; .* words are in .*log$") as error:
            build._load.__wrapped__(HYBRID, KIND, None)
    assert len(calls) == 2 and dict(os.environ) == environment
    assert "much text" in Path(str(error.value).split(" in ")[-1]).read_text()
    assert sorted(p.suffix for p in folder.iterdir()) == [".lock", ".log"]
    assert capsys.readouterr().err.endswith("... failed\n")
    assert error.value._render_traceback_() == [f"BuildError: {error.value}"], "all that a notebook shows"


def test_a_failed_build_shows_few_rooms(workshop, monkeypatch):
    monkeypatch.setattr(build, "_load", build._load.__wrapped__)
    source = build.CSRC / HYBRID.kernels
    source.write_text(source.read_text() + "broken")
    with pytest.raises(build.BuildError) as error:
        build.operator.__wrapped__(HYBRID, KIND[0], torch.device("cpu"))
    assert len(error.traceback) == 2 and error.value.__suppress_context__, "who asked, and operator()"


@pytest.mark.parametrize("damage", [b"", b"lib", b"\0" * len("library")], ids=["empty", "torn", "zeros"])
def test_damaged_library_is_built_again(workshop, damage):
    folder, calls = workshop
    library = build._built(HYBRID, KIND, None)
    library.write_bytes(damage)
    assert build._built(HYBRID, KIND, None) == library and library.read_text() == "library" and len(calls) == 2
    assert build._built(HYBRID, KIND, None) == library and len(calls) == 2


def test_what_a_killed_build_left_goes_with_the_next(workshop):
    folder, _ = workshop
    (folder / "build-hybrid_emulated_0123" / "main.o").mkdir(parents=True)
    alive = folder / "build-other"
    alive.mkdir()
    with build._locked(folder / "other"):
        build._built(HYBRID, KIND, None)
    assert list(folder.glob("build-*")) == [alive]


def test_disk_that_is_full_costs_one_line(workshop, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "/some/file")

    monkeypatch.setattr(build.builder, "build", full)
    with pytest.raises(build.BuildError, match="^the kernels .* not be built: /some/file: No space left on device$"):
        build._built(HYBRID, KIND, None)
    monkeypatch.setattr(build.builder, "build", lambda *_, **__: "No space left on device")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(build.BuildError, match="^the kernels .* not be built: No space left on device$"):
        build._built(HYBRID, KIND, None)


@pytest.mark.parametrize(
    "family, kinds, arch",
    [(HYBRID, KIND, "80"), (HYBRID, ("float16_128_trace",), "80"), (HOPPER, ("bfloat16_128_8_16",), "90a")],
)
def test_gpu_library_is_made_of_both_sources_for_its_architecture(workshop, family, kinds, arch):
    _, calls = workshop
    capability = (9, 0) if family.arch else (8, 0)
    build._load.__wrapped__(family, kinds, capability)
    include, options = calls[0]
    [bindings], [source] = options["cpp_sources"], options["cuda_sources"]
    in_bindings, in_kernels = family.kinds[kinds[0]]
    assert bindings.rstrip().endswith(in_bindings or "}") and "TORCH_LIBRARY" in bindings
    assert in_kernels in source and "__global__" in source and "torch" not in source
    assert f"-gencode=arch=compute_{arch},code=sm_{arch}" in options["extra_cuda_cflags"]
    assert all(folder.is_dir() for folder in include)


def test_hopper_operator_promises_the_shapes_that_it_returns():
    q = torch.empty(6, 4, 64, dtype=torch.bfloat16, device="meta")
    rest = (None,) * 6
    for lse, trace in itertools.product((False, True), repeat=2):
        out, sums, stamps = HOPPER.fake("", q, *rest, list(Header(trace_rows=132)), 1.0, 0.0, None, lse, trace)
        assert out.shape == q.shape and out.dtype == q.dtype and sums.shape == (6 if lse else 0, 4)
        assert stamps.shape == (132 if trace else 0, 10)


@pytest.mark.parametrize("sms", [0, 1025, 10**20])
def test_a_machine_has_as_many_sms_as_can_be_emulated(sms):
    """A billion of them filled the memory, more ended in a traceback."""
    with pytest.raises(ValueError, match=f"^sms: got {sms}, allowed are 1 to 1024"), build.machine(sms):
        pass

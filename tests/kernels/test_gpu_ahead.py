"""What the tests on a card ask for is what they have built before; here, where nothing of it can run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import pod
from pod import attention
from pod.experiments.checks import gpu_tests, random_batches
from pod.kernels import build, launch, sm90
from pod.lab.measure import check_kernels

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[1] / "gpu"
CARD = torch.device("cuda", 0)
EACH = 5  # batches of which one is planned


@pytest.fixture
def ahead(monkeypatch):
    """The module, on a machine that looks as if it had an H200."""
    for folder in (FOLDER.parent, FOLDER):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sm90, "available", lambda device="cuda": True)
    monkeypatch.setattr(attention, "_device", lambda device: CARD)
    monkeypatch.setattr(build, "sm_count", lambda device: 132)
    monkeypatch.setattr(build, "gpu_of", lambda device: pod.GPUS["h200"])
    monkeypatch.setattr(launch, "place", lambda schedule, *_: SimpleNamespace(schedule=schedule))
    import ahead

    return ahead


def test_every_file_says_what_it_asks_for(ahead):
    planning = {path.stem for path in FOLDER.glob("test_*.py") if "test_gpu_cells" != path.stem}
    assert {module.__name__ for module in ahead.modules()} == planning


def test_whatever_is_planned_was_built(ahead, monkeypatch):
    """By each file for itself, as somebody may run one alone."""
    for module in ahead.modules():
        asked, used = list(module.asked()), set()
        built = ahead.kinds(asked, CARD)
        with monkeypatch.context() as here:
            here.setattr(build, "operator", lambda family, kind, device, used=used: used.add((family, kind)))
            few = asked if len(asked) < 200 else asked[::EACH]
            for method, batch in few:
                if method != "lean" or max(batch.q_lens) == 1:
                    pod.plan(batch, method=method).operator()
        assert used and used <= set(built), module.__name__


@pytest.mark.parametrize("case", random_batches.cases(), ids=lambda case: case["family"])
def test_whatever_random_batches_plan_was_built(ahead, monkeypatch, case):
    """Of all kinds by a first part of them, as whoever measures waits for each that is missing."""
    these, used = (case["family"], 300, case["seed"]), set()
    built = ahead.kinds(check_kernels.asked(*these), CARD)
    monkeypatch.setattr(build, "operator", lambda family, kind, device: used.add((family, kind)))
    for seed, (batch, choice) in enumerate(check_kernels.drawn(*these)):
        check_kernels.planned(batch, choice, seed).operator()
    assert used and used <= set(built) and len(used) > len(built) / 2


def test_a_kernel_that_nobody_said_is_missed(ahead):
    """Otherwise the tests above could not fail."""
    (workspace,) = (module for module in ahead.modules() if module.__name__.endswith("workspace"))
    names = {f"{family.name} {kind}" for family, kind in ahead.kinds(workspace.asked(), CARD)}
    assert "hopper bfloat16_128_8_16" in names and "hopper bfloat16_64_8_16" not in names


def test_kernels_of_some_files_can_be_built(ahead):
    assert [module.__name__ for module in ahead.modules(["test_gpu_fp8.py"])] == ["test_gpu_fp8"]
    assert ahead.modules(["test_gpu_cells.py"]) == []
    with pytest.raises(SystemExit, match="^ahead.py: got test_none.py, allowed are files of tests/gpu$"):
        ahead.modules(["test_none.py"])


def test_the_recording_builds_what_a_file_asks_for_and_says_each_test_as_it_goes(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(gpu_tests, "FOLDER", tmp_path)
    (tmp_path / "ahead.py").write_text("import sys\nprint('built for', *sys.argv[1:])")
    (tmp_path / "test_a.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    (tmp_path / "test_b.py").write_text("import sys\ndef test_ends(): pass\nsys.exit(7)\n")
    assert [case["file"] for case in gpu_tests.cases()] == ["test_a.py", "test_b.py"]
    row = gpu_tests.measure({"file": "test_a.py"})
    assert (row["passed"], row["failed"], row["skipped"]) == (1, 1, 0) and row["seconds"] > 0
    with pytest.raises(RuntimeError, match="test_b.py: pytest ended with"):
        gpu_tests.measure({"file": "test_b.py"})
    said = capfd.readouterr().out
    assert [line for line in said.splitlines() if "built" in line] == ["built for test_a.py", "built for test_b.py"]
    assert "test_good PASSED" in said and "test_bad FAILED" in said

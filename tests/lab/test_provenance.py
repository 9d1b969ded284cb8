"""A recording is believed only with a true sidecar; fresh measurements are held against it by their spread."""

import json
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pod import data
from pod.__main__ import main
from pod.batch import HybridBatch
from pod.files import ROOT, sha256
from pod.hardware import GPUS
from pod.lab import registry
from pod.lab.measure import compare, keep, provenance, sources, timing, worklists
from pod.lab.measure import run as measure
from pod.schedule import choose, decide

CSV = "batch,method,time_us,time_us_p10,time_us_p90\nC0,serial,700,690,720\nC0,pod,560,550,571\nC1,pod,1500,1490,1530\n"
META = {
    "gpu": "NVIDIA H200", "gpus": 1, "driver": "570.86.15", "cuda": "13.0", "torch": "2.11.0+cu130",
    "commit": "e97524a42276ec40e1d2a7eb202d543684540630", "dirty": False,
    "kernels": {},
    "telemetry": {"samples": 40} | {
        name: {"min": low, "median": middle, "max": high}
        for name, low, middle, high in (
            ("sm_clock_mhz", 1500, 1755, 1980), ("memory_clock_mhz", 3201, 3201, 3201),
            ("power_w", 120.5, 640.0, 698.2), ("temperature_c", 41, 55, 62),
        )
    },
    "timer": "CUDA events around one call", "l2": "cold", "repeats": 50, "started": "2026-02-03T10:11:12+00:00",
    "seconds": 33.4, "command": "python -m pod measure pod-06", "keys": ["batch", "method"],
}  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty tree in place of the repository's."""
    for module in (compare, keep, provenance):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(data, "RECORDED", tmp_path / "data" / "recorded")
    monkeypatch.setattr(data, "FRESH", tmp_path / "data" / "fresh")
    monkeypatch.setattr(data, "REPEATS", tmp_path / "data" / "repeats")
    return tmp_path


UUID = "GPU-1a2b3c4d-0000-1111-2222-333344445555"
SEEN = {"uuids": [UUID], "power_limit_w": 700.0, "packages": {"nvcc": "13.0"}, "tree": "0" * 63 + "1"}


def record(folder: Path, text: str = CSV, **changes) -> Path:
    """A valid recording in `folder`, with `changes` to its sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bands.csv"
    path.write_text(text)
    meta = META | {"sha256": sha256(path)} | changes
    data.sidecar_of(path).write_text(json.dumps(meta))
    return path


# ---------------------------------------------------------------- the recordings of this repository


def test_every_recording_here_has_a_true_sidecar():
    for path in provenance.recordings():
        provenance.check(path)


def test_no_sidecar_without_its_recording():
    stems = {path.with_suffix("") for path in provenance.recordings()}
    orphans = [p for p in data.RECORDED.rglob("*.meta.json") if Path(str(p).removesuffix(".meta.json")) not in stems]
    assert orphans == []


# ---------------------------------------------------------------- check


def test_a_true_recording_is_accepted(home):
    path = record(data.RECORDED / "h200")
    provenance.check(path)
    assert provenance.load(path)["gpu"] == "NVIDIA H200"
    assert provenance.recordings() == [path]


def test_no_sidecar(home):
    path = record(data.RECORDED / "h200")
    data.sidecar_of(path).unlink()
    with pytest.raises(ValueError, match="bands.csv: no sidecar bands.meta.json"):
        provenance.check(path)


def test_an_edited_file_is_refused(home):
    path = record(data.RECORDED / "h200")
    path.write_text(CSV.replace("560", "555"))
    with pytest.raises(ValueError, match="changed after it was measured"):
        provenance.check(path)


@pytest.mark.parametrize("name", list(provenance.FIELDS | provenance.LATER))
def test_every_field_is_needed(home, name):
    path = record(data.RECORDED / "h200", **SEEN)
    meta = json.loads(data.sidecar_of(path).read_text())
    del meta[name]
    data.sidecar_of(path).write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=f"missing or of the wrong type: {name}"):
        provenance.check(path)


TELEMETRY = META["telemetry"]


@pytest.mark.parametrize(("changes", "message"), [
    ({"commit": "main"}, "commit 'main'"),
    ({"commit": "0" * 40}, "is no hash"),
    ({"commit": "deadbeef" * 5}, "is no hash"),
    ({"driver": "new"}, "driver 'new'"),
    ({"cuda": "none"}, "cuda 'none'"),
    ({"dirty": "no"}, "wrong type: dirty"),
    ({"repeats": 0}, "repeats 0"),
    ({"seconds": -1}, "seconds -1"),
    ({"l2": "tepid"}, "l2 'tepid', allowed: cold, warm"),
    ({"timer": ""}, "wrong type: timer"),
    ({"started": "2999-01-01T00:00:00+00:00"}, "lies ahead"),
    ({"started": "2026-02-03T10:11:12"}, "no time zone"),
    ({"started": "yesterday"}, "no ISO date"),
    ({"telemetry": TELEMETRY | {"samples": 1}}, "at least two samples"),
    ({"telemetry": TELEMETRY | {"power_w": {"min": 700, "median": 640, "max": 690}}}, "telemetry power_w"),
    ({"telemetry": TELEMETRY | {"sm_clock_mhz": {"min": 0, "median": 0, "max": 0}}}, "telemetry sm_clock_mhz"),
    ({"telemetry": {"samples": 9}}, "telemetry temperature_c"),
    ({"kernels": {"hybrid": "unknown"}}, "kernels hybrid"),
    ({"keys": ["batch", "colour"]}, "lacks a key column"),
    ({"keys": []}, "lacks a key column"),
    ({"gpu": "NVIDIA A100-SXM4-80GB"}, "does not belong into h200/"),
])  # fmt: skip
def test_made_up_sidecars_are_refused(home, changes, message):
    with pytest.raises(ValueError, match=message):
        provenance.check(record(data.RECORDED / "h200", **SEEN | changes))


def test_a_median_outside_its_spread_is_refused(home):
    path = record(data.RECORDED / "h200", CSV.replace("560,550,571", "540,550,571"))
    with pytest.raises(ValueError, match="row 2: time_us 540 is not within its p10 550 and p90 571"):
        provenance.check(path)


def test_all_problems_are_named_at_once(home):
    with pytest.raises(ValueError) as error:
        provenance.check(record(data.RECORDED / "h200", repeats=0, l2="tepid"))
    assert "repeats" in str(error.value) and "tepid" in str(error.value) and "\n" not in str(error.value)


# ---------------------------------------------------------------- what a recording depends on


@pytest.fixture
def tree(home, monkeypatch):
    """A tree with two kernels and a model in Python."""
    (home / "csrc" / "include").mkdir(parents=True)
    (home / "csrc" / "hybrid.cu").write_text('#include "softmax.cuh"\n#include <cuda.h>\nint hybrid; // one\n')
    (home / "csrc" / "include" / "softmax.cuh").write_text('#include "ptx.cuh"\nint softmax;\n')
    (home / "csrc" / "include" / "ptx.cuh").write_text('const char *s = "a // b";\n')
    (home / "csrc" / "lean.cu").write_text("int lean;\n")
    (home / "csrc" / "model.py").write_text('"""Words."""\nwaves = a // b  # one\n')
    units = {"hybrid": ("csrc/hybrid.cu",), "lean": ("csrc/lean.cu",), "model": ("csrc/model.py",)}
    monkeypatch.setattr(sources, "ROOT", home)
    monkeypatch.setattr(sources, "UNITS", units)
    monkeypatch.setattr(sources, "sum_of", sources.sum_of.__wrapped__)  # files change here
    return home


@pytest.mark.parametrize(("name", "old", "new", "changed"), [
    ("include/ptx.cuh", "a // b", "a // c", ["hybrid"]),  # no comment: it is inside a string
    ("include/softmax.cuh", "int softmax", "long softmax", ["hybrid"]),
    ("hybrid.cu", "// one", "/* many\nwords */", []),
    ("hybrid.cu", "int hybrid", "\n\nint hybrid", []),
    ("hybrid.cu", "<cuda.h>", "<cuda_fp16.h>", ["hybrid"]),
    ("lean.cu", "int lean", "long lean", []),
    ("model.py", "a // b", "a // c", ["model"]),  # no comment either: Python
    ("model.py", "Words", "Other words", []),
    ("model.py", "  # one", "", []),
])  # fmt: skip
def test_stale_means_a_change_that_the_compiler_sees(tree, name, old, new, changed):
    path = record(data.RECORDED / "h200", kernels=sources.sums(["hybrid", "model"]))
    assert provenance.stale() == {}
    source = tree / "csrc" / name
    assert old in source.read_text()
    source.write_text(source.read_text().replace(old, new))
    assert provenance.stale() == ({path: changed} if changed else {})


def test_another_place_makes_nothing_stale(tree, monkeypatch):
    record(data.RECORDED / "h200", kernels=sources.sums(["hybrid"]))
    (tree / "csrc" / "sm80").mkdir()
    (tree / "csrc" / "hybrid.cu").rename(tree / "csrc" / "sm80" / "hybrid.cu")
    (tree / "csrc" / "include" / "ptx.cuh").rename(tree / "csrc" / "ptx.cuh")
    monkeypatch.setitem(sources.UNITS, "hybrid", ("csrc/sm80/hybrid.cu",))
    assert provenance.stale() == {}


def test_other_flags_make_stale(tree, monkeypatch):
    path = record(data.RECORDED / "h200", kernels=sources.sums(["lean", "model"]))
    flags = sources.build.flags
    more = lambda *a: {"extra_cuda_cflags": [*flags(*a)["extra_cuda_cflags"], "-g"]}  # noqa: E731
    monkeypatch.setattr(sources.build, "flags", more)
    assert provenance.stale() == {path: ["lean"]}, "and no flag changes Python"


def test_a_unit_that_is_gone_makes_stale(tree, monkeypatch):
    path = record(data.RECORDED / "h200", kernels=sources.sums(["lean"]))
    monkeypatch.delitem(sources.UNITS, "lean")
    assert provenance.stale() == {path: ["lean"]}


@pytest.fixture
def planned(tree, monkeypatch):
    """The table of `record` has a page that plans two batches."""
    batches = {"short": HybridBatch.of(512, 4096, 8, 4096, 8, 2), "long": HybridBatch.of(512, 8192, 8, 8192, 8, 2)}
    page = SimpleNamespace(UNITS=("hybrid",), cases=lambda: [{"batch": name} for name in batches],
                           planned=lambda case, gpu: [decide.hybrid(batches[case["batch"]], gpu, gpu.sms)])  # fmt: skip
    monkeypatch.setattr(registry, "measured", lambda: {"bands": "a page"})
    monkeypatch.setattr(registry, "maker", lambda table: page)
    return record(data.RECORDED / "h200", kernels=sources.sums(["lean"]), lists=worklists.sum_of("bands", "h200"))


def test_other_work_lists_make_stale_and_code_that_only_moves_does_not(planned, monkeypatch):
    before = choose.limited_splits
    monkeypatch.setattr(choose, "limited_splits", lambda *a: np.int32(before(*a)))
    assert provenance.stale() == {}
    monkeypatch.setattr(choose, "limited_splits", lambda *a: 1 + before(*a))
    assert provenance.stale() == {planned: ["work lists"]}


def test_other_cases_and_another_gpu_have_other_work_lists(planned):
    here = worklists.sum_of("bands", "h200")
    assert worklists.sum_of("bands", "h200", most=1) != here != worklists.sum_of("bands", "a100")
    assert worklists.sum_of("bands", "x9") == "", "of which nobody knows how many SMs it has"


def test_whoever_says_that_a_recording_holds_says_it_of_its_work_lists_too(planned, monkeypatch):
    monkeypatch.setenv("POD_COMMIT", META["commit"])
    before, splits = provenance.load(planned), choose.limited_splits
    monkeypatch.setattr(choose, "limited_splits", lambda *a: 1 + splits(*a))
    assert main(["keep", "--still", "as fast"]) == 0 and provenance.stale() == {}
    after = provenance.load(planned)
    assert after["lists"] != before["lists"] == after["held"][0]["lists"]


@pytest.mark.parametrize("name", [name for name in registry.measured() if hasattr(registry.maker(name), "planned")])
def test_a_page_that_plans_says_all_that_it_runs(name):
    """Its kernels' lists, and no recording of it is without."""
    page = registry.maker(name)
    made = {schedule.method for case in page.cases()[:3] for schedule in page.planned(case, GPUS["h200"])}
    assert {worklists.UNITS.get(method, "hybrid") for method in made} >= {*page.UNITS} & {"hybrid", "hopper", "lean"}
    for path in provenance.recordings():
        if path.stem == name:
            assert "lists" in provenance.load(path)


def test_unknown_unit(tree):
    with pytest.raises(ValueError, match="kernels: got 'hopper', allowed are hybrid, lean, model"):
        sources.sums(["hopper"])


def test_no_recording_here_is_of_other_kernels():
    assert provenance.stale() == {}, "measure again, or say why they hold: python -m pod keep --still"


# ---------------------------------------------------------------- keep


def test_what_still_holds_says_why(tree, monkeypatch, capsys, refused):
    monkeypatch.setenv("POD_COMMIT", META["commit"])
    path = record(data.RECORDED / "h200", kernels=sources.sums(["lean"]))
    record(data.RECORDED / "a100", kernels=sources.sums(["model"]))
    before = provenance.load(path)["kernels"]
    (tree / "csrc" / "lean.cu").write_text("int lean = 0;\n")
    assert main(["keep", "--still", " "]) == 2 and provenance.stale() == {path: ["lean"]}
    assert main(["keep", "--still", "the machine code is the same"]) == 0 and provenance.stale() == {}
    assert "1 recordings hold for the present kernels: the machine code is the same" in capsys.readouterr().out
    said = {"kernels": before, "until": META["commit"], "evidence": "the machine code is the same"}
    assert provenance.load(path)["held"] == [said]
    assert "data/recorded/h200/other.csv does not exist" in refused("keep", "h200/other.csv", "--still", "why")


def test_fresh_files_become_the_recorded_ones(home, capsys):
    assert main(["keep"]) == 0 and "nothing to keep" in capsys.readouterr().out
    old, new = record(data.RECORDED / "h200"), record(data.FRESH / "h200", CSV.replace("560,550,571", "565,552,571"))
    text = new.read_text()
    assert main(["keep"]) == 0 and "agrees   bands.csv" in capsys.readouterr().out
    assert old.read_text() == text and not new.exists() and provenance.load(old)
    record(data.FRESH / "a100", gpu="NVIDIA A100-SXM4-80GB")
    assert main(["keep", "a100/bands.csv"]) == 0 and "new      a100/bands.csv" in capsys.readouterr().out


@pytest.mark.parametrize("changes, message", [
    ({"dirty": True}, "measured in a tree with changes"),
    ({"kernels": {"lean": "0" * 16}}, "measured with other kernels"),
    ({"sha256": "0" * 64}, "was changed after it was measured"),
])  # fmt: skip
def test_what_must_not_be_kept_stays(home, changes, message, refused):
    old = record(data.RECORDED / "h200").read_text()
    fresh = record(data.FRESH / "h200", CSV.replace("560", "565"), **changes)
    assert message in refused("keep")
    assert fresh.exists() and (data.RECORDED / "h200" / "bands.csv").read_text() == old


# ---------------------------------------------------------------- write, with a GPU that answers as nvidia-smi does


@pytest.fixture
def gpu(monkeypatch):
    answers = {"name": "NVIDIA H200", "driver_version": "570.86.15", "clocks.sm": "1755", "clocks.mem": "3201",
               "power.draw": "640.5", "temperature.gpu": "55", "power.limit": "700.00"}  # fmt: skip
    monkeypatch.setattr(provenance, "_nvml", lambda: None)
    monkeypatch.setattr(provenance, "_uuids", lambda: [UUID])
    monkeypatch.setattr(provenance, "_smi", lambda *fields: [[answers[f] for f in fields]])
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setenv("POD_COMMIT", META["commit"])
    return answers


def test_write_then_check(home, tree, gpu):
    path = record(data.RECORDED / "h200")
    with provenance.watch(interval=0.01) as run:
        while len(run.samples) < 4:
            pass
    sidecar = provenance.write(path, run, keys=["batch", "method"], timer="CUDA events", l2="cold", repeats=50,
                               kernels=["hybrid"], command="python -m pod measure pod-06")  # fmt: skip
    meta = json.loads(sidecar.read_text())
    assert set(meta) == set(provenance.FIELDS | provenance.LATER)
    assert meta["uuids"] == [UUID] and meta["power_limit_w"] == 700 and meta["tree"] == sources.tree()
    assert meta["telemetry"]["samples"] >= 5
    assert meta["telemetry"]["power_w"] == {"min": 640.5, "median": 640.5, "max": 640.5}
    assert meta["commit"] == META["commit"] and meta["dirty"] is False
    assert provenance.stale() == {}


def test_a_sidecar_names_the_peers_that_were_loaded(monkeypatch):
    """Not those that only lie there; and what nobody installed by a name is unknown."""
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    for name in ("flash_attn_interface", "transformers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    owners = {"flashinfer": ["flashinfer-python"], "flash_attn_interface": ["a-wheel"]}
    monkeypatch.setattr(provenance.metadata, "packages_distributions", lambda: owners)
    monkeypatch.setattr(provenance.metadata, "version", lambda package: {"flashinfer-python": "0.6.13"}[package])
    monkeypatch.setattr(provenance.build, "cuda", lambda: (13, 0))
    assert provenance._packages() == {"nvcc": "13.0", "flashinfer": "flashinfer-python 0.6.13", "vllm": "unknown"}


def test_what_is_later_than_the_fields_must_have_them(home):
    provenance.check(record(data.RECORDED / "h200", started="2026-01-01T00:00:00+00:00"))
    meta = META | {"sha256": "0" * 64, "started": f"{provenance.SINCE}T00:00:00+00:00"}
    assert "uuids, power_limit_w, packages, tree" in provenance._missing(meta)[0]
    assert provenance._missing(meta | SEEN) == []


@pytest.fixture
def clone(tree, monkeypatch):
    """The tree as a repository with one commit."""
    run = lambda *args: subprocess.run(["git", "-C", str(tree), *args], check=True, capture_output=True)  # noqa: E731
    run("init", "-q")
    run("add", "-A")
    run("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one")
    monkeypatch.delenv("POD_COMMIT", raising=False)
    return provenance._commit()[0]


def test_the_commit_is_one_that_was_seen(tree, clone, refused):
    """What a copy without git says of itself is held against the files of that commit."""
    assert provenance.tree_of(clone) == sources.tree()
    (tree / "csrc" / "notes.txt").write_text("no source\n")
    assert provenance.tree_of(clone) == sources.tree()
    path = record(data.FRESH / "h200", **SEEN | {"tree": sources.tree(), "commit": clone})
    (tree / "csrc" / "lean.cu").write_text("int lean = 1;\n")
    other = sources.tree()
    assert other != provenance.tree_of(clone)
    record(data.FRESH / "h200", **SEEN | {"tree": other, "commit": clone})
    assert "other files than those of its commit" in refused("keep") and path.exists()
    record(data.FRESH / "h200", **SEEN | {"tree": provenance.tree_of(clone), "commit": clone})
    assert main(["keep"]) == 0
    with pytest.raises(ValueError, match="commit: got e97524a4, allowed is one that this clone has"):
        provenance.tree_of(META["commit"])


def test_recordings_here_are_of_the_commits_that_they_name():
    seen = [meta for path in provenance.recordings() if "tree" in (meta := provenance.load(path))]
    for meta in seen:
        try:
            assert provenance.tree_of(meta["commit"]) == meta["tree"]
        except ValueError:
            pass  # a shallow clone, or a commit that was rebased


# ---------------------------------------------------------------- measured once more


def test_a_repeat_lies_beside_the_recording(home, monkeypatch, capsys, refused):
    monkeypatch.setattr(provenance, "tree_of", lambda commit: SEEN["tree"])
    old = record(data.RECORDED / "h200").read_text()
    again = dict(started="2026-02-04T21:30:00+00:00", **SEEN)
    fresh = record(data.FRESH / "h200", CSV.replace("560,550,571", "565,552,571"), **again)
    assert main(["keep", "--repeat"]) == 0 and "agrees   bands.csv" in capsys.readouterr().out
    kept = data.REPEATS / "2026-02-04-1a2b3c4d" / "h200" / "bands.csv"
    assert provenance.load(kept)["uuids"] == [UUID] and not fresh.exists()
    assert (data.RECORDED / "h200" / "bands.csv").read_text() == old
    monkeypatch.setenv("POD_FROM", "repeats/2026-02-04-1a2b3c4d/h200")
    assert data.read("bands").time_us[1] == 565 and data.card() == "H200"
    record(data.FRESH / "h200", **again)
    assert "repeated on this GPU and day" in refused("keep", "--repeat")


def test_the_same_day_on_the_same_gpu_is_no_repeat(home, monkeypatch, refused):
    monkeypatch.setattr(provenance, "tree_of", lambda commit: SEEN["tree"])
    record(data.RECORDED / "h200", **SEEN)
    fresh = record(data.FRESH / "h200", started="2026-02-03T22:00:00+00:00", **SEEN)
    assert "recorded on this GPU and day" in refused("keep", "--repeat")
    assert fresh.exists() and not data.REPEATS.exists()


@pytest.mark.parametrize("changes, text, message", [
    ({}, CSV, "no id of a GPU to repeat"),
    (SEEN, CSV.replace("C1,pod,1500,1490,1530\n", ""), "1 recorded rows were not measured"),
])  # fmt: skip
def test_what_is_no_repeat_stays(home, changes, text, message, monkeypatch, refused):
    monkeypatch.setattr(provenance, "tree_of", lambda commit: SEEN["tree"])
    record(data.RECORDED / "h200")
    fresh = record(data.FRESH / "h200", text, **changes)
    assert message in refused("keep", "--repeat") and fresh.exists()


def test_write_refuses_what_check_would(home, gpu):
    path = record(data.RECORDED / "a100")
    with provenance.watch() as run:
        pass
    with pytest.raises(ValueError, match="does not belong into a100/"):
        provenance.write(path, run, keys=["batch", "method"], timer="t", l2="cold", repeats=1)


def test_watch_stops_when_the_measurement_fails(gpu):
    with pytest.raises(ZeroDivisionError), provenance.watch() as run:
        1 / 0  # noqa: B018
    assert len(run.samples) >= 2


def test_no_gpu_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(provenance, "_nvml", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="no NVIDIA GPU found"):
        provenance.collect()


def test_a_gpu_that_cuda_does_not_show_is_no_gpu(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf 'GPU-a, NVIDIA H200, 570.86.15\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(provenance, "_nvml", lambda: None)
    for shown in ([], ["GPU-b"]):
        monkeypatch.setattr(provenance, "_uuids", lambda shown=shown: shown)
        with pytest.raises(ValueError, match="no NVIDIA GPU found"):
            provenance.collect()


def test_the_gpus_that_cuda_shows_are_asked_in_its_order(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf 'GPU-a, 100\\nGPU-b, 200\\nGPU-c, 300\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(provenance, "_uuids", lambda: ["GPU-c", "GPU-a"])
    assert provenance._smi("power.draw") == [["300"], ["100"]]

    class Nvml:
        nvmlDeviceGetHandleByUUID = staticmethod(str)

    assert provenance.nvml_device(Nvml, 0) == "GPU-c" and provenance.nvml_device(Nvml, 1) == "GPU-a"


def test_a_copy_without_git_must_be_told_its_commit(home, monkeypatch):
    monkeypatch.delenv("POD_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(home.parent))
    with pytest.raises(ValueError, match="set POD_COMMIT"):
        provenance._commit()
    monkeypatch.setenv("POD_COMMIT", META["commit"])
    monkeypatch.setenv("POD_DIRTY", "1")
    assert provenance._commit() == (META["commit"], True)


def test_git_knows_the_commit():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert re.fullmatch(provenance.PATTERNS["commit"], provenance._commit()[0])


# ---------------------------------------------------------------- compare


def both(home, fresh_csv, **changes):
    return record(data.FRESH / "h200", fresh_csv, **changes), record(data.RECORDED / "h200")


def test_the_same_again_agrees(home):
    outcome = compare.compare(*both(home, CSV))
    assert outcome.agrees and (outcome.inside, outcome.values, outcome.missing) == (3, 3, 0)


def test_within_the_recorded_spread_agrees(home):
    assert compare.compare(*both(home, CSV.replace("C1,pod,1500,1490,1530", "C1,pod,1600,1590,1610"))).agrees


def test_slower_than_the_spread_differs(home, capsys):
    outcome = compare.compare(*both(home, CSV.replace("C1,pod,1500,1490,1530", "C1,pod,1800,1790,1810")))
    assert not outcome.agrees and outcome.inside == 2
    assert "time_us at ('C1', 'pod') is 1.20 of its recording" in outcome.line
    assert main(["compare"]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_one_that_differs_does_not_hide_the_next(home, capsys):
    both(home, CSV.replace("C1,pod,1500,1490,1530", "C1,pod,1800,1790,1810"))
    for folder in (data.FRESH, data.RECORDED):
        there = folder / "h200"
        for name in (path.name for path in list(there.iterdir())):
            (there / name.replace("bands", "later")).write_bytes((there / name).read_bytes())
    assert main(["compare"]) == 1
    said = capsys.readouterr().out
    assert "bands.csv" in said and "later.csv" in said


def test_a_row_that_was_not_measured_differs(home):
    outcome = compare.compare(*both(home, CSV.rsplit("C1", 1)[0]))
    assert outcome.missing == 1 and not outcome.agrees


def test_columns_without_spread_have_a_tolerance(home):
    plain = "batch,method,energy_mj\nC0,pod,100\n"
    recorded = record(data.RECORDED / "h200", plain)
    for value, agrees in ((109, True), (112, False)):
        fresh = record(data.FRESH / "h200", plain.replace("100", str(value)))
        assert compare.compare(fresh, recorded).agrees is agrees


def test_two_gpus_do_not_compare(home):
    with pytest.raises(ValueError, match="measured on NVIDIA H100, recorded on NVIDIA H200"):
        compare.compare(*both(home, CSV, gpu="NVIDIA H100"))


def test_twice_the_same_key_is_refused(home):
    with pytest.raises(ValueError, match="two rows share the key"):
        compare.compare(*both(home, CSV + "C1,pod,1500,1490,1530\n"))


def test_compare_without_fresh_data(home, capsys, refused):
    assert main(["compare"]) == 0
    assert "nothing to compare" in capsys.readouterr().out
    assert "data/fresh/h200/bands.csv does not exist" in refused("compare", "h200/bands.csv")


@pytest.mark.parametrize("gpu, folder", [
    ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA GeForce RTX 4090", "4090"), ("Thor", "thor"),
])  # fmt: skip
def test_a_gpu_has_one_folder_and_its_name_is_part_of_the_gpus(gpu, folder):
    assert provenance.folder_of(gpu) == folder and folder in gpu.lower()


@pytest.fixture
def toy(monkeypatch, gpu):
    """A suite of one row, and a GPU that is there: `toy(ms, *options)` measures it by the verb."""
    suite = SimpleNamespace(KEYS=("batch",), UNITS=(), REPEATS=1, cases=lambda: [{"batch": "C0"}])
    monkeypatch.setattr(measure.registry, "measured", lambda: {"toy": "toy"})
    monkeypatch.setitem(sys.modules, "toy", suite)
    for name, answer in (("is_available", True), ("memory_reserved", 0), ("mem_get_info", (1, 1))):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda answer=answer: answer)

    def run(ms: float, *out: str) -> None:
        suite.measure = lambda case: time.sleep(0.01) or {"ms": ms, "ms_p10": ms - 1, "ms_p90": ms + 1}
        assert main(["measure", "toy", "--again", *out]) == 0

    return run


def test_what_measure_writes_compare_finds(home, toy, capsys):
    toy(70, "--out", str(data.RECORDED / "h200"))
    toy(71)
    assert (data.FRESH / "h200" / "toy.csv").is_file() and main(["compare"]) == 0
    assert "agrees   toy.csv: 1/1 in band" in capsys.readouterr().out
    toy(90)
    assert main(["compare"]) == main(["compare", "h200/toy.csv"]) == 1
    assert "DIFFERS  toy.csv: 0/1 in band" in capsys.readouterr().out


def test_another_gpu_is_compared_with_nothing(home, toy, gpu, capsys):
    gpu["name"] = "NVIDIA A100-SXM4-80GB"
    toy(70)
    assert main(["compare"]) == 0
    assert "alone    a100/toy.csv: nothing is recorded" in capsys.readouterr().out


def test_a_file_without_sidecar_does_not_hide_the_others(home, toy, capsys):
    toy(70, "--out", str(data.RECORDED / "h200"))
    toy(70)
    record(data.RECORDED / "h200")
    data.sidecar_of(record(data.FRESH / "h200")).unlink()
    assert main(["compare"]) == 1
    said = capsys.readouterr().out
    assert "REFUSED  h200/bands.csv: bands.csv: no sidecar" in said and "agrees   toy.csv" in said


# ---------------------------------------------------------------- one recording in several sessions


def test_a_recording_goes_on_only_where_it_began(monkeypatch, tmp_path):
    here = {"gpu": "NVIDIA H200", "gpus": 1, "driver": "580.1", "cuda": "13.0", "torch": "2.11.0"}
    monkeypatch.setattr(provenance, "collect", lambda: here)
    path = tmp_path / "toy.csv"
    assert provenance.begun(path, []) is None
    data.sidecar_of(path).write_text(json.dumps(here | {"kernels": {}}))
    assert provenance.begun(path, [])["gpu"] == "NVIDIA H200"
    data.sidecar_of(path).write_text(json.dumps(here | {"kernels": {}, "uuids": ["GPU-b"]}))
    monkeypatch.setattr(provenance, "collect", lambda: here | {"uuids": ["GPU-a"]})
    with pytest.raises(ValueError, match="toy.csv: begun with another uuids"):
        provenance.begun(path, [])
    data.sidecar_of(path).write_text(json.dumps(here | {"kernels": {}, "gpus": 2}))
    with pytest.raises(ValueError, match="toy.csv: begun with another gpus; --again measures all of it here"):
        provenance.begun(path, [])


def says_truly(timer: str, l2: str, repeats: int) -> bool:
    """What is taken once is no shuffled round, and L2 is cold where something empties it."""
    return (repeats > 1 or "shuffled" not in timer) and (l2 == "cold") == ("empties" in timer or "fill" in timer)


@pytest.mark.parametrize("path", provenance.recordings(), ids=lambda path: path.name)
def test_a_sidecar_names_its_own_timer(path):
    meta = provenance.load(path)
    assert says_truly(meta["timer"], meta["l2"], meta["repeats"])


@pytest.mark.parametrize("module", registry.measured().values())
def test_what_is_measured_next_names_its_own_timer(module):
    page = import_module(module)
    assert says_truly(getattr(page, "TIMER", timing.TIMER), getattr(page, "L2", "cold"), page.REPEATS)


def test_two_sessions_have_one_sidecar():
    telemetry = lambda n, low, mid, high: {"samples": n} | {  # noqa: E731
        name: {"min": low, "median": mid, "max": high} for name in provenance.TELEMETRY}  # fmt: skip
    before = {"started": "1", "seconds": 10.0, "commit": "a", "telemetry": telemetry(30, 1, 2, 5)}
    after = {"started": "2", "seconds": 5.5, "commit": "b", "telemetry": telemetry(10, 2, 4, 4)}
    both = provenance.joined(before, after)
    assert both == {"started": "1", "seconds": 15.5, "commit": "b", "telemetry": telemetry(40, 1, 2.5, 5)}

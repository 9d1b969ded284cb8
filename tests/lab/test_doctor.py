"""The doctor names every lack with its cure and never faints, whatever the machine looks like."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pod import data
from pod.lab import doctor


def run_doctor(**environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, **environment}
    command = [sys.executable, "-m", "pod", "doctor"]
    return subprocess.run(command, env=env, cwd=doctor.ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """stub("nvcc", "echo hello") puts a program of that name first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_report_has_one_row_a_check_and_no_stack_trace():
    done = run_doctor()
    rows = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [row[7:19].strip() for row in rows] == list(doctor.CHECKS)
    assert "Traceback" not in done.stdout + done.stderr


def test_machine_without_tools_lacks_them_in_words(tmp_path):
    done = run_doctor(PATH=str(tmp_path), CXX="", CUDA_HOME=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "no compiler that knows C++20" in done.stdout and "mend it: " in done.stdout
    assert "ok     nvcc        none; needed only with a GPU" in done.stdout or "GPU's kernels cannot" in done.stdout


def test_compiler_that_rejects_cpp20_is_a_lack(stub, monkeypatch):
    stub("old-compiler", "exit 1")
    monkeypatch.setenv("CXX", "old-compiler")
    check = doctor.check_compiler()
    assert "old-compiler" in check.found and check.mend == "unset CXX"


def test_real_compiler_is_found(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    if doctor._output("c++", "--version") is None:
        pytest.skip("no compiler here")
    assert not doctor.check_compiler().mend


def test_missing_package_names_its_cure(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: None if name == "ninja" else "1.0")
    check = doctor.check_packages()
    assert check.found == "not installed: ninja" and "pip install" in check.mend


def test_untested_version_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: "0.0.1")
    assert "not the tested version: dask 0.0.1" in doctor.check_packages().found


@pytest.mark.parametrize(
    ("python", "mended"), [((3, 9, 18), True), ((3, 10, 0), False), ((3, 13, 5), False), ((3, 14, 0), True)]
)
def test_python_range(monkeypatch, python, mended):
    monkeypatch.setattr(doctor.sys, "version_info", python)
    assert bool(doctor.check_python().mend) == mended


def cuda(monkeypatch, available: bool, version: str | None, **card):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(**card))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (card.get("major"), card.get("minor")))
    monkeypatch.setattr(torch.version, "cuda", version)


def test_gpu_is_described(monkeypatch):
    card = {"name": "NVIDIA H200", "multi_processor_count": 132, "total_memory": 140 * 2**30, "major": 9, "minor": 0}
    cuda(monkeypatch, True, "13.0", **card)
    assert doctor.check_gpu().found == "2 × NVIDIA H200, 132 SMs, 140 GiB"
    cuda(monkeypatch, True, "13.0", **{**card, "major": 7, "minor": 5})
    assert "older than sm_80" in doctor.check_gpu().found


def test_gpu_that_torch_cannot_use_is_a_lack(monkeypatch, stub):
    cuda(monkeypatch, False, None)
    stub("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    check = doctor.check_gpu()
    assert "torch" in check.found and check.mend.endswith("--force-reinstall torch")
    stub("nvidia-smi", "echo 'no devices were found'")
    assert not doctor.check_gpu().mend


def test_nvcc_must_match_the_cuda_of_torch(monkeypatch, stub):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    stub("nvcc", "echo 'Cuda compilation tools, release 12.8, V12.8.1'")
    cuda(monkeypatch, True, "13.0")
    assert "torch was built with CUDA 13.0" in doctor.check_nvcc().found and doctor.check_nvcc().mend
    cuda(monkeypatch, True, "12.8")
    assert doctor.check_nvcc() == doctor.Check("nvcc", "12.8")
    stub("nvcc", "exit 3")
    assert "cannot be built" in doctor.check_nvcc().found and doctor.check_nvcc().mend


@pytest.mark.parametrize("release, capability, lacks", [
    ("12.4", (9, 0), True), ("12.4", (8, 0), False), ("12.5", (9, 0), False),
])  # fmt: skip
def test_nvcc_that_is_too_old_for_hopper_is_a_lack_on_hopper(monkeypatch, stub, release, capability, lacks):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    stub("nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.1'")
    cuda(monkeypatch, True, "12.8", major=capability[0], minor=capability[1])
    check = doctor.check_nvcc()
    assert ("the Hopper kernel needs 12.5" in check.found) == (release == "12.4")
    assert bool(check.mend) == lacks


@pytest.mark.parametrize("version, apt", [("13.0", "cuda-toolkit-13-0"), ("12.8", "cuda-toolkit-12-8")])
def test_nvcc_is_mended_by_the_toolkit_of_torch(monkeypatch, stub, tmp_path, version, apt):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    stub("nvcc", "exit 3")
    cuda(monkeypatch, True, version)
    monkeypatch.setattr(doctor.shutil, "which", lambda tool, **_: f"/bin/{tool}" if tool == "apt-get" else None)
    assert f"sudo apt-get install {apt} " in doctor.check_nvcc().mend
    monkeypatch.setattr(doctor.shutil, "which", lambda tool, **_: None)
    assert doctor.check_nvcc().mend == f"conda install -c conda-forge cuda-nvcc={version}"


def test_doctor_and_badge_agree_on_the_compiler(stub):
    """macOS has a c++ that only tells to install one; an old one is as good as none."""
    stub("old", "exit 1")
    done = run_doctor(CXX="old", CUDA_HOME="")
    assert "lacks  C++" in done.stdout and "recorded · no C++20 compiler here" in done.stdout


def test_stale_recordings_are_named(monkeypatch):
    from pod.lab.measure import provenance

    path = data.RECORDED / "h200" / "waves.csv"
    monkeypatch.setattr(provenance, "recordings", lambda: [path, path.with_name("other.csv")])
    monkeypatch.setattr(provenance, "stale", lambda: {path: ["csrc/sm80/hybrid.cu"]})
    assert doctor.check_recordings().found == "1 of 2 made by other kernels: h200/waves.csv"


def test_a_check_that_fails_is_a_row(monkeypatch):
    def faint():
        raise RuntimeError("driver says no\nand more")

    monkeypatch.setattr(doctor, "CHECKS", {"GPU": faint})
    assert [check.line for check in doctor.examine()] == ["?      GPU         could not look: driver says no"]


def test_badge_is_one_line(capsys):
    doctor.badge()
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and line.split(" · ")[0] in {"mode: gpu", "mode: emulated", "mode: recorded"}

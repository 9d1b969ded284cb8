"""The wheel, built here without a network: what is inside, and that it runs where no clone is."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pod import files
from pod.__main__ import ANYWHERE, VERBS
from pod.files import CSRC, PACKAGE, ROOT

ATTEND = """
import pod, torch
from pod import files, reference
assert files.INSTALLED
batch = pod.HybridBatch.of(20, 40, decodes=2, decode_context=33, num_q_heads=2, num_kv_heads=1, head_dim=64)
q, k, v, table = batch.tensors()
out = pod.hybrid_attention(q, k, v, pod.plan(batch, device="cpu"), table)
truth, _ = reference.hybrid_attention(q, k, v, batch.q_lens, batch.kv_lens, table)
print(pod.__file__, pod.kernels.mode().name, float(abs(out.double().numpy() - truth).max()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built as pip does it, with the flit_core that is here."""
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-build-isolation", str(ROOT), "-w", str(folder))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    _pip("install", "--target", str(folder), str(wheel))
    return folder


def _pip(verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--no-deps", "--no-index", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """In an empty folder, with the libraries that are built already: their names say what they were made from."""
    there = {**os.environ, "PYTHONPATH": str(installed), "POD_CACHE": os.environ.get("POD_CACHE", str(ROOT / ".cache"))}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=there, capture_output=True, text=True)


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_holds_the_package_and_csrc_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {f"pod/{name}" for name in _names(PACKAGE) if "__pycache__" not in name}
    assert inside == package | {f"pod/csrc/{name}" for name in _names(CSRC)}
    assert {"pod/py.typed", "pod/csrc/sm90/hybrid.cu"} <= inside and not any("test_" in name for name in inside)


def test_it_attends_from_an_empty_folder(installed, tmp_path):
    done = _run(installed, tmp_path, "-c", ATTEND)
    file, mode, error = done.stdout.split() or [done.stderr] * 3
    assert Path(file).is_relative_to(installed) and mode in ("emulated", "gpu") and float(error) < 0.02
    assert not list(tmp_path.iterdir())


BARE = """
import sys
sys.modules |= dict.fromkeys(["pandas", "matplotlib", "nbformat", "joblib"])  # what only the chapters need
from pod.__main__ import ANYWHERE, VERBS, main
for verb in VERBS.keys() - set(ANYWHERE):
    assert main([verb]) == 2
"""


def test_a_verb_that_needs_a_clone_says_so_in_one_line_without_what_the_chapters_need(installed, tmp_path):
    done = _run(installed, tmp_path, "-c", BARE)
    said = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(said)) == (0, "", len(VERBS) - len(ANYWHERE))
    assert all(re.fullmatch(r"python -m pod (\w+): verb: got \1, allowed without a clone are doctor, trace, generate, "
                            "serve", line) for line in said)  # fmt: skip


WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ("pandas", "starlette") else found(name, *rest)
from pod.__main__ import main
assert [main(["trace"]), main(["serve", "--random", "tiny"])] == [2, 2]
"""


def test_what_is_missing_beside_a_wheel_is_named_as_pip_wants_it(installed, tmp_path):
    done = _run(installed, tmp_path, "-c", WITHOUT)
    trace, serve = done.stderr.splitlines()
    assert trace == "python -m pod trace: packages: pandas not installed; mend it: pip install pandas"
    assert serve == "python -m pod serve: packages: starlette not installed; mend it: pip install starlette"


def test_the_doctor_sees_patients_without_a_clone(installed, tmp_path):
    said = _run(installed, tmp_path, "-m", "pod", "doctor").stdout
    assert "Python" in said and "mode" in said and "could not look" not in said and "constraints.txt" not in said


def test_an_installed_package_keeps_its_cache_out_of_site_packages(monkeypatch):
    monkeypatch.delenv("POD_CACHE", raising=False)
    monkeypatch.setattr(files, "INSTALLED", True)
    assert ROOT / ".cache" not in files.places()


def test_type_checkers_see_what_is_offered():
    import pod

    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    offered = {alias.asname: node.module for node in stub.body for alias in node.names}
    assert offered == pod._HOME


@pytest.mark.parametrize("name", ["plan", "workspace", "build", "hybrid_attention"])
def test_every_argument_of_a_public_call_has_a_type(name):
    import pod

    call = getattr(pod, name)
    count = call.__code__.co_argcount + call.__code__.co_kwonlyargcount
    assert len(call.__annotations__) == count + 1

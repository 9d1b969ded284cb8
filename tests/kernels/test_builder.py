"""The process that compiles: its environment is its own, odd folders are fine, and it goes with whoever started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pod import kernels
from pod.files import ROOT
from pod.kernels import builder
from pod.kernels.build import _path, compiler

pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)

SOURCE = 'extern "C" int answer() { return 42; }\n'
SLOW = """#!/bin/sh
case "$*" in *fsyntax-only*|*dump*|*version*|"-v") exec c++ "$@" ;; esac
echo $$ > {pid}
exec sleep 100
"""
BUILD = """
import sys
from pathlib import Path
from pod.kernels import builder
print(builder.build(Path(sys.argv[1]), [], {"CXX": sys.argv[2]}, name="tiny", cpp_sources=["int x;"], cuda_sources=[]))
"""


def build(folder: Path, source: str = SOURCE, **environment: str) -> str:
    tools = {"PATH": _path(), "CXX": compiler()}
    return builder.build(folder, [folder], tools | environment, name="tiny", cpp_sources=[source], cuda_sources=[])


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_library_is_built_in_a_folder_with_spaces_and_umlauts(tmp_path, locale):
    where = os.path.dirname(torch.__file__)
    if locale and not where.isascii():
        pytest.skip(f"torch itself cannot be imported from {where!r} by a Python that is told to know ASCII alone")
    folder = tmp_path / "mäßig schön"
    folder.mkdir()
    (folder / "half.h").write_text(SOURCE)
    code = "import sys, test_builder as t; from pathlib import Path; print(t.build(Path(sys.argv[1]), t.HALF))"
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True,
                          env={**os.environ, **locale, "PYTHONPATH": path})  # fmt: skip
    assert done.stdout == "\n" and (folder / "tiny.so").exists()


HALF = '#include "half.h"\n'


def test_torch_may_lie_in_a_folder_with_spaces_and_umlauts(tmp_path, monkeypatch):
    site = tmp_path / "mäßig schön"
    site.mkdir()
    (site / "torch").symlink_to(Path(torch.__file__).parent)
    monkeypatch.syspath_prepend(site)
    assert build(tmp_path) == "" and (tmp_path / "tiny.so").exists()


def test_what_the_compiler_says_comes_back_and_the_environment_stays(tmp_path):
    before = dict(os.environ)
    said = build(tmp_path, "int answer() { return forty_two; }\n")
    assert "forty_two" in said and "Traceback" not in said and dict(os.environ) == before


def test_a_builder_that_cannot_start_says_why(tmp_path):
    assert "ninja" in build(tmp_path, PATH="/nowhere").lower()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_compilers_end_with_the_process_that_wanted_the_library(tmp_path, end):
    noted = tmp_path / "pid"
    slow = tmp_path / "slow-c++"
    slow.write_text(SLOW.format(pid=noted))
    slow.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": _path()}
    with subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path), str(slow)], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as wants:  # fmt: skip
        wait_for(lambda: noted.exists() and noted.read_text().strip() or wants.poll() is not None, 60)
        assert wants.poll() is None, wants.stdout.read()
        compiler = int(noted.read_text())
        assert is_running(compiler)
        wants.send_signal(end)
        wait_for(lambda: not is_running(compiler), 60)


def wait_for(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")

"""The promises of the house: pinned versions agree, imports are light, verbs answer mistakes in one line."""

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import pod
from pod.__main__ import VERBS, main
from pod.files import ROOT
from pod.kernels import BuildError

pytestmark = pytest.mark.any_processor


def run(*command: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=kwargs.pop("cwd", ROOT), capture_output=True, text=True, timeout=300, **kwargs)


def python(*arguments: str) -> subprocess.CompletedProcess:
    return run(sys.executable, *arguments)


# ---------------------------------------------------------------- pins


def pins(text: str) -> list[str]:
    return [line.strip(" -'") for line in text.splitlines() if "==" in line and not line.lstrip().startswith("#")]


def test_conda_and_pip_pin_the_same_versions():
    constraints, conda = ((ROOT / name).read_text() for name in ("constraints.txt", "environment.yml"))
    assert pins(conda) == pins(constraints)
    assert len(pins(constraints)) > 15


def test_every_dependency_is_pinned():
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|notebooks|dev|serve) = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    wanted = {re.match(r"[\w-]+", name)[0] for name in re.findall(r'"([^"]+)"', " ".join(lists))} - {"pod"}
    assert len(lists) == 4
    assert wanted <= {pin.partition("==")[0] for pin in pins((ROOT / "constraints.txt").read_text())}


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_pin_can_be_installed_under_every_python(version):
    """One that could not left Python 3.10 without an environment, and every verb ends there."""
    wanted = [Requirement(pin) for pin in pins((ROOT / "constraints.txt").read_text())]
    wanted = [pin for pin in wanted if not pin.marker or pin.marker.evaluate({"python_version": version})]
    allowed = {pin.name: metadata(pin.name).get("Requires-Python") or "" for pin in wanted if is_here(pin)}
    assert len(allowed) > 15
    assert [name for name, versions in allowed.items() if f"{version}.9" not in SpecifierSet(versions)] == []


def is_here(pin: Requirement) -> bool:
    with suppress(PackageNotFoundError):
        return metadata(pin.name)["Version"].partition("+")[0] in pin.specifier
    return False


# ---------------------------------------------------------------- the same everywhere


def nodes(kind: type[ast.AST]):
    """(file and line, node) of all of this kind in the package."""
    for path in sorted((ROOT / "pod").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield f"{path.name}:{node.lineno}", node


def test_rows_that_tie_keep_their_order_on_every_processor():
    """numpy's quicksort swaps equal ones as the processor's vectors suggest; more keys than one sort stably."""
    calls = [(place, node) for place, node in nodes(ast.Call) if getattr(node.func, "attr", "") == "sort_values"]
    single = [(place, call) for place, call in calls if not (call.args and isinstance(call.args[0], ast.List))]
    loose = [place for place, call in single if "stable" not in ast.dump(call)]
    assert len(calls) > 10 and not loose


def test_nothing_rests_on_an_assertion():
    """`python -O` leaves them out."""
    assert [place for place, _ in nodes(ast.Assert)] == []


# ---------------------------------------------------------------- imports


@pytest.mark.parametrize("module", ["pod", "pod.__main__", "pod.lab.doctor", "pod.lab.registry"])
def test_import_is_light(module):
    code = f"import sys, {module}; print({{'torch', 'numpy', 'pandas', 'matplotlib'}} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


@pytest.mark.parametrize("verb", ["doctor", "measure", "compare", "keep", "compute", "trace", "simulate", "capacity",
                                  "judge", "generate", "serve"])  # fmt: skip
def test_a_verb_imports_no_pages(verb):
    """Of the laboratory only figures and claims want them all."""
    pages = "[m for m in sys.modules if m.startswith('pod.experiments.')]"
    code = f"import sys, pod.__main__ as p, argparse; p.import_module(p.VERBS['{verb}'][0]).configure("
    assert python("-c", f"{code}argparse.ArgumentParser()); print({pages})").stdout == "[]\n"


def test_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="'frobnicate'; it offers HybridBatch, GPUS"):
        pod.frobnicate  # noqa: B018


def test_public_names_resolve():
    from pod.batch import HybridBatch
    from pod.hardware import GPUS

    assert pod.HybridBatch is HybridBatch and pod.GPUS is GPUS
    assert set(pod.__all__) <= set(dir(pod))


# ---------------------------------------------------------------- python -m pod


MISTAKES = [[], ["frobnicate"], ["doctor", "--frobnicate"], ["figures", "pod-99"], ["doctor", "two\nlines"],
            ["figures", "two\nlines"], ["contest", "tickets", "two\nlines.py"]]  # fmt: skip


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistake_on_the_command_line_costs_one_line(arguments):
    done = python("-m", "pod", *arguments)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("error, code, words", [
    (BuildError("no nvcc here, so the kernels cannot be built"), 2, "no nvcc here, so the kernels cannot be built"),
    (PermissionError(13, "Permission denied", "/root/x"), 2, "/root/x: Permission denied"),
    (KeyboardInterrupt(), 130, "interrupted"),
])  # fmt: skip
def test_what_ends_a_verb_costs_one_line(error, code, words, monkeypatch, capsys):
    monkeypatch.setattr("pod.lab.trace.run", Mock(side_effect=error))
    assert (main(["trace"]), capsys.readouterr().err) == (code, f"python -m pod trace: {words}\n")


def test_an_interruption_while_it_loads_has_no_words():
    code = """
        import os, runpy, signal, sys, time
        class Interrupts:
            def find_spec(self, name, *_):
                if name == "pod.kernels":
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(5)
        sys.meta_path.insert(0, Interrupts())
        runpy.run_module("pod", run_name="__main__")
    """
    done = python("-c", textwrap.dedent(code))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    for wrong in (lambda args: textwrap.wrap("text", width=0), lambda args: 1 / 0):  # a library's ValueError, too
        monkeypatch.setattr("pod.lab.trace.run", wrong)
        with pytest.raises((ValueError, ZeroDivisionError)):
            main(["trace"])


@pytest.mark.parametrize("below", ["", "below"])
@pytest.mark.parametrize("verb", [["trace"], ["figures", "pod-t1"]])
def test_out_that_cannot_be_written_is_refused_before_any_work(verb, below, tmp_path, monkeypatch, refused):
    monkeypatch.setattr("pod.lab.trace.record", None)
    monkeypatch.setattr("pod.lab.gallery._draw", None)
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / below
    said = refused(*verb, "--out", out)
    assert said == f"python -m pod {verb[0]}: --out: got {out}, allowed is a folder that can be written\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_output_onto_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pod", "figures", "--list"]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "python -m pod figures: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of Unix closes them")
@pytest.mark.parametrize(
    "verb, closed",
    [
        (verb, closed)
        for verb in ("simulate --requests 20", "compute --check host-jitter")
        for closed in (">&-", "<&- >&- 2>&-")
    ]
    + [("figures waves", "2>&-")],  # fmt: skip
)
def test_closed_streams_end_no_verb(verb, closed):
    done = run("bash", "-c", f"exec {shlex.quote(sys.executable)} -m pod {verb} {closed}")
    assert (done.returncode, done.stderr) == (0, "") and bool(done.stdout) == (closed == "2>&-")


def test_a_reader_who_has_seen_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pod", "figures", "--list"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_folder_that_is_gone_is_said(tmp_path):
    command = f"mkdir gone && cd gone && rmdir ../gone && {shlex.quote(sys.executable)} -m pod trace"
    done = run("bash", "-c", command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert done.stderr == "python -m pod trace: the folder that this was called in is gone\n"


def test_letters_that_a_terminal_does_not_know_end_nothing():
    done = run(sys.executable, "-m", "pod", "doctor", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode in (0, 1) and done.stderr == "" and " ? " in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_an_argument_of_no_letters_is_refused(verb, refused):
    """Of a variable that is not set: it would draw into this folder, or serve another model than the one meant."""
    assert refused(verb, "") == f"python -m pod {verb}: argument: got '', allowed are none and one with letters\n"


def test_unknown_figure_lists_the_known():
    message = python("-m", "pod", "figures", "pod-99").stderr
    assert "pod-99" in message and "pod-03" in message


def test_help_lists_every_verb_that_is_here():
    text = python("-m", "pod", "--help").stdout
    for verb, (module, _) in VERBS.items():
        file = ROOT / (module.replace(".", "/") + ".py")
        assert (re.search(rf"^    {verb}\s", text, re.MULTILINE) is not None) == file.exists(), verb


# ---------------------------------------------------------------- make


@pytest.fixture
def house(tmp_path):
    """A copy of the Makefile with a `python3` that only pretends: `venv` makes a folder, pip writes down its call."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text("""#!/bin/sh
case "$*" in
  *version_info*) exit ${TOO_OLD:-0} ;;
  *"-m venv --clear .venv") echo made >> log; rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *"install"*) echo installed >> log; exit ${PIP_FAILS:-0} ;;
esac
""")  # fmt: skip
    fake.chmod(0o755)

    def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        env = {**os.environ, "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}", **environment}
        env = {key: value for key, value in env.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "PYTHON")}
        return run("make", *arguments, cwd=tmp_path, env=env)

    make.folder = tmp_path
    make.log = lambda: (tmp_path / "log").read_text().split() if (tmp_path / "log").exists() else []
    return make


def test_environment_is_built_once(house):
    assert "minutes" in house("env").stdout
    assert house.log() == ["made", "installed"]
    house("env")
    assert house.log() == ["made", "installed"]


def test_interrupted_build_starts_clean(house):
    assert house("env", PIP_FAILS="1").returncode != 0
    (house.folder / ".venv" / "half").touch()
    assert house("env").returncode == 0
    assert house.log() == ["made", "installed"] * 2
    assert not (house.folder / ".venv" / "half").exists()


def test_changed_pins_update_in_place_and_survive_an_interruption(house):
    house("env")
    later = (house.folder / ".venv" / ".ready").stat().st_mtime + 10
    os.utime(house.folder / "constraints.txt", (later, later))
    assert house("env", PIP_FAILS="1").returncode != 0
    assert house.log() == ["made", "installed", "installed"]
    house("env")
    assert house.log() == ["made", "installed", "installed", "made", "installed"]


def test_broken_interpreter_is_replaced(house):
    house("env")
    (house.folder / ".venv" / "bin" / "python").unlink()
    os.utime(house.folder / ".venv" / ".ready", (0, 0))
    house("env")
    assert house.log() == ["made", "installed"] * 2


def test_no_suitable_python_is_said_in_words(house):
    for name in ("python3.13", "python3.12", "python3.11", "python3.10"):
        shutil.copy(house.folder / "bin" / "python3", house.folder / "bin" / name)
    done = house("env", TOO_OLD="1")
    assert done.returncode != 0 and "no Python 3.10 to 3.13" in done.stderr
    assert house.log() == []


def test_unknown_verb_lists_the_known(house):
    message = house("frobnicate").stderr
    assert "no verb 'frobnicate'" in message and "reproduce-figures" in message


def test_make_help_names_every_verb_and_nothing_else():
    text = (ROOT / "Makefile").read_text()
    verbs = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()) - {"help"}
    assert set(re.findall(r"^make ([\w-]+)", run("make", "help").stdout, re.MULTILINE)) == verbs
    assert set(re.search(r"there are help, (.*)\"", text)[1].split(", ")) == verbs


def test_pytest_has_the_last_word():
    steps = run("make", "-n", "--no-print-directory", "test").stdout.splitlines()
    before = "\n".join(steps[:-1])
    assert " -m ruff check" in before and " -m ruff format --check" in before and " -m pytest --nbval " in steps[-1]


def test_the_weakest_processor_runs_the_tests_that_compute():
    verbs = ("test", "test-weakest")
    once, again = (run("make", "-n", "--no-print-directory", verb).stdout.splitlines()[-1] for verb in verbs)
    settings, tests, rest = again.partition(once)
    assert tests and rest == " -m 'not any_processor'"
    assert {"OPENBLAS_CORETYPE=Nehalem", "ATEN_CPU_CAPABILITY=default", "OMP_NUM_THREADS=1"} <= set(settings.split())


def test_continuous_integration_calls_both_tests_and_nothing_cleverer():
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["set -e", "make test", "make test-weakest"] and os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_tests_of_a_card_need_no_jupyter(tmp_path):
    """A machine that has a GPU and pytest collected none of them."""
    (tmp_path / "jupyter_client.py").write_text("raise ImportError('not installed here')\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:nbval", "-p", "no:cacheprovider"]
    done = run(*command, "tests/gpu", env=env)
    assert done.returncode == 0 and "error" not in done.stdout, done.stdout + done.stderr


def test_whoever_skips_a_test_says_why():
    """And pytest shows it: -rs in addopts."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(node, "func", None), "attr", "")
            words = [x.value for x in getattr(node, "keywords", ()) if x.arg == "reason"]
            words += node.args[:1] if name == "skip" else []
            if name in ("skip", "skipif") and not [x for x in words if getattr(x, "value", x) != ""]:
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not silent
    assert "-rs" in (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("addopts")[2].splitlines()[0]

"""Ctrl-C, as a terminal sends it, to every verb at work: one line, 130, no process left, and no file half written."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from uuid import uuid4

import pytest

from pod.files import ROOT

pytestmark = [
    pytest.mark.any_processor,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc to look for processes in"),
]

# Runs a verb. So many seconds after it has called a function, the whole group of processes hears Ctrl-C.
AT_WORK = """
    import os, pkgutil, runpy, signal, sys, threading, warnings
    warnings.simplefilter("ignore", RuntimeWarning)  # of runpy: pod.__main__ is known
    place, seconds, *sys.argv = sys.argv[1:]
    module, _, name = place.rpartition(".")
    module = pkgutil.resolve_name(module)
    called = getattr(module, name)
    begun = threading.Event()
    def interrupt():
        begun.wait()
        time.sleep(float(seconds))
        os.killpg(0, signal.SIGINT)
    def at_work(*args, **kwargs):
        begun.set()
        return called(*args, **kwargs)
    import time
    setattr(module, name, at_work)
    threading.Thread(target=interrupt, daemon=True).start()
    runpy.run_module("pod", run_name="__main__", alter_sys=True)
"""


def interrupted(place: str, after: float, *verb: str, **env):
    """The verb's end, and how many processes of its it left."""
    mark = f"POD_MARK={uuid4()}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-c", textwrap.dedent(AT_WORK), place, str(after), "pod", *verb]
    env = {**os.environ, "PYTHONPATH": str(ROOT), name: value, **env}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, start_new_session=True)
    end = time.monotonic() + 20
    while (left := [pid for pid in Path("/proc").glob("[0-9]*") if has(pid, mark)]) and time.monotonic() < end:
        time.sleep(0.1)
    return done, left


def has(pid: Path, mark: str) -> bool:
    try:
        return mark.encode() in (pid / "environ").read_bytes()
    except OSError:
        return False


SLOW = "import time\ntime.sleep(60)\n"
AT_WORK_IN = [
    ("pod.lab.doctor.run", 0, "doctor"),
    ("pod.lab.gallery._draw", 0.2, "figures", "pod-06"),
    ("pod.sweep._spread", 0.1, "figures"),
    ("pod.sweep._spread", 3, "figures"),
    ("pod.sweep._spread", 0, "compute", "--check", "pod-t6"),
    ("pod.sweep._spread", 0.2, "compute", "--check", "pod-t6"),
    ("pod.lab.trace.record", 1, "trace"),
    ("pod.simulate.capacity.search", 0.5, "capacity"),
    ("pod.simulate.judge.run", 0.1, "judge"),
    ("pod.lab.notebooks.execute", 0.3, "notebooks", "06"),  # its kernel has not begun,
    ("pod.lab.notebooks.execute", 1, "notebooks", "06"),  # begins,
    ("pod.lab.notebooks.execute", 4, "notebooks", "06"),  # and computes
    ("pod.learn.scores.run", 0, "progress"),
    ("pod.learn.contests._read", 0.5, "contest", "tickets", "slow.py"),
    ("pod.lab.site.build.build", 3, "site"),
    ("pod.lab.readme.refreshed", 0.1, "readme", "--check"),
    ("pod.serving.serve.start", 0, "serve", "--port", "0", "--random", "tiny"),
]
WRITES = ("figures", "trace", "site")


@pytest.mark.parametrize("place, after, verb", [(place, after, verb) for place, after, *verb in AT_WORK_IN])
def test_a_verb_at_work_ends_in_one_line(place, after, verb, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    verb = [str(tmp_path / word) if word == "slow.py" else word for word in verb]
    out = ["--out", str(tmp_path / "out")] if verb[0] in WRITES else []
    done, left = interrupted(place, after, *verb, *out, POD_CACHE=str(tmp_path / "cache"))
    said = done.stderr.splitlines()
    assert (done.returncode, said[-1:]) == (130, [f"python -m pod {verb[0]}: interrupted"]), done
    assert all("about ten seconds" in line or "half a minute" in line for line in said[:-1]), done.stderr
    assert not left
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupted_figure_leaves_the_older_one(tmp_path, monkeypatch):
    """Ctrl-C, a full disk: half a picture lay there, and the gallery showed it."""
    from matplotlib.figure import Figure

    from pod.lab import gallery

    def half(self, file, **_):
        (file.write if hasattr(file, "write") else Path(file).write_bytes)(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", half)
    kept = [tmp_path / "lean-01.csv", tmp_path / "lean-01.png"]
    for path in kept:
        path.write_text("older")
    with pytest.raises(KeyboardInterrupt):
        gallery.reproduce(["lean-01"], tmp_path)
    assert [path.read_text() for path in kept] == ["older", "older"]

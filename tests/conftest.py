"""Settings shared by all tests."""

import os
import signal
import socket
import sys
from contextlib import closing, suppress
from itertools import count

import matplotlib
import pytest
from hypothesis import settings

from pod import kernels
from pod.__main__ import main

matplotlib.use("Agg")  # no test opens a window
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of whatever a script starts with "&": children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["POD_QUIET"] = "1"  # who builds a library first depends on the order; notebooks must not show it

# A notebook's kernel is told ports that are free and takes them a second later: not such as systems hand out meanwhile.
PORTS = count(10_000 + 500 * os.getpid() % 20_000)


def is_free(place: tuple[str, int]) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(place) != 0


with suppress(ImportError):  # a machine that has a GPU to test need not have Jupyter
    from jupyter_client.connect import LocalPortCache

    LocalPortCache.find_available_port = lambda self, ip: next(port for port in PORTS if is_free((ip, port)))

# The same examples everywhere: a red run can be repeated. HYPOTHESIS_PROFILE=search looks for new ones,
# on the emulator in other orders of events, too.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture
def refused(capsys):
    """What a verb says that it cannot do: one line, and nothing else."""

    def says(*argv) -> str:
        try:
            code = main([*map(str, argv)])
        except SystemExit as end:  # the parser's way
            code = end.code
        out, err = capsys.readouterr()
        assert code == 2 and out == "" and err.count("\n") == 1, out + err
        return err

    return says


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Lays rows where, from then on, recordings of an H200 are looked for."""
    import pandas as pd

    def lay(name: str, rows) -> None:
        (tmp_path / "h200").mkdir(exist_ok=True)
        pd.DataFrame(rows).to_csv(tmp_path / "h200" / f"{name}.csv", index=False)
        monkeypatch.setattr("pod.data.RECORDED", tmp_path)

    return lay


def pytest_terminal_summary(terminalreporter):
    """Say aloud how many tests ran on a card: a green run without one has not seen the kernels there."""
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(kind, ())]
    on_card = [report for report in reports if "tests/gpu/" in getattr(report, "nodeid", "")]
    ran = sum(report.outcome != "skipped" for report in on_card)
    if on_card:
        terminalreporter.write_line(f"{ran} GPU tests ran" + ("" if ran else f": {kernels.mode().reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Without a compiler, what runs a kernel is skipped with the reason; everything else must work."""
    try:
        return (yield)
    except kernels.BuildError as error:
        if kernels.mode().name == "recorded":
            pytest.skip(str(error))
        raise

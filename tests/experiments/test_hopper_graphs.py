"""Ways inside CUDA graphs: what is captured and replayed, and the gain in two factors, of numbers that are known."""

import csv
from contextlib import contextmanager

import pytest
import torch
from matplotlib import pyplot as plt

from pod import data
from pod.experiments.hopper import hopper_graphs, hopper_peers
from pod.lab import readme
from pod.lab.measure import peers, timing


class Graph:
    """In the place of torch's: what was called between its borders, again."""

    def __init__(self):
        self.calls, self.open = [], False

    def replay(self):
        for call in self.calls:
            call()


class Stream:
    def wait_stream(self, other):
        pass


@pytest.fixture
def cuda(monkeypatch):
    graphs = []

    @contextmanager
    def capture(graph):
        graphs.append(graph)
        graph.open = True
        yield
        graph.open = False

    @contextmanager
    def stream(side):
        yield

    for name, value in {"CUDAGraph": Graph, "Stream": Stream, "graph": capture, "stream": stream,
                        "current_stream": Stream}.items():  # fmt: skip
        monkeypatch.setattr(f"torch.cuda.{name}", value)
    return graphs


@pytest.mark.parametrize("calls", [1, 4])
def test_a_graph_replays_what_was_captured(cuda, calls):
    log, outputs = [], (torch.zeros(3), None, torch.zeros(2))

    def launched(setting):
        log.append(setting)
        for x in (outputs[0], outputs[2]):
            x.fill_(1.0)

    def make(setting):
        def call():
            if cuda and cuda[-1].open:
                cuda[-1].calls.append(lambda: launched(setting))
            return outputs

        return call

    replay = peers.graphed(make, calls)("batch")
    assert len(cuda[0].calls) == calls, "warmed up outside, captured as often as asked"
    log.clear()
    assert replay() is outputs and log == ["batch"] * calls


@pytest.mark.parametrize("in_the_graph", [0, 1])
def test_a_graph_that_lacks_what_a_call_does_is_refused(cuda, in_the_graph):
    """A kernel that was launched where the capture does not see it, and counters that only the call sets to zero."""
    outputs, replays = (torch.zeros(3), torch.zeros(2)), []

    def launched():
        replays.append(1)
        if len(replays) <= in_the_graph:
            outputs[0].fill_(1.0)
        outputs[1].fill_(1.0)

    def make(setting):
        def call():
            if cuda and cuda[-1].open:
                cuda[-1].calls.append(launched)
            return outputs

        return call

    with pytest.raises(RuntimeError, match="a second replay leaves results unwritten"):
        peers.graphed(make)("batch")


def test_a_capture_that_fails_is_a_named_hole(cuda, monkeypatch):
    def refuses(setting):
        def call():
            if cuda and cuda[-1].open:
                raise RuntimeError("operation not permitted when stream is capturing")
            return None, None

        return call

    setting = peers.Setting(hopper_peers.HybridBatch.of(40, 96, 3, 70, 4, 2, 64), device="cpu")
    calls, holes = peers.ready(setting, {"eager": refuses, "graph": peers.graphed(refuses)})
    assert list(calls) == ["eager"]
    assert holes == {"graph": "RuntimeError: operation not permitted when stream is capturing"}


def test_every_way_is_in_a_graph_and_three_are_calls_too(monkeypatch):
    """A row has all columns, and what is repeated back to back is a graph of several calls, shared out again."""
    asked, metered = {}, []
    monkeypatch.setattr(peers, "Setting", lambda batch: batch)
    monkeypatch.setattr(peers, "table_row", lambda setting, makers, *_, **__: asked.update(makers) or {"flops": 1})
    monkeypatch.setattr(peers, "graphed", lambda make, calls: lambda setting: (make, calls))
    spent = timing.Energy(ms=8.0, millijoules=4000.0, watts=690.0, sm_clock_mhz=1500)
    monkeypatch.setattr(timing, "energy", lambda call, seconds: metered.append((call, seconds)) or spent)
    row = hopper_graphs.measure(hopper_graphs.cases()[0])
    assert set(hopper_peers.PEERS) < set(asked) and list(asked)[:3] == list(hopper_graphs.CALLS)
    assert metered == [((make, 4), 1.0) for make in hopper_graphs.SPLIT.values()]
    assert row["ours_steady_ms"] == 2.0 and row["ours_mj"] == 1000.0 and row["ours_mhz"] == 1500


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Two calls of FlashAttention-3 take 1.2 times our halves in turn, and these 1.5 times both at once; cold 1.1 and
    1.3, as calls 5 µs more."""
    rows = []
    for case in hopper_graphs.cases():
        row = case | {"ours": 1.0, "ours_serial": 1.3, "fa3_serial": 1.43, "holes": ""}
        row |= {f"{way}_calls": row[way] + 0.005 for way in hopper_graphs.SPLIT}
        row |= {"ours_steady_ms": 1.0, "ours_serial_steady_ms": 1.5, "fa3_serial_steady_ms": 1.8}
        row |= {"ours_mj": 1.0, "ours_serial_mj": 1.25, "fa3_serial_mj": 1.5}
        row |= {f"{way}_watts": 690.0 for way in hopper_graphs.SPLIT}
        rows.append(dict.fromkeys(hopper_peers.PEERS, 1.4) | {"fi_pod": ""} | row)
    folder = tmp_path / "fresh" / "h200"
    folder.mkdir(parents=True)
    with (folder / "hopper-graphs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(hopper_graphs, "read", lambda name: __import__("pandas").read_csv(folder / f"{name}.csv"))
    return folder


def test_the_gain_comes_apart_in_two(recorded):
    assert hopper_graphs.halves() == pytest.approx(1.1) and hopper_graphs.fusing() == pytest.approx(1.3)
    assert hopper_graphs.halves("steady") == pytest.approx(1.2) and hopper_graphs.fusing("steady") == pytest.approx(1.5)
    assert hopper_graphs.over_fa3() == pytest.approx(1.43) and hopper_graphs.over_best_peer() == pytest.approx(1.4)
    assert hopper_graphs.seam_us() == pytest.approx(5) and hopper_graphs.watts() == 690
    assert hopper_graphs.over_fa3("calls") < hopper_graphs.over_fa3()
    figure = hopper_graphs.draw(hopper_graphs.table())
    assert "1.10 × 1.30" in figure.axes[0].get_title() and "1.20 × 1.50" in figure.axes[1].get_title()
    plt.close(figure)


def test_the_readme_tells_of_graphs_once_they_are_recorded(recorded, monkeypatch):
    own = recorded / "hopper-graphs.csv"
    monkeypatch.setattr("pod.lab.figure.path_of", lambda name: own if name == own.stem else data.path_of(name))
    told = readme.gain()
    assert "\n| inside CUDA graphs, cold L2 | 1.43x | 1.10x | 1.30x | [hopper-graphs](" in told
    assert "\n| inside CUDA graphs, back to back, at 690 W | 1.80x | 1.20x | 1.50x | [hopper-graphs](" in told

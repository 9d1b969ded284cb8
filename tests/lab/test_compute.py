"""What needs no GPU lies in data/computed/ and is what the code makes; figures only read it."""

import json
import sys
from types import SimpleNamespace

import pytest

from pod import data
from pod.__main__ import main
from pod.lab import registry
from pod.lab.measure import compute

ELSEWHERE = {"resources", "engine-replayed"}  # have tests of their own
SLOW = {"online", "engine-online", "engine-offline", "engine-load", "sarathi-09", "pod-12", "engine-chosen",
        "engine-disaggregated", "engine-fleet", "engine-groups", "engine-nvlink",
        "engine-seeds"}  # seconds a case  # fmt: skip


@pytest.mark.parametrize("name", registry.computed())
def test_a_table_is_complete_and_of_what_it_starts_from(name):
    assert compute.problems(name) == [], f"run python -m pod compute {name}"


@pytest.mark.parametrize("name", [name for name in registry.computed() if name not in ELSEWHERE])
def test_some_rows_come_out_as_they_were(name):
    assert compute.differing(name, most=1 if name in SLOW else 3) == [], f"run python -m pod compute {name}"


def test_every_table_has_a_maker_and_a_reader():
    assert {path.stem for path in data.COMPUTED.glob("*.csv")} == set(registry.computed())
    shown = {name for figure in registry.figures() for name in figure.data}
    assert set(registry.computed()) - shown == {"attention-model", "host-jitter"}, "which the simulator reads"


def test_no_figure_computes_what_is_computed_already(monkeypatch):
    """Drawing reads: a simulated table that asks for a run would take minutes, and a compiler here and there."""
    refuse = lambda *a, **k: pytest.fail("a figure simulates")  # noqa: E731
    monkeypatch.setattr("pod.simulate.run.Run.metrics", refuse)
    monkeypatch.setattr("pod.simulate.gpusim.seconds", refuse)
    monkeypatch.setattr("pod.lab.trace.record", refuse)
    for figure in registry.figures():
        if set(figure.data) & set(registry.computed()):
            assert len(registry.load(figure.id).table())


# ---------------------------------------------------------------- the verb, on a table of two rows


@pytest.fixture
def toy(tmp_path, monkeypatch):
    maker = SimpleNamespace(KEYS=("n",), READS=("input",), cases=lambda: [{"n": n} for n in (1, 2)],
                            measure=lambda case: {"square": case["n"] ** 2 + 0.1})  # fmt: skip
    monkeypatch.setitem(sys.modules, "toy", maker)
    monkeypatch.setattr(registry, "computed", lambda: {"toy": "toy"})
    monkeypatch.setattr(compute, "sweep", lambda call, items, quiet=False: [call(item) for item in items])
    for module, name in ((data, "COMPUTED"), (data, "DATA"), (compute, "ROOT")):
        monkeypatch.setattr(module, name, tmp_path)
    monkeypatch.setenv("POD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "recorded" / "h200").mkdir(parents=True)
    (tmp_path / "recorded" / "h200" / "input.csv").write_text("a")
    compute.remember.__globals__["_memory"].cache_clear()
    yield maker
    compute.remember.__globals__["_memory"].cache_clear()


def test_compute_makes_a_table_with_its_sidecar(toy, tmp_path, capsys):
    assert main(["compute"]) == 0 and "toy.csv" in capsys.readouterr().out
    assert (tmp_path / "toy.csv").read_text() == "n,square\n1,1.1\n2,4.1\n"
    assert json.loads((tmp_path / "toy.meta.json").read_text())["reads"].keys() == {"input"}
    assert main(["compute", "--check"]) == 0 and "as it was" in capsys.readouterr().out


def test_what_changed_is_named(toy, tmp_path, capsys):
    assert main(["compute", "--check", "toy"]) == 1 and "not made yet" in capsys.readouterr().out
    main(["compute"])
    toy.measure = lambda case: {"square": case["n"] ** 2 + 0.2 * (case["n"] == 2)}
    assert main(["compute", "--check"]) == 1
    assert "('1',): square is 1.0, was 1.1 and 1 more" in capsys.readouterr().out
    toy.cases = lambda: [{"n": 3}]
    assert main(["compute", "--check"]) == 1 and "other cases are asked for" in capsys.readouterr().out
    (tmp_path / "recorded" / "h200" / "input.csv").write_text("b")
    assert main(["compute", "--check"]) == 1 and "input has changed since" in capsys.readouterr().out
    (tmp_path / "toy.csv").write_text("n,square\n1,7\n2,4.1\n")
    assert main(["compute", "--check"]) == 1 and "was changed by hand" in capsys.readouterr().out


def test_an_interrupted_table_goes_on_where_it_was(toy, capsys):
    asked = []

    def fails_at_two(case):
        asked.append(case["n"])
        if case["n"] == 2 and asked.count(2) == 1:
            raise KeyboardInterrupt
        return {"square": case["n"]}

    toy.measure = fails_at_two
    assert main(["compute"]) == 130 and main(["compute"]) == 0
    assert asked == [1, 2, 2], "the first row is recalled"


def test_an_unknown_table_is_one_line(refused):
    assert "no computed table pod-99; there are attention-model" in refused("compute", "pod-99")


def test_what_others_start_from_is_computed_first():
    """gpusim.csv starts from gpusim-sample.csv, whose name comes behind its own."""
    order = sorted(registry.computed(), key=compute._depth)
    assert order.index("gpusim-sample") < order.index("gpusim")

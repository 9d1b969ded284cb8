"""One reader for every table, and figures of somebody else's card."""

import os
import shutil
import subprocess
import sys

import pytest

from pod import data
from pod.files import ROOT


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("POD_FROM", raising=False)
    for name in ("RECORDED", "FRESH", "COMPUTED", "REPEATS"):
        monkeypatch.setattr(data, name, tmp_path / name.lower())
    return tmp_path


def test_figures_show_what_was_recorded_until_somebody_chooses(home, monkeypatch):
    monkeypatch.setenv("POD_FROM", "recorded/h200")
    for place, text in (("recorded/h200", "1"), ("fresh/h100", "2"), ("computed", "3")):
        (home / place).mkdir(parents=True)
        (home / place / ("y.csv" if place == "computed" else "x.csv")).write_text(f"n\n{text}\n")
    assert data.read("x").n[0] == 1 and data.card() == "H200" and data.a_card() == "an H200"
    data.choose("fresh")
    assert data.read("x").n[0] == 2 and data.card() == "H100" and data.hardware().key == "h100"
    assert data.read("y").n[0] == 3, "what is computed belongs to no card"
    (home / "fresh" / "b200").mkdir()
    with pytest.raises(ValueError, match="from: got fresh/, allowed are fresh/b200, fresh/h100"):
        data.choose("fresh")
    with pytest.raises(ValueError, match="from: got fresh/a100, allowed are fresh/b200, fresh/h100"):
        data.choose("fresh/a100")
    data.choose("fresh/b200")
    assert data.a_card() == "a B200"
    with pytest.raises(ValueError, match="x: is not in .*b200; `python -m pod measure x` on that GPU makes it"):
        data.read("x")


@pytest.mark.parametrize("before", [None, "", "recorded/h200"])
def test_a_place_is_chosen_for_a_while(home, monkeypatch, before):
    monkeypatch.delenv("POD_FROM", raising=False)
    if before is not None:
        monkeypatch.setenv("POD_FROM", before)
    (home / "repeats" / "2026-01-02-ab" / "h200").mkdir(parents=True)
    with data.chosen("repeats/2026-01-02-ab/h200"):
        assert data.folder() == home / "repeats" / "2026-01-02-ab" / "h200"
        with data.chosen("recorded/h200"):
            assert data.folder() == home / "recorded" / "h200"
        assert data.folder() == home / "repeats" / "2026-01-02-ab" / "h200"
    with pytest.raises(ValueError, match="from: got 'elsewhere'"), data.chosen("elsewhere"):
        pass
    with pytest.raises(TypeError), data.chosen(None):
        pass
    with pytest.raises(KeyError, match="inside"), data.chosen("recorded/h200"):
        raise KeyError("inside")
    assert os.environ.get("POD_FROM") == before


def test_what_is_made_of_a_table_is_made_anew_for_another(home, monkeypatch):
    monkeypatch.setenv("POD_FROM", "recorded/h200")
    made = []

    @data.kept("x")
    def tenfold(by: int) -> int:
        made.append(by)
        return int(data.read("x").n[0]) * by

    with pytest.raises(data.Missing, match="x: is not in .*h200; `python -m pod measure x` on that GPU makes it"):
        tenfold(10)
    for place, text in (("recorded/h200", "1"), ("fresh/h100", "2")):
        (home / place).mkdir(parents=True)
        (home / place / "x.csv").write_text(f"n\n{text}\n")
    assert [tenfold(10), tenfold(10), tenfold(20)] == [10, 10, 20] and made == [10, 20]
    (home / "recorded" / "h200" / "x.csv").write_text("n\n30\n")
    assert tenfold(10) == 300, "measured again"
    data.choose("fresh")
    assert tenfold(10) == 20, "another GPU's"


@pytest.mark.parametrize("place, message", [
    ("elsewhere", "from: got 'elsewhere', allowed are recorded, fresh"),
    ("fresh", "from: nothing lies in data/fresh/; `make measure` on a GPU fills it"),
    ("fresh/h100", "from: nothing lies in data/fresh/; `make measure` on a GPU fills it"),
])  # fmt: skip
def test_a_place_that_is_not_there_is_one_line(home, place, message, monkeypatch, refused):
    monkeypatch.setenv("POD_FROM", "recorded")
    assert message in refused("figures", "--from", place)


def test_another_card_draws_the_same_pictures(tmp_path):
    """As somebody with an H100 would: recordings in data/fresh/h100, and figures that name it."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "pod", tree / "pod", ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("paper", "workloads", "computed"):
        shutil.copytree(data.DATA / part, tree / "data" / part)
    for name in ("claims.toml", "bands.csv", "judged.csv"):
        shutil.copy(data.DATA / name, tree / "data" / name)
    shutil.copytree(data.DATA / "recorded", tree / "data" / "recorded")
    (tree / "notebooks").mkdir()
    for name in ("hopper-peers", "methods-sweep"):
        for path in (tree / "data" / "recorded" / "h200").glob(f"{name}.*"):
            fresh = tree / "data" / "fresh" / "h100" / path.name
            fresh.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text().replace("NVIDIA H200", "NVIDIA H100 80GB HBM3")
            fresh.write_text(text)

    def figures(*ids: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "pod", "figures", "--from", "fresh", *ids]
        env = {"PYTHONPATH": str(tree), "PATH": os.environ["PATH"]}
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, env=env)

    done = figures("pod-11", "hopper-peers")
    assert done.returncode == 0, done.stderr
    assert "on an H100" in done.stdout and "H200" not in done.stdout
    page = (tree / "figures" / "index.html").read_text()
    assert "recorded on H100" in page and "NVIDIA H100" in page and "lacks lean of an H100" in page
    done = figures("gpu-model")
    assert done.returncode == 2 and "figure 'gpu-model': lacks methods-sweep" in done.stderr


def test_who_changes_a_table_changes_his_own_and_a_new_file_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "COMPUTED", tmp_path)
    (tmp_path / "x.csv").write_text("n\n1\n")
    table = data.read("x")
    table.loc[0, "n"] = 5
    assert data.read("x").n[0] == 1
    (tmp_path / "x.csv").write_text("n\n22\n")
    assert data.read("x").n[0] == 22

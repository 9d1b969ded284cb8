"""What README.md shows is what the code says today, and its links and commands exist."""

import re

import numpy as np
import pytest

from pod.__main__ import VERBS
from pod.experiments.hopper import hopper_any, hopper_plan, hopper_sweep
from pod.files import ROOT
from pod.lab import readme, registry

TEXT = readme.README.read_text(encoding="utf-8")


def test_generated_parts_are_up_to_date():
    assert readme.out_of_date() == [], "say `python -m pod readme`"


@pytest.mark.parametrize("name", readme.BLOCKS)
def test_changed_block_is_out_of_date(name, tmp_path, monkeypatch):
    tampered = TEXT.replace(f"<!-- end of {name} -->", f"more\n<!-- end of {name} -->")
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")
    readme.README.write_text(tampered, encoding="utf-8")
    assert "README.md" in readme.out_of_date()
    assert readme.refreshed(tampered) == readme.refreshed(TEXT)


def test_missing_marker_is_refused():
    with pytest.raises(ValueError, match="0 blocks named 'claims'"):
        readme.refreshed(TEXT.replace("<!-- claims:", "<!-- gone:"))


def test_visible_change_of_the_picture_is_seen_and_a_faint_one_is_not():
    picture = np.ones((200, 300, 3))
    faint, line = picture.copy(), picture.copy()
    faint[::2] -= 0.05
    line[100, 20:120] = 0
    assert readme.same_picture(picture, faint)
    assert not readme.same_picture(picture, line)
    assert not readme.same_picture(picture, picture[1:])


@pytest.mark.parametrize("figure", readme.PICTURES.values())
def test_pictures_are_small(figure):
    assert readme.path_of(figure).stat().st_size < 200_000


def test_what_stands_beside_the_table_of_gains_is_what_was_recorded():
    drawn, plans = hopper_any.table(), hopper_plan.table()
    both = drawn[drawn.turns != drawn.ours]
    assert f"On {len(drawn) - len(both)} of the {len(drawn)} there is nothing to fuse" in TEXT
    assert f"On the other {len(both)} fusing brings {hopper_sweep.geomean(both.turns / both.ours):.2f}x" in plain(TEXT)
    least, most = plans.plan_us.min() / 1e3, plans.plan_us.max() / 1e3
    assert f"`pod.plan` takes {least:.1f} to {most:.1f} ms of the host" in plain(TEXT)
    host = plans.update_from_host_us / 1e3
    assert f"an update from its lists {host.min():.2f} to {host.max():.2f} ms" in plain(TEXT)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert len(links) > 8
    assert [link for link in links if not (readme.ROOT / link).exists()] == []


def test_commands_exist():
    makefile = (readme.ROOT / "Makefile").read_text()
    for verb in re.findall(r"`?make ([a-z-]+)", TEXT):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
    for verb in re.findall(r"python -m pod ([a-z]+)", TEXT):
        assert verb in VERBS, verb


def test_each_simulated_figure_says_why_and_what_was_measured_beside_it():
    told = (ROOT / "data" / "README.md").read_text(encoding="utf-8").split("## What is simulated")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in told.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row[0])]
    states = {figure.id: figure.state for figure in registry.figures()}
    assert sorted(named) == sorted(id for id, state in states.items() if state == "simulated")
    beside = [name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row[2])]
    assert beside and {states[name] for name in beside} == {"recorded"}

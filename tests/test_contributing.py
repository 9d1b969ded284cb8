"""CONTRIBUTING.md does what it says: each diff applies to a copy of this repository, and the command after it runs."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from pod.files import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = {title: text for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)}
ADDITIONS = {title: text for title, text in SECTIONS.items() if "```diff" in text}


def blocks(text: str, language: str) -> str:
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def files(diff: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)


@pytest.fixture
def copy(tmp_path):
    for name in ("pod", "csrc", "data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "fresh"))
    return tmp_path


@pytest.mark.parametrize("title", ADDITIONS)
def test_a_diff_applies_and_its_command_runs(title, copy):
    diff, command = (blocks(ADDITIONS[title], language) for language in ("diff", "sh"))
    subprocess.run(["git", "apply", "-C1", "-"], cwd=copy, input=diff, text=True, check=True)
    there = {**os.environ, "PYTHONPATH": str(copy), "POD_CACHE": os.environ.get("POD_CACHE", str(ROOT / ".cache"))}
    verb, *arguments = command.split()
    assert verb == "python" and command.count("\n") == 1
    done = subprocess.run([sys.executable, *arguments], cwd=copy, env=there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_counts_the_files():
    rows = re.findall(r"^\| \[.+\]\(#(.+)\) \| (\d+) \|", TEXT, re.MULTILINE)
    counted = {title.lower().replace(" ", "-"): len(files(blocks(text, "diff"))) for title, text in ADDITIONS.items()}
    assert {name: int(count) for name, count in rows} == counted

"""A chapter moves: every number that means a chapter follows, and no other."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pod import files
from pod.lab import chapters, renumber

NAMES = [chapter.name for chapter in chapters.CHAPTERS]
TOY = ["00_start", "01_waves", "02_pod_kernel", "03_first_kernels"]
NEW = {"00": "00", "01": "02", "02": "03", "03": "01"}


def test_the_numbers_follow_the_order():
    assert renumber.numbers(TOY, renumber.moved(TOY, "first_kernels", 1)) == NEW


@pytest.mark.parametrize("name, place", [("first", 1), ("waves", 4), ("waves", -1)])
def test_what_cannot_be_moved_is_said(name, place):
    with pytest.raises(ValueError, match="got .*, allowed are"):
        renumber.moved(TOY, name, place)


FOLLOW = [
    ("a.ipynb", "[01 waves](01_waves.ipynb) → **02 POD kernel**", "[02 waves](02_waves.ipynb) → **03 POD kernel**"),
    ("a.ipynb", '"# 01 · All of the waves', '"# 02 · All of the waves'),
    ("a.ipynb", "→ [02 · The kernel](02_pod_kernel.ipynb)", "→ [03 · The kernel](03_pod_kernel.ipynb)"),
    ("a.ipynb", "chapters [01](01_waves.ipynb), [02](x.md)", "chapters [02](02_waves.ipynb), [02](x.md)"),
    ("a.py", "# see chapters 01, 02 and 03; chapter 01's", "# see chapters 02, 03 and 01; chapter 02's"),
    ("a.py", 'chapter="02",', 'chapter="03",'),
    ("a.md", "in order: 00 to 02, the kernel (02)", "in order: 00 to 03, the kernel (03)"),
    ("a.md", "[Chapter 01](../x/01_waves.ipynb) has 02 bytes", "[Chapter 02](../x/02_waves.ipynb) has 02 bytes"),
    (
        "a.py",
        "test_chapter_02.py of 2026-01-02, Figure 01, 01:02",
        "test_chapter_03.py of 2026-01-02, Figure 01, 01:02",
    ),
]


@pytest.mark.parametrize("file, before, after", FOLLOW)
def test_numbers_of_chapters_follow_and_others_stay(file, before, after):
    assert renumber.rewritten(before, file, TOY, NEW) == after


def test_there_and_back_is_where_we_were():
    """Over the real walk: whatever follows a move follows the way back, too."""
    each = "[{0} {1}]({0}_{1}.ipynb), chapter {0}, chapters {0} and 00"
    text = "\n".join(each.format(name[:2], name[3:]) for name in NAMES)
    at, name = len(NAMES) - 1, NAMES[-1][3:]
    new = renumber.numbers(NAMES, renumber.moved(NAMES, name, 4))
    there = renumber.rewritten(text, "a.md", NAMES, new)
    moved = [f"{i:02d}_{bare}" for i, bare in enumerate(renumber.moved(NAMES, name, 4))]
    back = renumber.numbers(moved, renumber.moved(moved, name, at))
    assert there != text and renumber.rewritten(there, "a.md", moved, back) == text


def test_the_walk_gets_the_chapter_at_its_place():
    text = renumber.WALK.read_text(encoding="utf-8")
    names = renumber.stems(text)
    name = names[-1][3:]
    bare = [stem[3:] for stem in renumber.stems(renumber.walk_text(text, names, name, 4))]
    assert bare == renumber.moved(names, name, 4)


def test_what_is_left_over_is_prose_that_no_pattern_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(renumber, "ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text("chapter 05, (05), 04 to 06, [05](05_waves.ipynb)\nread 04 first\n", encoding="utf-8")
    assert list(renumber.left_over(page)) == ["a.md: ...read 04 first..."]


def test_what_cells_have_given_is_not_left_over(tmp_path):
    cells = [new_markdown_cell("read 04 first"), new_code_cell("x", outputs=[new_output("stream", text="04 of 05")])]
    page = tmp_path / "a.ipynb"
    page.write_text(nbformat.writes(new_notebook(cells=cells)), encoding="utf-8")
    assert "".join(renumber.prose(page)) == "read 04 first"


def test_chapters_that_show_numbers_of_chapters_are_known():
    """They are executed again: pictures keep no text that a pattern could find."""
    for name in NAMES:
        cells = nbformat.read(chapters.FOLDER / f"{name}.ipynb", 4).cells
        shown = [text for cell in cells for page in drawn_by(cell) for text in strings(page)]
        assert name[3:] in renumber.SHOWING or not any(re.search(r"\bchapters? \d\d", text) for text in shown), name


def drawn_by(cell) -> list[Path]:
    """The pages of the experiments that a cell draws."""
    if cell.cell_type != "code" or "image/png" not in str(cell.outputs):
        return []
    names = re.findall(r"\b(\w+)\.draw\(|registry\.show\(\"([\w-]+)\"", cell.source)
    folder = files.ROOT / "pod" / "experiments"
    return [page for pair in names for page in folder.glob(f"*/{''.join(pair).replace('-', '_')}.py")]


def strings(page: Path) -> list[str]:
    """All of them but docstrings."""
    tree = ast.parse(page.read_text(encoding="utf-8"))
    docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in texts if node not in docs]

"""A chapter moves: every number that means a chapter follows, and no other."""

import pytest

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

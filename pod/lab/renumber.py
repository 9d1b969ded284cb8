"""Give a chapter another place in the walk: files, links, titles, maps, and every chapter's number in words.

    python -m pod.lab.renumber waves 5

Chapters that show numbers of chapters are executed again, the README is refreshed, and all chapters are checked. What
looks like a chapter's number and is not known to be one is listed, for a person to look at.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pod.files import ROOT

WALK = ROOT / "pod" / "lab" / "chapters.py"
SHOWING = ("waves", "pod_kernel", "attention_results", "first_kernels")  # numbers of chapters, in pictures and tables
KINDS = {".ipynb", ".py", ".md", ".toml", ".cu", ".cuh", ".h", ".cpp", ".css", ".json", ""}
MADE = ("recorded", "computed", "paper", "workloads", "model")
KEPT = (*(f"data/{name}/" for name in MADE), "tests/golden/")  # measured or computed, not written
LIST = r"\d\d(?:(?:, | and | to | or |, and |–|-)\d\d)*(?!\d|\.\d| %)"
NAMED = re.compile(rf"\b([Cc]hapters?(?: |\n\s*|\\n\",\n\s*\"|\*\* |\. ))({LIST})")
FIELD = re.compile(r"\b(chapter=\"|chapter: str = \")(\d\d)(?=\")")
ROOM = re.compile(r"(\", \")(\d\d(?:, \d\d)*)(?=\", )")  # of the map of the kernel
OF_FILES = {"show/kernel.py": ROOM}
PROSE = (".md", ".ipynb")
WRITTEN = {ord("0") + i: 0xE000 + i for i in range(10)}  # digits that no pattern takes for digits
TEST = re.compile(r"\b(test_chapter_)(\d\d)\b")
TITLED = re.compile(r"(\[|\"# )(\d\d)(?= · )")  # "[04 · Waves]", "# 04 · Waves"
LINKED = re.compile(r"(\[)(\d\d)(?=\]\(\d\d_)")  # "[04](04_waves.ipynb)"
RANGE = re.compile(r"(?<![\d.,:/-])()\b(0\d(?:(?:, | and | to |–)\d\d)+)(?!\d|\.\d|:)")  # "04 to 06"
SINGLE = re.compile(r"( \()(0\d)(?=\))")  # "(07)"
LEFT = re.compile(r"(?<![\d.,:/\-+'\"=(\[])\b0[0-9]\b(?![\d.:/\-'\"])|\(0\d\)")


def stems(text: str) -> list[str]:
    return re.findall(r'Chapter\("(\w+)"', text)


def moved(names: list[str], name: str, to: int) -> list[str]:
    """The stems, without numbers, in their new order."""
    bare = [stem.partition("_")[2] for stem in names]
    if name not in bare:
        raise ValueError(f"chapter: got {name!r}, allowed are {', '.join(bare)}")
    if not 0 <= to < len(bare):
        raise ValueError(f"place: got {to}, allowed are 0 to {len(bare) - 1}")
    bare.remove(name)
    return [*bare[:to], name, *bare[to:]]


def numbers(names: list[str], order: list[str]) -> dict[str, str]:
    """By old number, the new one."""
    return {stem[:2]: f"{order.index(stem[3:]):02d}" for stem in names}


def rewritten(text: str, file: str, names: list[str], new: dict[str, str]) -> str:
    """One file's text with the new numbers. What one pattern has written, no other reads as a number once more."""
    written = {old: number.translate(WRITTEN) for old, number in new.items()}
    stem = re.compile(rf"()({'|'.join(names)})")
    patterns = [LINKED, stem, TEST, NAMED, FIELD, TITLED, _titles(names)]
    patterns += [pattern for end, pattern in OF_FILES.items() if file.endswith(end)]
    patterns += [RANGE, SINGLE] if file.endswith(PROSE) else []
    for pattern in patterns:
        text = pattern.sub(lambda m: m[1] + re.sub(r"\d\d", lambda n: written.get(n[0], n[0]), m[2]), text)
    return text.translate({letter: digit for digit, letter in WRITTEN.items()})


def _titles(names: list[str]) -> re.Pattern:
    """A number before its chapter's first word, as in `[04 waves]`, `**04 waves**`."""
    words = "|".join(f"{stem[:2]}(?= (?:the )?{stem.split('_')[1]})" for stem in names)
    return re.compile(rf"((?:^|[^\d.,]))({words})", re.IGNORECASE | re.MULTILINE)


# ---------------------------------------------------------------- the walk, its map, and files


def walk_text(text: str, names: list[str], name: str, to: int) -> str:
    """pod/lab/chapters.py with the chapter behind that which will stand before it; `rewritten` gives the numbers."""
    old = next(stem for stem in names if stem[3:] == name)
    order = moved(names, name, to)
    line = next(row for row in text.splitlines() if f'"{old}"' in row)
    chapter = re.search(r"Chapter\(.*?\"\)", line)[0]
    if re.match(r'\s*"[^"]+": \(Chapter', line):  # a part of its own
        text = text.replace(line + "\n", "")
    else:
        text = text.replace(line + "\n", "", 1)
    before = next(stem for stem in names if stem[3:] == order[to - 1])
    anchor = next(row for row in text.splitlines() if f'"{before}"' in row)
    return text.replace(anchor, f"{anchor}\n        {chapter},")


def tracked() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in KINDS and not name.startswith(KEPT) and path != Path(__file__) and path.is_file():
            yield path


def redraw_the_map() -> None:
    """Chapter 00 shows the walk; its saved output is the new one."""
    from pod.lab import chapters, notebooks

    path = chapters.CHAPTERS[0].path
    notebook = notebooks.read(path)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if output.get("data", {}).get("text/markdown", "").startswith("| | chapter |"):
            output.data["text/markdown"] = chapters.markdown()
    path.write_text(notebooks.text_of(notebook), encoding="utf-8")


def open_the_doors(name: str) -> None:
    """The neighbours' navigation leads through the chapter."""
    from pod.lab import chapters

    at = next(i for i, chapter in enumerate(chapters.CHAPTERS) if chapter.name[3:] == name)
    link = f"[{chapters.CHAPTERS[at].title}]({chapters.CHAPTERS[at].path.name})"
    for neighbour, pattern, to in (
        (at - 1, r"(\*\*\d\d [^*]+\*\* → )", rf"\1{link} → "),
        (at + 1, r"( → \*\*\d\d )", rf" → {link}\1"),
    ):
        path = chapters.CHAPTERS[neighbour].path
        path.write_text(re.sub(pattern, to, path.read_text(encoding="utf-8"), count=1), encoding="utf-8")


def left_over(path: Path) -> Iterator[str]:
    """Lines of prose with a number that could be a chapter's and that no pattern takes for one."""
    for line in prose(path):
        bare = re.sub(r"\d\d_\w+|\[\d\d[^\]]*\]|\*\*\d\d |# \d\d ", "", line)
        for pattern in (NAMED, RANGE, SINGLE):
            bare = pattern.sub("", bare)
        for match in LEFT.finditer(bare):
            yield f"{path.relative_to(ROOT)}: ...{bare[max(0, match.start() - 50) : match.end() + 30].strip()}..."


def prose(path: Path) -> list[str]:
    """What a person wrote: of a chapter its text, without what its cells have given."""
    if path.suffix not in PROSE:
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "".join("".join([*cell["source"], "\n"]) for cell in json.loads(text)["cells"]
                       if cell["cell_type"] == "markdown")  # fmt: skip
    return text.splitlines()


def main(name: str, place: str) -> int:
    names = stems(WALK.read_text(encoding="utf-8"))
    order = moved(names, name, int(place))
    new = numbers(names, order)
    WALK.write_text(walk_text(WALK.read_text(encoding="utf-8"), names, name, int(place)), encoding="utf-8")
    paths = list(tracked())
    for path in paths:
        before = path.read_text(encoding="utf-8")
        after = rewritten(before, str(path.relative_to(ROOT)), names, new)
        if after != before:
            path.write_text(after, encoding="utf-8")
    _rename(paths, names, new)
    redraw_the_map()
    open_the_doors(name)
    print("\n".join(line for path in tracked() for line in left_over(path)))
    return _finish([f"{i:02d}" for i, stem in enumerate(order) if stem in SHOWING])


def _finish(showing: list[str]) -> int:
    """What shows numbers of chapters is made anew, in processes that know the new ones; 0 if all is well."""
    there = {**os.environ, "PYTHONPATH": str(ROOT)}
    for verb in (["notebooks", *showing], ["readme"], ["notebooks", "--check"]):
        if failed := subprocess.run([sys.executable, "-m", "pod", *verb], cwd=ROOT, env=there).returncode:
            return failed
    return 0


def _rename(paths: list[Path], names: list[str], new: dict[str, str]) -> None:
    """In two steps, as the place of one may still be another's."""
    here = [p for p in paths if p.stem in names or re.fullmatch(r"test_chapter_\d\d", p.stem)]
    for path in here:
        subprocess.run(["git", "mv", path.name, f"{path.name}.moving"], cwd=path.parent, check=True)
    for path in here:
        stem = re.sub(r"\d\d", lambda n: new[n[0]], path.stem, count=1)
        subprocess.run(["git", "mv", f"{path.name}.moving", f"{stem}{path.suffix}"], cwd=path.parent, check=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Pieces of the sources, cut out where a chapter shows them: what is shown cannot differ from what runs."""

import re
from dataclasses import dataclass

from pod.files import ROOT


@dataclass(frozen=True)
class Listing:
    """Lines of a file. A notebook shows them coloured, `print` plain."""

    file: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{self.file}\n\n{self.text}"

    def _repr_markdown_(self) -> str:
        language = "python" if self.file.endswith(".py") else "cpp"
        return f"`{self.file}`\n```{language}\n{self.text}\n```"


def piece(file: str, start: str, end: str | None = None) -> Listing:
    """From the line of `file` that contains `start` to the end of the block that it opens, or to the line with `end`.

    Comments right above come along. `start` must be in one line only, so that a changed source is noticed.
    """
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines) if start in line]
    if len(found) != 1:
        raise ValueError(f"start: got {start!r}, which is in {len(found)} lines of {file}, allowed is one")
    first = last = found[0]
    while first and re.match(r"\s*(// (?!---)|template <)", lines[first - 1]):
        first -= 1
    if end is None:
        last = _end_of_block(lines, last)
    else:
        last = next((i for i in range(last, len(lines)) if end in lines[i]), None)
        if last is None:
            raise ValueError(f"end: got {end!r}, which no line of {file} after {start!r} has")
    return Listing(file, _dedent(lines[first : last + 1]))


def _dedent(lines: list[str]) -> str:
    """Lines moved to the left border; directives such as `#pragma` stand there already."""
    code = [line for line in lines if line.strip() and not line.startswith("#")]
    margin = min(len(line) - len(line.lstrip()) for line in code)
    return "\n".join(line if line.startswith("#") else line[margin:] for line in lines)


def _end_of_block(lines: list[str], first: int) -> int:
    """The line that closes what line `first` opens; a declaration that opens nothing ends at its semicolon."""
    depth = 0
    for i in range(first, len(lines)):
        code = _bare(lines[i])
        depth += code.count("{") - code.count("}")
        if depth == 0 and ("}" in code or code.rstrip().endswith(";")):
            return i
    return len(lines) - 1


def _bare(line: str) -> str:
    """A line of C++ without strings and comments."""
    return re.sub(r'"(\\.|[^"\\])*"|//.*', "", line)

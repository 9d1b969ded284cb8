"""How long a chapter takes, from what stands in it: the minutes that its opening and the map state.

The paces are of one careful reader who knows PyTorch and no CUDA, and who noted the time of eight chapters (334 minutes
without exercises; these constants give 314 for the same text). Somebody who knows half of it is twice as fast.
"""

import math
import re
from collections.abc import Iterable

WORDS, LINES, CUDA = 150, 12, 4  # a minute: of prose; of Python; of CUDA, where each line is new
PICTURE, QUESTION = 1.0, 1.0  # minutes: to look until the point is seen; to guess, and to compare
STUB, EXERCISE = 6.0, 5.0  # minutes: to write what a judge looks at; to think about one with a folded answer
STEP, SITTING = 5, 45  # minutes are stated in steps; nobody sits longer without a place to stop
BREAK = "A good place for a break."
ASIDE = re.compile(r"<details>.*?</details>|<sub>.*?</sub>", re.DOTALL)
FENCE = re.compile(r"^```cpp\n(.*?)^```", re.DOTALL | re.MULTILINE)


def reading(cells: Iterable) -> float:
    """Minutes for prose, code, pictures and predictions, without exercises."""
    return sum(_prose(c) if c.cell_type == "markdown" else _code(c) for c in cells)


def exercises(cells: Iterable) -> float:
    """Minutes for what the reader writes, and for the exercises at the end."""
    cells = list(cells)
    stubs = sum("learn.check(" in c.source for c in cells if c.cell_type == "code")
    folded = sum(c.source.count("<summary>Answer</summary>") for c in cells if c.cell_type == "markdown")
    return STUB * stubs + EXERCISE * folded


def stated(minutes: float) -> int:
    """Rounded as a chapter says it."""
    return STEP * math.ceil(minutes / STEP - 0.5)


def sittings(cells: Iterable) -> list[float]:
    """Minutes of reading from break to break."""
    parts: list[list] = [[]]
    for cell in cells:
        parts[-1].append(cell)
        if cell.cell_type == "markdown" and BREAK in cell.source:
            parts.append([])
    return [reading(part) for part in parts]


def _prose(cell) -> float:
    text, asked = ASIDE.sub("", cell.source), cell.source.count("**Predict.**")
    cuda = sum(map(_lines, FENCE.findall(text)))
    return len(FENCE.sub("", text).split()) / WORDS + cuda / CUDA + QUESTION * asked


def _code(cell) -> float:
    if "learn.check(" in cell.source:
        return 0
    pace = CUDA if cell.source.startswith("%%cuda") else LINES
    shown = [data for output in cell.outputs if (data := output.get("data"))]
    cuda = sum(_lines(piece) for data in shown for piece in FENCE.findall(data.get("text/markdown", "")))
    pictures = sum("image/png" in data for data in shown)
    return (_lines(cell.source) / pace + cuda / CUDA + PICTURE * pictures
            + QUESTION * cell.source.count("learn.ask("))  # fmt: skip


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())

"""What text alone can say of csrc: lines fit, statements stand one by one, and its README has today's numbers."""

import csv
import re

import pytest

from pod import data
from pod.files import CSRC
from pod.lab.show import hopper as pictures

WIDTH = 120
BOUNDARY = {  # launch records, and who fills them
            "bindings.cpp", "fusion_bindings.cpp", "single_query_bindings.cpp", "operators.h", "hybrid.h", "inputs.h",
            "driver.cu"}  # fmt: skip
CELLS = {"boundary.h", "cell.h", "machine.cpp", "plain.h", "memory.cu"}  # younger than the rule, which they break
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".cu", ".cuh", ".h", ".cpp"))
RULED = [p for p in SOURCES if p.name not in CELLS]

# ---------------------------------------------------------------- one statement after the other

PROSE = re.compile(r"""R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*""", re.MULTILINE)
ARGUMENTS = re.compile(r"\([^()\[\]]*\)|\[[^()\[\]]*\]|<<<[^;]*?>>>|(?<=\w)<[\w\s:,*&!~.@/-]*>")
HEADS = re.compile(r"(?:(?:if|for|while|switch)(?: constexpr)? *@|else|do|return|case [\w:]+:|default:)\s*")
DECLARATION = re.compile(
    r"(?:using|template|static_assert|enum)\b|(?:[\w:@]+\s+)*[\w:@]+(?:\s*[*&]+\s*|\s+)\w+\s*(?:[@={,]|$)"
)


def chains(text: str) -> list[str]:
    """Statements that a comma joins, as `a = x, b = y;` and `f(), g();` do. What is inside brackets is no matter."""
    text = PROSE.sub("", text)
    while (shorter := ARGUMENTS.sub("@", text)) != text:
        text = shorter
    statements = re.findall(r"[^;{}]*;", text)
    bodies = [re.sub(rf"^(?:{HEADS.pattern})+", "", s.strip()) for s in statements]
    return [b for b in bodies if "," in b and not DECLARATION.match(b)]


@pytest.mark.parametrize("code, found", [
    ("a = x, b = y;", True),
    ("p.a = f(x, y), p.b = g(x);", True),
    ("check(a, b), check(c, d);", True),
    ("if (x) i++, j++;", True),
    ("return p += n, *this;", True),
    ("int a = 1, b[2] = {};", False),
    ("const gptr<float, 2> *a = f(1, 2), b;", False),
    ("f<T, 2>(a, b);", False),
    ("f<kKeys / 2, kPage>(a, b);", False),
    ("kernel<<<grid, block>>>(a, b);", False),
    ("for (int i = 0, j = 1; i < 2; i++, j++) f(i, j);  // a, b;", False),
])  # fmt: skip
def test_a_chain_is_told_from_a_declaration(code, found):
    assert bool(chains(code)) == found


@pytest.mark.parametrize("path", RULED, ids=[str(p.relative_to(CSRC)) for p in RULED])
def test_lines_fit_and_statements_stand_one_by_one(path):
    text = path.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert chains(text) == []


# ---------------------------------------------------------------- csrc/README.md
README = (CSRC / "README.md").read_text(encoding="utf-8")


def test_the_readme_names_every_source():
    assert [p.name for p in SOURCES if p.name not in BOUNDARY and f"{p.name}`" not in README] == []


def test_the_readme_has_the_registers_and_shared_memory_of_the_compiler():
    """One line a binding: registers on sm_80 and sm_90, with two and with four CTAs an SM, then shared memory."""
    with (data.COMPUTED / "resources.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["dtype"] == "bfloat16" and r["head_dim"] == "128"]
        rows = [r for r in rows if r["ctas_per_sm"] != "8"]  # which are never chosen
    for binding in dict.fromkeys(r["binding"] for r in rows):
        mine = sorted((r for r in rows if r["binding"] == binding), key=lambda r: (r["arch"], r["ctas_per_sm"]))
        numbers = [r["registers"] for r in mine] + [f"{int(r['smem_bytes']) / 1024:g}" for r in mine]
        assert f"| `{binding}` | {' | '.join(numbers)} |" in README


def test_the_readme_has_the_registers_that_hopper_hands_out():
    producer, prefill, _, decode = pictures.registers().values()
    assert f"| 8 | {producer} | 2 x {prefill} | {decode} |" in README

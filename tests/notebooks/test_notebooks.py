"""Every committed chapter keeps the rules of the house, every rule catches what it is for, and the form is stable."""

import ast
import base64
import io
import json
import re

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from pod.lab import notebooks, pixels

CHAPTERS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_keeps_every_rule(path):
    assert notebooks.problems(path) == []


def globals_of(cells, names: set[str]) -> set[str]:
    """What these functions, and the functions of the chapter that they call, look up when they are called."""
    defined = {node.name: node for cell in cells for node in cell.body if isinstance(node, ast.FunctionDef)}
    asked, found = [*names], set()
    while asked:
        found.add(name := asked.pop())
        if name in defined:
            inside = [node for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
            own = {node.id for node in inside if isinstance(node.ctx, ast.Store)} | {
                argument.arg for argument in ast.walk(defined[name]) if isinstance(argument, ast.arg)
            }
            asked += {node.id for node in inside} - own - found
    return found


def stored(cell: ast.Module) -> set[str]:
    """Names that a cell gives another value, outside of functions."""
    own_scope = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    asked, names = [*cell.body], set()
    while asked:
        node = asked.pop()
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, own_scope):
            asked += ast.iter_child_nodes(node)
    return names


def _root(node) -> str:
    """The name that an expression starts from: a function, or the module that has it."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_a_slider_draws_is_still_there_when_all_cells_have_run(path):
    """Whoever moves a slider in the end calls a function of an earlier cell, with the names as they are by then."""
    sources = [c.source for c in notebooks.read(path).cells if c.cell_type == "code" and not c.source.startswith("%%")]
    cells = [ast.parse(re.sub(r"^%.*$", "", source, flags=re.MULTILINE)) for source in sources]
    for i, cell in enumerate(cells):
        calls = [node for node in ast.walk(cell) if isinstance(node, ast.Call)]
        drawn = {_root(call.args[0]) for call in calls if getattr(call.func, "id", "") == "explore"}
        later = set().union(*(stored(other) for other in cells[i + 1 :]))
        assert globals_of(cells[: i + 1], drawn) & later == set()


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_code_in_an_answer_imports_what_is_there(path):
    """Nobody runs it but the reader who unfolds it."""
    prose = "\n".join(c.source for c in notebooks.read(path).cells if c.cell_type == "markdown")
    pieces = [ast.parse(piece) for piece in re.findall(r"^```python\n(.*?)^```", prose, re.DOTALL | re.MULTILINE)]
    for node in (node for piece in pieces for node in ast.walk(piece)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "pod":
            exec(ast.unparse(node), {})


# ---------------------------------------------------------------- each rule against a chapter that breaks it


def png(dpi: int = 100, colour: str = "red", level: int = 6) -> str:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "png", dpi=(dpi, dpi), compress_level=level)
    return base64.b64encode(file.getvalue()).decode()


RED = "A red field, and nothing else in it"


def picture(**kwargs):
    described = {"image/png": {"alt": RED}}
    return new_output("display_data", {"image/png": png(**kwargs), "text/plain": "<Figure>"}, metadata=described)


def chapter():
    opening = "# 05 · Waves\n\n| You'll do | You'll learn | You need |\n|---|---|---|\n| a | b | c |"
    exercise = "<details><summary>Answer</summary>\n\nforty\n</details>"
    closing = f"{exercise}\n{exercise}\n> **Keep this.** It works.\n\n**Next door.** More, in [code](../pod/code.py)."
    badge = new_output("stream", name="stdout", text="mode: recorded · nothing here\n")
    cells = [
        new_markdown_cell(opening, id="a"),
        new_code_cell("# NBVAL_IGNORE_OUTPUT\nimport pod\n\npod.badge()", id="b", execution_count=1, outputs=[badge]),
        new_markdown_cell("**Predict.** How many?", id="c"),
        new_code_cell("draw();", id="d", execution_count=2, outputs=[picture()], metadata={"alt": RED}),
        new_markdown_cell(closing, id="e"),
    ]
    return notebooks.canonical(new_notebook(cells=cells))


@pytest.fixture
def problems(tmp_path):
    """problems(notebook) saves it as a chapter beside a pod/ folder and returns what is wrong with it."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "code.py").touch()
    path = tmp_path / "notebooks" / "05_waves.ipynb"

    def check(notebook, text: str | None = None) -> list[str]:
        path.write_text(text or notebooks.text_of(notebook), encoding="utf-8")
        return notebooks.problems(path)

    check.path = path
    return check


def edit_source(cell: int, old: str, new: str):
    def edit(notebook):
        assert old in notebook.cells[cell].source
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return edit


def set_outputs(cell: int, *outputs):
    def edit(notebook):
        notebook.cells[cell].outputs = list(outputs)

    return edit


def set_count(notebook):
    notebook.cells[3].execution_count = 7


def add_widget_state(notebook):
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}


def ignore_everything(notebook):
    for i in range(3):
        notebook.cells.insert(4, new_code_cell("# NBVAL_IGNORE_OUTPUT\n1", id=f"x{i}", execution_count=5 - i))


def describe_nothing(notebook):
    del notebook.cells[3].metadata["alt"], notebook.cells[3].outputs[0].metadata["image/png"]


def grow(notebook):
    notebook.cells[3].outputs = [new_output("stream", text="x" * notebooks.MAX_BYTES)]


BROKEN = {
    "allowed are 800": grow,
    "not in canonical form": add_widget_state,
    "not executed from top to bottom": set_count,
    "no heading": (edit_source(0, "# ", "## "), "does not begin with the heading `# "),
    "no promise": (edit_source(0, "You need", "Bring"), "does not say 'you need'"),
    "badge": (edit_source(1, "pod.badge()", "pass"), "does not call pod.badge()"),
    "badge compared": (edit_source(1, "# NBVAL_IGNORE_OUTPUT", ""), "under NBVAL_IGNORE_OUTPUT"),
    "badge output": (set_outputs(1), "does not show just the badge"),
    "one exercise": (edit_source(4, "<details>", "<p>"), "0 exercises with folded answers"),
    "no takeaway": (edit_source(4, "Keep this", "Hm"), "no takeaway box"),
    "no door": (edit_source(4, "Next door", "End"), "door to what comes next"),
    "dead link": (edit_source(2, "How many?", "[x](05_none.ipynb#top)"), "link to 05_none.ipynb#top"),
    "no code link": (edit_source(4, "../pod/code.py", "https://example.org"), "no link to the code"),
    "saved error": (set_outputs(3, new_output("error", ename="KeyError", evalue="", traceback=[])), "error KeyError"),
    "saved warning": (set_outputs(3, new_output("stream", name="stderr", text="a\nold API\n")), "warning 'old API'"),
    "svg": (set_outputs(3, new_output("display_data", data={"image/svg+xml": "<svg/>"})), "saved image/svg+xml"),
    "widget": (set_outputs(3, new_output("display_data", data={notebooks.WIDGET: {}})), "cell 3: saved application"),
    "dpi": (set_outputs(3, picture(dpi=200)), "cell 3: picture at 200 dpi"),
    "no alt text": (describe_nothing, "cell 3: a picture without alt text"),
    "long cell": (edit_source(3, "draw();", "draw()\n\n" * 19), "cell 3: 19 lines of code"),
    "marker": (edit_source(3, "draw();", "# NBVAL_SKIP as it is slow\ndraw();"), "cell 3: nbval reads its marker only"),
    "ignored": (ignore_everything, "4 cells ignore their output"),
}  # fmt: skip


def test_good_chapter_has_no_problems(problems):
    assert problems(chapter()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_named(problems, name):
    edit, message = BROKEN[name] if isinstance(BROKEN[name], tuple) else (BROKEN[name], name)
    notebook = chapter()
    edit(notebook)
    found = problems(notebook)
    assert len(found) == 1 and message in found[0], found


def test_every_rule_is_broken_by_some_example(problems):
    caught = set()
    for broken in BROKEN.values():
        notebook = chapter()
        (broken[0] if isinstance(broken, tuple) else broken)(notebook)
        problems(notebook)
        caught |= {rule for rule in notebooks.RULES if list(rule(notebook, problems.path))}
    assert caught == set(notebooks.RULES)


def test_empty_chapter_is_all_problems_and_no_exception(problems):
    found = problems(new_notebook())
    assert "no outputs" in found and "no link to the code that it shows" in found


def test_broken_file_is_said_in_one_line(problems):
    with pytest.raises(ValueError, match="^05_waves.ipynb: not a notebook"):
        problems(None, text="{ not json")


# ---------------------------------------------------------------- canonical form


def test_canonical_form_forgets_editors_and_timing():
    notebook = chapter()
    tidy = notebooks.text_of(notebook)
    notebook.metadata.kernelspec = {"name": "venv", "display_name": "mine"}
    notebook.metadata.language_info = {"name": "python", "version": "3.12.1"}
    notebook.cells[1].metadata.execution = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    notebook.cells[3].metadata.collapsed = True
    notebook.cells[3].outputs[0].metadata = {"needs_background": "light"}
    text = notebook.cells[1].outputs[0].text
    notebook.cells[1].outputs = [new_output("stream", name="stdout", text=part) for part in (text[:5], text[5:])]
    assert notebooks.text_of(notebook) != tidy
    assert notebooks.text_of(notebooks.canonical(notebook)) == tidy


def test_canonical_form_keeps_tags_and_separate_streams():
    notebook = chapter()
    notebook.cells[3].metadata.tags = ["nbval-ignore-output"]
    notebook.cells[3].outputs = [new_output("stream", name=name, text="x") for name in ("stdout", "stderr", "stdout")]
    tidy = notebooks.canonical(notebook)
    assert tidy.cells[3].metadata == {"alt": RED, "tags": ["nbval-ignore-output"]} and len(tidy.cells[3].outputs) == 3


def test_a_picture_says_what_its_cell_says_or_the_page_that_it_draws():
    notebook = chapter()
    notebook.cells[3].outputs = [picture(), picture(colour="blue")]
    notebook.cells[3].metadata.alt = "Two fields, a red one and a blue one"
    said = [output.metadata["image/png"]["alt"] for output in notebooks.canonical(notebook).cells[3].outputs]
    assert said == ["Two fields, a red one and a blue one"] * 2
    del notebook.cells[3].metadata["alt"]
    for source in ("_ = pod_t2.draw(pod_t2.table())", 'registry.show("pod-t2")'):
        notebook.cells[3].source = source
        (said,) = {output.metadata["image/png"]["alt"] for output in notebooks.canonical(notebook).cells[3].outputs}
        assert said.startswith("Methods of concurrent execution and what they guarantee. ") and said.endswith(".")


def test_cell_ids_are_kept_and_made_unique():
    notebook = chapter()
    notebook.cells[3].id = "b"
    del notebook.cells[2]["id"]
    ids = [cell.id for cell in notebooks.canonical(notebook).cells]
    assert [*ids[:2], *ids[3:]] == ["a", "b", "b-2", "e"]
    assert ids == [cell.id for cell in notebooks.canonical(notebook).cells]


def test_same_pixels_keep_their_bytes_and_other_pixels_do_not():
    before, again, other = chapter(), chapter(), chapter()
    again.cells[3].outputs = [picture(level=0)]
    other.cells[3].outputs = [picture(colour="blue")]
    assert notebooks.canonical(again, before) == before
    assert notebooks.canonical(other, before) != before


def drawing(alpha: int) -> str:
    """Two colours, and a hundred shades between them, as the edges of letters have."""
    image = Image.new("RGBA", (400, 100), (255, 255, 255, alpha))
    for x in range(100):
        image.paste((255 - x, 255 - 2 * x, 255 - x, alpha), (3 * x, x // 2, 3 * x + 3, 90))
    file = io.BytesIO()
    image.save(file, "png", dpi=(100, 100))
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("alpha, mode", [(255, "P"), (128, "RGBA")])
def test_a_new_picture_is_saved_with_a_palette_unless_it_is_transparent(alpha, mode):
    before, notebook = chapter(), chapter()
    notebook.cells[3].outputs[0].data["image/png"] = drawn = drawing(alpha)
    saved = notebooks.canonical(notebook, before).cells[3].outputs[0].data["image/png"]
    assert pixels.opened(base64.b64decode(saved)).mode == mode
    size, dpi, shown = notebooks._pixels(saved)
    shift = np.abs(np.frombuffer(shown, np.uint8).astype(int) - np.frombuffer(notebooks._pixels(drawn)[2], np.uint8))
    assert (size, shift.max() <= 2) == ((400, 100), True)
    notebook.cells[3].outputs[0].data["image/png"] = drawn
    again = notebooks.canonical(notebook, notebooks.canonical(notebook, before))
    assert again.cells[3].outputs[0].data["image/png"] == saved, "the same drawing gets the same palette"


# ---------------------------------------------------------------- execution


def write(path, *sources):
    cells = [new_code_cell(source) for source in sources]
    path.write_text(nbformat.writes(new_notebook(cells=cells)), encoding="utf-8")
    return path


def test_executing_twice_changes_nothing(tmp_path):
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()"
    path = write(tmp_path / "a.ipynb", "import os\nprint(os.path.basename(os.getcwd()))", plot)
    notebooks.execute(path)
    first = path.read_text()
    saved = json.loads(first)
    assert saved["cells"][0]["outputs"][0]["text"] == [f"{tmp_path.name}\n"]
    assert "image/png" in saved["cells"][1]["outputs"][0]["data"]
    notebooks.execute(path)
    assert path.read_text() == first


def test_failing_cell_is_said_in_one_line_and_changes_nothing(tmp_path):
    path = write(tmp_path / "a.ipynb", "x = 1", "x / 0")
    before = path.read_text()
    with pytest.raises(ValueError, match=r"^a.ipynb, cell 1: ZeroDivisionError: division by zero$"):
        notebooks.execute(path)
    assert path.read_text() == before


def test_unknown_chapter_lists_the_known():
    with pytest.raises(ValueError, match="'77': 0 fit; known: 0"):
        notebooks.find(["77"])


def test_a_chapter_does_not_keep_who_builds_the_kernels(tmp_path, monkeypatch):
    monkeypatch.delenv("POD_QUIET")
    path = write(tmp_path / "a.ipynb", "import os\nprint(os.environ.get('POD_QUIET'))")
    notebooks.execute(path)
    assert notebooks.read(path).cells[0].outputs[0].text == "1\n"

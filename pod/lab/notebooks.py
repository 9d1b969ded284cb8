"""Chapters as files: execute them, save them in one canonical form so that a diff shows only what changed, and check
that each keeps the rules of the house."""

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

from pod import files
from pod.lab import alt, pixels
from pod.lab.chapters import FOLDER

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
MAX_BYTES = 800_000
MAX_DPI = 150
MAX_LINES = 18  # "about 15", with room for an import
MIN_ALT = 20  # letters that say what a picture shows
MAX_IGNORED = 3  # cells whose output depends on the machine
WIDGET = "application/vnd.jupyter.widget-view+json"
MARKER = re.compile(r"^\s*# NBVAL_(IGNORE_OUTPUT|SKIP)\s*$", re.MULTILINE)
FOLDED = "jp-MarkdownHeadingCollapsed"  # an appendix, which JupyterLab opens on a click
CELL_METADATA = ("alt", "tags", FOLDED)  # all else is the memory of an editor
PICTURE = "image/png"


def find(names: list[str]) -> list[Path]:
    """The notebooks that are meant: "01", "01_online_softmax" or a path, "17" for 17a and all after it; [] for all."""
    chapters = sorted(FOLDER.glob("*.ipynb"))
    if not names:
        return chapters
    return [path for name in names for path in _find_one(name, chapters)]


def _find_one(name: str, chapters: list[Path]) -> list[Path]:
    """One chapter: its notebooks have one number."""
    fitting = [path for path in chapters if path.name.startswith(Path(name).name)]
    if len({path.name[:2] for path in fitting}) != 1:
        raise ValueError(f"chapter {name!r}: {len(fitting)} fit; known: {', '.join(path.stem for path in chapters)}")
    return fitting


# ---------------------------------------------------------------- canonical form


def canonical(notebook, before=None):
    """The same notebook without what differs from run to run or from editor to editor.

    A picture that shows the same pixels as in `before` keeps its old bytes."""
    import nbformat

    notebook = nbformat.from_dict(notebook)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    old = {cell.get("id"): cell for cell in before.cells} if before else {}
    seen: set[str] = set()
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: cell.metadata[k] for k in CELL_METADATA if cell.metadata.get(k)})
        cell.id = _unique(cell.get("id") or hashlib.sha256(cell.source.encode()).hexdigest()[:8], seen)
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
            if before:
                _keep_pictures(cell, old.get(cell.id))
            _describe(cell)
    return notebook


def _unique(cell_id: str, seen: set[str]) -> str:
    name = next(n for n in (cell_id, *(f"{cell_id}-{i}" for i in range(2, 1000))) if n not in seen)
    seen.add(name)
    return name


def _merged(outputs: list) -> list:
    """Text arrives in pieces whose borders depend on timing: join neighbours of one stream."""
    merged: list = []
    for output in outputs:
        if output.output_type == "stream" and merged and merged[-1].get("name") == output.name:
            merged[-1].text += output.text
        else:
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = {}
            merged.append(output)
    return merged


def _keep_pictures(cell, before) -> None:
    """A picture is the old one if that shows the same, else it is saved small."""
    for output, old in zip_longest(cell.outputs, before.outputs if before else (), fillvalue={}):
        new_png, old_png = output.get("data", {}).get(PICTURE), old.get("data", {}).get(PICTURE)
        if new_png:
            new_png = _small(new_png)
            same = old_png and _pixels(new_png) == _pixels(old_png)
            output.data[PICTURE] = old_png if same else new_png


def _describe(cell) -> None:
    pictures = [output for output in cell.outputs if PICTURE in output.get("data", {})]
    if pictures and (words := alt.words(cell)):
        for picture in pictures:
            picture.metadata = {PICTURE: {"alt": words}}


def _small(png: str) -> str:
    return base64.b64encode(pixels.small(base64.b64decode(png))).decode()


def _pixels(png: str) -> tuple:
    image = pixels.opened(base64.b64decode(png))
    return image.size, image.info.get("dpi"), image.convert("RGBA").tobytes()


def text_of(notebook) -> str:
    import nbformat

    return nbformat.writes(notebook).rstrip("\n") + "\n"


def read(path: Path):
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError) as error:
        raise ValueError(f"{path.name}: not a notebook ({str(error).splitlines()[0]})") from None


@cache
def sources(path: Path, kind: str = "code") -> list[str]:
    """Of a committed chapter, the source of each code cell, or of each "markdown" cell. nbformat would take two seconds
    to be imported."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def execute(path: Path) -> None:
    """Run a chapter from top to bottom in its folder, with this interpreter, and save it in canonical form."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    before, notebook = read(path), read(path)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False, resources=resources)
    client.extra_arguments = ["--IPKernelApp.log_level=ERROR"]  # it warns of its local sockets each time
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # the debugger's greeting is no output of ours
    os.environ.setdefault("POD_QUIET", "1")  # nor is who builds the kernels
    try:
        if asyncio.run(_interrupted(client)):
            raise KeyboardInterrupt
    except CellExecutionError as error:
        cell = next(i for i, c in enumerate(notebook.cells) if _failed(c))
        raise ValueError(f"{path.name}, cell {cell}: {error.ename}: {error.evalue}") from None
    files.replace(path, text_of(canonical(notebook, before)))


async def _interrupted(client) -> bool:
    """Execute, and whether Ctrl-C ended it. By nbclient's own way we would lose the kernel, and die of that."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    work = loop.create_task(client.async_execute())

    def interrupt() -> None:
        client.shutdown_kernel = "immediate"  # one that computes would not hear that it shall end
        heard.set()
        work.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler = lambda *_: None  # nbclient would take our place
    try:
        await work
    except BaseException:  # of many kinds, when its kernel is gone
        if not heard.is_set():
            raise
    finally:
        if client.km and client.km.has_kernel:  # it had only begun to start
            await client.km.shutdown_kernel(now=True)
    return heard.is_set()


def _failed(cell) -> bool:
    return any(output.output_type == "error" for output in cell.get("outputs", ()))


# ---------------------------------------------------------------- the rules: each yields what is wrong, in words


def _code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def _prose(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def _outputs(notebook) -> Iterator[tuple[str, dict]]:
    for i, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            yield f"cell {i}", output


def small(notebook, path: Path) -> Iterator[str]:
    if (size := path.stat().st_size) > MAX_BYTES:
        yield f"{size / 1000:.0f} kB, allowed are {MAX_BYTES // 1000}"


def in_canonical_form(notebook, path: Path) -> Iterator[str]:
    if path.read_text(encoding="utf-8") != text_of(canonical(notebook)):
        yield "not in canonical form (`make notebooks` mends it)"


def executed(notebook, path: Path) -> Iterator[str]:
    counts = [cell.execution_count for cell in _code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield "not executed from top to bottom in one go"
    if not any(cell.outputs for cell in _code(notebook)):
        yield "no outputs"


def opens(notebook, path: Path) -> Iterator[str]:
    start = "\n".join(cell.source for cell in _prose(notebook)[:2])
    label = path.name.partition("_")[0]
    if not start.startswith(f"# {label} "):
        yield f"does not begin with the heading `# {label} ...`"
    for promise in ("you'll do", "you'll learn", "you need"):
        if promise not in start.lower().replace("’", "'"):
            yield f"the opening does not say {promise!r}"


def shows_badge(notebook, path: Path) -> Iterator[str]:
    first = (_code(notebook) or [None])[0]
    if first is None or "pod.badge()" not in first.source or not _ignored(first):
        yield "the first code cell does not call pod.badge() under NBVAL_IGNORE_OUTPUT"
    elif [o.get("text", "").partition(":")[0] for o in first.outputs] != ["mode"]:
        yield "the badge cell does not show just the badge"


def closes(notebook, path: Path) -> Iterator[str]:
    prose = _prose(notebook)
    end = "\n".join(cell.source for cell in prose[len(prose) // 2 :])
    if (folded := end.count("<details")) < 2:
        yield f"{folded} exercises with folded answers near the end, wanted are two or three"
    if not re.search(r"^> .*\b(takeaway|keep this)\b", end, re.IGNORECASE | re.MULTILINE):
        yield "no takeaway box, a quote that begins with **Keep this.** or **Takeaway.**"
    if not re.search(r"\bnext\b", prose[-1].source if prose else "", re.IGNORECASE):
        yield "the last cell does not open the door to what comes next"


def links_hold(notebook, path: Path) -> Iterator[str]:
    targets = [link for cell in _prose(notebook) for link in re.findall(r"\]\(([^)\s]+)\)", cell.source)]
    local = [target for target in targets if not re.match(r"https?:|mailto:|#", target)]
    for target in local:
        if not (path.parent / target.partition("#")[0]).exists():
            yield f"link to {target}, which does not exist (name what is to come without a link)"
    if not any(target.startswith(("../pod/", "../csrc/")) for target in local):
        yield "no link to the code that it shows"


def shows_no_noise(notebook, path: Path) -> Iterator[str]:
    for place, output in _outputs(notebook):
        if output.output_type == "error":
            yield f"{place}: saved error {output.ename}"
        if output.get("name") == "stderr":
            yield f"{place}: saved warning {output.text.strip().splitlines()[-1]!r}"
        for kind in {"image/svg+xml", WIDGET} & set(output.get("data", {})):
            yield f"{place}: saved {kind}"


def pictures_are_small(notebook, path: Path) -> Iterator[str]:
    for place, output in _outputs(notebook):
        if png := output.get("data", {}).get(PICTURE):
            dpi = max(pixels.opened(base64.b64decode(png)).info.get("dpi", (0, 0)))
            if round(dpi) > MAX_DPI:
                yield f"{place}: picture at {dpi:.0f} dpi, allowed are {MAX_DPI}"


def pictures_are_described(notebook, path: Path) -> Iterator[str]:
    for place, output in _outputs(notebook):
        if PICTURE in output.get("data", {}) and len(output.metadata.get(PICTURE, {}).get("alt", "")) < MIN_ALT:
            yield f"{place}: a picture without alt text (the cell's metadata says it, or the page that it draws)"


def cells_are_short(notebook, path: Path) -> Iterator[str]:
    for i, cell in enumerate(notebook.cells):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        if cell.cell_type == "code" and len(lines) > MAX_LINES:
            yield f"cell {i}: {len(lines)} lines of code, about 15 are allowed"


def compares_outputs(notebook, path: Path) -> Iterator[str]:
    if (count := sum(map(_ignored, _code(notebook)))) > MAX_IGNORED:
        yield f"{count} cells ignore their output, allowed are {MAX_IGNORED}"
    for i, cell in enumerate(notebook.cells):
        if "NBVAL_" in cell.source and not MARKER.search(cell.source):
            yield f"cell {i}: nbval reads its marker only when it stands alone on its line"


def _ignored(cell) -> bool:
    return bool(MARKER.search(cell.source)) or "nbval" in " ".join(cell.metadata.get("tags", ()))


RULES: tuple[Callable, ...] = (
    small, in_canonical_form, executed, opens, shows_badge, closes, links_hold, shows_no_noise, pictures_are_small,
    pictures_are_described, cells_are_short, compares_outputs,
)  # fmt: skip


def problems(path: Path) -> list[str]:
    """Every broken rule of a chapter, in words."""
    notebook = read(path)
    return [problem for rule in RULES for problem in rule(notebook, path)]


# ---------------------------------------------------------------- python -m pod notebooks


def configure(parser) -> None:
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="e.g. 01; all of them when left out")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only say which rules are broken")
    what.add_argument("--format", action="store_true", help="only save in canonical form, keeping the outputs")


def run(args) -> int:
    paths = find(args.chapters)
    for path in () if args.check else paths:
        begin = time.perf_counter()
        if args.format:
            files.replace(path, text_of(canonical(read(path))))
        else:
            execute(path)
        print(f"{path.name:<32} {time.perf_counter() - begin:5.1f} s", flush=True)
    found = [f"{path.name}: {problem}" for path in paths for problem in problems(path)]
    print("\n".join(found) or f"{len(paths)} chapters keep every rule", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0

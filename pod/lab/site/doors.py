"""The public call: its signatures and docstrings, as they stand in the code, and an example that a test runs."""

import inspect
import re
from html import escape
from pathlib import Path

import pod
from pod.files import ROOT
from pod.lab.site.frame import STATIC, Page
from pod.lab.site.places import Places
from pod.lab.site.prose import highlighted, markdown

PATH = "api.html"
FIRST = ("build", "plan", "hybrid_attention", "workspace", "HybridBatch")  # in the order in which they are called
WORD = re.compile(r"(?<![\w`])(\w+=[\w'.]*\w|[a-zA-Z]\w*(?:[._]\w+)+(?:\([^()]*\))?)(?![\w`])")


def page(places: Places) -> Page:
    names = [*FIRST, *(name for name in pod.__all__ if name not in FIRST)]
    doors = "".join(_door(name, getattr(pod, name), places) for name in names)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    use = re.search(r"^## Use the kernel\n(.*?)(?=^What Hopper's kernel gains)", readme, re.DOTALL | re.MULTILINE)[1]
    told = markdown(use, lambda url: places.link(url, ROOT, PATH))
    code = (STATIC / "example.py").read_text(encoding="utf-8")
    body = f"""<article class="api"><h1>The public call</h1>{told}<h2 id="an-example">An example</h2>
<p>It runs as it stands, on a GPU or in the emulator, and ends with the error against attention in float64.</p>
{highlighted(code.strip(), "py")}{doors}</article>"""
    return Page(PATH, "API", body)


def _door(name: str, thing, places: Places) -> str:
    if not callable(thing):
        known = ", ".join(f"<code>{escape(str(key))}</code>" for key in thing)
        return f'<h2 id="{name}"><code>pod.{name}</code></h2><p>By key: {known}.</p>'
    home = Path(inspect.getsourcefile(inspect.unwrap(thing)))
    link = f'<p class="facts"><a href="{places.of(home)}">{home.relative_to(ROOT).as_posix()}</a></p>'
    told = markdown(WORD.sub(r"`\1`", inspect.getdoc(thing) or ""))
    return f'<h2 id="{name}"><code>pod.{name}</code></h2>{_signature(name, thing)}{told}{link}'


def _signature(name: str, thing) -> str:
    """One parameter a line."""
    signature = inspect.signature(thing)
    lines = [f"    {_parameter(p)}," for p in signature.parameters.values()]
    known = signature.return_annotation
    gives = "" if known in (inspect.Signature.empty, None, "None") else f" -> {known}"
    return highlighted("\n".join([f"pod.{name}(", *lines, f"){gives}"]) if lines else f"pod.{name}(){gives}", "py")


def _parameter(p: inspect.Parameter) -> str:
    """Annotations are strings where their evaluation is postponed."""
    kind = "" if p.annotation is p.empty else ": " + inspect.formatannotation(p.annotation).strip("'")
    return f"{p.name}{kind}" + ("" if p.default is p.empty else f" = {p.default!r}")

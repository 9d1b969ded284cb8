"""What the compiler sees of each kernel, as one sum: a recording is stale when that of a kernel it ran has changed.

Comments, blank lines and the places of files are not in it, nor any Python: prose and moves make nothing stale. Of the
two units in Python, a model and a scheduler that recordings ran, it is what Python makes of the source.
"""

import hashlib
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from pod.files import ROOT
from pod.kernels import build, ladder
from pod.sweep import meaning

UNITS = {
    "hybrid": ("csrc/sm80/hybrid.cu", "csrc/bindings.cpp"),
    "lean": ("csrc/lean/lean.cu", "csrc/bindings.cpp"),
    "hopper": ("csrc/sm90/hybrid.cu", "csrc/bindings.cpp"),
    "plan": ("csrc/sm90/plan.cu", "csrc/sm90/plan_bindings.cpp"),
    "fusion": ("csrc/micro/fusion.cu", "csrc/micro/fusion_bindings.cpp"),
    "single-query": ("csrc/micro/single_query.cu", "csrc/micro/single_query_bindings.cpp"),
    "rates": ("csrc/micro/rates.cu",),
    "memory": ("csrc/micro/memory.cu",),
    "strides": ("csrc/micro/strides.cu",),
    "energy": ("csrc/micro/energy.cu",),
    "beside": ("csrc/micro/beside.cu",),
    "ladder": tuple(f"csrc/ladder/{rung.file}.cu" for rung in ladder.RUNGS.values()),
    "model": ("pod/serving/model.py",),
    "vllm of 2023": ("pod/serving/vllm2023.py", "pod/serving/sampler.py"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)".*$', re.MULTILINE)
HOPPER = (9, 0)  # flags name the card; this one stands for all


FOLDERS, SUFFIXES = ("pod", "csrc"), (".py", ".cu", ".cuh", ".h", ".cpp")  # of all that could have measured


def tree() -> str:
    """One sum of all sources as they lie here, by the names that git gives to contents: with it a commit that is only
    said becomes one that was seen."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return tree_sum({path.relative_to(ROOT).as_posix(): _blob(path.read_bytes()) for path in files})


def tree_sum(blobs: dict[str, str]) -> str:
    lines = [f"{blobs[path]} {path}" for path in sorted(blobs) if path.endswith(SUFFIXES)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sums(units) -> dict[str, str]:
    return {unit: sum_of(unit) for unit in units}


@cache
def sum_of(unit: str) -> str:
    if unit not in UNITS:
        raise ValueError(f"kernels: got {unit!r}, allowed are {', '.join(UNITS)}")
    return digest([ROOT / name for name in UNITS[unit]])


def digest(paths: list[Path]) -> str:
    """Of sources, all that they include from this tree, and the compiler's flags."""
    seen: set[Path] = set()
    texts = [text for path in paths for text in _seen(path, seen)]
    if paths[0].suffix != ".py":
        texts += build.flags(SimpleNamespace(arch=None), HOPPER)["extra_cuda_cflags"]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _seen(path: Path, seen: set[Path]) -> list[str]:
    """A source and what it includes, each once, in the order in which the compiler comes to them."""
    if path in seen:
        return []
    seen.add(path)
    code = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [meaning(code)]
    code = without_comments(code)
    included = [text for name in INCLUDE.findall(code) if (file := _find(name, path)) for text in _seen(file, seen)]
    return [*included, INCLUDE.sub("", code)]


def _find(name: str, path: Path) -> Path | None:
    """A file of this tree that `path` includes by quotes. The emulator's are left out: no measurement runs on it."""
    for folder in (path.parent, _csrc(path), _csrc(path) / "include"):
        if (file := (folder / name).resolve()).is_file():
            return None if file.parent.name == "emulate" else file
    return None


@cache
def _csrc(path: Path) -> Path:
    return next((folder for folder in path.parents if folder.name == "csrc"), path.parent)


def without_comments(code: str) -> str:
    """C-like code without comments, blank lines and line-end spaces; string literals stay as they are."""
    token = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    code = token.sub(lambda m: m[0] if m[0].startswith('"') else " ", code)
    return "\n".join(line.rstrip() for line in code.splitlines() if line.strip())

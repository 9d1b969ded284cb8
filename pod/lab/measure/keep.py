"""`python -m pod keep`: fresh measurements become the recorded ones; or it is said why recorded ones still hold."""

import argparse
import shutil
from pathlib import Path

from pod import data
from pod.files import ROOT
from pod.lab.measure import compare, provenance


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="FILE", help="e.g. h200/lean.csv; all fresh files when left out")
    why = "these recordings, or all that are stale, hold for the present kernels too: equal machine code, or as fast"
    parser.add_argument("--still", metavar="EVIDENCE", help=why)
    parser.add_argument("--repeat", action="store_true", help="keep them beside what is recorded, to show the spread")


def run(args: argparse.Namespace) -> int:
    if args.still is not None:
        return _hold(args.names, args.still)
    names = args.names or [path.relative_to(data.FRESH).as_posix() for path in provenance.recordings(data.FRESH)]
    for path in (data.FRESH / name for name in names):
        meta = provenance.load(path)  # checked before any is moved
        if "tree" in meta and provenance.tree_of(meta["commit"]) != meta["tree"]:
            raise ValueError(f"{path.name}: measured with other files than those of its commit {meta['commit'][:8]}")
        if provenance.stale_one(path):
            raise ValueError(f"{path.name}: measured with other kernels or work lists than the present ones")
        if meta["dirty"]:
            raise ValueError(f"{path.name}: measured in a tree with changes, allowed is a commit")
    for name in names:
        print(_repeat(name) if args.repeat else _keep(name))
    if not names:
        print("nothing to keep: data/fresh/ is empty; `make measure` on a GPU fills it")
    return 0


def _keep(name: str) -> str:
    """Move a file and its sidecar, and say how it differs from the one that was there."""
    fresh, recorded = data.FRESH / name, data.RECORDED / name
    before = compare.compare(fresh, recorded).line if recorded.is_file() else f"new      {name}"
    recorded.parent.mkdir(parents=True, exist_ok=True)
    for source, target in ((fresh, recorded), (data.sidecar_of(fresh), data.sidecar_of(recorded))):
        shutil.move(source, target)
    return before


def _repeat(name: str) -> str:
    """Move a file and its sidecar beside those of the same GPU and day, and say how it differs from the recording."""
    fresh, recorded = data.FRESH / name, data.RECORDED / name
    meta = provenance.load(fresh)
    if "uuids" not in meta or not recorded.is_file():
        raise ValueError(f"{name}: got {'nothing recorded' if 'uuids' in meta else 'no id of a GPU'} to repeat")
    compared = compare.compare(fresh, recorded)
    if compared.missing:
        raise ValueError(f"{name}: {compared.missing} recorded rows were not measured, allowed is all of them again")
    target = data.REPEATS / _place(meta) / name
    if target.is_file() or _place(meta) == _place(provenance.load(recorded)):
        raise ValueError(f"{name}: {'repeated' if target.is_file() else 'recorded'} on this GPU and day, allowed is "
                         "another")  # fmt: skip
    target.parent.mkdir(parents=True, exist_ok=True)
    for source, to in ((fresh, target), (data.sidecar_of(fresh), data.sidecar_of(target))):
        shutil.move(source, to)
    return compared.line


def _place(meta: dict) -> str:
    """Day and GPU, as far as they are known."""
    return f"{meta['started'][:10]}-{meta.get('uuids', [''])[0][4:12]}"


def _hold(names: list[str], why: str) -> int:
    if not why.strip():
        raise ValueError("--still: got no reason, allowed is the evidence in words")
    paths = [_recorded(name) for name in names] or sorted(provenance.stale())
    for path in paths:
        provenance.hold(path, why)
    print(f"{len(paths)} recordings hold for the present kernels: {why}")
    return 0


def _recorded(name: str) -> Path:
    if not (path := data.RECORDED / name).is_file():
        raise ValueError(f"{path.relative_to(ROOT)} does not exist")
    return path

"""Measure on this GPU: one table after the other into data/fresh/, so that an interrupted run goes on."""

import argparse
import csv
import os
import time
from itertools import groupby
from pathlib import Path

from pod import data, files
from pod.lab import registry
from pod.lab.measure import provenance
from pod.lab.measure.timing import TIMER

SAVE_SECONDS = 5  # between two looks at the disk: whoever is killed loses no more than that and what is at work


def configure(parser: argparse.ArgumentParser) -> None:
    names = f"a figure, as pod-06, or any of {', '.join(registry.measured())}; all when left out"
    parser.add_argument("table", nargs="*", metavar="TABLE", help=names)
    parser.add_argument("--out", type=Path, help="folder for the tables (default data/fresh/<gpu>)")
    parser.add_argument("--seconds", type=float, default=480, help="stop a table after this long; run again to resume")
    parser.add_argument("--again", action="store_true", help="forget rows that are already there")


def run(args: argparse.Namespace) -> int:
    chosen = dict.fromkeys(table for name in args.table or registry.measured() for table in recordings_of(name))
    import torch

    if not torch.cuda.is_available():
        raise ValueError("no GPU here: measuring needs one; `make reproduce-figures` draws what was recorded")
    out = files.ready(args.out or data.FRESH / provenance.folder_of(provenance.collect()["gpu"]))
    for name in chosen:
        measure(name, out, args.seconds, args.again)
    return 0


def recordings_of(name: str) -> list[str]:
    """The recording of this name, or those that the figure of this name shows."""
    known = registry.measured()
    if name in known:
        return [name]
    figure = getattr(registry.page(name), "FIGURE", None) if name in registry.pages() else None
    found = [table for table in (figure.data if figure else ()) if table in known]
    if not found:
        raise ValueError(f"no recording {name}, nor a figure that shows one; there are {', '.join(known)}")
    return found


def measure(name: str, folder: Path, seconds: float, again: bool) -> Path:
    """Measure the rows of a recording that `folder` lacks; when all are there the provenance sidecar is written."""
    import torch
    from tqdm import tqdm

    page, path = registry.maker(name), folder / f"{name}.csv"
    if again:
        path.unlink(missing_ok=True)
        data.sidecar_of(path).unlink(missing_ok=True)
    whole, cases, end = getattr(page, "WHOLE", page.KEYS), page.cases(), time.monotonic() + seconds
    rows = files.rows(path) if path.exists() else []
    done, todo = _split(rows, cases, page.KEYS, whole)
    before = provenance.begun(path, page.UNITS) if done else None
    print(f"{name}: {len(todo)} of {len(cases)} rows to measure.", flush=True)
    if before and done == rows and not todo:
        return path  # its sidecar tells of the sessions that measured
    with provenance.watch() as watched:
        saved = time.monotonic()
        for _, unit in groupby(tqdm(todo, desc=name, mininterval=10), lambda case: _name(case, whole)):
            done += [case | page.measure(case) for case in unit]
            if time.monotonic() > saved + SAVE_SECONDS:
                _write(path, done)
                saved = time.monotonic()
            if 2 * torch.cuda.memory_reserved() > torch.cuda.mem_get_info()[1]:
                torch.cuda.empty_cache()  # not after every row: to ask for it again takes time
            if time.monotonic() > end:
                break
    _write(path, done)
    if len(done) < len(cases):
        print(f"{name}: {len(done)} of {len(cases)} rows after {seconds:.0f} s; run again to go on.")
    timed = {"timer": getattr(page, "TIMER", TIMER), "l2": getattr(page, "L2", "cold"), "repeats": page.REPEATS}
    part = f"the first {len(done)} of {len(cases)} rows, as time allowed" if len(done) < len(cases) else ""
    provenance.write(path, watched, keys=page.KEYS, **timed, kernels=page.UNITS,
                     command=f"python -m pod measure {name}", before=before, part=part)  # fmt: skip
    return path


def _split(rows: list[dict], cases: list[dict], keys: tuple, whole: tuple) -> tuple[list[dict], list[dict]]:
    """The rows that count, and the cases still to measure: of an execution that is there in part, all."""
    there, asked = ({_name(row, keys) for row in each} for each in (rows, cases))
    broken = {_name(case, whole) for case in cases if _name(case, keys) not in there}
    done = [row for row in rows if _name(row, keys) in asked and _name(row, whole) not in broken]
    return done, [case for case in cases if _name(case, whole) in broken]


def _name(row: dict, columns: tuple) -> tuple[str, ...]:
    return tuple(str(row[column]) for column in columns)


def _write(path: Path, rows: list[dict]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(part, path)  # at once: whoever is killed while writing keeps what was there

"""`python -m pod compute`: make every table that needs no GPU, simulated, emulated or compiled, into data/computed/.

The pages that say COMPUTED make them (pod/experiments/__init__.py). Figures only read what lies in data/computed/.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from types import ModuleType

from pod import data, files
from pod.files import ROOT, sha256
from pod.lab import registry
from pod.lab.measure import sources
from pod.sweep import remember, sweep

CLOSE = 1e-6  # relative: another processor adds in another order


def maker(name: str) -> ModuleType:
    if name not in registry.computed():
        raise ValueError(f"no computed table {name}; there are {', '.join(registry.computed())}")
    return registry.maker(name)


def rows_of(name: str, case: dict) -> list[dict]:
    """The rows of one case, made now."""
    made = maker(name).measure(case)
    return [case | row for row in (made if isinstance(made, list) else [made])]


def _kept(task: tuple[str, dict]) -> list[dict]:
    return remember(rows_of)(*task)


def compute(name: str, quiet: bool = False) -> Path:
    """Make a table, on all cores, and its sidecar."""
    import pandas as pd

    module, begin = maker(name), time.perf_counter()
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    made = sweep(_kept, [(name, case) for case in module.cases()], quiet=quiet)
    data.COMPUTED.mkdir(exist_ok=True)
    path = data.COMPUTED / f"{name}.csv"
    files.replace(path, pd.DataFrame([row for rows in made for row in rows]).to_csv(index=False, lineterminator="\n"))
    meta = {"keys": list(module.KEYS), "reads": read_by(module), "kernels": compiled_by(module), "started": started,
            "seconds": round(time.perf_counter() - begin, 1), "python": sys.version.split()[0],
            "command": f"python -m pod compute {name}", "sha256": sha256(path)}  # fmt: skip
    files.replace(data.sidecar_of(path), json.dumps(meta, indent=1) + "\n")
    return path


def read_by(module: ModuleType) -> dict[str, str]:
    """The tables that a maker starts from, with their sums."""
    return {name: sha256(path_of(name)) for name in getattr(module, "READS", ())}


def compiled_by(module: ModuleType) -> dict[str, str]:
    """What the compiler saw, of a table about kernels."""
    return sources.sums(getattr(module, "UNITS", ()))


def path_of(name: str) -> Path:
    """What is computed starts from what was recorded and reviewed, whatever figures are asked to show."""
    return data.path_of(name, data.DATA / data.SHOWN)


# ---------------------------------------------------------------- is it still so?


def problems(name: str) -> list[str]:
    """What is wrong with a table at a glance: its sidecar, its cases, or what it starts from."""
    module, path = maker(name), data.COMPUTED / f"{name}.csv"
    if not path.is_file() or not data.sidecar_of(path).is_file():
        return ["not made yet"]
    meta, now = json.loads(data.sidecar_of(path).read_text(encoding="utf-8")), read_by(module)
    found = [] if meta["sha256"] == sha256(path) else ["was changed by hand"]
    found += [f"{other} has changed since" for other in now if meta["reads"].get(other) != now[other]]
    found += [] if meta["kernels"] == compiled_by(module) else ["was made with other kernels"]
    cases = module.cases()
    columns = list(cases[0])
    if _names(_rows(path), columns) != _names(cases, columns):
        found.append("other cases are asked for now")
    return found


def differing(name: str, most: int | None = None) -> list[str]:
    """Make cases again, `most` of them or all, and name the values that come out otherwise."""
    module = maker(name)
    cases = module.cases()
    chosen = cases if most is None or len(cases) <= most else Random(name).sample(cases, most)
    there = {_name(row, module.KEYS): row for row in _rows(data.COMPUTED / f"{name}.csv")}
    found = []
    for row in (row for rows in sweep(_fresh, [(name, case) for case in chosen], quiet=True) for row in rows):
        before = there.get(_name(row, module.KEYS), {})
        found += [f"{_name(row, module.KEYS)}: {column} is {value}, was {before.get(column)}"
                  for column, value in row.items() if not _same(value, before.get(column))]  # fmt: skip
    return found


def _fresh(task: tuple[str, dict]) -> list[dict]:
    return rows_of(*task)


def _same(value, before) -> bool:
    if isinstance(value, (int, float)) and isinstance(before, (int, float)):
        return abs(value - before) <= CLOSE * max(abs(value), abs(before))
    return str(value) == str(before)


def _rows(path: Path) -> list[dict]:
    import pandas as pd

    return pd.read_csv(path, float_precision="round_trip", keep_default_na=False).to_dict("records")


def _names(rows: Iterable[dict], columns: list[str]) -> set[tuple[str, ...]]:
    return {_name(row, columns) for row in rows}


def _name(row: dict, columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(row[column]) for column in columns)


# ---------------------------------------------------------------- the verb


def configure(parser: argparse.ArgumentParser) -> None:
    names = f"any of {', '.join(registry.computed())}; all when left out"
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=names)
    parser.add_argument("--check", action="store_true", help="make nothing: say which values would come out otherwise")


def run(args: argparse.Namespace) -> int:
    data.choose(data.SHOWN)
    names = sorted(args.tables or registry.computed(), key=_depth)  # an unknown one ends it before any work
    return max([_checked(name) if args.check else _made(name) for name in names])


def _depth(name: str) -> int:
    """What others start from comes first."""
    starts = [other for other in getattr(maker(name), "READS", ()) if other in registry.computed()]
    return 1 + max(map(_depth, starts), default=0)


def _made(name: str) -> int:
    begin = time.perf_counter()
    path = compute(name)
    print(f"{name:<16} {time.perf_counter() - begin:6.1f} s  {path.relative_to(ROOT)}", flush=True)
    return 0


def _checked(name: str) -> int:
    found = problems(name) or differing(name)
    print(
        f"{name:<16} {found[0] if found else 'as it was'}{f' and {len(found) - 1} more' if found[1:] else ''}",
        flush=True,
    )
    return 1 if found else 0

"""Fresh measurements against the recorded ones, value by value: did this GPU do the same again?"""

from dataclasses import dataclass
from pathlib import Path

from pod import data
from pod.files import ROOT
from pod.lab.measure import provenance

TOLERANCE = 0.05  # beyond the recorded p10 and p90, for another day's clocks and temperature


@dataclass(frozen=True)
class Comparison:
    """Outcome for one file: how many values lie in their band, and the one farthest from its recording."""

    name: str
    inside: int
    values: int
    missing: int
    worst: str

    @property
    def agrees(self) -> bool:
        return self.values > 0 and self.missing == 0 and self.inside >= 0.95 * self.values

    @property
    def line(self) -> str:
        rows = f", {self.missing} recorded rows not measured" if self.missing else ""
        worst = f"; farthest: {self.worst}" if self.worst else ""
        return (
            f"{'agrees' if self.agrees else 'DIFFERS':<8} {self.name}: {self.inside}/{self.values} in band{rows}{worst}"
        )


def compare(fresh: Path, recorded: Path) -> Comparison:
    """Rows are matched by the recording's key columns. A value is in its band when it lies between the recorded p10
    and p90, widened by TOLERANCE; a column without spread has its recorded value, widened by twice that."""
    import pandas as pd

    then, now = provenance.load(recorded), provenance.load(fresh)
    if now["gpu"] != then["gpu"]:
        raise ValueError(f"{fresh.name}: measured on {now['gpu']}, recorded on {then['gpu']}; times do not compare")
    keys = then["keys"]
    old, new = (pd.read_csv(path).set_index(keys) for path in (recorded, fresh))
    for path, table in ((recorded, old), (fresh, new)):
        if table.index.has_duplicates:
            raise ValueError(f"{path.name}: two rows share the key {table.index[table.index.duplicated()][0]}")
    both = old.index.intersection(new.index)
    ratios = []
    for column in _measured(old):
        low, high = _band(old.loc[both], column)
        value = new.loc[both, column]
        known = value.notna() & low.notna()
        ratio = value / old.loc[both, column]
        ratios += [
            (r, ok, column, key)
            for key, r, ok, k in zip(both, ratio, value.between(low, high), known, strict=True)
            if k
        ]
    worst = max(ratios, key=lambda r: abs(r[0] - 1), default=None)
    text = f"{worst[2]} at {worst[3]} is {worst[0]:.2f} of its recording" if worst else ""
    return Comparison(recorded.name, sum(r[1] for r in ratios), len(ratios), len(old) - len(both), text)


def _measured(table) -> list[str]:
    """Numeric columns but the spread of others."""
    return [c for c in table.select_dtypes("number").columns if not c.endswith(("_p10", "_p90"))]


def _band(table, column: str):
    if f"{column}_p10" in table and f"{column}_p90" in table:
        return table[f"{column}_p10"] * (1 - TOLERANCE), table[f"{column}_p90"] * (1 + TOLERANCE)
    return table[column] * (1 - 2 * TOLERANCE), table[column] * (1 + 2 * TOLERANCE)


def configure(parser) -> None:
    parser.add_argument("names", nargs="*", metavar="FILE", help="e.g. h200/waves.csv; all fresh files when left out")


def run(args) -> int:
    fresh = provenance.recordings(data.FRESH)
    names = args.names or [p.relative_to(data.FRESH).as_posix() for p in fresh if p.suffix == ".csv"]
    if not names:
        print("nothing to compare: data/fresh/ is empty; `make measure` on a GPU fills it")
        return 0
    for path in (folder / name for name in args.names for folder in (data.FRESH, data.RECORDED)):
        if not path.is_file():
            raise ValueError(f"{path.relative_to(ROOT)} does not exist")
    return 0 if all([_agrees(name) for name in names]) else 1


def _agrees(name: str) -> bool:
    """Say how a fresh file compares; one that is recorded nowhere contradicts nothing."""
    if not (data.RECORDED / name).is_file():
        print(f"{'alone':<8} {name}: nothing is recorded that it could be held against")
        return True
    try:
        outcome = compare(data.FRESH / name, data.RECORDED / name)
    except ValueError as error:  # an interrupted measurement must not hide the others
        print(f"{'REFUSED':<8} {name}: {error}")
        return False
    print(outcome.line)
    return outcome.agrees

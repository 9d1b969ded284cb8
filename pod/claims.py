"""What the sources claim, what we find, and the verdict. The claims and their bands are in data/claims.toml."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pod import paper
from pod.figures import registry

FILE = Path(__file__).parents[1] / "data" / "claims.toml"
KINDS = ("ordering", "trend", "number")
HOLDS, FAILS, OPEN = "holds", "does not hold", "not measured yet"
PLURAL = {HOLDS: "hold", FAILS: "do not hold", OPEN: "are not measured yet"}


@dataclass(frozen=True)
class Claim:
    """One row of data/claims.toml; the file says what each field means."""

    id: str
    statement: str
    measure: str
    kind: str
    band: tuple[float, float]
    paper: str = ""
    ours: str = ""
    figure: str = ""
    headline: bool = False
    note: str = ""

    @property
    def number(self) -> paper.Number:
        return paper.numbers()[self.paper] if self.paper else paper.NONE

    @property
    def shown_in(self) -> str:
        """Registry id of the figure or table that settles it, "" when no single one does."""
        return self.figure or self.number.figure

    @property
    def source(self) -> str:
        if not self.paper:
            return registry.OURS
        return f"{registry.SOURCES[self.paper.split('.')[0]]}, {self.number.where}"


@dataclass(frozen=True)
class Result:
    claim: Claim
    ours: float | None

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return OPEN
        low, high = self.claim.band
        return HOLDS if low <= self.ours <= high else FAILS

    @property
    def ours_text(self) -> str:
        if self.ours is None:
            return ""
        if 0 < abs(self.ours) < 1e-9:  # pure rounding, which differs from machine to machine
            return "below 1e-9"
        units = {"x": "x", "%": " %", "s": " s", "ms": " ms"}
        return f"{self.ours:.3g}" + units.get(self.claim.measure.rpartition(", ")[2], "")

    @property
    def shown(self) -> str:
        """Our value, and whether it is a model's output: so says the figure that it comes from."""
        module = self.claim.ours.partition(":")[0]
        figure = getattr(importlib.import_module(module), "FIGURE", None) if module else None
        return self.ours_text + (" (simulated)" if figure and figure.state == "simulated" else "")

    @property
    def band_text(self) -> str:
        low, high = self.claim.band
        if math.isinf(high):
            return f"at least {low:g}"
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    def as_json(self) -> dict:
        """JSON knows no infinity: an open end of the band is null."""
        c = self.claim
        band = [None if math.isinf(end) else end for end in c.band]
        return {"id": c.id, "source": c.source, "statement": c.statement, "paper": c.number.value, "ours": self.ours,
                "kind": c.kind, "band": band, "verdict": self.verdict}  # fmt: skip


def _claim(row: dict) -> Claim:
    name = row.get("id", "a claim without id")
    try:
        claim = Claim(**row)
    except TypeError as error:
        raise ValueError(f"data/claims.toml, {name}: {str(error).removeprefix('Claim.__init__() ')}") from None
    if not _is_band(claim.band):
        raise ValueError(f"data/claims.toml, {name}: band is {claim.band!r}; allowed is [low, high] with low <= high")
    if claim.kind not in KINDS:
        raise ValueError(f"data/claims.toml, {name}: kind is {claim.kind!r}; allowed: {', '.join(KINDS)}")
    if not claim.paper and not claim.figure:
        raise ValueError(f"data/claims.toml, {name}: neither paper nor figure; a claim of ours names the figure")
    if claim.paper and claim.paper not in paper.numbers():
        raise ValueError(f"data/claims.toml, {name}: paper is {claim.paper!r}; allowed are the ids of data/paper/*.csv")
    if claim.figure:
        registry.find(claim.figure)
    return replace(claim, band=tuple(map(float, claim.band)))


def _is_band(band) -> bool:
    numbers = isinstance(band, list) and len(band) == 2 and all(type(end) in (int, float) for end in band)
    return numbers and band[0] <= band[1]


def load(text: str | None = None) -> list[Claim]:
    """All claims, checked; `text` replaces the file's contents."""
    claims = [_claim(row) for row in _toml(text or FILE.read_text(encoding="utf-8"))["claim"]]
    ids = [c.id for c in claims]
    if twice := {i for i in ids if ids.count(i) > 1}:
        raise ValueError(f"data/claims.toml: id {', '.join(sorted(twice))} appears twice")
    return claims


def _toml(text: str) -> dict:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads(text)


@cache
def _measure(expression: str) -> float:
    module, _, function = expression.partition(":")
    return float(getattr(importlib.import_module(module), function)())


def judge(claim: Claim) -> Result:
    return Result(claim, _measure(claim.ours) if claim.ours else None)


def results(figure: str | None = None) -> list[Result]:
    """Every claim with its verdict, or those that one figure settles."""
    return [judge(c) for c in load() if figure is None or c.shown_in == figure]


def markdown() -> str:
    """The headline claims as the README shows them."""
    rows = ["| claim | paper | here | verdict |", "|---|---|---|---|"]
    for claim in filter(lambda c: c.headline, load()):
        r = judge(claim)
        waits = f" (chapter {registry.find(claim.shown_in).chapter})" if r.verdict == OPEN and claim.shown_in else ""
        why = f": {claim.note}" if r.verdict == FAILS else ""
        rows.append(f"| {claim.statement} | {claim.number.text} | {r.shown} | {r.verdict}{waits}{why} |")
    return "\n".join(rows) + "\n"


def table(rows: list[Result]) -> str:
    """Plain text for a terminal, one line a claim."""
    cells = [("verdict", "paper", "ours", "band", "claim")]
    for r in rows:
        c = r.claim
        cells.append((r.verdict, c.number.text, r.shown, r.band_text, f"{c.id}: {c.statement}"))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def configure(parser) -> None:
    parser.add_argument("--json", action="store_true", help="a list of claims as JSON instead of a table")


def run(args) -> int:
    rows = results()
    if args.json:
        print(json.dumps([r.as_json() for r in rows], indent=1, ensure_ascii=False))
        return 0
    print(table(rows))
    counts = Counter(r.verdict for r in rows)
    print("\n" + ", ".join(f"{counts[verdict]} {plural}" for verdict, plural in PLURAL.items()))
    return 0

"""What the sources claim, what we find, and the verdict. The claims and their bands are in data/claims.toml."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from pod import data, files
from pod.files import ROOT
from pod.lab import bands, paper, registry, repeats
from pod.lab.figure import OURS, SOURCES
from pod.lab.measure import provenance

FILE = ROOT / "data" / "claims.toml"
RECORDED = data.RECORDED / "h200"  # whose claims they are
KINDS = ("ordering", "trend", "number")
EVIDENCE = ("measured", "simulated", "exact")
HOLDS, FAILS, CANNOT, OPEN = "holds", "does not hold", "cannot tell", "not measured yet"
PLURAL = {HOLDS: "hold", FAILS: "do not hold", CANNOT: "cannot be told", OPEN: "are not measured yet"}
WHOSE = ("of the sources", "our own")
POSTS = ("sarathi", "orca", "vllm", "plus34")
WHOLE = ("hopper-sweep", "hopper-any", "hopper-peers", "hopper-graphs", "hopper-dtypes", "joules", "pod-11", "pod-t3",
         "engine-runs", "engine-windows", "engine-stock")  # fmt: skip
RULE = """The rows are chosen by a rule, not by their verdict: every number of an abstract; of the posts, which have no
abstract, every speed-up that they state; and of our own, every claim that compares whole hybrid batches or whole runs
with other people's kernels and engines. *Measured* is what an H200 did, with its recordings in
[data/recorded/h200](data/recorded/h200) and their days; *simulated* is what a model says, also a sum of measured parts;
*exact* follows by computing."""


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
    evidence: str = ""
    base: str = ""
    cannot: str = ""
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
            return OURS
        return f"{SOURCES[self.paper.split('.')[0]]}, {self.number.where}"

    @property
    def headline(self) -> bool:
        """Whether the README shows it, by RULE."""
        if not self.paper:
            return self.figure in WHOLE
        source, item = self.paper.split(".")[:2]
        return item == "abstract" or (source in POSTS and self.number.unit == "x")

    @property
    def foreseen(self) -> bool:
        """Whether the history shows the band before what it judges."""
        row = _dated().get(self.id)
        if not row or (float(row["low"]), float(row["high"])) != self.band:
            return False
        return not row["seen"] or row["since"] < row["seen"]

    @property
    def page(self):
        return registry.page(self.ours.partition(":")[0]) if self.ours else None

    def filled(self, text: str) -> str:
        """`text` with each {name} replaced by the value of that name on `ours`' page; a function is called."""

        def value(match: re.Match) -> str:
            try:
                number = _call(f"{self.ours.partition(':')[0]}:{match[1]}")
            except data.Missing:
                return "?"  # on this card
            return format(number, match[2] or ("," if isinstance(number, int) else ".3g"))

        return re.sub(r"\{(\w+(?:\([^()]+\))?(?:\.\w+)?)(?::([^}]*))?\}", value, text)


@cache
def _dated() -> dict[str, dict[str, str]]:
    return {row["id"]: row for row in files.rows(bands.FILE)}


@dataclass(frozen=True)
class Result:
    """base: over what, on which batches, how many. why: the reason why it cannot be told, or the note."""

    claim: Claim
    ours: float | None
    base: str = ""
    why: str = ""

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return OPEN
        if self.claim.cannot:
            return CANNOT
        return HOLDS if self._in_band(self.ours) else FAILS

    def _in_band(self, value: float) -> bool:
        low, high = self.claim.band
        return low <= value <= high

    @property
    def evidence(self) -> str:
        """What the value is: measured, simulated or exact. A figure's state says it, unless the claim does."""
        if self.ours is None or not self.claim.page:
            return ""
        return self.claim.evidence or self.claim.page.FIGURE.evidence

    @property
    def evidence_text(self) -> str:
        """The same, and of what is measured the recordings and their days."""
        if self.evidence != "measured":
            return self.evidence
        recorded = [name for name in self.claim.page.FIGURE.data if name not in registry.computed()]
        return f"measured: {', '.join(f'{name} {provenance.day(name)}' for name in recorded)}"

    @property
    def ours_text(self) -> str:
        if self.ours is None:
            return ""
        if 0 < abs(self.ours) < 1e-9:  # pure rounding, which differs from machine to machine
            return "below 1e-9"
        units = {"x": "x", "%": " %", "s": " s", "ms": " ms"}
        return f"{self.ours:.3g}" + units.get(self.claim.measure.rpartition(", ")[2], "")

    @property
    def again(self) -> list[float]:
        """What it came to when the recordings were repeated, on other days and GPUs; of what is recorded alone."""
        return repeats.values().get(self.claim.id, []) if self.ours is not None and data.folder() == RECORDED else []

    @property
    def spread_text(self) -> str:
        """The value, between which all recordings of it lie, and how many of them would judge otherwise."""
        all_of_it = [self.ours, *self.again]
        if not self.again:
            return self.ours_text
        turned = sum(self._in_band(value) != self._in_band(self.ours) for value in self.again)
        otherwise = f"; {turned} would turn the verdict" if turned else ""
        between = f"{min(all_of_it):.3g} to {max(all_of_it):.3g} in {len(all_of_it)} recordings"
        return f"{self.ours_text} ({between}{otherwise})"

    @property
    def band_text(self) -> str:
        low, high = self.claim.band
        text = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        text = f"at least {low:g}" if math.isinf(high) else f"at most {high:g}" if math.isinf(low) else text
        return text if self.claim.foreseen else f"{text} †"

    def as_json(self) -> dict:
        """JSON knows no infinity: an open end of the band is null."""
        c = self.claim
        band = [None if math.isinf(end) else end for end in c.band]
        return {"id": c.id, "source": c.source, "statement": c.statement, "paper": c.number.value, "ours": self.ours,
                "repeats": self.again, "evidence": self.evidence, "base": self.base, "kind": c.kind, "band": band,
                "band_before_evidence": c.foreseen, "verdict": self.verdict, "why": self.why}  # fmt: skip


def _claim(row: dict) -> Claim:
    name = row.get("id", "a claim without id")
    try:
        claim = Claim(**row)
    except TypeError as error:
        raise ValueError(f"data/claims.toml, {name}: {str(error).removeprefix('Claim.__init__() ')}") from None
    if not _is_band(claim.band):
        raise ValueError(f"data/claims.toml, {name}: band is {claim.band!r}; allowed is [low, high] with low <= high")
    for field, allowed in (("kind", KINDS), ("evidence", ("", *EVIDENCE))):
        if getattr(claim, field) not in allowed:
            words = f"{field} is {getattr(claim, field)!r}; allowed: {', '.join(filter(None, allowed))}"
            raise ValueError(f"data/claims.toml, {name}: {words}")
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
    claims = [_claim(row) for row in bands.parse(text or FILE.read_text(encoding="utf-8"))]
    ids = [c.id for c in claims]
    if twice := {i for i in ids if ids.count(i) > 1}:
        raise ValueError(f"data/claims.toml: id {', '.join(sorted(twice))} appears twice")
    return claims


@cache
def _call(expression: str) -> float:
    """pod-12:gain(yi-6b, vLLM) is gain("yi-6b", "vLLM") on page pod-12; pod-11:gains(pod).max the largest of gains."""
    match = re.fullmatch(r"([\w-]+):(\w+)(?:\((.+)\))?(?:\.(min|max|mean|median))?", expression)
    if not match:
        raise ValueError(f"ours: got {expression!r}, allowed is page:function, page:function(argument, ...), and .min, "
                         ".max, .mean or .median of it")  # fmt: skip
    value, given = getattr(registry.page(match[1]), match[2]), match[3].split(", ") if match[3] else []
    value = value(*(int(word) if word.isdigit() else word for word in given)) if callable(value) else value
    return float(getattr(value, match[4])()) if match[4] else value


def judge(claim: Claim) -> Result:
    """A claim about a card on which what it needs was not measured stays open."""
    ours = _value(claim)
    if ours is None and claim.ours:  # what the words would name was not measured either
        return Result(claim, None, claim.measure)
    return Result(claim, ours, _base(claim), claim.filled(claim.cannot or claim.note))


def _value(claim: Claim) -> float | None:
    if not claim.ours or claim.page.FIGURE.lacks:
        return None
    try:
        return float(_call(claim.ours))
    except data.Missing:
        return None


def _base(claim: Claim) -> str:
    """What `ours` returns, and the conditions, by default its figure's."""
    if not claim.page:
        return claim.measure
    return f"{claim.measure}; {claim.filled(claim.base) or claim.page.FIGURE.method.rstrip('.')}"


def results(figure: str | None = None, judged: Iterable[Result] = ()) -> list[Result]:
    """Every claim with its verdict, or those that one figure settles; `judged`: those that were already."""
    known = {result.claim.id: result for result in judged}
    return [known.get(c.id) or judge(c) for c in load() if figure is None or c.shown_in == figure]


# ---------------------------------------------------------------- how many hold


def tally(rows: list[Result]) -> list[tuple]:
    """Whose, on what evidence, and how many of each verdict; one row each that has any."""
    counts = Counter((WHOSE[not r.claim.paper], r.evidence or "none", r.verdict) for r in rows)
    kinds = [(whose, evidence) for whose in WHOSE for evidence in (*EVIDENCE, "none")]
    lines = [(*kind, *(counts[(*kind, verdict)] for verdict in PLURAL)) for kind in kinds]
    return [line for line in lines if any(line[2:])]


def foreseen(rows: list[Result]) -> str:
    """How many numbers are judged, and how many bands stood before what they judge."""
    before = sum(r.claim.foreseen for r in rows)
    theirs = [r.claim.paper for r in rows if r.claim.paper]
    return (f"The {len(theirs)} claims of the sources rest on {len(set(theirs))} of their numbers: some are judged on "
            "more than one recording or model, and counted each time. "
            f"Of {len(rows)} bands, {before} stand in this repository's history before the first recording or run that "
            f"they judge. {len(rows) - before} (†) do not: whoever fixed them could have seen the value.")  # fmt: skip


def _table(rows: list[tuple]) -> str:
    """Plain text for a terminal."""
    cells = [tuple(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def table(rows: list[Result]) -> str:
    """Plain text for a terminal, two lines a claim: what holds, and over what."""
    cells = [("verdict", "evidence", "paper", "ours", "band", "claim")]
    for r in rows:
        cells.append((r.verdict, r.evidence, r.claim.number.text, r.spread_text, r.band_text,
                      f"{r.claim.id}: {r.claim.statement}"))  # fmt: skip
    head, *lines = _table(cells).splitlines()
    return "\n".join([head, *(f"{line}\n    {r.base}" for line, r in zip(lines, rows, strict=True))])


def totals(rows: list[Result]) -> str:
    return _table([("claims", "evidence", *PLURAL.values()), *tally(rows)])


def markdown() -> str:
    """How many claims hold, and those that RULE chooses, as the README shows them."""
    rows = results()
    shown = [_row("claims", "evidence", *PLURAL.values()), "|---|---|--:|--:|--:|--:|"]
    shown += [*(_row(*line) for line in tally(rows)), "", foreseen(rows), "", RULE, ""]
    shown += [_row("claim", "stated", "here", "band", "evidence", "over what, on which batches", "verdict")]
    shown += ["|---" * 7 + "|"]
    for r in rows:
        if r.claim.headline:
            verdict = f"{r.verdict}: {r.why}" if r.why else r.verdict
            shown.append(_row(r.claim.statement, r.claim.number.text, r.spread_text, r.band_text,
                              r.evidence_text, r.base, verdict))  # fmt: skip
    return "\n".join(shown) + "\n"


def _row(*cells) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


# ---------------------------------------------------------------- the verb


def configure(parser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="a list of claims as JSON instead of a table")
    what.add_argument("--dates", action="store_true", help="write data/bands.csv anew from the git history, and end")
    what.add_argument("--repeats", action="store_true", help="write data/repeats.csv from data/repeats, and end")


def run(args) -> int:
    if args.dates:
        bands.write()
        return 0
    if args.repeats:
        repeats.write()
        return 0
    print("settling the claims: about ten seconds", file=sys.stderr, flush=True)
    rows = results()
    if args.json:
        print(json.dumps([r.as_json() for r in rows], indent=1))
        return 0
    print(f"{table(rows)}\n\n{totals(rows)}\n\n{foreseen(rows)}")
    return 0

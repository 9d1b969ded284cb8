"""The numbers that the papers and posts state, read from data/paper/*.csv. An id like "pod.f06.decode_step" names the
source, the item (f06 is Figure 6, t4 Table 4, s532 is §5.3.2) and the quantity."""

from dataclasses import dataclass
from functools import lru_cache

from pod import files
from pod.files import ROOT

FOLDER = ROOT / "data" / "paper"
COLUMNS = ["id", "value", "unit", "where", "how", "note"]


@dataclass(frozen=True)
class Number:
    """A stated value: a number, or, with the unit "label", what the text says in a few words of ours."""

    id: str
    value: float | str
    printed: str
    unit: str
    where: str
    how: str
    note: str

    @property
    def figure(self) -> str:
        """Registry id of the figure or table it belongs to ("pod-06", "pod-t4"), "" for the text at large."""
        if not self.id:
            return ""
        source, item = self.id.split(".")[:2]
        kind, digits = item[0], item[1:]
        if kind not in "ft" or not digits.isdigit():
            return ""
        return f"{source}-{digits}" if kind == "f" else f"{source}-t{int(digits)}"

    @property
    def quantity(self) -> str:
        """What is stated, in words: "decode step"."""
        return self.id.split(".", 2)[2].replace("_", " ").replace(".", " ")

    @property
    def text(self) -> str:
        """The value with its unit, as a reader wants it: "28 %", "1.73x", "memory-bound"."""
        if self.unit == "label":
            return self.printed
        shapes = {"x": "{}x", "P:D": "P:D {}"}
        return shapes.get(self.unit, f"{{}} {self.unit}").format(self.printed)


NONE = Number("", "", "", "label", "", "", "")  # of a claim that no source makes


def _number(row: dict[str, str]) -> Number:
    value = row["value"] if row["unit"] == "label" else float(row["value"])
    return Number(value=value, printed=row["value"], **{k: row[k] for k in COLUMNS if k != "value"})


@lru_cache(maxsize=1)
def numbers() -> dict[str, Number]:
    """Every stated number by its id."""
    found: dict[str, Number] = {}
    for path in sorted(FOLDER.glob("*.csv")):
        for row in files.rows(path):
            if row["id"] in found:
                raise ValueError(f"{path.name}: id {row['id']} appears twice")
            found[row["id"]] = _number(row)
    return found


def value(number_id: str) -> float | str:
    """The value of one stated number; unknown ids are a ValueError."""
    if number_id not in numbers():
        raise ValueError(f"unknown paper number {number_id!r}; data/paper/*.csv has {len(numbers())} ids")
    return numbers()[number_id].value


def of_figure(figure_id: str) -> list[Number]:
    """What the source states about one figure or table."""
    return [n for n in numbers().values() if n.figure == figure_id]

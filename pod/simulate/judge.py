"""How far off the analytical cost is, part by part: held against public measurements that its constants have not seen.

    python -m pod judge [FOLDER ...]

writes data/judged.csv from data/public, our own recordings, and every further folder with profiles in files of the same
columns. Rows of sources that are not given stay as they are: some profiles are larger than this repository, and
data/public/README.md says where they are from. A part passes with a median error of 10 % and 95 % of its errors within
25 %.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pod.data import DATA
from pod.hardware import gpu
from pod.serving.shapes import Shape, shape
from pod.simulate import host_time
from pod.simulate.attention_time import KERNELS
from pod.simulate.cost import OPERATORS, AnalyticalCost
from pod.simulate.machines import MACHINES

PUBLIC, JUDGED = DATA / "public", DATA / "judged.csv"
MEDIAN, P95 = 10, 25  # percent
COLUMNS = ("part", "what", "source", "split", "model", "tp", "rows", "median", "p95", "bias", "passes")
WIDTHS = (10, 22, 17, 8, 4, 4, 5, 5, 5, 6, 4)


class Error(NamedTuple):
    """One measurement: what it is of, and how much longer we say that it takes, as a share."""

    part: str
    what: str
    source: str
    split: str
    model: str
    tp: str
    error: float


def attention(row: dict) -> tuple[str, str, float]:
    on, kernel, heads = gpu(row["gpu"]), KERNELS[row["kernel"]], (int(row["q_heads"]), int(row["kv_heads"]), 128)
    requests, new, before = (int(row[k]) for k in ("requests", "new", "before"))
    if row["part"] == "prefill":
        return "prefill", f"{row['kernel']} on {on.key}", kernel.prefill(on, *heads, [(new, before)] * requests)
    return "decode", f"{row['kernel']} on {on.key}", kernel.decode(on, *heads, requests, requests * (before + new))


def linear(row: dict) -> tuple[str, str, float]:
    numbers = [int(row[k]) for k in ("hidden", "q_heads", "kv_heads", "head_dim", "ffn")]
    shape = Shape(row["model"], row["model"], 1, *numbers, 32000, row["gated"] == "1")
    return "linear", row["gpu"], _divided(shape, row["gpu"], int(row["tp"])).linear(int(row["rows"]))


def _divided(shape: Shape, key: str, tp: int) -> AnalyticalCost:
    """The cost of one layer; that KV heads are copied where there are fewer of them than GPUs is no matter here."""
    cost = AnalyticalCost(shape, gpu(key))
    cost.tp = tp
    return cost


def all_reduce(row: dict) -> tuple[str, str, float]:
    on = MACHINES[row["machine"]]
    return "all-reduce", row["machine"], on.all_reduce(int(row["tp"]), int(row["bytes"]))


def host(row: dict) -> tuple[str, str, float]:
    return "host", row["profile"], host_time.seconds(row["profile"], int(row["tp"]), int(row["requests"]))


PARTS = {f"{part.__name__}.csv": part for part in (attention, linear, all_reduce, host)}


def profiles(folder: Path) -> list[Path]:
    found = [folder / name for name in PARTS if (folder / name).is_file()]
    if not found:
        raise ValueError(f"folder: got {str(folder)!r}, allowed are folders with {', '.join(PARTS)}, or some of these")
    return found


def errors(folder: Path) -> Iterator[Error]:
    for path in profiles(folder):
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    yield _error(PARTS[path.name], row)
                except KeyError as lacking:
                    raise ValueError(f"{path}, row {number}: got no column, or no constants, {lacking}") from None
                except (TypeError, ValueError) as wrong:  # TypeError: a row that ends early
                    raise ValueError(f"{path}, row {number}: {wrong}") from None


def _error(part: Callable[[dict], tuple[str, str, float]], row: dict) -> Error:
    name, what, seconds = part(row)
    large = " from 1 MiB" if name == "all-reduce" and int(row["bytes"]) >= 1 << 20 else ""
    return Error(name, what + large, row["source"], row["split"], row.get("model", ""), row["tp"],
                 1e6 * seconds / float(row["us"]) - 1)  # fmt: skip


def recorded() -> Iterator[Error]:
    """FlashAttention-3 on our H200, chunks with contexts too; of these, Llama-3-8B's were fitted."""
    with OPERATORS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            part, _, kernel = row["operator"].partition("_")
            if kernel == "fa3":
                chunk, before, requests, each = (
                    int(row[k]) for k in ("chunk", "context", "requests", "decode_context")
                )
                s, on = shape(row["model"]), gpu("h200")
                heads = on, s.q_heads, s.kv_heads, s.head_dim
                ours = KERNELS["fa3-h200"]
                seconds = (ours.prefill(*heads, [(chunk, before)]) if part == "prefill"
                           else ours.decode(*heads, requests, requests * each))  # fmt: skip
                split = "fitted" if s.key == "llama-3-8b" else "held out"
                yield Error(part, "fa3 on h200", "recorded", split, s.key, "1", 1e6 * seconds / float(row["us"]) - 1)


def judged(found: list[Error]) -> list[dict]:
    """A row for each part and split, and one for each model and number of GPUs in it."""
    groups: dict[tuple, list[float]] = {}
    for e in found:
        groups.setdefault((*e[:4], "all", "all"), []).append(e.error)
        groups.setdefault(e[:6], []).append(e.error)
    return [_row(key, np.array(values) * 100) for key, values in groups.items()]


def _row(key: tuple, percent: np.ndarray) -> dict:
    size = np.abs(percent)
    median, p95 = np.median(size), np.percentile(size, 95)
    passes = "yes" if median <= MEDIAN and p95 <= P95 else "no"
    values = (*key, len(percent), f"{median:.1f}", f"{p95:.1f}", f"{np.median(percent):+.1f}", passes)
    return dict(zip(COLUMNS, values, strict=True))


def read() -> list[dict]:
    with JUDGED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER",
                        help="further profiles: " + ", ".join(PARTS))  # fmt: skip


def run(args: argparse.Namespace) -> int:
    sources = recorded(), *map(errors, (PUBLIC, *args.folders))
    made = [row for found in sources for row in judged(list(found))]
    kept = [r for r in (read() if JUDGED.exists() else []) if r["source"] not in {m["source"] for m in made}]
    rows = sorted(made + kept, key=lambda r: [str(r[k]) for k in COLUMNS[:6]])
    with JUDGED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        if row["model"] == "all":
            print("  ".join(f"{row[k]!s:>{w}}" for k, w in zip(COLUMNS, WIDTHS, strict=True)))
    return 0

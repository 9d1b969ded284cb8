"""How far off the analytical cost is, part by part: held against public measurements that its constants have not seen.

    python -m pod judge [FOLDER ...]

writes data/judged.csv from data/public, our own recordings, and every further folder with profiles in files of the same
columns. Rows of sources that are not given stay as they are: some profiles are larger than this repository, and
data/public/README.md says where they are from. A part passes with a median error of 10 % and 95 % of its errors within
25 %; whole runs of another simulator, when all requests a second are within 1 %, and what users felt within 10 %.

Where every time is the median of three and all three are known, `again` says what the measurement would be off by from
itself: 95 % of its medians are that near to medians of three drawn anew from the same three (a bootstrap). One that
knew every true time would be off by as much, so nobody can be asked to pass a bar that this misses.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pod import files
from pod.data import DATA
from pod.hardware import GPUS, gpu
from pod.serving.shapes import Shape, shape
from pod.simulate import host_time
from pod.simulate.attention_time import KERNELS
from pod.simulate.calibrate import work_of
from pod.simulate.cost import OPERATORS, AnalyticalCost
from pod.simulate.machines import MACHINES
from pod.simulate.run import Run, Setup, simulate
from pod.simulate.workload import Workload, rows_of

PUBLIC, JUDGED = DATA / "public", DATA / "judged.csv"
RUNS, WHOLE = PUBLIC / "vidur_runs.csv", "whole run"
PARTED, WHOSE = PUBLIC / "vidur_parts.csv", ("scheduler", "chunk", "pp", "workload")
THROUGHPUT = "requests_per_minute"
FELT = ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99", "latency_p50", "latency_p99")
PARTLY = (10, 25)  # percent: median, and 95 % of the errors
BARS = {(WHOLE, THROUGHPUT): (1, 1)} | {(WHOLE, felt): (10, 10) for felt in FELT}
DRAWN = (7, 13, 7)  # of 27 ways to draw three of three again, in how many the median is the least, the middle, the most
COLUMNS = ("part", "what", "source", "split", "model", "tp", "rows", "median", "p95", "bias", "again", "passes")
SHOWN, WIDTHS = (*COLUMNS, "unseen"), (10, 26, 23, 8, 4, 4, 5, 8, 5, 6, 7, 6, 12)
UNITS = {"median": "median %", "p95": "p95 %", "bias": "bias %", "again": "again %"}


class Error(NamedTuple):
    """One measurement: what it is of, and how much longer we say that it takes, as a share; the least and the most of
    three repeats, over their median."""

    part: str
    what: str
    source: str
    split: str
    model: str
    tp: str
    error: float
    repeats: tuple[float, float] | None = None


def attention(row: dict) -> tuple[str, str, float]:
    on, kernel, heads = gpu(row["gpu"]), KERNELS[row["kernel"]], (int(row["q_heads"]), int(row["kv_heads"]), 128)
    requests, new, before = (int(row[k]) for k in ("requests", "new", "before"))
    if row["part"] == "prefill":
        seconds = kernel.write(on, *heads[1:], requests * new) + kernel.prefill(on, *heads, [(new, before)] * requests)
        return "prefill", f"{row['kernel']} on {on.key}", seconds
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
    """Launched one by one, each number of GPUs is a matter of its own: the host decides."""
    name, gpus = row["machine"], int(row["tp"])
    what = name if name.startswith("nccl") else f"{name} x {gpus}"
    return "all-reduce", what, MACHINES[name].all_reduce(gpus, int(row["bytes"]))


def host(row: dict) -> tuple[str, str, float]:
    return "host", row["profile"], host_time.seconds(row["profile"], int(row["tp"]), int(row["requests"]), row["model"])


REPEATS = ("low", "high")
LEAST = {"before": 0} | dict.fromkeys(("tp", "q_heads", "kv_heads", "requests", "new", "hidden", "head_dim",
                                                   "ffn", "rows", "bytes"), 1)  # fmt: skip
MOST = {"requests": 10**6}  # of others 10^12
NAMED = {"part": ("prefill", "decode"), "split": ("fitted", "held out"), "gated": ("0", "1"), "gpu": tuple(GPUS),
         "kernel": tuple(KERNELS), "machine": tuple(MACHINES), "profile": tuple(host_time.LINES)}  # fmt: skip
PARTS = {f"{part.__name__}.csv": part for part in (attention, linear, all_reduce, host)}
NEEDED = {
    "attention.csv": "source gpu kernel part model tp q_heads kv_heads requests new before us split".split(),
    "linear.csv": "source gpu model tp hidden q_heads kv_heads head_dim ffn gated rows us split".split(),
    "all_reduce.csv": "source machine tp bytes us split".split(),
    "host.csv": "source profile model tp requests us split".split(),
}


def profiles(folder: Path) -> list[Path]:
    found = [folder / name for name in PARTS if (folder / name).is_file()]
    if not found:
        raise ValueError(f"folder: got {str(folder)!r}, allowed are folders with {', '.join(PARTS)}, or some of these")
    return found


def errors(folder: Path) -> Iterator[Error]:
    for path in profiles(folder):
        for number, row in _numbered(path):
            _check(path, number, row)
            yield _error(PARTS[path.name], row)


def _rows(path: Path) -> list[dict]:
    return [row for _, row in _numbered(path)]


def _numbered(path: Path) -> list[tuple[int, dict]]:
    if not (found := list(rows_of(path))):
        raise ValueError(f"{path}: got no row, allowed is at least one")
    return found


def _check(path: Path, number: int, row: dict) -> None:
    needed = NEEDED[path.name]
    if lacking := [column for column in needed if column not in row]:
        named = ", ".join((*needed, *REPEATS))
        raise ValueError(f"{path}, row 1: got no column {lacking[0]}, allowed are {named}, the last two may lack")
    for column, ok, allowed in _rules({column: row.get(column) for column in (*needed, *REPEATS)}):
        if not ok:
            raise ValueError(f"{path}, row {number}, column {column}: got {row.get(column)!r}, allowed are {allowed}")


def _rules(row: dict) -> Iterator[tuple[str, bool, str]]:
    """Of each column, whether what it has may stand there, and what may. Later rules rely on earlier ones."""
    for column, words in NAMED.items():
        yield column, column not in row or row[column] in words, ", ".join(words)
    for column, least in LEAST.items():
        text, most = row.get(column, "1") or "", MOST.get(column, 10**12)
        yield column, text.isdecimal() and least <= int(text[:20]) <= most, f"integers from {least} to {most}"
    for column in ("source", "model"):
        yield column, row.get(column, "-") not in (None, "", "all"), "names, but all"
    us = _number(row["us"])
    yield "us", 1e-3 <= us <= 1e12, "numbers from 0.001 to 1e12"
    if "machine" in row:
        gpus = MACHINES[row["machine"]].growth
        yield "tp", int(row["tp"]) in gpus, f"{', '.join(map(str, gpus))} on {row['machine']}"
    if "q_heads" in row:
        kv_heads = int(row["kv_heads"])
        yield "q_heads", not int(row["q_heads"]) % kv_heads, f"multiples of kv_heads, {kv_heads}"
    if row["low"] or row["high"]:
        yield "low", 0 < _number(row["low"]) <= us, f"numbers above 0 up to us, {us:g}"
        yield "high", us <= _number(row["high"]) < inf, f"numbers from us, {us:g}, on"


def _number(text: str | None) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):  # TypeError: a row that ends early
        return nan


def _error(part: Callable[[dict], tuple[str, str, float]], row: dict) -> Error:
    name, what, seconds = part(row)
    large = " from 1 MiB" if name == "all-reduce" and int(row["bytes"]) >= 1 << 20 else ""
    us, three = float(row["us"]), [row.get(column) for column in REPEATS]
    repeats = tuple(float(x) / us for x in three) if all(three) else None
    return Error(name, what + large, row["source"], row["split"], row.get("model", ""), row["tp"],
                 1e6 * seconds / us - 1, repeats)  # fmt: skip


def recorded() -> Iterator[Error]:
    """FlashAttention-3 on our H200, chunks with contexts too; of these, Llama-3-8B's were fitted."""
    for row in files.rows(OPERATORS):
        part, _, kernel = row["operator"].partition("_")
        if kernel == "fa3":
            chunk, before, requests, each = (int(row[k]) for k in ("chunk", "context", "requests", "decode_context"))
            s, ours = shape(row["model"]), KERNELS["fa3-h200"]
            heads = gpu("h200"), s.q_heads, s.kv_heads, s.head_dim
            seconds = (ours.prefill(*heads, [(chunk, before)]) if part == "prefill"
                       else ours.decode(*heads, requests, requests * each))  # fmt: skip
            split = "fitted" if s.key == "llama-3-8b" else "held out"
            yield Error(part, "fa3 on h200", "recorded", split, s.key, "1", 1e6 * seconds / float(row["us"]) - 1)


def totals() -> Iterator[Error]:
    """Whole runs of Vidur, of the same requests by the same rules: Llama-2-70B on a pair of A100s, none waits for a
    host. Nothing is fitted to them."""
    for row in files.rows(RUNS):
        ours, (name, pp) = _whole(row).metrics(), (row["scheduler"] + row["chunk"], row["pp"])
        for metric in (THROUGHPUT, *FELT):
            yield Error(WHOLE, metric, row["source"], "held out", f"{name} {row['workload']} pp{pp}", "2",
                        ours[metric] / float(row[metric]) - 1)  # fmt: skip


def _whole(row: dict) -> Run:
    chunk = {"chunk": int(row["chunk"]), "max_prefills": 128} if row["chunk"] else {}
    setup = Setup("llama-2-70b", "a100", 2, int(row["pp"]), row["scheduler"], max_batch=128, max_tokens=4096,
                  blocks=3328, host="none", machine="pair", pipeline="reformed", **chunk)  # fmt: skip
    return Run(setup, Workload(row["workload"], int(row["requests"]), float(row["qps"]), high=4096))


def by_part() -> list[dict]:
    """Seconds of those runs in which somebody always waits, ours and what Vidur's own profiles and settings give
    for the same iterations, by whether a prompt is in them and by part."""
    rows = [row | {"theirs": float(row.pop("seconds")), "ours": 0.0} for row in _rows(PARTED)]
    for name in {tuple(row[k] for k in WHOSE) for row in rows}:
        run = _whole(dict(zip(WHOSE, name, strict=True)) | {"requests": "300", "qps": "2"})
        mine = {(row["kind"], row["part"]): row for row in rows if tuple(row[k] for k in WHOSE) == name}
        cost = run.setup.cost()
        for event in simulate(run.setup, run.workload.stream()).iterations:
            kind = "with prompts" if event.prefills else "decodes alone"
            for part, seconds in cost.parts(work_of(event)).items():
                if (kind, part) in mine:
                    mine[kind, part]["ours"] += seconds
    return rows


def judged(found: list[Error]) -> list[dict]:
    """A row for each part and split, and one for each model and number of GPUs in it."""
    groups: dict[tuple, list[Error]] = {}
    for e in found:
        groups.setdefault((*e[:4], "all", "all"), []).append(e)
        groups.setdefault(e[:6], []).append(e)
    return [_row(key, mine) for key, mine in groups.items()]


def _row(key: tuple, mine: list[Error]) -> dict:
    percent = np.array([e.error for e in mine]) * 100
    size, (most, most_p95) = np.abs(percent), BARS.get(key[:2], PARTLY)
    median, p95 = np.median(size), np.percentile(size, 95)
    passes = "yes" if median <= most and p95 <= most_p95 else "no"
    values = (*key, len(percent), f"{median:.1f}", f"{p95:.1f}", f"{np.median(percent):+.1f}", again(mine), passes)
    return dict(zip(COLUMNS, values, strict=True))


def unseen(rows: list[dict]) -> dict[tuple, str]:
    """Of each part, what and source: by what its held-out rows differ from all that its constants were fitted to."""
    each, found = [r for r in rows if r["model"] != "all"], {}
    for row in each:
        if row["split"] == "held out":
            fitted = [r for r in each if r["split"] == "fitted" and _constants(r) == _constants(row)]
            found.setdefault(tuple(row[k] for k in COLUMNS[:3]), set()).add(_differs(row, fitted))
    return {key: ", ".join(sorted(words)) for key, words in found.items()}


def _constants(row: dict) -> tuple[str, str]:
    """Rows alike in this have constants in common: those of a machine are there for each number of GPUs."""
    return row["part"], re.sub(r" x \d+", "", row["what"])


def _differs(row: dict, fitted: list[dict]) -> str:
    if not fitted:
        return "all"
    for word, column in (("models", "model"), ("GPUs", "tp"), ("recording", "source")):
        fitted = [r for r in fitted if r[column] == row[column]]
        if not fitted:
            return word
    return "sizes"


def again(mine: list[Error]) -> str:
    """Percent that 95 % of the recorded medians are off by from medians drawn anew, or nothing where none is known."""
    off = [np.repeat([1 / e.repeats[0] - 1, 0, 1 - 1 / e.repeats[1]], DRAWN) for e in mine if e.repeats]
    return f"{100 * np.percentile(off, 95):.1f}" if off else ""


def read() -> list[dict]:
    return files.rows(JUDGED) if JUDGED.exists() else []


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER",
                        help="further profiles: " + ", ".join(PARTS))  # fmt: skip
    parser.add_argument("--only", action="store_true",
                        help="judge these folders alone, each model too, and write no table")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.only and not args.folders:
        raise ValueError("only: got no folder, allowed is at least one")
    if args.only:
        found = [list(errors(folder)) for folder in args.folders]
        _check_names(found)
        mine = judged([error for each in found for error in each])
        return _show(mine, [*read(), *mine])
    found = [list(each) for each in (*map(errors, (*args.folders, PUBLIC)), recorded(), totals())]  # ours last: slow
    _check_names(found)
    made = [row for each in found for row in judged(each)]
    kept = [r for r in read() if r["source"] not in {m["source"] for m in made}]
    rows = sorted(made + kept, key=lambda r: [str(r[k]) for k in COLUMNS[:6]])
    files.replace_rows(JUDGED, COLUMNS, rows)
    return _show([row for row in rows if row["model"] == "all"], rows)


def _check_names(found: list[list[Error]]) -> None:
    """Rows of one part and source come from one folder: those that were there before would be replaced."""
    seen: set[tuple[str, str]] = set()
    for mine in ({(error.source, error.part) for error in each} for each in reversed(found)):
        if twice := sorted(seen & mine):
            raise ValueError(f"source: got {twice[0][0]} in two folders with {twice[0][1]}, allowed is it in one")
        seen |= mine


def _show(rows: list[dict], among: list[dict]) -> int:
    words = {(*key, "held out"): by for key, by in unseen(among).items()}
    told = [row | {"unseen": words.get(tuple(row[k] for k in COLUMNS[:4]), "")} for row in rows]
    for row in ({**dict(zip(SHOWN, SHOWN, strict=True)), **UNITS}, *told):
        print("  ".join(f"{row[k]!s:>{w}}" for k, w in zip(SHOWN, WIDTHS, strict=True)))
    return 0

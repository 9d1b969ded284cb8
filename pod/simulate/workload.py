"""What arrives: lengths of prompts and outputs, and when. All randomness of the serving part is in this module.

Tables in data/workloads hold quantiles fitted to a trace, so that nothing needs the trace itself: of the prompt, and of
the ratio P:D of prompt to output within each quarter of the prompts, or of the output where the ratio says little.

    arxiv         POD's arXiv-Summarization workload, total clipped at 32,768 tokens (microsoft/vattention, MIT)
    conversation  a synthetic stand-in for POD's internal workload, which is not public: Mooncake's conversation trace
                  (kvcache-ai/Mooncake, Apache-2.0), totals of 4K to 32K and P:D up to 40, re-weighted to the stated
                  means of 10.5K tokens in total and 331 out (exponential tilting: the least change)
    azure-conv,   two services of November 2023, chat and code (Azure/AzurePublicDataset, CC BY 4.0, published with
    azure-code    Splitwise); outputs, not ratios
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

import numpy as np

from pod.files import ROOT, state
from pod.serving.prefix import TRACE
from pod.serving.request import Request

FOLDER = ROOT / "data" / "workloads"
OF_OUTPUTS = ("azure-conv", "azure-code")
TABLES = ("arxiv", "conversation", *OF_OUTPUTS)
LENGTHS = (*TABLES, "uniform", "zipf")
ARRIVALS = ("trace", "poisson", "truncated_poisson", "gamma")
COUNT = 2048
MOST_REQUESTS = 10_000_000  # a typing error must not ask for terabytes
AT_ONCE = 4096  # requests that are made together
MOST_TOKENS = 1 << 24  # of one request
QUARTERS = 4
PROBABILITIES = (0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1)
FRACTION = re.compile(r"\.(\d+)")  # of a second, in a date
ZONE = re.compile(r"(:\d\d(?:\.\d+)?)([Zz]|[+-]\d\d(?::?\d\d)?)$")  # behind a time
LATEST = 1e15  # of an arrival, in any unit: beyond it the seconds between two are lost
LONGEST = 1e11  # seconds of a run: at its end a clock still tells 15 us
# (prompt, output, arrival and its unit in seconds) as the public traces name them
COLUMNS = (
    ("num_prefill_tokens", "num_decode_tokens", "arrived_at", 1.0),
    ("prefill_tokens", "decode_tokens", "arrival_ms", 1e-3),
    ("ContextTokens", "GeneratedTokens", "TIMESTAMP", 1.0),
    ("input_length", "output_length", "timestamp", 1e-3),
)
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # of a column's name, however they are joined
OF_TIME = re.compile(r".*(arriv|stamp|times?$)|(ts|at|date|start)$", re.IGNORECASE)  # a word that speaks of a moment


@dataclass(frozen=True)
class Workload:
    """`count` requests. `lengths` is one of LENGTHS or the path of a trace; `qps` None lets all arrive at once.

    uniform and zipf draw the total from `low` to `high` and split it by `pd`, the ratio of prompt to output tokens;
    equal bounds give fixed lengths. Totals of a trace above `high` are clipped in proportion, or refused if `strict`.

    Arrivals "trace" are the recorded ones, of the first `count` requests in their order: as they are, or with `qps`
    stretched to that mean rate, bursts and all. A trace that is too short starts again. They are the default where the
    file has them; `skip` leaves requests out at their beginning. Of times that were rounded down to a tick, `spread` is
    the tick, in seconds as recorded: requests are spread over it evenly. The others shuffle a trace and draw the times
    anew, which takes its bursts away: "poisson", or "truncated_poisson" of the published artifact, where gaps are cut
    at three means and the load is 5 % higher than it says, or "gamma", with bursts: `cv` is the standard deviation of
    the gaps over their mean, 1 for poisson.
    """

    lengths: str = "arxiv"
    count: int | None = COUNT  # None: with recorded arrivals all of the trace, else 2048
    qps: float | None = None
    seed: int = 1
    arrivals: str | None = None
    low: int = 1
    high: int = 32768
    pd: float = 10.0
    theta: float = 0.6  # skew of zipf towards short totals
    strict: bool = False  # a row of a trace above `high` is an error
    cv: float = 2.0
    spread: float = 0.0
    skip: int = 0

    def __post_init__(self) -> None:
        if not (self.count is None or 1 <= self.count <= MOST_REQUESTS):
            raise ValueError(f"requests: got {self.count!r}, allowed are integers from 1 to {MOST_REQUESTS}")
        for name, ok, allowed in (
            ("qps", self.qps is None or 1e-9 <= self.qps <= 1e9, "numbers from 1e-9 to 1e9, or none for all at once"),
            ("arrivals", self.arrivals in (*ARRIVALS, None), ", ".join(ARRIVALS)),
            ("high", 2 <= self.high <= MOST_TOKENS, f"integers from 2 to {MOST_TOKENS}"),
            ("low", 1 <= self.low <= self.high, f"integers from 1 to high = {self.high}"),
            ("seed", self.seed >= 0, "integers >= 0"),
            ("pd", 0 < self.pd < float("inf"), "numbers above 0"),
            ("cv", 0.01 <= self.cv <= 100, "numbers from 0.01 to 100"),
            ("spread", 0 <= self.spread <= 86400, "seconds from 0 to a day"),
            ("theta", 0 <= self.theta < 1, "numbers from 0 to below 1"),
        ):
            if not ok:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, allowed are {allowed}")
        if self.lengths not in LENGTHS and not Path(self.lengths).is_file():
            raise ValueError(f"workload: got {self.lengths!r}, allowed are {', '.join(LENGTHS)} or a trace file")
        trace = np.zeros((0, 3)) if self.lengths in LENGTHS else self._trace()  # a bad row shows now, before a run
        recorded = bool(len(trace)) and not np.isnan(trace[0, 2])
        if self.arrivals == "trace" and not recorded:
            raise ValueError(f"arrivals: got trace, but {self.lengths} has none, allowed are {', '.join(ARRIVALS[1:])}")
        arrivals = self.arrivals or ("trace" if recorded else "poisson")
        left = len(trace) if arrivals == "trace" else 1
        if self.skip and arrivals != "trace":
            raise ValueError(f"skip: got {self.skip!r}, allowed beside recorded arrivals")
        if not 0 <= self.skip < left:
            raise ValueError(f"skip: got {self.skip!r}, allowed are integers from 0 to {left - 1}, the trace's last")
        object.__setattr__(self, "arrivals", arrivals)
        object.__setattr__(self, "count", self.count or (left - self.skip if arrivals == "trace" else COUNT))
        if arrivals == "trace" and self.qps and self.count > 1 and not self.seconds():
            raise ValueError(f"workload: got {self.count} requests of {self.lengths} that arrive at once, which no "
                             "rate stretches, allowed are arrivals that are drawn, or a spread")  # fmt: skip

        if (seconds := self._about(trace)) > LONGEST:
            raise ValueError(f"{'qps' if self.qps else 'workload'}: got {self.count} requests within {seconds:.3g} s, "
                             f"allowed are up to {LONGEST:g} s, for later a clock is inexact")  # fmt: skip

    def _about(self, trace: np.ndarray) -> float:
        """The same as `seconds`, nearly, but for arrivals that are drawn without drawing them."""
        if self.qps:
            return self.count / self.qps
        return trace[:, 2].max() * max(1, self.count / len(trace)) if self.arrivals == "trace" else 0.0

    def seconds(self) -> float:
        """From the first arrival to the last."""
        return float(self._times(np.random.default_rng(self.seed))[-1])

    def drawn(self, rates: bool) -> bool:
        """Whether the seed changes anything. `rates`: whether it is asked for at any."""
        if self.arrivals == "trace":
            return self.spread > 0
        return rates or self.lengths not in ("uniform", "zipf") or self.low < self.high

    @property
    def pace(self) -> str:
        """When the requests arrive, in words."""
        if self.arrivals == "trace":
            return self.kind + (f", stretched to {self.qps:g}/s" if self.qps else "")
        return f"{self.kind} at {self.qps:g}/s" if self.qps else "all at once"

    @property
    def kind(self) -> str:
        """The same without the rate."""
        recorded = f"as recorded, spread over {self.spread:g} s" if self.spread else "as recorded"
        return {"trace": recorded, "gamma": f"gamma with cv {self.cv:g}"}.get(self.arrivals, self.arrivals)

    def requests(self) -> list[Request]:
        return list(self.stream())

    def stream(self) -> Iterator[Request]:
        """The requests one by one, in the order in which they arrive."""
        random = np.random.default_rng(self.seed)
        order = self._order(random)
        columns, prefix = (*self._lengths(random, order), self._times(random)), self._prefixes(order)
        for first in range(0, self.count, AT_ONCE):
            rows = zip(*(column[first : first + AT_ONCE].tolist() for column in columns), strict=True)
            for i, (prompt, output, time) in enumerate(rows, first):
                yield Request(i, prompt, output, time, prefix(i))

    def _order(self, random: np.random.Generator) -> np.ndarray:
        """Rows of the trace, if there is one."""
        if self.lengths in LENGTHS:
            return np.arange(0)
        rows = len(self._trace())
        order = np.roll(np.arange(rows), -self.skip) if self.arrivals == "trace" else random.permutation(rows)
        return np.resize(order, self.count)

    @property
    def shares(self) -> bool:
        """Whether it is known which prompts begin alike."""
        return self.lengths not in LENGTHS and self._names() is not None

    def _prefixes(self, order: np.ndarray) -> Callable[[int], tuple]:
        """The names of a request's blocks. A trace that starts again brings other texts."""
        names = self._names() if len(order) else None
        if names is None:
            return lambda i: ()
        rows = np.argsort(read_trace(self.lengths)[:, 2], kind="stable")[order]
        return lambda i: tuple([(name, (self.skip + i) // len(names)) for name in names[rows[i]]])

    def _lengths(self, random: np.random.Generator, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.lengths in TABLES:
            table, ratios = read_table(self.lengths), self.lengths not in OF_OUTPUTS
            return clip(*sample(table, self.count, random, ratios), self.high)
        if self.lengths == "uniform":
            return split(random.integers(self.low, self.high, self.count, endpoint=True), self.pd)
        if self.lengths == "zipf":
            return split(self.low + _zipf(self.high - self.low + 1, self.theta, self.count, random), self.pd)
        trace = self._trace()
        return clip(trace[order, 0].astype(int), trace[order, 1].astype(int), self.high)

    def _trace(self) -> np.ndarray:
        return _in_order(state(Path(self.lengths)), self.high if self.strict else None)

    def _names(self) -> list[tuple[int, ...]] | None:
        return _prefixes_of(state(Path(self.lengths)))

    def _times(self, random: np.random.Generator) -> np.ndarray:
        if self.arrivals == "trace":
            recorded = self._trace()[:, 2]
            spread = np.sort(recorded + self.spread * random.random(len(recorded)))
            return recorded_times(spread - spread[0], self.count, self.qps, self.skip)
        if self.qps is None:
            return np.zeros(self.count)
        if self.arrivals == "gamma":
            gaps = random.gamma(self.cv**-2, self.cv**2 / self.qps, self.count)
        else:
            gaps = random.exponential(1 / self.qps, self.count)
        if self.arrivals == "truncated_poisson":
            gaps = np.minimum(gaps, 3 / self.qps)
        return np.cumsum(gaps) - gaps[0]


def recorded_times(times: np.ndarray, count: int, qps: float | None, skip: int = 0) -> np.ndarray:
    """`count` of sorted times, after the first `skip`, from 0 on. After the last they start again, one mean gap
    later."""
    again, which = np.divmod(np.arange(skip, skip + count), len(times))
    period = times[-1] * len(times) / max(len(times) - 1, 1)
    out = times[which] + again * period
    out -= out[0]
    return out * ((count - 1) / out[-1] / qps) if qps and out[-1] else out


def split(totals: np.ndarray, pd: float) -> tuple[np.ndarray, np.ndarray]:
    """Totals into prompt and output at the ratio `pd`, at least one token each."""
    prompts = np.clip((totals * pd / (1 + pd)).astype(int), 1, np.maximum(totals - 1, 1))
    return prompts, np.maximum(totals - prompts, 1)


def clip(prompts: np.ndarray, outputs: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Totals above `high` shrink to it, prompt and output in proportion."""
    share = np.minimum(1.0, high / (prompts + outputs))
    outputs = np.maximum((outputs * share).astype(int), 1)
    return np.minimum(prompts, high - outputs), outputs


def _zipf(ranks: int, theta: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Ranks from 0, rank r as likely as 1 / (r + 1)^theta."""
    cumulative = np.cumsum(np.arange(1, ranks + 1) ** -theta)
    return np.searchsorted(cumulative, random.random(count) * cumulative[-1])


def sample(
    table: np.ndarray, count: int, random: np.random.Generator, ratios: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and outputs from a quantile table [probabilities, 2 + QUARTERS], of P:D or of outputs."""
    at, within = random.random((2, count))
    quarter = (at * QUARTERS).astype(int)
    prompts = np.interp(at, table[:, 0], table[:, 1])
    drawn = np.empty(count)
    for q in range(QUARTERS):
        mine = quarter == q
        drawn[mine] = np.interp(within[mine], table[:, 0], table[:, 2 + q])
    outputs = prompts / drawn if ratios else drawn
    return prompts.round().astype(int), np.maximum(outputs, 1).round().astype(int)


def fit(prompts: Sequence[float], outputs: Sequence[float], weights: Sequence[float] | None = None,
        ratios: bool = True) -> np.ndarray:  # fmt: skip
    """The quantile table of a trace: probability, prompt, and P:D or output in each quarter of the prompts."""
    prompts, drawn = np.asarray(prompts, float), np.asarray(outputs, float)
    drawn = prompts / drawn if ratios else drawn
    weights = np.ones(len(prompts)) if weights is None else np.asarray(weights, float)
    order = np.argsort(prompts, kind="stable")
    rank = np.cumsum(weights[order]) - weights[order] / 2
    quarter = np.minimum((rank / weights.sum() * QUARTERS).astype(int), QUARTERS - 1)
    columns = [np.array(PROBABILITIES), _quantiles(prompts, weights).round()]
    for q in range(QUARTERS):
        mine = order[quarter == q]
        columns.append(_quantiles(drawn[mine], weights[mine]).round(2))
    return np.column_stack(columns)


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middle = (np.cumsum(weights) - weights / 2) / weights.sum()
    return np.interp(PROBABILITIES, middle, values)


def read_table(name: str) -> np.ndarray:
    return np.loadtxt(FOLDER / f"{name}.csv", delimiter=",", skiprows=1)


def read_trace(path: str | Path, limit: int | None = None) -> np.ndarray:
    """[requests, 3]: prompt tokens, output tokens, arrival in seconds from the first (NaN when the file has none).

    Takes the files as published: CSV of vattention, Vidur and Azure, JSON lines of Mooncake. `limit` is the longest
    total that is allowed.
    """
    path, rows, above = Path(path), [], None
    for number, row in rows_of(path):
        prompt_name, output_name, time_name, unit = _columns(path, number, row)
        prompt, output = (_count(path, number, name, row[name]) for name in (prompt_name, output_name))
        if limit is not None and prompt + output > limit:
            both = f"columns {prompt_name}, {output_name}"
            raise ValueError(f"{path}, row {number}, {both}: got {prompt + output} tokens in all, allowed are up to "
                             f"{limit} (--max-tokens), or any with --high, which clips")  # fmt: skip
        time, kind = _time(path, number, time_name, row.get(time_name), unit)
        if kind != (above := kind if above is None else above):
            raise ValueError(f"{path}, row {number}, column {time_name}: got {kind}, unlike above ({above}), "
                             "allowed is one kind in all rows")  # fmt: skip
        rows.append((prompt, output, time))
    if not rows:
        raise ValueError(f"{path}: got no request, allowed is at least one, in CSV below the names of its columns, or "
                         "as JSON lines in a file that ends in .jsonl")  # fmt: skip
    trace = np.array(rows, dtype=float)  # None becomes NaN
    trace[:, 2] -= trace[:, 2].min()
    return trace


# A run asks for these some times over; they hang on the file as it is, see pod.files.state.
@lru_cache(maxsize=4)
def _in_order(file: tuple[Path, int, int], limit: int | None) -> np.ndarray:
    """The rows of a trace by arrival."""
    trace = read_trace(file[0], limit)
    trace = trace[np.argsort(trace[:, 2], kind="stable")]
    trace.flags.writeable = False
    return trace


@lru_cache(maxsize=4)
def _prefixes_of(file: tuple[Path, int, int]) -> list[tuple[int, ...]] | None:
    return read_prefixes(file[0])


def read_prefixes(path: str | Path) -> list[tuple[int, ...]] | None:
    """For each request of a trace the names of its prompt's blocks of 512 tokens: equal names, equal tokens up to
    there. None where a file does not say. Mooncake's does, by `hash_ids`; ours by `like`, an earlier request that
    begins in the same way, counted from 0, and `shared`, the number of blocks in which it does."""
    found: list[tuple[int, ...]] = []
    fresh = 0
    for number, row in rows_of(Path(path)):
        if "hash_ids" not in row and "shared" not in row:
            return None
        prompt = next((row[names[0]] for names in COLUMNS if names[0] in row), None)
        blocks = -(-_count(Path(path), number, "prompt", prompt) // TRACE)
        old = _hashes(path, number, row, blocks) if "hash_ids" in row else _beginning(path, number, row, blocks, found)
        found.append((*old, *range(fresh, fresh + blocks - len(old))))
        fresh += blocks - len(old)
    return found


def _hashes(path: str, row: int, fields: dict, blocks: int) -> tuple[int, ...]:
    ids = fields["hash_ids"]
    if not isinstance(ids, list) or len(ids) != blocks or not all(type(i) is int for i in ids):
        raise ValueError(f"{path}, row {row}, column hash_ids: got {str(ids)[:40]!r}, allowed are {blocks} integers, "
                         f"one for each {TRACE} tokens of the prompt")  # fmt: skip
    return tuple(ids)


def _beginning(path: str, row: int, fields: dict, blocks: int, before: list[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        like, shared = int(fields["like"] or 0), int(fields["shared"])
    except (KeyError, TypeError, ValueError):
        like = shared = -1
    if shared == 0:
        return ()
    if not 0 <= like < len(before) or not 0 <= shared <= min(blocks, len(before[like])):
        got = f"{fields.get('like')!r}, {fields.get('shared')!r}"
        raise ValueError(f"{path}, row {row}, columns like, shared: got {got}, allowed are an earlier request, from 0, "
                         "and no more blocks than both have")  # fmt: skip
    return before[like][:shared]


def rows_of(path: Path) -> Iterator[tuple[int, dict]]:
    """Of a file of CSV or of JSON lines, each with its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel's files begin with a mark
            yield from _objects(path, file) if path.suffix.lower() == ".jsonl" else _records(path, file)
    except (UnicodeDecodeError, csv.Error) as wrong:
        got = "a file packed by gzip" if _packed(path) else f"no text, but {wrong}"
        raise ValueError(f"{path}: got {got}, allowed are CSV and JSON lines") from None


def _packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _records(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict]]:
    reader, names, end = csv.reader(lines, skipinitialspace=True), None, 0
    try:
        for fields in reader:
            number, end = end + 1, reader.line_num  # text in quotes may go on for lines: a row is where it begins
            fields = [field.strip() for field in fields]
            if not any(fields):
                continue
            if names is None:
                names = fields
                if next(filter(None, names))[0] in "{[":
                    raise ValueError(f"{path}, row {number}: got JSON, allowed are CSV, and JSON lines in a file that "
                                     "ends in .jsonl")  # fmt: skip
                if twice := _repeated([*filter(None, names)]):  # commas at the end of a line name nothing
                    raise ValueError(f"{path}, row {number}: got the column {twice[0]} twice, allowed is one of each")
            elif len(fields) > len(names):
                raise ValueError(f"{path}, row {number}: got {len(fields)} columns, allowed are the {len(names)} of "
                                 "the first row")  # fmt: skip
            else:
                yield number, dict(zip_longest(names, fields))
    except csv.Error as wrong:
        raise csv.Error(f"{wrong} in row {end + 1}") from None


def _objects(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, object_pairs_hook=_Fields)
        except (ValueError, RecursionError):  # the latter: a thousand brackets
            fields = None
        if not isinstance(fields, _Fields):
            raise ValueError(f"{path}, row {number}: got no JSON object, allowed is one a line")
        if fields.twice:
            raise ValueError(f"{path}, row {number}: got {fields.twice[0]} twice, allowed is one of each")
        yield number, fields


class _Fields(dict):
    """An object of JSON, which may name a field twice; a dict would keep the last."""

    def __init__(self, pairs: list[tuple[str, object]]):
        super().__init__(pairs)
        self.twice = _repeated([name for name, _ in pairs]) if len(self) < len(pairs) else []


def _repeated(names: list[str]) -> list[str]:
    return [name for name in names if names.count(name) > 1]


def _columns(path: Path, number: int, row: dict) -> tuple[str, str, str, float]:
    for names in COLUMNS:
        if names[0] in row and names[1] in row:
            _check_time(path, number, row, names)
            return names
    pairs = " or ".join(f"{a} and {b}" for a, b, *_ in COLUMNS)
    raise ValueError(f"{path}, row {number}: got the columns {', '.join(map(str, row))}, allowed are {pairs}")


def _check_time(path: Path, number: int, row: dict, names: tuple) -> None:
    """A trace may have no times; but times under another name must not be read as none, for then all arrive at once."""
    if names[2] in row:
        return
    if near := [name for name in row if isinstance(name, str) and any(map(OF_TIME.match, WORDS.findall(name)))]:
        raise ValueError(f"{path}, row {number}: got the column {near[0]!r}, allowed for times beside {names[0]} is "
                         f"{names[2]} alone")  # fmt: skip


def _count(path: Path, row: int, column: str, value) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 1 <= number <= MOST_TOKENS or number != int(number) or value is True:
        allowed = f"integers from 1 to {MOST_TOKENS}"
        raise ValueError(f"{path}, row {row}, column {column}: got {value!r}, allowed are {allowed}")
    return int(number)


def _time(path: Path, row: int, column: str, value, unit: float) -> tuple[float | None, str]:
    """Seconds, and what they were read from; a number counts in `unit`."""
    if value is None:
        return None, "no time"
    for seconds, each, kind in ((float, unit, lambda _: "a number"), (_date, 1.0, _kind)):
        try:
            if not isinstance(value, bool) and abs(time := seconds(value)) < LATEST:
                return time * each, kind(value)
        except (TypeError, ValueError, OverflowError):
            continue
    numbers = f"{'seconds' if unit == 1 else 'milliseconds'} below {LATEST:g}"
    raise ValueError(f"{path}, row {row}, column {column}: got {value!r}, allowed are {numbers}, or dates")


def _kind(date: str) -> str:
    return "a date with a zone" if ZONE.search(date) else "a date"


def _date(text: str) -> float:
    moment = datetime.fromisoformat(_plain(text))
    # UTC, for in many places a clock is moved once in spring, and a trace would get an hour's gap
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _plain(text: str) -> str:
    """As Python 3.10 reads it: six digits of a second, where Azure writes seven, and a zone as hours and minutes."""
    six = FRACTION.sub(lambda found: f".{found[1]:0<6.6}", text)
    return ZONE.sub(lambda found: found[1] + _hours(found[2]), six)


def _hours(zone: str) -> str:
    digits = zone[1:].replace(":", "")
    return f"{zone[0]}{digits[:2]}:{digits[2:] or '00'}" if digits else "+00:00"

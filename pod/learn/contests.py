"""Contests that stay on the laptop: a score that is the same everywhere, ours as par, and your best.

In a notebook `learn.contest("tickets", policy)`; in a shell `python -m pod contest tickets policy.py`, where the file
has a function (or class) of the contest's name. Lower is better.
"""

from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np

from pod.learn import progress
from pod.learn.blind import Blind, Refused
from pod.learn.judge import MOST_SECONDS, Printed, depth_limit, is_bare, memory_limit, place, time_limit

MOST_LETTERS = 1_000_000  # of an entry


@dataclass(frozen=True)
class Contest:
    """`takes`: the name of what is written, and its arguments; `ours()` is what par is made with."""

    name: str
    takes: str
    about: str
    unit: str
    score: Callable[[Callable], float]
    ours: Callable[[], Callable]

    @cached_property
    def par(self) -> float:
        return round(self.score(self.ours()), 2)


# ---------------------------------------------------------------- the ticket policy


def _tickets(policy: Callable) -> float:
    """Simulated microseconds of Table 1's batches on an H200, four CTAs an SM, as pod.simulate.gpusim has it."""
    from pod.batch import TABLE1
    from pod.hardware import H200
    from pod.schedule import binding
    from pod.simulate import gpusim

    binding.POLICIES["entry"] = lambda *work: _table(policy(*work), work[-1])
    try:
        return sum(1e6 * gpusim.seconds(b, H200, "pod", policy="entry", ctas_per_sm=4) for b in TABLE1.values())
    finally:
        del binding.POLICIES["entry"]


def _table(answer, tickets: int) -> np.ndarray:
    table = np.asarray(answer)
    if table.ndim != 1 or not len(table) or not np.isin(table, (0, 1)).all():
        raise Refused(f"policy: got {answer!r:.60}, allowed is a list of 0 (prefill) and 1 (decode)")
    return table[:tickets]


def _turns() -> Callable:
    """The best of our three at four CTAs an SM."""
    from pod.schedule.binding import fifty_fifty

    return fifty_fifty


# ---------------------------------------------------------------- the cut of decode

BATCHES = (
    *((5,) * 3, (256,) * 48, (256,) * 288, (40,) * 128, (64,) * 264, (17,) * 150),
    *((4096, *[4] * 63), (300, 20, 3, 7)),
)
WORKERS, TILE_US = 264, 0.5


def _cuts(cut: Callable) -> float:
    """Microseconds until the last worker ends: half of one a tile, and merges and borders as the plan counts them."""
    return sum(_cut_time(cut, np.array(tiles)) for tiles in BATCHES)


RISING = "no range is empty, and there may be fewer than workers"


def _cut_time(cut: Callable, tiles: np.ndarray) -> float:
    from pod.schedule.choose import BORDER_US, MERGE_US
    from pod.schedule.decode import segments
    from pod.schedule.waves import makespan

    cuts, total = np.asarray(cut(tiles.tolist(), WORKERS)), int(tiles.sum())
    whole = cuts.ndim == 1 and cuts.dtype.kind == "i" and len(cuts) > 0
    if not whole or cuts[-1] != total or (np.diff(cuts, prepend=0) < 1).any():
        raise Refused(f"cuts: got {cuts.tolist()!r:.60}, allowed are rising integers, the last {total}: {RISING}")
    at, unit, _, _ = segments(tiles, cuts)
    borders = np.bincount(at, minlength=len(cuts)) - 1
    work = TILE_US * np.diff(cuts, prepend=0) + BORDER_US * borders
    return makespan(work.tolist(), WORKERS) + MERGE_US * bool((np.bincount(unit) > 1).any())


def _our_cuts() -> Callable:
    from pod.schedule.choose import cheapest_parts
    from pod.schedule.decode import equal_cuts, split_cuts

    def cuts(tiles, workers):
        parts = cheapest_parts(len(tiles), max(tiles), workers, TILE_US) if len(set(tiles)) == 1 else None
        return equal_cuts(np.array(tiles), workers) if parts is None else split_cuts(np.array(tiles), parts)

    return cuts


# ---------------------------------------------------------------- the scheduler on a trace

STALL, STALLED = 0.2, 5.0  # seconds between two tokens; percent of requests that may wait so long, once
COUNT, QPS = 160, 0.55


@cache
def _served_on():
    from pod.simulate.run import Setup
    from pod.simulate.workload import Workload

    return Setup(scheduler="sarathi", chunk=1024), Workload("arxiv", count=COUNT, qps=QPS, seed=3)


def _scheduler(kind: Callable) -> float:
    """Mean seconds to the first token on one trace, if few requests ever stall in between."""
    from pod.serving.loop import serve
    from pod.simulate.metrics import requests

    setup, workload = _served_on()
    lane = Blind(kind, setup.lanes()[0].pool, setup.max_batch, setup.max_tokens)
    served = requests(serve(workload.requests(), [lane], setup.executor()))
    if len(served.id) < COUNT:
        raise Refused(f"scheduler: got {len(served.id)} requests answered, allowed are all {COUNT}")
    stalled = 100 * float(np.mean(served.worst_gap > STALL))
    if stalled > STALLED:
        raise Refused(f"scheduler: got {stalled:.1f} % of requests with {STALL:g} s between two tokens, allowed are "
                      f"{STALLED:g} %")  # fmt: skip
    return float(np.mean(served.ttft))


def _sarathi() -> Callable:
    from pod.serving.schedulers import Sarathi

    return partial(Sarathi, chunk=1024)


# ---------------------------------------------------------------- who takes part

CONTESTS = {
    contest.name: contest
    for contest in (
        Contest("tickets", "policy(prefill, decode, sms, tickets)",
                "deal 0 (prefill) and 1 (decode), chapter 07; Table 1's batches, four CTAs an SM of a modelled H200",
                "µs", _tickets, _turns),
        Contest("cuts", "cut(tiles, workers)",
                f"ends of the ranges on the line of tiles, chapter 11; {len(BATCHES)} batches, {WORKERS} workers",
                "µs", _cuts, _our_cuts),
        Contest("scheduler", "Mine(pool, max_batch)",
                "a scheduler as in pod/serving/schedulers, chapter 13; mean time to the first token, at most "
                f"{STALLED:g} % of requests stalled", "s", _scheduler, _sarathi),
    )
}  # fmt: skip


def find(name: str) -> Contest:
    if name not in CONTESTS:
        raise ValueError(f"contest: got {name!r}, allowed are {', '.join(CONTESTS)}")
    return CONTESTS[name]


def contest(name: str, answer: Callable) -> None:
    """The score of an answer beside par; the best is kept."""
    this = find(name)
    if _is_untouched(answer):
        print(f"{name}: not yet. Par is {this.par:,.2f} {this.unit}; less is better.")
        return
    score = _scored(this, answer)
    best = progress.note_score(name, score)
    against = "under par" if score < this.par else "par" if score == this.par else "over par"
    print(f"{name}: {score:,.2f} {this.unit}, {against} ({this.par:,.2f}); your best {best:,.2f}")


def _is_untouched(answer) -> bool:
    """A stub: a function or a class with nothing in it."""
    return any(map(is_bare, vars(answer).values() if isinstance(answer, type) else [answer]))


def _scored(this: Contest, answer: Callable) -> float:
    """Whatever an answer does, it costs one line."""
    if not callable(answer):
        raise Refused(f"{this.name}: got {answer!r:.60}, allowed is {this.takes}")
    try:
        with redirect_stdout(Printed()), memory_limit(), depth_limit(), time_limit(MOST_SECONDS):
            score = float(this.score(answer))
    except (Refused, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() as well
        raise Refused(f"{this.name}: {type(error).__name__}: {error}{place(error)}") from None
    return round(score, 2)


# ---------------------------------------------------------------- python -m pod contest


def configure(parser) -> None:
    parser.add_argument("name", nargs="?", help="tickets, cuts or scheduler; without it, par and your best of each")
    parser.add_argument("file", nargs="?", type=Path, help="a Python file that has what the contest takes")


def run(args) -> int:
    if args.name and not args.file:
        this = find(args.name)
        print(f"{this.name}: {this.takes}\n  {this.about}")
    elif args.name:
        contest(args.name, _read(find(args.name), args.file))
    else:
        print(table())
    return 0


def _read(this: Contest, path: Path) -> Callable:
    wanted, names = this.takes.partition("(")[0], {"__name__": "entry"}
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_LETTERS + 1)  # of /dev/zero, too
    except UnicodeDecodeError:
        raise Refused(f"{path}: got bytes that are no UTF-8, allowed is a Python file") from None
    if len(text) > MOST_LETTERS:
        raise Refused(f"{path}: got more than {MOST_LETTERS:,} letters, allowed is a shorter Python file")
    try:
        with redirect_stdout(Printed()), memory_limit(), depth_limit(), time_limit(MOST_SECONDS):
            exec(compile(text, "<entry>", "exec"), names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() as well
        raise Refused(f"{path}: {type(error).__name__}: {error}{place(error)}") from None
    if wanted not in names:
        raise Refused(f"{path}: got no {wanted!r}, allowed is a file with {this.takes}")
    return names[wanted]


def table() -> str:
    kept = progress.read()
    lines = [f"{'':<10} {'par':>12} {'your best':>12}"]
    for this in CONTESTS.values():
        best = kept.get(f"contest {this.name}", {}).get("best")
        said = "-" if best is None else f"{best:,.2f} {this.unit}"
        lines.append(f"{this.name:<10} {f'{this.par:,.2f} {this.unit}':>12} {said:>12}   {this.takes}: {this.about}")
    return "\n".join(lines)

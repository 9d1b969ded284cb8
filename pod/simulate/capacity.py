"""`python -m pod capacity`: the highest rate of requests at which a system keeps its promises.

    python -m pod capacity --tp 2 --replicas 4 --router shortest-queue --slo ttft_p99=5 tbt_p99=0.2

The rate is doubled while all are kept and halved while one is not, then the rate between the two is tried. It is the
rate for so many requests as --requests says: a longer run at the edge may queue up further.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, sqrt

from pod.simulate import cli
from pod.simulate.run import Run
from pod.simulate.summary import turned_away
from pod.sweep import progress

PROMISES = ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99", "tbt_max", "latency_p50", "latency_p99", "stalls_200ms",
            "stalls_500ms")  # fmt: skip
DEFAULT = ("ttft_p99=5", "tbt_p99=0.2")
UNITS = {"ms": 1e-3, "s": 1.0, "%": 1.0, "": 1.0}
CLOSE = 0.02  # share of a rate that is not told apart
FIRST, LEAST, MOST = 1.0, 2.0**-12, 2.0**12  # requests per second


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Several values of an option look for the rate of every combination."
    cli.add_system(parser)
    cli.add_workload(parser)
    names = ", ".join(PROMISES)
    parser.add_argument("--slo", nargs="+", metavar="NAME=MOST", default=DEFAULT,
                        help=f"in s, or %% of the requests for stalls; tbt_p99=50ms is 0.05 (default: "
                             f"{' '.join(DEFAULT)}): {names}")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="rates and metrics as JSON")


class NoEdge(ValueError):
    """No load is the highest at which the promises are kept."""


def promises(texts: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, most = text.partition("=")
        if name in found:
            raise ValueError(f"slo: got {name} twice, allowed is one bound of each")
        found[name] = _amount(name, most)
        if name not in PROMISES or not 0 < found[name] < (100 if unit(name) == "%" else inf):
            raise ValueError(f"slo: got {text!r}, allowed are NAME=MOST of {', '.join(PROMISES)} and a number above 0, "
                             "in s or ms, or % below 100 for stalls")  # fmt: skip
    return found


def unit(name: str) -> str:
    return "%" if name.startswith("stalls") else "s"


def _amount(name: str, text: str) -> float:
    """In the unit of the promise; 0 where it is no number, or in a unit of others."""
    number = text.rstrip("ms%")
    said = text[len(number) :]
    if said not in UNITS or (said and (said == "%") != (unit(name) == "%")):
        return 0.0
    try:
        return float(number) * UNITS[said]
    except ValueError:
        return 0.0


def broken(metrics: dict[str, float], slo: dict[str, float]) -> list[str]:
    """Promises that are not kept; a refused request breaks them all."""
    return [name for name, most in slo.items() if metrics["refused"] or metrics.get(name, 0.0) > most]


def search(measure: Callable[[float], dict[str, float]], slo: dict[str, float]) -> tuple[float, dict[str, float]]:
    """The highest rate that keeps all promises, and what the users feel at it."""
    low, high, rate, best = 0.0, inf, FIRST, {}
    while LEAST <= rate <= MOST:
        metrics = measure(rate)
        if lost := broken(metrics, slo):
            high = rate
        else:
            low, best = rate, metrics
        if high <= (1 + CLOSE) * low:
            return low, best
        rate = 2 * low if high == inf else sqrt(low * high) if low else high / 2
    if best:
        kept = ", ".join(f"{name}={most:g} {unit(name)}" for name, most in slo.items())
        raise NoEdge(f"slo: got {kept}, which is kept at {MOST:g} requests a second, too (in all "
                     f"{best.get('requests', 0)}), allowed are promises that some load breaks")  # fmt: skip
    worst = ", ".join(f"{name}={slo[name]:g} {unit(name)}" for name in lost)
    raise NoEdge(f"slo: got {worst}, which one request in {1 / LEAST:g} s does not keep: {_had(metrics, lost)}")


def check_served(run: Run) -> None:
    """No rate keeps a promise to who is refused, and to see that takes no search."""
    count, first = 0, {}
    for id_, why in enumerate(cli.refusals(run.setup, run.workload)):
        if why:
            count, first = count + 1, first or {id_: why}
    if count:
        raise NoEdge(f"workload: {turned_away(count, run.workload.count, first)}, and no rate keeps promises to these; "
                     "allowed are requests that all can be served, for example clipped by --high")  # fmt: skip


def _had(metrics: dict[str, float], names: Sequence[str]) -> str:
    refused = [f"{metrics['refused']} refused"] if metrics["refused"] else []
    return ", ".join(refused + [f"{name}={metrics[name]:.3g}" for name in names if name in metrics])


def at(run: Run, qps: float) -> Run:
    return replace(run, workload=replace(run.workload, qps=qps))


def _row(chosen: dict, system: Run, rate: float | None, metrics: dict[str, float]) -> dict:
    setup = system.setup
    said = cli.stands_on(setup) | {"arrivals": system.workload.kind, "router": setup.router, "qps": rate}
    each = rate and rate / (setup.tp * setup.pp * setup.replicas)
    return {k: v for k, v in chosen.items() if k != "qps"} | said | {"qps_per_gpu": each} | metrics


def run(args: argparse.Namespace) -> int:
    cli.check_arrivals(args, rates=True)
    args.qps, slo = None, promises(args.slo)
    combinations = cli.runs(args)
    todo, rows = [cli.to_run(args, c) for c in combinations], []
    varied = [k for k in cli.SWEPT if k != "qps" and len({c[k] for c in combinations}) > 1]
    with progress(None, "run") as bar:
        for chosen, system in zip(combinations, todo, strict=True):
            try:
                check_served(system)
                rate, metrics = search(lambda qps, s=system: (bar.update(), at(s, qps).full())[1], slo)
            except NoEdge as why:
                if len(todo) == 1:
                    raise
                print(f"{', '.join(f'{k} {chosen[k]}' for k in varied if chosen[k])}: {why}", file=sys.stderr)
                rate, metrics = None, {}
            rows.append(_row(chosen, system, rate, metrics))
    if args.json:
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
        return 0
    kept = ", ".join(f"{name} up to {most:g} {unit(name)}" for name, most in slo.items())
    print(cli.heading(todo, [row["arrivals"] for row in rows], promises=kept))
    print(cli.table(rows, [*(varied or ("scheduler", "attention")), "qps", "qps_per_gpu"]))
    return 0

"""`python -m pod simulate`: serve a workload on a modelled GPU and print what the users felt.

    python -m pod simulate --model llama-3-8b --tp 2 --scheduler vllm sarathi --attention serial pod --qps 0.85 0.95

Several values of an option run every combination, on all cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product

from pod.hardware import GPUS
from pod.serving.cost import ATTENTION, HOSTS
from pod.serving.metrics import DEFINITIONS, metrics
from pod.serving.schedulers import RECOMPUTE, SCHEDULERS, SWAP
from pod.serving.shapes import SHAPES
from pod.serving.simulate import Run, Setup, simulate
from pod.serving.sweep import sweep
from pod.serving.workload import ARRIVALS, LENGTHS, Workload

SWEPT = ("scheduler", "attention", "chunk", "qps", "model", "gpu", "pd")
SYSTEM = ("tp", "pp", "max_batch", "max_tokens", "max_prefills", "preemption", "block_size", "blocks", "host",
          "measured")  # fmt: skip
COLUMNS = {
    "ttft_p50": "TTFT p50 s", "ttft_p99": "p99", "tbt_p50": "TBT p50 s", "tbt_p99": "p99",
    "latency_p50": "latency p50 s", "latency_p99": "p99", "stalls_200ms": "stalls >200ms %", "stalls_500ms": ">500ms %",
    "requests_per_minute": "req/min", "minutes": "minutes", "preemptions": "preempted", "refused": "refused",
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    default = Setup()
    parser.epilog = "Several values of an option run every combination on all cores."
    system = parser.add_argument_group("system")
    system.add_argument("--model", nargs="+", choices=SHAPES, default=["llama-3-8b"])
    system.add_argument("--gpu", nargs="+", choices=GPUS, default=["a100"])
    system.add_argument("--tp", type=int, default=1, help="GPUs that share every layer")
    system.add_argument("--pp", type=int, default=1, help="stages of a pipeline")
    system.add_argument("--scheduler", nargs="+", choices=SCHEDULERS, default=["sarathi"])
    system.add_argument("--attention", nargs="+", choices=ATTENTION, default=["serial"])
    system.add_argument("--chunk", nargs="+", type=int, default=[default.chunk], help="token budget of an iteration")
    system.add_argument("--max-prefills", type=int, default=1, help="prompts in one iteration (sarathi)")
    system.add_argument("--max-batch", type=int, default=default.max_batch)
    system.add_argument("--max-tokens", type=int, default=default.max_tokens,
                        help="longest request; budget of vllm's prompt iterations; what static, orca and sarathi_v1 "
                             "reserve")  # fmt: skip
    system.add_argument("--preemption", choices=(RECOMPUTE, SWAP), default=RECOMPUTE)
    system.add_argument("--block-size", type=int, default=default.block_size)
    system.add_argument("--blocks", type=int, help="size of the pool (default: what the GPU's memory leaves)")
    system.add_argument("--host", choices=HOSTS, default=default.host, help="time the engine's Python takes")
    system.add_argument("--measured", action="store_true", help="operators as recorded on one H200 (--gpu h200)")
    work = parser.add_argument_group("workload")
    work.add_argument("--workload", default="arxiv", help=f"{', '.join(LENGTHS)}, or a trace file")
    work.add_argument("--requests", type=int, default=2048)
    work.add_argument("--qps", nargs="+", type=float, help="requests per second (default: all arrive at once)")
    work.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    work.add_argument("--low", type=int, default=1024, help="shortest total of uniform and zipf")
    work.add_argument("--high", type=int,
                      help="clip totals here (default: --max-tokens, a longer row of a trace is an error)")  # fmt: skip
    work.add_argument("--pd", nargs="+", type=float, default=[10.0], help="P:D ratio of uniform and zipf")
    work.add_argument("--seed", type=int, default=1)
    out = parser.add_argument_group("output")
    out.add_argument("--definition", choices=DEFINITIONS, default="user", help="of TBT: artifact drops the first gap")
    out.add_argument("--log", metavar="FILE", help="write every iteration as a line of JSON (one run only)")
    out.add_argument("--json", action="store_true", help="metrics as JSON")


def runs(args: argparse.Namespace) -> list[dict]:
    """Every combination of the options that were given several values."""
    values = [getattr(args, name) or [None] for name in SWEPT]
    return [dict(zip(SWEPT, combination, strict=True)) for combination in product(*values)]


def to_run(args: argparse.Namespace, swept: dict) -> Run:
    setup = Setup(**{k: swept[k] for k in ("model", "gpu", "scheduler", "attention", "chunk")},
                  **{k: getattr(args, k) for k in SYSTEM})  # fmt: skip
    high = args.high or args.max_tokens
    workload = Workload(args.workload, args.requests, swept["qps"], args.seed, args.arrivals,
                        min(args.low, high), high, swept["pd"], strict=args.high is None)  # fmt: skip
    setup.lanes()  # a mistake shows before anything runs
    return Run(setup, workload, args.definition)


def run(args: argparse.Namespace) -> int:
    combinations = runs(args)
    todo = [to_run(args, c) for c in combinations]
    if args.log and len(todo) > 1:
        raise ValueError(f"--log: got {len(todo)} runs, allowed is one")
    if len(todo) == 1:
        log = simulate(todo[0].setup, todo[0].workload.requests(), **vars(todo[0].workload))
        if args.log:
            log.save(args.log)
        results = [metrics(log, args.definition)]
        for id_, reason in list(log.refused.items())[:3]:
            print(f"request {id_} refused: {reason}", file=sys.stderr)
    else:
        results = sweep(todo)
    shown = [k for k in SWEPT if len(set(c[k] for c in combinations)) > 1] or ["scheduler", "attention"]
    rows = [{**{k: c[k] for k in SWEPT}, "cost": r.setup.cost().label, **m}
            for c, r, m in zip(combinations, todo, results, strict=True)]  # fmt: skip
    if args.json:
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
    else:
        print(f"times: {', '.join(dict.fromkeys(r['cost'] for r in rows))}; every run is simulated")
        print(table(rows, shown))
    return 0


def table(rows: list[dict], shown: list[str]) -> str:
    names = {**{k: k for k in shown}, **COLUMNS}
    cells = [list(names.values())]
    cells += [[_text(row.get(key)) for key in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)


def _text(value) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)

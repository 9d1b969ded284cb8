"""`python -m pod simulate`: serve a workload on a modelled GPU and print what the users felt.

    python -m pod simulate --model llama-3-8b --tp 2 --scheduler vllm sarathi --attention serial pod --qps 0.85 0.95

Several values of an option run every combination, on all cores. A trace file is replayed as it was recorded, bursts and
all; with Poisson arrivals of the same rate the tail of its TTFT may be fifty times shorter.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

from pod.hardware import GPUS
from pod.serving.blocks import ReservedPool
from pod.serving.events import LogFile, check_place
from pod.serving.schedulers import RECOMPUTE, SCHEDULERS, SWAP, listening
from pod.serving.schedulers.published import PUBLISHED
from pod.serving.shapes import SHAPES
from pod.simulate.attention_time import KERNELS
from pod.simulate.cluster import ROUTERS
from pod.simulate.cost import ATTENTION, BEST, Efficiency
from pod.simulate.energy import basis
from pod.simulate.host_time import HOSTS
from pod.simulate.machines import MACHINES
from pod.simulate.pipeline import PIPELINES
from pod.simulate.run import Both, Run, Setup, description, simulate
from pod.simulate.summary import DEFINITIONS, Summary, turned_away
from pod.simulate.workload import ARRIVALS, COUNT, LENGTHS, MOST_TOKENS, Workload
from pod.sweep import progress, sweep

CLUSTER = ("replicas", "router", "prompt_replicas")
SWEPT = ("scheduler", "attention", "chunk", "qps", "model", "gpu", "pd")
SYSTEM = ("tp", "pp", "max_batch", "max_tokens", "max_prefills", "preemption", "block_size", "blocks", "host",
          "machine", "kernels", "jitter", "seed", "slowdown", "measured", "like", "prefix_cache",
          "pipeline")  # fmt: skip
UNSAID = {"pd": Workload().pd, "chunk": Setup().chunk}
LINK = Efficiency().send_bytes_per_s / 1e9
LOW = 1024  # shortest total of uniform and zipf, where the longest allows it
COLUMNS = {
    "ttft_p50": "TTFT p50 s", "ttft_p99": "p99", "tbt_p50": "TBT p50 s", "tbt_p99": "p99",
    "latency_p50": "latency p50 s", "latency_p99": "p99", "stalls_200ms": "stalls >200ms %", "stalls_500ms": ">500ms %",
    "requests_per_minute": "req/min", "minutes": "minutes", "computed_percent": "computed %",
    "preemptions": "preempted", "refused": "refused",
}  # fmt: skip
JOULES = {"joules_per_iteration": "J/iteration", "joules_per_token": "J/token", "watts_per_gpu": "W/GPU"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Several values of an option run every combination on all cores."
    add_system(parser)
    add_workload(parser).add_argument(
        "--qps", nargs="+", type=float,
        help="requests per second; recorded arrivals are stretched to this mean rate (default: as recorded, else all "
             "at once)")  # fmt: skip
    out = parser.add_argument_group("output")
    out.add_argument("--definition", choices=DEFINITIONS, default="user", help="of TBT: artifact drops the first gap")
    out.add_argument("--log", metavar="FILE", help="write every iteration as a line of JSON (one run only)")
    out.add_argument("--json", action="store_true", help="metrics as JSON")


def add_system(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False  # capacity's --slo would be simulate's --slowdown
    default = Setup()
    system = parser.add_argument_group("system")
    system.add_argument("--model", nargs="+", default=[default.model],
                        help=f"{', '.join(SHAPES)}, or the config.json of a Llama-shaped one")  # fmt: skip
    system.add_argument("--gpu", nargs="+", choices=GPUS, default=["a100"])
    system.add_argument("--tp", type=int, default=1, help="GPUs that share every layer")
    system.add_argument("--pp", type=int, default=1, help="stages of a pipeline")
    system.add_argument("--scheduler", nargs="+", choices=SCHEDULERS, default=["sarathi"])
    system.add_argument("--like", choices=PUBLISHED,
                        help="decide as this system does, where its schedulers differ from ours")  # fmt: skip
    system.add_argument("--attention", nargs="+", choices=ATTENTION, default=["serial"])
    system.add_argument("--chunk", nargs="+", type=int,
                        help="token budget of an iteration (sarathi, sarathi_v1; default: "
                             f"{default.chunk})")  # fmt: skip
    system.add_argument("--max-prefills", type=int,
                        help="prompts in one iteration (sarathi; default: 1, all that fit with --like "
                             "sarathi-serve)")  # fmt: skip
    system.add_argument("--max-batch", type=int, default=default.max_batch)
    system.add_argument("--max-tokens", type=int,
                        help="longest request; budget of vllm's prompt iterations; what static, orca and sarathi_v1 "
                             f"reserve (default: {default.max_tokens})")  # fmt: skip
    system.add_argument("--preemption", choices=(RECOMPUTE, SWAP),
                        help=f"of sarathi and vllm, in a full pool (default: {default.preemption})")  # fmt: skip
    system.add_argument("--prefix-cache", action="store_true",
                        help="prompts that begin alike share blocks; for traces that say which do")  # fmt: skip
    system.add_argument("--pipeline", choices=PIPELINES,
                        help="with --pp: micro-batches keep their requests, or each is made anew (default: "
                             f"{default.pipeline})")  # fmt: skip
    system.add_argument("--block-size", type=int, default=default.block_size)
    system.add_argument("--blocks", type=int, help="size of the pool (default: what the GPU's memory leaves)")
    system.add_argument("--host", choices=HOSTS, default=default.host, help="whose Python the GPU waits for")
    system.add_argument("--jitter", type=float, default=default.jitter,
                        help="of the host, over what was recorded of our engine's (default: 0)")  # fmt: skip
    system.add_argument("--slowdown", type=float, default=default.slowdown,
                        help="of every iteration (default: 1; real ones took 3 to 17 %% longer than the sum of their "
                             "operators)")  # fmt: skip
    system.add_argument("--machine", choices=MACHINES,
                        help="with --tp, whose all-reduce: nccl where launches are in graphs, the others as PyTorch "
                             "launches them (default: a pair of A100s, else the DGX of the generation, nccl on "
                             "H200s)")  # fmt: skip
    system.add_argument("--kernels", help=f"whose attention: {', '.join(KERNELS)}; with --measured fa3, hopper, {BEST}")
    system.add_argument("--measured", action="store_true", help="operators as recorded on one H200 (--gpu h200)")
    system.add_argument("--replicas", type=int, default=1, help="servers of --tp x --pp GPUs each, behind a router")
    system.add_argument("--router", choices=ROUTERS,
                        help=f"who of them gets a request (default: {default.router})")  # fmt: skip
    system.add_argument("--prompt-replicas", type=int, default=0,
                        help="of them: they compute prompts only, and send keys and values to the others")  # fmt: skip
    system.add_argument("--link", type=float,
                        help="GB/s out of a GPU, and into one, of another server or stage (default: "
                             f"{LINK:g})")  # fmt: skip


def add_workload(parser: argparse.ArgumentParser):
    work = parser.add_argument_group("workload")
    work.add_argument("--workload", default="arxiv", help=f"{', '.join(LENGTHS)}, or a trace file")
    work.add_argument("--requests", type=int, help=f"(default: {COUNT}, with recorded arrivals all of the trace)")
    work.add_argument("--arrivals", choices=ARRIVALS,
                      help="trace: as the file has them, in order; the others shuffle it, gamma brings bursts "
                           "(default: trace where the file has times, else poisson)")  # fmt: skip
    work.add_argument("--cv", type=float,
                      help="of gamma: standard deviation of the gaps over their mean (default: 2)")  # fmt: skip
    work.add_argument("--spread", type=float, metavar="SECONDS",
                      help="of recorded times that were rounded down to so many: requests are spread over them "
                           "(Mooncake's: 3)")  # fmt: skip
    work.add_argument("--skip", type=int, default=0, metavar="N",
                      help="requests of recorded arrivals that are left out at the beginning, so that a setup is not "
                           "judged by those for which it was chosen")  # fmt: skip
    work.add_argument("--low", type=int, help=f"shortest total of uniform and zipf (default: {LOW})")
    work.add_argument("--high", type=int,
                      help="clip totals here (default: --max-tokens, a longer row of a trace is an error)")  # fmt: skip
    work.add_argument("--pd", nargs="+", type=float, help=f"P:D ratio of uniform and zipf (default: {UNSAID['pd']:g})")
    work.add_argument("--seed", type=int, help="of all that is drawn (default: 1)")
    return work


def runs(args: argparse.Namespace) -> list[dict]:
    """Every combination of the options that were given several values; once, where one of them changes nothing."""
    values = [getattr(args, name) or [UNSAID.get(name)] for name in SWEPT]
    combinations = [dict(zip(SWEPT, combination, strict=True)) for combination in product(*values)]
    for chosen in combinations:
        if chosen["scheduler"] not in listening("chunk"):
            chosen["chunk"] = None
    return [c for i, c in enumerate(combinations) if c not in combinations[:i]]


def to_run(args: argparse.Namespace, swept: dict) -> Run:
    setup = Setup(**_said(swept, ("model", "gpu", "scheduler", "attention", "chunk")),
                  **_said(vars(args), (*SYSTEM, *CLUSTER)),
                  efficiency=Efficiency(send_bytes_per_s=1e9 * (LINK if args.link is None else args.link)))  # fmt: skip
    if not 2 <= setup.max_tokens <= MOST_TOKENS:
        raise ValueError(f"max_tokens: got {setup.max_tokens}, allowed are integers from 2 to {MOST_TOKENS}")
    high = setup.max_tokens if args.high is None else args.high
    low = min(LOW, high) if args.low is None else args.low
    workload = Workload(args.workload, args.requests, swept["qps"], arrivals=args.arrivals, low=low, high=high,
                        pd=swept["pd"], strict=args.high is None,
                        **_said(vars(args), ("seed", "cv", "spread", "skip")))  # fmt: skip
    _check_heard(args, workload)
    _check(setup, workload)
    return Run(setup, workload, getattr(args, "definition", "user"))


def _said(options: dict, names: tuple[str, ...]) -> dict:
    """Those that somebody has named."""
    return {name: options[name] for name in names if options[name] is not None}


def _check_heard(args: argparse.Namespace, workload: Workload) -> None:
    """What nobody listens to would change nothing, without a word."""
    for name, heard, where in (*_decided(args), *_built(args), *_arriving(args, workload)):
        value = getattr(args, name)
        if value is not None and not heard:
            shown = " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in _several(value))
            raise ValueError(f"{name}: got {shown}, allowed beside {where}")


def _several(value) -> list:
    return value if isinstance(value, list) else [value]


Heard = tuple[str, bool, str]  # an option, whether it changes anything, and beside what it does


def _decided(args: argparse.Namespace) -> Iterator[Heard]:
    """By schedulers: one of several that listens is enough."""
    for name in dict.fromkeys(name for scheduler in SCHEDULERS.values() for name in scheduler.decisions):
        if name != "max_tokens":  # which is the longest request, too
            listen = listening(name)
            yield name, bool({*listen} & {*args.scheduler}), f"--scheduler {' or '.join(listen)}"
    yield "max_prefills", args.like != "sarathi-serve", "--scheduler sarathi without --like sarathi-serve"
    bound = None in (args.max_tokens, args.high) or args.high <= args.max_tokens
    yield "high", bound or all(map(_refuses, args.scheduler)), f"--max-tokens from {args.high}"


def _refuses(scheduler: str) -> bool:
    """Requests longer than --max-tokens."""
    return scheduler in listening("max_tokens") or SCHEDULERS[scheduler].pool_type is ReservedPool


def _built(args: argparse.Namespace) -> Iterator[Heard]:
    alike = max(args.prompt_replicas, args.replicas - args.prompt_replicas)
    yield "machine", args.tp > 1, "--tp from 2"
    yield "pipeline", args.pp > 1, "--pp from 2"
    yield "router", alike > 1, "--replicas from 2" + (" that do the same" if args.prompt_replicas else "")
    yield "link", args.pp > 1 or args.prompt_replicas > 0, "--pp from 2 or --prompt-replicas"


def _arriving(args: argparse.Namespace, workload: Workload) -> Iterator[Heard]:
    ranged = workload.lengths in ("uniform", "zipf")
    yield "low", ranged, "--workload uniform or zipf"
    yield "pd", ranged, "--workload uniform or zipf"
    yield "spread", workload.arrivals == "trace", "recorded arrivals"
    yield "seed", workload.drawn(args.rates) or args.jitter > 0, "lengths or times that are drawn, or --jitter"


def _check(setup: Setup, workload: Workload) -> None:
    """A mistake shows before anything runs, also the last one of a sweep."""
    setup.executor()
    setup.check_cluster()
    if setup.prefix_cache and not workload.shares:
        raise ValueError(f"prefix_cache: got {workload.lengths}, which does not say whose prompts begin alike, allowed "
                         "are traces with hash_ids, or with like and shared, in every row")  # fmt: skip
    if all(refusals(setup, workload)):
        away = turned_away(workload.count, workload.count, dict(enumerate(islice(refusals(setup, workload), 1))))
        raise ValueError(f"workload: {away}")


def refusals(setup: Setup, workload: Workload) -> Iterator[str | None]:
    """Why each request can never be served, whatever else comes; None where it can."""
    lane = setup.lanes()[0]
    return map(lane.refusal, workload.stream())


def check_arrivals(args: argparse.Namespace, rates: bool) -> None:
    """Who asks for a kind of arrivals shall not get another one without a word. `rates`: whether any is tried."""
    args.rates = rates
    if args.arrivals not in (None, "trace") and not rates:
        raise ValueError(f"arrivals: got {args.arrivals} without a rate, allowed is one beside it, --qps")
    if args.cv is not None and args.arrivals != "gamma":
        raise ValueError(f"cv: got {args.cv:g}, allowed beside --arrivals gamma")


def run(args: argparse.Namespace) -> int:
    check_arrivals(args, bool(args.qps))
    combinations = runs(args)
    if args.log:
        if len(combinations) > 1:
            raise ValueError(f"--log: got {len(combinations)} runs, allowed is one")
        _check_log(args)
    todo = [to_run(args, c) for c in combinations]
    if len(todo) == 1:
        log = _log_file(todo[0], args.log) if args.log else None
        summary = _watched(todo[0], log)
        results = [summary.full()]
        if summary.refused:
            print(turned_away(summary.refusals, summary.received, summary.refused), file=sys.stderr)
    else:
        results = sweep(Run.full, todo)
    _print(args, combinations, todo, results)
    if args.log:
        log.close()
    return 0


def _check_log(args: argparse.Namespace) -> None:
    """It is written from the beginning, also over what the run is still to read."""
    for read in (args.workload, *args.model, *(Path(model) / "config.json" for model in args.model)):
        if Path(read).is_file() and Path(read).resolve() == Path(args.log).resolve():
            raise ValueError(f"log: got {args.log!r}, which the run reads, allowed are other files")
    check_place(args.log)


def _watched(run: Run, log: LogFile | None) -> Summary:
    """What the users felt in a run, with a progress bar on a terminal."""
    summary = run.summary()
    with progress(run.workload.count, "request") as bar:
        simulate(run.setup, run.workload.stream(), bar.update, into=Both(summary, log) if log else summary)
    return summary


def _log_file(run: Run, path: str) -> LogFile:
    file, lane = LogFile(path, description(run.setup, vars(run.workload))), run.setup.lanes()[0]
    for r in run.workload.stream():
        file.request(r.id, r.arrival, r.prompt, r.output, lane.refusal(r))
    return file


def _print(args: argparse.Namespace, combinations: list[dict], todo: list[Run], results: list[dict]) -> None:
    shown = [k for k in SWEPT if len(set(c[k] for c in combinations)) > 1] or ["scheduler", "attention"]
    rows = [{**{k: c[k] for k in SWEPT}, **stands_on(r.setup), "arrivals": r.workload.pace, **m}
            for c, r, m in zip(combinations, todo, results, strict=True)]  # fmt: skip
    if args.json:
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
    else:
        print(heading(todo, [r["arrivals"] for r in rows]))
        print(table(rows, shown))


def stands_on(setup: Setup) -> dict[str, str]:
    """Whose times a row has, and whose joules where they are not those of recorded runs."""
    cost = setup.cost()
    return {"cost": cost.label} | ({"joules": joules} if (joules := basis(cost)) else {})


def heading(runs: list[Run], arrivals: list[str], **more: str) -> str:
    """With what all rows below have to be read."""
    costs = [r.setup.cost() for r in runs]
    told = {"times": [c.label for c in costs], "host": [c.host_kind for c in costs], "arrivals": arrivals}
    said = {name: ", ".join(dict.fromkeys(words)) for name, words in told.items()} | more
    said |= {"decisions": f"like {like}"} if (like := runs[0].setup.like) else {}
    if alike := dict.fromkeys(r.setup.scheduler for r in runs if _never_mixes(r.setup)):
        said["attention"] = f"any as serial with {', '.join(alike)}, which never has prompts beside decodes"
    if unlike := dict.fromkeys(words for c in costs if (words := basis(c))):
        said["joules"] = ", ".join(unlike)
    said |= _replayed(runs)
    return "; ".join(f"{name}: {what}" for name, what in said.items()) + "; every run is simulated"


def _never_mixes(setup: Setup) -> bool:
    """What computes both kinds at once then has nothing to do. Measured, it has other kernels."""
    return setup.scheduler in ("vllm", "static") and setup.attention != "serial" and not setup.measured


def _replayed(runs: list[Run]) -> dict[str, str]:
    """How many recorded requests come within what time: who has mistaken a trace's unit of time sees it here."""
    traces = dict.fromkeys(r.workload for r in runs if r.workload.arrivals == "trace")
    words = [f"{w.count} requests within {w.seconds():.4g} s" for w in traces]
    return {"trace": ", ".join(dict.fromkeys(words))} if words else {}


def table(rows: list[dict], shown: list[str]) -> str:
    names = {**{k: k for k in shown}, **COLUMNS, **(JOULES if any("joules_per_token" in row for row in rows) else {})}
    cells = [list(names.values())]
    cells += [[_text(row.get(key)) for key in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)


def _text(value) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)

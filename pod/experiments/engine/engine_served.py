"""POD's Tables 4 and 5 on a real server: users of two workloads come to one H200, five minutes a system.

Measured: what each request felt, Llama-3-8B, at the paper's share of what Sarathi can serve: vLLM's scheduler, Sarathi
with FlashAttention-3 in one call, its faster one here, with our halves in turn and at once.

Requests and arrivals are those that engine-online and engine-foretold simulate, so both can be judged by this. Runs
are spread over all the GPUs that are there, each in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from pod.data import a_card, kept, read
from pod.experiments.engine import engine_online, running
from pod.experiments.pod.pod_t5 import METRICS, TITLES, plain_ticks
from pod.experiments.pod.pod_t5 import SYSTEMS as STATED
from pod.lab import paper
from pod.lab.figure import Figure
from pod.lab.measure import provenance, ranks
from pod.lab.show import style
from pod.serving.blocks import PagedPool
from pod.serving.captured import LARGEST
from pod.serving.engine import Engine, answer
from pod.serving.loop import WallClock, serve
from pod.serving.request import Request
from pod.serving.schedulers import VLLM, Sarathi
from pod.simulate import metrics
from pod.simulate.windows import PAGE, began
from pod.simulate.workload import Workload

FIGURE = Figure(
    title=f"What users felt in five minutes of real serving, on {a_card()}",
    says="Under Sarathi's scheduler rings are within a seventh of the dots; under vLLM's most are not",
    chapter="15",
    method="Llama-3-8B, random weights, bf16; the requests of five minutes, at the paper's share of what Sarathi "
    "serves; one run a system, iterations of up to 2,048 tokens as CUDA graphs; the artifact's definitions",
    data=("engine-served", "engine-foretold"),
)
RECORDING = "engine-served"
KEYS, WHOLE = ("round", "run", "request"), ("round",)
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = "the host's clock when the tokens of an iteration are out, against the time at which the request was to arrive"
L2 = "warm"
MODEL, ROOM, MOST, LONGEST = "llama-3-8b", 3120, 128, 65536  # pages; requests at once; tokens of an iteration
TURN, POD = "Sarathi, ours in turn", "Sarathi+POD"
SYSTEMS = {"vLLM": (VLLM, "fa3"), "Sarathi": (Sarathi, "fa3-one"), TURN: (Sarathi, "hopper-serial"),
           POD: (Sarathi, "hopper")}  # fmt: skip
INTERNAL, ARXIV = "internal 1.2", "arXiv 0.95"  # the higher load of each table
LOWER = "internal 1.1"  # that of Table 6: engine_chunks
REQUESTS = {INTERNAL: 600, ARXIV: 490, LOWER: 550}  # that arrive in five minutes


class Run(NamedTuple):
    load: str
    system: str
    chunk: int | None = None  # the table's own if None

    @property
    def name(self) -> str:
        return f"{self.load}, {self.system}" + (f", chunk {self.chunk}" if self.chunk else "")

    @property
    def tokens(self) -> int:
        """Of an iteration under Sarathi."""
        return self.chunk or engine_online.CASES[self.load][2]


ROUNDS = [[Run(load, system) for system in SYSTEMS] for load in (INTERNAL, ARXIV)]  # who runs at the same time
RUNS = {run.name: run for each in ROUNDS for run in each}


def cases() -> list[dict]:
    return [{"round": i, "run": run.name, "request": request}
            for i, each in enumerate(ROUNDS) for run in each for request in range(REQUESTS[run.load])]  # fmt: skip


def measure(case: dict) -> dict:
    return _round(int(case["round"]))[case["run"]][int(case["request"])]


@lru_cache(maxsize=1)
def _round(number: int) -> dict[str, list[dict]]:
    return side_by_side(ROUNDS[number])


def side_by_side(runs: list[Run]) -> dict[str, list[dict]]:
    return dict(zip([run.name for run in runs], ranks.each(served, runs), strict=True))


@dataclass(frozen=True)
class Users:
    """They come one by one to a server that is idle at first."""

    work: Workload
    chunk: int

    def requests(self) -> list[Request]:
        return self.work.requests()

    def scheduler(self, pool: PagedPool, kind=Sarathi):
        options = {"max_tokens": LONGEST} if kind is VLLM else {"chunk": self.chunk}
        return kind(pool, MOST, **options)


def work(load: str) -> Workload:
    lengths, *_ = engine_online.CASES[load]
    return Workload(lengths, REQUESTS[load], engine_online.rate(load), seed=1, arrivals="truncated_poisson")


def served(run: Run) -> list[dict]:
    """A row a request, by the GPU that is this process's."""
    import torch

    kind, attention = SYSTEMS[run.system]
    card = torch.cuda.current_device()
    engine = Engine(running.model(MODEL), PagedPool(ROOM, PAGE), attention)
    engine.warm(MOST, LARGEST if kind is VLLM else run.tokens)
    users = Users(work(run.load), run.tokens)
    with provenance.watch(running.WATCH_SECONDS, card) as watched:
        rows = timed(engine, users, kind)
    state = running.state(watched) | {"card": card}
    return [row | state for row in rows]


def timed(engine: Engine, users: Users, kind) -> list[dict]:
    """What each request felt, and of all tokens of the run the times between two."""
    longest = max(request.prompt for request in users.requests())
    # A whole prompt may be longer than any graph: its kernels load, and its memory is found, when the first one comes.
    answer(engine, users.scheduler(engine.pool, kind), [[0] * longest], 2)
    scheduler = running.prepare(engine, users, kind)
    with running.unswept():
        engine.clock = WallClock()
        return felt(serve(users.requests(), [scheduler], engine, engine.clock, kind=engine.loop))


def felt(log) -> list[dict]:
    """A row a request, by id. Of gaps the artifact's definition, which drops a request's first one, and the users'."""
    drops, all_of_them = metrics.requests(log, "artifact"), metrics.requests(log, "user")
    lengths = {id_: (prompt, output) for id_, _, prompt, output in log.requests}
    if len(drops.id) != len(lengths):
        raise ValueError(f"requests: got {len(drops.id)} answers of {len(lengths)} that came, allowed are all")
    pooled = {}
    for name, gaps in (("tbt", drops.gaps), ("felt", all_of_them.gaps)):
        pooled |= {f"{name}_p{p}_ms": round(1e3 * float(np.percentile(gaps, p)), 3) for p in (50, 99)}
    ends = np.array([event.end for event in log.iterations])
    busy = 100 * float((ends - began([event.scheduled for event in log.iterations], ends)).sum()) / ends[-1]
    columns = zip(drops.id.tolist(), drops.arrival, drops.ttft, drops.latency, drops.worst_gap, all_of_them.worst_gap,
                  strict=True)  # fmt: skip
    return [{"prompt": lengths[id_][0], "output": lengths[id_][1], "arrival_s": round(float(arrival), 4),
             "ttft_s": round(float(ttft), 4), "latency_s": round(float(latency), 4),
             "worst_tbt_ms": round(1e3 * float(worst), 3), "worst_felt_ms": round(1e3 * float(bad), 3),
             **pooled, "busy_percent": round(busy, 2)}
            for id_, arrival, ttft, latency, worst, bad in columns]  # fmt: skip


# ---------------------------------------------------------------- what it shows


@kept("engine-served")
def measured() -> dict[str, dict[str, float]]:
    """The metrics of each run: seconds, and shares of requests in percent."""
    return {run: summed(rows) for run, rows in read("engine-served").groupby("run", sort=False)}


def summed(rows: pd.DataFrame) -> dict[str, float]:
    first = rows.iloc[0]
    seconds = {f"{name}_p{p}": float(np.percentile(rows[f"{name}_s"], p)) for name in ("ttft", "latency")
               for p in (50, 99)}  # fmt: skip
    gaps = {f"tbt_p{p}": first[f"tbt_p{p}_ms"] / 1e3 for p in (50, 99)}
    stalls = {f"stalls_{ms}ms": 100 * float((rows.worst_tbt_ms > ms).mean()) for ms in (200, 500)}
    return seconds | gaps | stalls | {"busy": first.busy_percent}


def foretold() -> dict[str, dict[str, float]]:
    """What the simulator says of the same requests; of systems that it has."""
    return read("engine-foretold").set_index("run").to_dict("index")


def table() -> pd.DataFrame:
    """A row a load, system and metric: what the paper states of two A100s, what we measured, what had been foretold."""
    done, said, rows = measured(), foretold(), []
    for name, run in RUNS.items():
        rows += [(run.load, run.system, metric, _stated(run, metric), done[name][metric],
                  said.get(name, {}).get(metric)) for metric in METRICS]  # fmt: skip
    return pd.DataFrame(rows, columns=["load", "system", "metric", "paper", "measured", "foretold"])


def _stated(run: Run, metric: str) -> float | None:
    if run.system not in STATED:
        return None
    return paper.value(f"{engine_online.CASES[run.load][3]}.{STATED[run.system]}.{metric}")


def draw(df, stated: bool = True):
    """Each metric on its own axis: measured a dot, foretold a ring joined to it, and, where `stated`, a cross what the
    paper has of two A100s."""
    figure, axes = plt.subplots(2, 3, figsize=(9.5, 5.2), dpi=style.DPI, layout="constrained", sharey=True)
    places = {key: i for i, key in enumerate(dict.fromkeys(zip(df.load, df.system, strict=True)))}
    for ax, (metric, title) in zip(axes.T.flat, TITLES.items(), strict=True):
        style.tidy(ax)
        for row in df[df.metric == metric].itertuples():
            y, colour = places[row.load, row.system], style.colour("hybrid") if row.system == POD else style.WORKERS[1]
            label = {0: "measured, one H200", 3: "Sarathi+POD, measured"}.get(y)
            ax.plot([row.measured, row.foretold], [y, y], color=style.INK, linewidth=1.5)
            ax.plot(row.measured, y, "o", color=colour, markersize=8, label=label)
            ax.plot(row.foretold, y, "o", color=style.INK, markersize=11, fillstyle="none",
                    label="simulated before, the same requests" if y == 0 else None)  # fmt: skip
            if stated:
                ax.plot(row.paper, y, "x", color=style.INK, markersize=7, label="paper, two A100s" if y == 0 else None)
        ax.set_xscale("log")
        plain_ticks(ax.xaxis)
        ax.grid(axis="y", alpha=0.25)
        ax.set_title(title, fontsize=10)
        ax.set(yticks=list(places.values()), ylim=(len(places) - 0.5, -0.5))
        ax.set_yticklabels([f"{system}, {load}" for load, system in places], fontsize=8.5)
        ax.tick_params(axis="x", which="both", labelsize=8.5)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


# ---------------------------------------------------------------- what claims ask for

LOADS = (INTERNAL, ARXIV)


def _of(metric: str, system: str, load: str) -> float:
    return measured()[Run(load, system).name][metric]


def times(metric: str, system: str, than: str, load: str = INTERNAL) -> float:
    """How many times as much of a metric one system has as another."""
    return _of(metric, system, load) / _of(metric, than, load)


def most_times(metric: str, system: str, than: str) -> float:
    return max(times(metric, system, than, load) for load in LOADS)


def less(metric: str, system: str, than: str, load: str = INTERNAL) -> float:
    """How much less of a metric one system has than another, percent."""
    return 100 * (1 - times(metric, system, than, load))


def mean_less(metric: str, system: str, than: str) -> float:
    return float(np.mean([less(metric, system, than, load) for load in LOADS]))


def least_less(metric: str, system: str, than: str) -> float:
    return min(less(metric, system, than, load) for load in LOADS)


def more(metric: str, system: str, than: str, load: str = INTERNAL) -> float:
    """How much more of it, percent."""
    return 100 * (times(metric, system, than, load) - 1)


def most(metric: str, system: str) -> float:
    return max(_of(metric, system, load) for load in LOADS)


def least(metric: str, system: str) -> float:
    return min(_of(metric, system, load) for load in LOADS)


def lowest_ttft() -> float:
    """P99 TTFT of vLLM over the lowest of Sarathi, ours in turn and POD, the worse of both loads."""
    others = ("Sarathi", TURN, POD)
    return max(_of("ttft_p99", "vLLM", load) / min(_of("ttft_p99", s, load) for s in others) for load in LOADS)


def fused(metric: str) -> float:
    """How much less of it our kernel has at once than in turn, percent, in the mean of both loads."""
    return mean_less(metric, POD, TURN)


def foretold_off(metric: str) -> float:
    """By how much the simulator was wrong about a metric in the run that it foretold worst, percent; of vLLM, ours in
    turn and POD, for it knows no single call of FlashAttention-3."""
    return worst_off(table(), metric)


def sarathi_off(metric: str) -> float:
    """The same under Sarathi's scheduler alone."""
    return worst_off(table().query("system != 'vLLM'"), metric)


def worst_off(df: pd.DataFrame, metric: str) -> float:
    """The largest error of what was foretold of a metric in these rows, percent; where nothing was, a row is blank."""
    mine = df[df.metric == metric]
    return 100 * float((mine.foretold / mine.measured - 1).abs().max())

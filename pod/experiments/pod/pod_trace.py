"""Tickets on a real GPU: on how many SMs prefill and decode meet, over time, by who chooses and how.

Measured: every CTA of one launch: operation, SM, ticket, start and time, for pod with two policies, serial and cta.
"""

from functools import lru_cache

import numpy as np
import pandas as pd

import pod
from pod import kernels
from pod.batch import HybridBatch
from pod.data import read
from pod.kernels.fusion import NAMES
from pod.kernels.sm80 import TRACE_FIELDS
from pod.kernels.trace import both_share, disagreements, held, held_both
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import gantt, style
from pod.lab.show.band import overlap
from pod.schedule.binding import OPS

FIGURE = Figure(
    title="What the SMs of an H200 hold while one batch runs: prefill, decode or both",
    says="SM-aware CTAs meet on nearly all SMs from the start, CTAs by index only late",
    chapter="07",
    method="One traced launch each, cold L2. 3K prompt beside 40 x 4K, 16/4 heads, bf16; every CTA stamps its ends.",
    data=("pod-trace",),
)
RECORDING = "pod-trace"
KEYS, WHOLE = ("run", "cta"), ("run",)
UNITS = ("hybrid",)
REPEATS = 1
TIMER = (
    "%globaltimer at the start and the end of every CTA, the last of three launches, "
    "each after a 256 MB fill that empties L2"
)
K = 1024
# Llama-3-8B on two GPUs: on an H200 prefill and decode take about as long, and both have more CTAs than it has slots.
BATCH = HybridBatch.of(3 * K, 3 * K, 40, 4 * K, 16, 4)
RUNS = {
    "serial": {"method": "serial", "ctas_per_sm": 2},
    "cta": {"method": "cta", "ctas_per_sm": 2},
    "even2": {"method": "pod", "policy": "50:50", "ctas_per_sm": 2},
    "prop2": {"method": "pod", "policy": "proportional", "ctas_per_sm": 2},
    "even4": {"method": "pod", "policy": "50:50", "ctas_per_sm": 4},
    "prop4": {"method": "pod", "policy": "proportional", "ctas_per_sm": 4},
}
SPLITS = {"prefill_splits": "none", "decode_splits": 16}  # named, so that the pieces depend on no cost model


def plan(run: str, device: str = "cuda"):
    b = BATCH
    return pod.plan(b.q_lens, b.kv_lens, b.num_q_heads, b.num_kv_heads, b.head_dim, device=device, **SPLITS,
                    **RUNS[run])  # fmt: skip


def cases() -> list[dict]:
    """`cta` numbers the rows of a trace: block by block, serial's prefill before its decode."""
    return [{"run": run, "cta": cta} for run in RUNS for cta in range(sum(ctas(plan(run))))]


def ctas(plan) -> tuple[int, int]:
    """CTAs of prefill and of decode."""
    made = plan.schedule()
    return len(made.prefill), -(-(len(made.decode.pieces) - 1) // made.shape.virtual)


def measure(case: dict) -> dict:
    return trace(case["run"])[int(case["cta"])]


@lru_cache
def trace(run: str, device: str = "cuda") -> list[dict]:
    """The last of three launches on a cold L2: by then the code is loaded. Times count from the first CTA's start."""
    q, k, v, _ = BATCH.tensors(device=device)
    made, taken = plan(run, device), []
    timing.samples(lambda: taken.append(pod.hybrid_attention(q, k, v, made, trace=True)[1]), 3)
    column = dict(zip(TRACE_FIELDS, taken[-1].cpu().numpy().T, strict=True))
    origin = column["start"].min()
    names = ("sm", "op", "id", "ticket", "draws")
    return [
        {name: int(column[name][i]) for name in names}
        | {"start_us": round((start - origin) / 1e3, 1), "us": round((end - start) / 1e3, 1)}
        for i, (start, end) in enumerate(zip(column["start"], column["end"], strict=True))
    ]


# ---------------------------------------------------------------- what it shows

LABELS = {
    **{way: NAMES[way] for way in ("serial", "cta")},
    "even2": "SM-aware, 50:50",
    "prop2": "SM-aware, proportional",
    "even4": "SM-aware, 50:50",
    "prop4": "SM-aware, proportional",
}
PANELS = {"2 CTAs on an SM": ("serial", "cta", "even2", "prop2"), "4 CTAs on an SM": ("even4", "prop4")}


def named(rows):
    """Rows of the recording as a trace: operations by name, and the end of every CTA."""
    return rows.assign(op=[OPS[i] for i in rows.op], start=rows.start_us, end=rows.start_us + rows.us)


def traces() -> dict:
    """The trace of each run."""
    rows = named(read("pod-trace"))
    return {run: mine.reset_index(drop=True) for run, mine in rows.groupby("run", sort=False)}


def table():
    """One row a run and moment at which it changes how many SMs hold both (`sms`), prefill alone or decode alone."""
    rows = []
    for run, trace in traces().items():
        times = np.unique([trace.start, trace.end])
        _, prefill, decode, both = held(trace, times)
        rows += zip([run] * len(times), times, both, prefill, decode, strict=True)
    df = pd.DataFrame(rows, columns=["run", "us", "sms", "prefill", "decode"])
    held_now = df[["sms", "prefill", "decode"]]
    changed = (held_now != held_now.groupby(df.run).shift()).any(axis=1)
    return df[changed | ~df.duplicated("run", keep="last")].reset_index(drop=True)


def draw(df):
    """One panel a run: SMs that hold prefill alone (blue), both (green) or decode alone (orange), over time."""
    tones = {"prefill": style.PREFILL, "sms": style.KINDS["both"], "decode": style.DECODE}
    words = {"prefill": "prefill alone", "sms": "both", "decode": "decode alone"}
    panels = style.axes(9.5, 4.6, columns=3, rows=2, sharex=True, sharey=True)
    average = summary()["on average"]
    for ax, (run, label), both in zip(panels.flat, LABELS.items(), average, strict=True):
        mine = df[df.run == run]
        edges, bottom = mine.us.to_numpy(), np.zeros(len(mine) - 1)
        for what, tone in tones.items():
            top = bottom + mine[what].to_numpy()[:-1]
            ax.stairs(top, edges, baseline=bottom, fill=True, color=tone, label=words[what])
            bottom = top
        ctas = 4 if run in PANELS["4 CTAs on an SM"] else 2
        ax.set_title(f"{label}, {ctas} CTAs an SM\n{edges[-1]:.0f} µs, {both:.0f} SMs hold both", fontsize=9)
        ax.set(xlim=(0, 1.02 * df.us.max()), ylim=(0, 132), yticks=(0, 33, 66, 99, 132))
    for ax in panels[:, 0]:
        ax.set_ylabel("SMs")
    for ax in panels[1]:
        ax.set_xlabel("time, µs")
    return style.legend_outside(panels[0, 0], "lower", 3)


def draw_one(sm: int):
    """The CTAs of one SM in the four ways with two slots."""
    rows = {LABELS[run].removeprefix("SM-aware, "): run for run in PANELS["2 CTAs on an SM"]}
    made = traces()
    bars = [(name, r.start, r.end, r.op) for name, run in rows.items() for r in made[run].itertuples() if r.sm == sm]
    return gantt(bars, rows=list(rows), unit="µs", slots_per_row=2).figure


# ---------------------------------------------------------------- what claims ask for


def summary():
    """One row a run: its time, its place in the band between serial's two halves, SMs that ever held both, how many did
    on average, and the CTAs that had to ask twice."""
    rows, (prefill, decode) = {}, alone()
    for run, trace in traces().items():
        sms, us = trace.sm.nunique(), trace.end.max()
        rows[run] = [LABELS[run], 4 if run in PANELS["4 CTAs on an SM"] else 2, us, overlap(us, prefill, decode),
                     held_both(trace), sms * both_share(trace), int((trace.draws == 2).sum())]  # fmt: skip
    columns = ["method", "CTAs on an SM", "µs", "place", "SMs that held both", "on average", "asked twice"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).set_index("method")


def alone() -> tuple[float, float]:
    """Microseconds of the two halves in the serial run, whose decode waits for the last prefill."""
    trace = traces()["serial"]
    end = trace[trace.op == OPS[0]].end.max()
    return end, trace.end.max() - end


def first_prefills(run: str = "prop2"):
    """The prefill CTA with which each SM began: its microseconds, the share of them in which decode ran on the same SM,
    and the microseconds of the same piece in the serial run, with the share in which another prefill is beside it."""
    trace, serial = traces()[run], traces()["serial"]
    prefill, decode = (trace[trace.op == op] for op in OPS)
    first = prefill[prefill.start < prefill.us.min()]
    beside = [_covered(decode[decode.sm == r.sm], r.start, r.end) / r.us for r in first.itertuples()]
    serial = serial[serial.op == OPS[0]].set_index("id")
    same = serial.loc[first.id]
    paired = [_covered(serial[serial.sm == r.sm].drop(r.Index), r.start, r.end) / r.us for r in same.itertuples()]
    return first[["sm", "id", "us"]].assign(beside=beside, serial_us=same.us.to_numpy(), serial_beside=paired)


def _covered(rows, start: float, end: float) -> float:
    """Of the time from start to end, how much some row covers."""
    covered, now = 0.0, start
    for r in rows.sort_values("start", kind="stable").itertuples():
        covered += max(0.0, min(r.end, end) - max(r.start, now))
        now = max(now, min(r.end, end))
    return covered


def surprises():
    """One row an SM-aware run: its CTAs, and how many wanted something else than pod/schedule/binding.py says."""
    made, rows = traces(), {}
    for run in (run for run, choice in RUNS.items() if choice["method"] == "pod"):
        with kernels.machine(made[run].sm.nunique()):
            deal = plan(run, "cpu").schedule().deal
        name = f"{LABELS[run]}, {RUNS[run]['ctas_per_sm']} CTAs an SM"
        rows[name] = len(made[run]), len(disagreements(made[run], deal))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["CTAs", "wanted something else"])


def met_everywhere() -> float:
    """Percent of the SMs that held both at some time, under the proportional policy."""
    trace = traces()["prop2"]
    return 100 * held_both(trace) / trace.sm.nunique()


def over_index() -> float:
    """SMs that hold both, on average over time: the proportional policy over CTAs by index."""
    made = traces()
    return both_share(made["prop2"]) / both_share(made["cta"])

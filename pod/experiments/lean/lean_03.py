"""LeanAttention, Figure 3: how busy the SMs are under each cut, and what they read.

Measured: one launch each of decode, 56 heads of one request: by SM from the Hopper kernel, by part from lean.cu.
"""

from functools import cache

from pod.batch import HybridBatch
from pod.data import a_card, read
from pod.experiments.lean import lean
from pod.kernels import lean as method
from pod.kernels.lean import TRACE_FIELDS
from pod.lab.figure import Figure
from pod.lab.show import style
from pod.schedule import decide

FIGURE = Figure(
    title="SMs at work under each cut: 56 heads, one request of 64K tokens",
    chapter="11",
    method=f"Time stamps of every SM's decode warps in one launch on {a_card()}, head dimension 64; no counters.",
    data=("lean-trace",),
)
RECORDING = "lean-trace"
KEYS, WHOLE = ("run", "row"), ("run",)
UNITS = lean.UNITS
REPEATS = 1
TIMER = "%globaltimer at the start and the end of every part, the last of three launches"
L2 = "warm"
BATCH = HybridBatch((1,), (64 * lean.K,), 56, 56, 64, dtype="float16")
HOPPER = ("lean", "rule_256", "rule_now", "single")
PAPER = {"paper_last": {"merge": "last"}, "paper_host": {"merge": "host"}}
DECODE_ROLE = 4  # of the Hopper kernel's trace


def cases() -> list[dict]:
    parts = decide.lean(BATCH, lean.SMS, worker="cta128").decode
    counts = dict.fromkeys(HOPPER, lean.SMS) | dict.fromkeys(PAPER, len(parts))
    return [{"run": run, "row": row} for run, count in counts.items() for row in range(count)]


def measure(case: dict) -> dict:
    return _rows(case["run"])[int(case["row"])]


@cache
def _rows(run: str) -> list[dict]:
    batch_tensors = _tensors()
    if run in PAPER:
        plan = method.plan(BATCH, "cuda", worker="cta128", **PAPER[run])
    else:
        plan = method.plan(BATCH, "cuda", lean.chosen_splits(BATCH).get(run, "stream-k"))
    for _ in range(3):  # the last of three: code and lists are warm, as in a model's layers
        _, rows = plan.run(*batch_tensors, trace=True)
    return _records(plan, rows.cpu().numpy()) if run in PAPER else _sms(rows[:, DECODE_ROLE].cpu().numpy())


@cache
def _tensors():
    return BATCH.tensors(device="cuda")


def _sms(stamps) -> list[dict]:
    """When the decode warps of each SM began and ended, microseconds after the first."""
    stamps = (stamps - stamps.min()) / 1e3
    return [{"sm": sm, "start_us": start, "computed_us": end, "end_us": end} for sm, (start, end) in enumerate(stamps)]


def _records(plan, rows) -> list[dict]:
    """The parts of heads in the order of the line, with the worker, the head, and when it was computed and merged."""
    work, origin = plan.schedule().decode, rows[:, TRACE_FIELDS.index("start")].min()
    records = []
    for row in rows.tolist():
        r = dict(zip(TRACE_FIELDS, row, strict=True))
        times = {f"{name}_us": (r[name] - origin) / 1e3 for name in ("start", "computed", "end")}
        piece = {name: int(work.columns[name][r["record"]]) for name in ("head", "part", "parts", "begin", "end")}
        tokens = {"begin_token": piece.pop("begin"), "end_token": piece.pop("end")}
        records.append({"sm": r["sm"], "worker": r["worker"], **piece, **tokens, "merges": r["merges"], **times})
    return records


# ---------------------------------------------------------------- what it shows

RUNS = {"single": "no split", "rule_256": "rule of 2.5.6", "lean": "equal ranges"}


def table():
    """One row a cut and SM: when its decode began and ended, microseconds after the first."""
    df = read("lean-trace")
    df = df[df.run.isin(RUNS)]
    return df[["run", "sm", "start_us", "end_us"]].astype({"sm": int}).reset_index(drop=True)


def busy(df):
    """Share of all SMs' time until the last end in which they decode, by cut, %."""
    spans = df.assign(span=df.end_us - df.start_us).groupby("run")
    return 100 * spans.span.sum() / (spans.sm.nunique() * (spans.end_us.max() - spans.start_us.min()))


def draw(df):
    axes = style.axes(9.5, 3.4, columns=len(RUNS), sharey=True, sharex=True)
    shares = busy(df)
    gigabytes = 2 * 2 * 56 * 64 * (64 << 10) / 1e9
    for ax, (run, words) in zip(axes, RUNS.items(), strict=True):
        part = df[df.run == run].sort_values("end_us", ascending=False, kind="stable").reset_index()
        ax.barh(part.index, part.end_us - part.start_us, 1.0, left=part.start_us, color=style.DECODE, linewidth=0)
        end = part.end_us.max()
        ax.axvline(end, color=style.INK, linestyle="--", linewidth=1)
        title = f"{words}: {end:.0f} µs\nbusy {shares[run]:.0f} %, {gigabytes / end * 1e3:.1f} TB/s"
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.set(xlabel="time, µs", ylim=(132, 0))
    axes[0].set_ylabel("SMs, longest first")
    return axes[0].figure


# ---------------------------------------------------------------- what claims ask for


def busy_under_stream_k() -> float:
    return float(busy(table())["lean"])

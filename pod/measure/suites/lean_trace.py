"""Who computed which part of which head and when: 56 heads of one request, under every way of cutting them."""

from __future__ import annotations

from functools import cache

from pod.batch import HybridBatch
from pod.measure.suites import lean
from pod.schedule import stream_k

DOC = "one launch each of decode, 56 heads of one request: by SM from the Hopper kernel, by part from csrc/lean.cu."
KEYS, WHOLE = ("run", "row"), ("run",)
UNITS = lean.UNITS
REPEATS = 1
BATCH = HybridBatch((1,), (64 * lean.K,), 56, 56, 64, dtype="float16")
HOPPER = ("lean", "rule_256", "rule_now", "single")
PAPER = {"paper_last": {"merge": "last"}, "paper_host": {"merge": "host"}}
DECODE_ROLE = 4  # of the Hopper kernel's trace


def cases() -> list[dict]:
    parts = stream_k.decode_work([0], BATCH.kv_lens, [0], 56, 56, 2 * lean.SMS, packed=False)
    counts = dict.fromkeys(HOPPER, lean.SMS) | dict.fromkeys(PAPER, len(parts.work))
    return [{"run": run, "row": row} for run, count in counts.items() for row in range(count)]


def measure(case: dict) -> dict:
    return _rows(case["run"])[int(case["row"])]


@cache
def _rows(run: str) -> list[dict]:
    from pod import lean as method

    batch_tensors = _tensors()
    if run in PAPER:
        plan = method.make_plan(BATCH, "cuda", worker="cta128", **PAPER[run])
    else:
        plan = method.make_plan(BATCH, "cuda", lean.chosen_splits(BATCH).get(run, "stream-k"))
    for _ in range(3):  # the last of three: code and lists are warm, as in a model's layers
        _, rows = method.run(plan, *batch_tensors, trace=True)
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
    from pod.lean import TRACE_FIELDS

    work, origin = plan.lists().work, rows[:, TRACE_FIELDS.index("start")].min()
    records = []
    for row in rows.tolist():
        r = dict(zip(TRACE_FIELDS, row, strict=True))
        times = {f"{name}_us": (r[name] - origin) / 1e3 for name in ("start", "computed", "end")}
        piece = {name: int(work.column(name)[r["record"]]) for name in ("head", "part", "parts", "begin", "end")}
        tokens = {"begin_token": piece.pop("begin"), "end_token": piece.pop("end")}
        records.append({"sm": r["sm"], "worker": r["worker"], **piece, **tokens, "merges": r["merges"], **times})
    return records

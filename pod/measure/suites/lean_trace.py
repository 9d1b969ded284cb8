"""Who computed which part of which head and when: 56 heads of one request, under every way of cutting them."""

from __future__ import annotations

from functools import cache, lru_cache

from pod.batch import HybridBatch
from pod.measure.suites import lean
from pod.schedule import stream_k

DOC = "one launch each of decode: by SM from the Hopper kernel for four batches, by part from csrc/lean.cu."
KEYS = ("batch", "run", "row")
CSRC = lean.CSRC
REPEATS = 1
K = lean.K
BATCHES = {
    "56 heads, 1 x 64K": HybridBatch((1,), (64 * K,), 56, 56, 64, dtype="float16"),
    "48 heads, 6 x 64K": HybridBatch((1,) * 6, (64 * K,) * 6, 48, 48, 64, dtype="float16"),
    "8 heads, 4 x 256K": HybridBatch((1,) * 4, (256 * K,) * 4, 8, 8, 64, dtype="float16"),
    "32 heads, ragged 8 x 64K": HybridBatch((1,) * 8, lean.ragged(8, 64 * K, 0.3), 32, 32, 64, dtype="float16"),
}
FIGURE_3 = "56 heads, 1 x 64K"
HOPPER = ("stream_k", "rule_256", "rule_now", "single")
PAPER = {"paper_last": {"merge": "last"}, "paper_host": {"merge": "host"}}
DECODE_ROLE = 4  # of the Hopper kernel's trace


def cases() -> list[dict]:
    batch = BATCHES[FIGURE_3]
    parts = stream_k.decode_work([0], batch.kv_lens, [0], *(batch.num_q_heads,) * 2, 2 * lean.SMS, packed=False)
    rows = [(name, run, row) for name in BATCHES for run in HOPPER for row in range(lean.SMS)]
    rows += [(FIGURE_3, run, row) for run in PAPER for row in range(len(parts.work))]
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def measure(case: dict) -> dict:
    return _rows(case["batch"], case["run"])[int(case["row"])]


@cache
def _rows(name: str, run: str) -> list[dict]:
    from pod import lean as method

    batch, tensors = BATCHES[name], _tensors(name)
    if run in PAPER:
        plan = method.make_plan(batch, "cuda", worker="cta128", **PAPER[run])
    else:
        plan = method.make_plan(batch, "cuda", lean.chosen_splits(batch).get(run, "stream-k"))
    for _ in range(3):  # the last of three: code and lists are warm, as in a model's layers
        _, rows = method.run(plan, *tensors, trace=True)
    return _records(plan, rows.cpu().numpy()) if run in PAPER else _sms(rows[:, DECODE_ROLE].cpu().numpy())


@lru_cache(maxsize=1)
def _tensors(name: str):
    return BATCHES[name].tensors(device="cuda")


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

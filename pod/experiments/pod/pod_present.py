"""Tickets that know who is here now: chapter 07's third exercise, built into the kernel and timed beside its policies.

Measured: two batches under 50:50 and proportional, and with a counter of the decode CTAs that run on each SM.
"""

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from statistics import median

import pod
from pod.batch import MODELS, HybridBatch
from pod.data import read
from pod.experiments.pod import pod_trace
from pod.files import ROOT
from pod.kernels.trace import both_share, frame
from pod.lab.measure import checkouts, timing
from pod.lab.mutate import Mistake
from pod.schedule.binding import OPS

RECORDING = "pod-present"
KEYS, WHOLE = ("batch", "way"), ("batch",)
UNITS = ("hybrid",)
ROUNDS, REPEATS = 8, 12
TIMER = "CUDA events around one traced call, after a 256 MB fill that empties L2; two processes in turn, round by round"
K = 1024
BATCHES = {
    "section 6": (pod_trace.BATCH, pod_trace.SPLITS),
    "chat server": (HybridBatch.of(K, 8 * K, 109, 8 * K, **MODELS["yi-6b"].heads()), {}),
}
POLICIES = ("50:50", "proportional")
PRESENT = "who is here now"
CLOSE = 1e-2  # of the largest output: how far an output may be from that of two launches

ASK = Mistake(
    "decode where none is here now, else prefill; counters end at zero by themselves", "csrc/include/binding.cuh",
    "a.op = draw_op(c, a.ticket);",
    "a.op = a.ticket == 0 ? kDecode : kPrefill; if (a.ticket) atomicAdd(c.tickets + sm, -1);",
    also=(("for (int i = 0; i < c.sms + 3; ++i)", "for (int i = c.sms; i < c.sms + 3; ++i)"),),
)  # fmt: skip
LEAVE = Mistake(
    "whoever was counted is taken away at its end", "csrc/sm80/hybrid.cu",
    "        if constexpr (kTrace) {\n            __syncthreads();",
    """        if constexpr (Binding::kDraws) {
            __syncthreads();
            if (threadIdx.x == 0 && a.ticket == 0) atomicAdd(p.choice.tickets + ptx::smid() % p.choice.sms, -1);
        }
        if constexpr (kTrace) {
            __syncthreads();""",
)  # fmt: skip


def cases() -> list[dict]:
    return [dict(zip(KEYS, (batch, way), strict=True)) for batch in BATCHES for way in (*POLICIES, PRESENT)]


def measure(case: dict) -> dict:
    return _measured(case["batch"])[case["way"]]


@cache
def _measured(batch: str) -> dict[str, dict]:
    """One row a way, all timed in turn; the first round warms up."""
    asked = {policy: (_worker("as it is"), policy) for policy in POLICIES}
    asked[PRESENT] = _worker("changed"), POLICIES[0]  # whose table the changed kernel does not read
    for side in ("as it is", "changed"):
        _worker(side).tell(None)  # both build at once
    for side in ("as it is", "changed"):
        _worker(side).hear()
    rounds = [{way: worker.ask([batch, policy]) for way, (worker, policy) in asked.items()} for _ in range(ROUNDS + 1)]
    return {way: _row([taken[way] for taken in rounds[1:]]) for way in asked}


@cache
def _worker(side: str) -> checkouts.Worker:
    folder = ROOT
    if side == "changed":
        folder = checkouts.changed([ASK, LEAVE], Path(tempfile.mkdtemp()) / "changed")
    return checkouts.Worker(folder, "from pod.experiments.pod import pod_present; pod_present.work()")


def _row(visits: list[dict]) -> dict:
    row = timing.spread([ms for visit in visits for ms in visit.pop("times")]).columns()
    return row | {name: round(median(visit[name] for visit in visits), 4) for name in visits[0]}


# ---------------------------------------------------------------- in a process of its own


def work() -> None:
    """Answer each line: nothing, once the kernel is built, or a batch and a policy with a visit's times."""
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(visit(*question) if question else _built()), flush=True)


def _built() -> None:
    _call(*BATCHES["section 6"], method="serial")()


@cache
def _called(batch: str, policy: str):
    """The call, and how far its output is from that of two launches."""
    call = _call(*BATCHES[batch], method="pod", policy=policy)
    out, serial = (made()[0] for made in (call, _call(*BATCHES[batch], method="serial")))
    error = float((out - serial).abs().max() / serial.abs().max())
    if not error < CLOSE:
        raise ValueError(f"{batch}, {policy}: got {error:.1e} from the output of two launches, allowed is {CLOSE:.0e}")
    return call, error


def _call(batch, splits: dict, device: str = "cuda", **choice):
    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, device=device, ctas_per_sm=2, **splits, **choice)
    q, k, v, _ = batch.tensors(device=device)
    return lambda: pod.hybrid_attention(q, k, v, plan, trace=True)


def visit(batch: str, policy: str) -> dict:
    """The times of a few calls, and of the last one: SMs that hold both on average, and when each side is done."""
    call, error = _called(batch, policy)
    taken = []
    times = timing.samples(lambda: taken.append(call()[1]), REPEATS)
    trace = frame(taken[-1])
    ends = {f"{op}_us": float(trace.end[trace.op == op].max()) for op in OPS}
    return {"times": times, "sms_both": trace.sm.nunique() * both_share(trace), **ends, "error": error}


# ---------------------------------------------------------------- what it shows


def table():
    """As recorded: one row a batch and way."""
    return read("pod-present")


def done(df):
    """One row a batch and way: SMs that hold both on average, and the microseconds after which each side is done."""
    columns = {"SMs with both": df.sms_both, "decode done, µs": df.decode_us, "prefill done, µs": df.prefill_us}
    return df[["batch", "way"]].assign(**columns).round()

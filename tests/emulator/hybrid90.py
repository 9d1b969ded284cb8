"""The Hopper kernel on the emulator, called through ctypes: a batch goes in, errors against float64 come out."""

import ctypes
import math
from dataclasses import dataclass

import numpy as np
from layouts import lay_out

from emulator import events_in_order
from pod.batch import HybridBatch
from pod.kernels import sm90
from pod.kernels.launch import Header, Placed, place
from pod.reference import hybrid_attention
from pod.schedule import choose, decide

FIELDS = {  # Inputs of csrc/include/inputs.h, Header, then what HybridArgs of csrc/include/hybrid.h adds
    "q k v table": ctypes.c_void_p,
    "q_token q_head kv_page kv_token kv_head table_stride": ctypes.c_int64,
    "tokens num_q_heads num_kv_heads head_dim pages page_tokens": ctypes.c_int,
    " ".join(Header._fields): ctypes.c_int,
    "out lse": ctypes.c_void_p,
    "q_size kv_size out_size table_size": ctypes.c_size_t,
    "page_shift half": ctypes.c_int,
    "scale_log2 cap_log2": ctypes.c_float,
    "sinks": ctypes.c_void_p,
    "lists counters partials trace": ctypes.c_void_p,
    "binding": ctypes.c_int,
    "k_scale v_scale": ctypes.c_void_p,
}


class Launch(ctypes.Structure):
    """HybridArgs of csrc/include/hybrid.h."""

    _fields_ = [(name, kind) for names, kind in FIELDS.items() for name in names.split()]


@dataclass(frozen=True)
class Case:
    """A batch and how it is run.

    The work is cut for `sms` SMs; `free_sms` of them are there, all unless said otherwise. Scores grow towards the
    first keys, which prefill meets last, to `rise` times those of the last ones. `layout` says where the tensors lie,
    if not one after the other (tests/layouts.py); `given` are tensors in place of random ones. `seed`: of the order of
    events.
    """

    batch: HybridBatch
    sms: int
    splits: int | None = None
    parts: int | None = None
    roles: tuple | None = None
    invariant: bool = False
    yields: bool = False
    free_sms: int | None = None
    rise: float = 1
    layout: dict | None = None
    given: tuple | None = None
    seed: int = 0
    scales: tuple | None = None

    def placed(self) -> Placed:
        import torch

        how = {name: getattr(self, name) for name in ("splits", "parts", "yields", "invariant")}
        roles = choose.Roles(*self.roles) if self.roles else None
        made = decide.hopper(self.batch, self.sms, **how, roles=roles, causal=self.batch.causal)
        return place(made, sm90.lay_out, torch.device("cpu"))

    def sinks(self):
        import torch

        heads = self.batch.num_q_heads
        return torch.linspace(-2, 3, heads) if self.batch.sinks else None

    def tensors(self):
        import torch

        tensors = self.given or self.batch.tensors(seed=1)
        if self.rise > 1:
            k = tensors[1]
            k *= torch.linspace(self.rise, 1, k.shape[1]).to(k.dtype)[:, None, None]
        return lay_out(tensors, **self.layout) if self.layout else tensors

    def widened(self, k, v):
        """What caches of 8 bits stand for, exactly."""
        if not self.batch.kv_dtype:
            return k, v
        return tuple(x.double() * scale.double()[:, None] for x, scale in zip((k, v), self.scales, strict=True))


class Outcome:
    """What a kernel did with a case in two launches: the emulator's report, or how far off the results are."""

    def __init__(self, library: ctypes.CDLL, case: Case):
        import torch

        batch = case.batch
        tensors = q, *_ = case.tensors()
        work, sinks = case.placed(), case.sinks()
        rules = {"window": batch.window, "softcap": batch.softcap, "sinks": sinks}
        seen = q, *case.widened(*tensors[1:3])
        wanted = hybrid_attention(*seen, batch.q_lens, batch.kv_lens, tensors[3], causal=batch.causal, **rules)
        library.run.restype = ctypes.c_char_p
        self.report, self.error, self.lse_error = None, 0.0, 0.0
        for _ in range(2):  # the second launch finds what the first has left behind
            work.partials.fill_(torch.nan)
            results = torch.full(q.shape, torch.nan, dtype=q.dtype), torch.full(q.shape[:2], torch.nan)
            launch = describe(case, *tensors, *results, work, sinks)
            with events_in_order(case.seed):
                report = library.run(ctypes.byref(launch), case.free_sms or launch.sms)
            if report:
                self.report = report.decode()
                return
            if work.counters.any():
                self.report = f"counters: got {work.counters.tolist()}, allowed are zeros"
                return
            self.out = results[0]
            errors = [_error(x.double().numpy(), y) for x, y in zip(results, wanted, strict=True)]
            self.error, self.lse_error = max(self.error, errors[0]), max(self.lse_error, errors[1])

    @property
    def text(self) -> str:
        return self.report or ("wrong result" if self.error > 0.02 or self.lse_error > 1e-3 else "right result")


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest; of two infinities, as padding has them, none."""
    off = np.abs(np.subtract(got, wanted, out=np.zeros(got.shape), where=got != wanted))
    return np.inf if np.isnan(off).any() else off.max()


def inputs(q, k, v, table) -> dict:
    """What csrc/include/operators.h reads off the tensors."""
    strides = dict(zip(("q_token", "q_head"), q.stride(), strict=False))
    strides |= dict(zip(("kv_page", "kv_token", "kv_head"), k.stride(), strict=False))
    sizes = dict(zip(("tokens", "num_q_heads", "head_dim"), q.shape, strict=True), num_kv_heads=k.shape[2])
    pages = {} if table is None else {"table": table.data_ptr(), "table_stride": table.stride(0)}
    pointers = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr()}
    return pointers | strides | sizes | pages | {"pages": k.shape[0], "page_tokens": k.shape[1]}


def describe(case: Case, q, k, v, table, out, lse, work: Placed, sinks=None) -> Launch:
    """The launch record, as the bindings make it."""
    batch = case.batch
    lists = {name: getattr(work, name).data_ptr() for name in ("lists", "counters", "partials")}
    scales = {f"{name}_scale": x.data_ptr() for name, x in zip("kv", case.scales, strict=True)} if case.scales else {}
    scale, cap, to_log2 = batch.head_dim**-0.5, batch.softcap, math.log2(math.e)
    table_size = 0 if table is None else (table.shape[0] - 1) * table.stride(0) + table.shape[1]
    return Launch(
        **inputs(q, k, v, table), **dict(zip(Header._fields, work.header, strict=True)), **lists, **scales,
        out=out.data_ptr(), lse=lse.data_ptr(), table_size=table_size, half=batch.dtype == "float16",
        page_shift=31 if table is None else batch.page_size.bit_length() - 1,
        scale_log2=(cap or scale) * to_log2, cap_log2=2 * to_log2 * scale / cap if cap else 0,
        sinks=None if sinks is None else sinks.data_ptr(),
    )  # fmt: skip

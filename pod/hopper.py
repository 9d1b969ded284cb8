"""The Hopper method: prefill and decode of a hybrid batch in one persistent kernel with Hopper's own instructions.

`make_plan` decides on the host what each SM computes (pod/schedule/hopper.py); `run` launches one kernel: no host sync,
no memset, no second launch, so that it can be captured in a CUDA graph. A plan keeps its own workspace, so two streams
need two plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from pod.batch import HybridBatch
from pod.schedule import hopper as schedule

CSRC = Path(__file__).parents[1] / "csrc" / "hopper"
PREFILL_FLOPS = 640e12  # FLOP/s that the prefill side reaches alone on an H200 (measured)
DECODE_BYTES = 4.25e12  # bytes/s of KV that the decode side reads alone (measured)
ROLES = ("prefill producer", "decode producer", "prefill 0", "prefill 1", "decode")  # rows of a trace, per SM


@cache
def build(verbose: bool = False) -> None:
    """Compile the kernel for this GPU as a torch inline extension and register torch.ops.pod.hopper."""
    from torch.utils.cpp_extension import load_inline

    print("building the Hopper kernel (about a minute the first time, seconds when cached) …", flush=True)
    load_inline(
        "pod_hopper",
        cpp_sources=[(CSRC / "bindings90.cpp").read_text()],
        cuda_sources=[(CSRC / "hybrid90.cu").read_text()],
        extra_include_paths=[str(CSRC)],
        extra_cflags=["-O2"],
        extra_cuda_cflags=["-O3", "-DNDEBUG", "-gencode=arch=compute_90a,code=sm_90a"],
        is_python_module=False,
        no_implicit_headers=True,
        verbose=verbose,
    )
    _register_fake()


def _register_fake() -> None:
    import torch

    @torch.library.register_fake("pod::hopper")
    def _(q, k, v, table, lists, state, scratch, shape, scale, causal, yields, lse, trace):
        ctas = torch.cuda.get_device_properties(q.device).multi_processor_count if trace else 0
        sums = q.new_empty((q.shape[0] if lse else 0, q.shape[1]), dtype=torch.float32)
        return torch.empty_like(q), sums, q.new_empty((ctas, len(ROLES), 2), dtype=torch.int64)


def available(device="cuda") -> bool:
    """Whether this device can run the method: compute capability 9.0."""
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) == (9, 0)


def prefill_yields(batch: HybridBatch) -> bool:
    """Whether decode would end last and so deserves the tensor cores between two turns of prefill.

    The tensor cores serve waiting warps in turn. With two prefill warpgroups queueing, decode gets every third product;
    when they hand over only at the end of a turn, every second, at the price of 10 % of prefill's own rate.
    """
    prefill, decode = batch.prefill, batch.decode
    if not prefill or not decode:
        return False
    return prefill.flops / PREFILL_FLOPS < decode.kv_bytes / DECODE_BYTES


@dataclass
class Lists:
    """One iteration's work, on the device: `shape` tells the kernel where each list begins."""

    lists: object  # int32 [...], the prefill work, the decode work, the decode chunks
    state: object  # int32 [...], queues and arrivals, zero between launches
    scratch: object  # float32 [...], partial results
    shape: list[int]


@dataclass
class Plan:
    batch: HybridBatch
    device: object
    sms: int
    decode_weights: np.ndarray | None = None
    splits: int | None = None
    yields: bool = False
    _lists: dict[bool, Lists] = field(default_factory=dict)

    def lists(self, causal: bool) -> Lists:
        """The work lists; those of the other mask are made when they are first asked for."""
        if causal not in self._lists:
            self._lists[causal] = self._make(causal)
        return self._lists[causal]

    def _make(self, causal: bool) -> Lists:
        import torch

        b = self.batch
        q_lens, kv_lens = np.array(b.q_lens), np.array(b.kv_lens)
        starts = np.cumsum(q_lens) - q_lens
        chunks, tokens = np.flatnonzero(q_lens > 1), np.flatnonzero(q_lens == 1)
        heads = (b.num_q_heads, b.num_kv_heads)
        prefill = schedule.prefill_work(
            starts[chunks], q_lens[chunks], kv_lens[chunks], chunks, *heads, b.head_dim, self.sms, causal, self.splits
        )
        decode = schedule.decode_work(starts[tokens], kv_lens[tokens], tokens, *heads, self.sms, self.decode_weights)
        flat = np.concatenate([prefill.work.ravel(), decode.work.ravel(), decode.chunks]).astype(np.int32)
        prefill_floats = prefill.slots * 8 * 32 * 4 * (b.head_dim // 8 + 1)
        decode_floats = decode.slots * (128 * (b.head_dim // 16) + 16)
        return Lists(
            torch.from_numpy(flat).pin_memory().to(self.device, non_blocking=True),
            torch.zeros(4 + 8 * prefill.groups + decode.groups, dtype=torch.int32, device=self.device),
            torch.empty(max(1, prefill_floats + decode_floats), dtype=torch.float32, device=self.device),
            [
                len(prefill.work),
                len(decode.work),
                len(decode.chunks) - 1,
                prefill.groups,
                prefill_floats,
                self.sms,
                schedule.pack_shift(*heads),
            ],
        )


def make_plan(batch: HybridBatch, device="cuda", splits: int | None = None, decode_weights=None, yields=None) -> Plan:
    """Plan one iteration. `splits`, `decode_weights` and `yields` override what the cost model would choose."""
    import torch

    if not available(device):
        raise ValueError(f"device: got {device!r}, the Hopper method needs a GPU of compute capability 9.0")
    build()
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    yields = prefill_yields(batch) if yields is None else yields
    plan = Plan(batch, torch.device(device), sms, decode_weights, splits, yields)
    plan.lists(batch.causal)
    return plan


def run(
    plan: Plan, q, k_cache, v_cache, block_table=None, softmax_scale=None, causal=True, return_lse=False, trace=False
):
    """Launch the kernel on the current stream. Returns out, then lse and the trace where asked for."""
    import torch

    work = plan.lists(causal)
    scale = plan.batch.head_dim**-0.5 if softmax_scale is None else softmax_scale
    workspace = (work.lists, work.state, work.scratch, work.shape)
    out, lse, stamps = torch.ops.pod.hopper(
        q, k_cache, v_cache, block_table, *workspace, scale, causal, plan.yields, return_lse, trace
    )
    extras = [x for x, wanted in ((lse, return_lse), (stamps, trace)) if wanted]
    return (out, *extras) if extras else out

"""The public call inside torch.compile: one opaque operator, torch.ops.pod.attention, told the plan by its number.

A compiled model outlives the lengths of an iteration, so nothing about them may reach it: it sees tensors and a number.
"""

from functools import cache
from itertools import count
from weakref import WeakValueDictionary

from pod.kernels.allowed import check_out, check_scale

SCHEMA = ("(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? block_table, SymInt plan, float? softmax_scale, "
          "bool? causal, bool return_lse, Tensor(a!)? out, Tensor? sinks=None) -> (Tensor, Tensor)")  # fmt: skip
_numbers, _plans = count(), WeakValueDictionary()


def is_compiling() -> bool:
    """Torch's own, from the first plan on: every layer asks, so it is looked up once."""
    return False


def enrol(plan) -> int:
    """The number of a plan, for as long as it lives."""
    _operator()
    number = next(_numbers)
    _plans[number] = plan
    return number


def attention(q, k_cache, v_cache, plan, block_table, softmax_scale, causal, return_lse, trace, out, sinks):
    """What a compiler sees of pod.hybrid_attention."""
    import torch

    if trace:
        raise ValueError("trace: got True inside torch.compile, allowed is False")
    made, lse = torch.ops.pod.attention(q, k_cache, v_cache, block_table, plan.number, softmax_scale, causal,
                                        return_lse, out, sinks)  # fmt: skip
    made = made if out is None else out
    return (made, lse) if return_lse else made


@cache
def _operator():
    """Defined before any compiler looks: it could not follow that."""
    import torch

    global is_compiling
    is_compiling = torch.compiler.is_dynamo_compiling
    made = torch.library.custom_op("pod::attention", _run, mutates_args=("out",), schema=SCHEMA)
    made.register_fake(_fake)
    return made


def _run(q, k_cache, v_cache, block_table, plan, softmax_scale, causal, return_lse, out, sinks=None):
    if (found := _plans.get(plan)) is None:
        raise RuntimeError("plan: got one that is gone, allowed is one that is kept as long as what was compiled")
    found.allowed.check(q, k_cache, v_cache, block_table)
    found.allowed.check_sinks(sinks)
    if softmax_scale is not None:
        check_scale(softmax_scale)
    if causal is False:
        found.allowed.check_no_mask()
    if out is not None:
        check_out(out, q)
    made = found.run(q, k_cache, v_cache, block_table, softmax_scale, causal, return_lse, False, out, sinks)
    made, lse = made if return_lse else (made, _no_lse(q))
    return made if out is None else q.new_empty(0), lse


def _fake(q, k_cache, v_cache, block_table, plan, softmax_scale, causal, return_lse, out, sinks=None):
    lse = _no_lse(q) if not return_lse else q.new_empty(q.shape[:2], dtype=_no_lse(q).dtype)
    return q.new_empty(q.shape) if out is None else q.new_empty(0), lse


def _no_lse(q):
    import torch

    return q.new_empty((0, q.shape[1]), dtype=torch.float32)

"""Check the kernels on random hybrid batches: `python -m pod.lab.measure.check_kernels --batches 2000`.

Each batch runs under a random method, policy, number of CTAs an SM and splits, or under `--method hopper`, there with
`--method rules` with windows, softcaps, sinks and odd pages, or decodes
alone under `--method lean`, every other batch by the warps of lean.cu. Outputs, partial results and every unused
slot are poisoned with NaN first. A batch passes when its error against float64 is at most 1.5 times that of torch's own
attention in the same dtype, its log-sum-exp agrees, replays of a CUDA graph are bit-identical, and counters are back at
zero.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pod.schedule import binding
from pod.schedule.decide import METHODS

HEADS = ((4, 4), (8, 2), (32, 4), (24, 3), (16, 1), (6, 2), (16, 4), (10, 2), (12, 1), (71, 1), (28, 4))
MOST_PAIRS = 1 << 27  # of queries, keys and heads: what float64 has room for
PAGES = (None, None, 16, 32, 64, 128, 256)
MARGIN = 1.5
LAST_REPLAYS = 1000
OFTEN = (*METHODS, "pod", "pod")
# What models ask of their scores, and odd pages: few kernels, as each is built for its own.
RULES = (
    {"head_dim": 128, "page_size": 16, "window": True},
    {"head_dim": 64, "page_size": 16, "window": True, "sinks": True},
    {"head_dim": 128, "page_size": None, "softcap": 30.0},
    {"head_dim": 64, "page_size": 24, "window": True, "softcap": 5.0, "sinks": True},
    {"head_dim": 128, "page_size": 8},
)


def random_batch(draw: random.Random, decodes_only: bool = False):
    """Up to 40 sequences, lengths from 1 to a few thousand, with a taste for borders of tiles and pages; in one batch
    of eight a few sequences are longer by far, so that decodes are cut into up to as many parts as there are SMs."""
    from pod.batch import HybridBatch

    def length(most: int) -> int:
        near = draw.choice((16, 63, 64, 65, 127, 128, 129, 512, 1024))
        return min(
            most, draw.choice((near, draw.randint(1, most), max(1, int(math.exp(draw.uniform(0, math.log(most)))))))
        )

    q_heads, kv_heads = draw.choice(HEADS)
    long, q_lens, kv_lens = draw.random() < 0.125, [], []
    for _ in range(draw.choice((1, 2, 3, 8, 20, 40))):
        kv_len = draw.randint(3000, 100_000) if long and len(kv_lens) < 2 else length(3000)
        q_len = 1 if decodes_only or draw.random() < 0.6 else length(kv_len)
        if not decodes_only and draw.random() < 0.15:  # a few tokens, as speculative decoding brings them
            q_len = min(draw.randint(2, 16), kv_len)
        q_lens.append(max(1, min(q_len, MOST_PAIRS // (kv_len * q_heads))))
        kv_lens.append(kv_len)
    dtype = draw.choice(("bfloat16", "float16"))
    causal = draw.random() < 0.85
    return HybridBatch(q_lens, kv_lens, q_heads, kv_heads, draw.choice((64, 128)), draw.choice(PAGES), dtype, causal)


def with_rules(draw: random.Random, batch):
    rules = dict(draw.choice(RULES))
    if "window" in rules:
        rules["window"] = draw.choice((1, 16, 128, 129, draw.randint(1, 3000), 4096))
    return replace(batch, dtype="bfloat16", causal=True, **rules)


def sinks_of(batch):
    import torch

    return torch.linspace(-2, 4, batch.num_q_heads, device="cuda") if batch.sinks else None


def truth(batch, q, k, v, table):
    """float64 out and log-sum-exp, and torch's own attention in the batch's dtype, all packed as q is."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    outs, sums, peers, start = [], [], [], 0
    for i, (n, length) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        part = q[start : start + n].transpose(0, 1)
        keys, values = (_sequence(batch, cache, table, i, length) for cache in (k, v))
        mask = torch.ones(n, length, dtype=torch.bool, device=q.device)
        mask = mask.tril(length - n) if batch.causal else mask
        mask = mask if batch.window is None else mask.triu(length - n + 1 - batch.window)
        scores = _scores(batch, part.double(), keys.double(), mask)
        outs.append((torch.softmax(scores, -1)[..., :length] @ values.double()).transpose(0, 1))
        sums.append(torch.logsumexp(scores, -1).T)
        start += n
        if batch.softcap or batch.sinks:  # as models have it that torch has no kernel for
            weights = torch.softmax(_scores(batch, part, keys, mask).float(), -1)[..., :length]
            peers.append((weights.to(q.dtype) @ values).transpose(0, 1))
            continue
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):  # cuDNN would compile for each new shape
            peers.append(sdpa(part[None], keys[None], values[None], attn_mask=mask)[0].transpose(0, 1))
    return torch.cat(outs), torch.cat(sums), torch.cat(peers)


def _scores(batch, q, keys, mask):
    """With a sink as one more column."""
    import torch

    scores = q @ keys.transpose(1, 2) * batch.head_dim**-0.5
    if batch.softcap:
        scores = batch.softcap * torch.tanh(scores / batch.softcap)
    scores = scores.masked_fill(~mask, -math.inf)
    if not batch.sinks:
        return scores
    return torch.cat([scores, sinks_of(batch).to(scores.dtype)[:, None, None].expand(-1, len(mask), 1)], -1)


def _sequence(batch, cache, table, i: int, length: int):
    """Keys or values of one sequence, [query heads, tokens, D]."""
    if table is None:
        rows = cache[i, :length]
    else:
        pages = table[i, : -(-length // batch.page_size)].long()
        rows = cache[pages].flatten(0, 1)[:length]
    return rows.transpose(0, 1).repeat_interleave(batch.group, 0)


def random_choice(draw: random.Random, method: str) -> dict:
    """Arguments of pod.plan that say how, not what."""
    if method in ("hopper", "rules"):
        return {"method": "hopper"}
    decode_splits = draw.choice(("auto", "stream-k", 1, 3, 16))
    if method == "lean":
        return {"method": method, "decode_splits": decode_splits}
    method, policy = draw.choice(OFTEN) if method == "any" else method, draw.choice(list(binding.POLICIES))
    return ({"policy": policy} if method == "pod" else {}) | {
        "method": method,
        "ctas_per_sm": draw.choice((2, 4, "auto")),
        "prefill_splits": draw.choice(("limited", "vanilla", "none", 2, 5)),
        "decode_splits": decode_splits,
    }


def planned(batch, choice: dict, seed: int):
    """A choice's plan, with what the cost model chooses turned by the seed."""
    import pod
    from pod.kernels import lean, sm90

    plan = pod.plan(batch, **choice)
    if choice["method"] == "hopper":
        return sm90.plan(batch, plan.device, yields=bool(seed % 2))  # right either way
    if choice["method"] == "lean" and seed % 2:  # the plan takes them for large batches only
        return lean.plan(batch, plan.device, choice["decode_splits"], worker="warp")
    return plan


def check(batch, choice: dict, seed: int, replays: int) -> tuple[float, str]:
    """Our error as a share of torch's, and what is wrong, or ""."""
    import torch

    import pod

    q, k, v, table = batch.tensors(seed, "cuda")
    plan, sinks = planned(batch, choice, seed), sinks_of(batch)
    lists = plan.placed(batch.causal)
    lists.partials.fill_(torch.nan)
    poison = torch.full_like(q, torch.nan)
    del poison  # the allocator hands the same memory to the output
    out, lse = pod.hybrid_attention(q, k, v, plan, table, causal=batch.causal, return_lse=True, sinks=sinks)
    want, sums, peer = truth(batch, q, k, v, table)

    def error(x):
        return float((x.double() - want).norm() / want.norm())

    least = torch.finfo(q.dtype).eps / 8  # of a single visible token the output is exact
    share = error(out) / max(error(peer), least)
    if not share <= MARGIN:
        return share, f"error {error(out):.1e}, torch's {error(peer):.1e}"
    if not float((lse - sums).abs().max()) < 1e-3:
        return share, f"log-sum-exp off by {float((lse - sums).abs().max()):.1e}"
    again = partial(pod.hybrid_attention, q, k, v, plan, table, causal=batch.causal, sinks=sinks)
    if differing := replay(again, out, replays):
        return share, f"{differing} of {replays} replays differ"
    return share, "" if int(lists.counters.abs().sum()) == 0 else "counters are not back at zero"


def replay(call, want, times: int) -> int:
    """How many of `times` replays of a CUDA graph of `call` give another result than `want`."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()  # torch.cuda.graph() would collect garbage each time: most of a second a batch
        out = call()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(times):
        out.fill_(torch.nan)
        graph.replay()
        differing += (out != want).any()
    return int(differing)


def drawn(method: str, batches: int, seed: int) -> Iterator[tuple]:
    """What `checked` tries: batches, and how each is planned."""
    draw = random.Random(seed)
    for _ in range(batches):
        batch, choice = random_batch(draw, method == "lean"), random_choice(draw, method)
        yield with_rules(draw, batch) if method == "rules" else batch, choice


def checked(method: str, batches: int, seed: int, replays: int = 3, seconds: float = 540) -> dict:
    """Batches that were checked, how many were wrong, and the largest error as a share of torch's."""
    _build(method, batches, seed)
    worst, wrong, end = 0.0, 0, time.monotonic() + seconds
    for done, (batch, choice) in enumerate(drawn(method, batches, seed), 1):
        last = done == batches or time.monotonic() > end
        share, problem = check(batch, choice, seed + done, LAST_REPLAYS if last else replays)
        worst = max(worst, share)
        if problem:
            wrong += 1
            print(f"batch {done}: {problem}: {choice}, {batch}", flush=True)
        if done % 200 == 0:
            print(f"{done} batches, {wrong} wrong, largest error {worst:.2f} of torch's", flush=True)
        if last:
            break
    return {"checked": done, "wrong": wrong, "largest_error": round(worst, 3)}


def _build(method: str, batches: int, seed: int) -> None:
    import torch

    from pod.lab.measure import ahead

    device = torch.device("cuda", torch.cuda.current_device())
    ahead.build_all(ahead.kinds(asked(method, batches, seed), device), device)


def asked(method: str, batches: int, seed: int) -> Iterator[tuple]:
    """What they are planned by, and the batches."""
    return ((choice["method"], batch) for batch, choice in drawn(method, batches, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the kernels on random hybrid batches.")
    parser.add_argument("--batches", type=int, default=2000)
    methods = ("any", "hopper", "rules", "lean", *METHODS)
    parser.add_argument("--method", default="any", choices=methods, help="default: any of the sm_80 family")
    parser.add_argument("--seed", type=int, default=0)
    replays = f"graph replays of each batch; the last batch gets {LAST_REPLAYS}"
    parser.add_argument("--replays", type=int, default=3, help=replays)
    parser.add_argument("--seconds", type=float, default=540, help="stop after this long")
    found = checked(**vars(parser.parse_args()))
    print("done: {checked} batches, {wrong} wrong, largest error {largest_error} of torch's".format(**found),
          f"(allowed {MARGIN})")  # fmt: skip
    return found["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())

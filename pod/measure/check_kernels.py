"""Check the kernels of csrc/hybrid.cu on random hybrid batches: `python -m pod.measure.check_kernels --batches 2000`.

Each batch runs under a random method, policy, number of CTAs an SM and splits. Outputs, partial results and every
unused slot are poisoned with NaN first. A batch passes when its error against float64 is at most 1.5 times that of
torch's own attention in the same dtype, its log-sum-exp agrees, replays of a CUDA graph are bit-identical, and counters
are back at zero.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from pod.measure.check_hopper import MARGIN, random_batch, truth

METHODS = ("serial", "streams", "cta", "warp", "pod", "pod", "pod")
POLICIES = ("50:50", "proportional", "integer ratio")


def random_choice(draw: random.Random) -> dict:
    """Arguments of pod.plan that say how, not what."""
    return {
        "method": draw.choice(METHODS),
        "policy": draw.choice(POLICIES),
        "ctas_per_sm": draw.choice((2, 4, "auto")),
        "prefill_splits": draw.choice(("limited", "vanilla", "none", 2, 5)),
        "decode_splits": draw.choice(("auto", "stream-k", 1, 3, 16)),
    }


def check(batch, choice: dict, seed: int, replays: int) -> tuple[float, str]:
    """Our error as a share of torch's, and what is wrong, or ""."""
    import torch

    import pod

    q, k, v, table = batch.tensors(seed, "cuda")
    heads = (batch.num_q_heads, batch.num_kv_heads, batch.head_dim)
    plan = pod.plan(batch.q_lens, batch.kv_lens, *heads, page_size=batch.page_size, dtype=q.dtype, **choice)
    lists = plan.work.lists(batch.causal)
    lists.partials.fill_(torch.nan)
    poison = torch.full_like(q, torch.nan)
    del poison  # the allocator hands the same memory to the output
    out, lse = pod.hybrid_attention(q, k, v, plan, table, causal=batch.causal, return_lse=True)
    want, sums, peer = truth(batch, q, k, v, table)

    def error(x):
        return float((x.double() - want).norm() / want.norm())

    least = torch.finfo(q.dtype).eps / 8  # of a single visible token the output is exact
    share = error(out) / max(error(peer), least)
    if not share <= MARGIN:
        return share, f"error {error(out):.1e}, torch's {error(peer):.1e}"
    if not float((lse - sums).abs().max()) < 1e-3:
        return share, f"log-sum-exp off by {float((lse - sums).abs().max()):.1e}"
    if differing := replay(lambda: pod.hybrid_attention(q, k, v, plan, table, causal=batch.causal), out, replays):
        return share, f"{differing} of {replays} replays differ"
    return share, "" if int(lists.counters.abs().sum()) == 0 else "counters are not back at zero"


def replay(call, want, times: int) -> int:
    """How many of `times` replays of a CUDA graph of `call` give another result than `want`."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(times):
        out.fill_(torch.nan)
        graph.replay()
        differing += (out != want).any()
    return int(differing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replays", type=int, default=3, help="graph replays of each batch; the last batch gets 1000")
    parser.add_argument("--seconds", type=float, default=540, help="stop after this long")
    args = parser.parse_args()
    draw, worst, wrong, end = random.Random(args.seed), 0.0, 0, time.monotonic() + args.seconds
    for done in range(1, args.batches + 1):
        batch, choice = random_batch(draw), random_choice(draw)
        last = done == args.batches or time.monotonic() > end
        share, problem = check(batch, choice, args.seed + done, 1000 if last else args.replays)
        worst = max(worst, share)
        if problem:
            wrong += 1
            print(f"batch {done}: {problem}: {choice}, {batch}", flush=True)
        if done % 200 == 0:
            print(f"{done} batches, {wrong} wrong, largest error {worst:.2f} of torch's", flush=True)
        if last:
            break
    print(f"done: {done} batches, {wrong} wrong, largest error {worst:.2f} of torch's (allowed {MARGIN})")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())

"""A chunk of a prompt and two decodes in one call."""

import torch

import pod
from pod.reference import attention

device = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU the same source runs in an emulator
shape = dict(num_q_heads=4, num_kv_heads=2, head_dim=64)
q_lens, kv_lens = [32, 1, 1], [96, 64, 80]  # new tokens of each sequence, and all that it then has

batch = pod.HybridBatch(q_lens, kv_lens, **shape)
q, k_cache, v_cache, _ = batch.tensors(device=device)  # random, laid out as the call takes them

plan = pod.plan(q_lens, kv_lens, **shape, device=device)  # once an iteration
out = pod.hybrid_attention(q, k_cache, v_cache, plan)  # in each layer

worst = 0.0
for i, rows in enumerate(out.split(q_lens)):
    keys, values = (cache[i, : kv_lens[i]].double().cpu().numpy() for cache in (k_cache, v_cache))
    exact, _ = attention(q.split(q_lens)[i].double().cpu().numpy(), keys, values)
    worst = max(worst, abs(rows.double().cpu().numpy() - exact).max())
print(f"{tuple(out.shape)}, at most {worst:.3f} off")

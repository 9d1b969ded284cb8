"""vLLM as it was in June 2023, between this engine's scheduler and its model: the "+34 %" post's setting.

Prompts and decodes never share an iteration. Prompts attend to themselves; decodes go through the kernel of
csrc/micro/single_query.cu, whose cache layout this is, and then through one of the samplers of that summer. Tokens are
read every iteration, so the GPU waits for whatever Python does meanwhile.
"""

from collections.abc import Callable

import numpy as np

from pod.kernels import single_query
from pod.serving.blocks import PagedPool
from pod.serving.engine import Cache
from pod.serving.events import Iteration
from pod.serving.loop import WallClock
from pod.serving.model import Llama
from pod.serving.request import Request
from pod.serving.sampler import SAMPLERS
from pod.serving.schedulers import Batch
from pod.serving.step import Step, pack, predicting

MAX_BATCH, MAX_TOKENS, LONGEST_PROMPT, LONGEST = 256, 2560, 1024, 2048  # vLLM's limits then, and its benchmark's filter
LADDER = {  # rung: the kernel's idea and the sampler
    "clean": ("registers", "loop"),
    "query in shared memory": ("shared", "loop"),
    "one multinomial": ("shared", "batched"),
    "one copy": ("shared", "packed"),
}


class EarlyEngine:
    """An executor. `texts` holds all tokens of each request, prompt first; `cache` may be another engine's memory."""

    def __init__(self, model: Llama, pool: PagedPool, kernel: str = "registers", sampler: str = "loop",
                 cache: Cache | None = None, temperature: float = 1.0):  # fmt: skip
        if pool.block_size != single_query.PAGE:
            raise ValueError(f"block_size: got {pool.block_size}, allowed is {single_query.PAGE}, as in vLLM's kernel")
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler: got {sampler!r}, allowed are {', '.join(SAMPLERS)}")
        self.model, self.pool, self.kernel, self.temperature = model, pool, kernel, temperature
        self.sampler, self.texts, self.clock = SAMPLERS[sampler], {}, WallClock()
        self.caches = [_early_views(*layer) for layer in cache or Cache(model, pool.num_blocks, pool.block_size)]
        self.on_logits: Callable = lambda: None  # called between model and sampler

    def submit(self, batch: Batch, event: Iteration) -> float:
        import torch

        step = pack(batch, self.texts, self.pool.tables, self.pool.block_size)
        with torch.inference_mode():
            logits = self.forward(step)
            self.on_logits()
            tokens, _ = self.sampler(logits, [self.temperature] * len(logits))
        for request, token in zip(predicting(batch), tokens, strict=True):
            self.texts[request.id].append(token)
        return self.clock.now

    def forward(self, host: Step):
        """Logits of the rows that predict."""
        model, step = self.model, host.to(self.model.device)
        attend = self._prompts(host) if host.chunks else self._decodes(host, step)
        x = model.embed(step.tokens)
        for i, (k_cache, v_cache) in enumerate(self.caches):
            q, k, v = model.project(i, x, step.positions)
            single_query.write(k, v, k_cache, v_cache, step.slots)
            x = model.after(i, x, attend(q, k, v, k_cache, v_cache))
        return model.logits(x[step.rows])

    def _prompts(self, host: Step) -> Callable:
        """Whole prompts, one after the other, on the keys and values that have just been computed."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        lens = host.q_lens.tolist()
        if host.chunks < len(lens) or lens != host.kv_lens.tolist():
            raise ValueError("batch: got chunks of prompts or decodes beside prompts, allowed are whole prompts alone")
        attention = torch.nn.functional.scaled_dot_product_attention
        plain = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # cuDNN's would prepare itself anew for every length

        def attend(q, k, v, k_cache, v_cache):
            parts = zip(*(x.transpose(0, 1)[None].split(lens, 2) for x in (q, k, v)), strict=True)
            with sdpa_kernel(plain):
                return torch.cat([attention(*part, is_causal=True)[0].transpose(0, 1) for part in parts])

        return attend

    def _decodes(self, host: Step, step: Step) -> Callable:
        table, lens, longest = step.table, step.kv_lens, int(host.kv_lens.max())
        return lambda q, k, v, k_cache, v_cache: single_query.attention(
            q, k_cache, v_cache, table, lens, longest, self.kernel
        )


def _early_views(k_cache, v_cache):
    """The same memory in the early layout."""
    blocks, page, heads, dim = k_cache.shape
    piece = single_query.PIECE
    return k_cache.view(blocks, heads, dim // piece, page, piece), v_cache.view(blocks, heads, dim, page)


# ---------------------------------------------------------------- the post's workload


def chats(count: int = 1000, mean_prompt: float = 240, mean_output: float = 238, seed: int = 0) -> list[Request]:
    """Requests with ShareGPT-like lengths, all there at once.

    The mean total of 478 tokens is the post's; prompts up to 1,024 and totals up to 2,048 are the filter of vLLM's
    benchmark. How the total splits and the shape, log-normal with a spread of 1.2, are our choice. Quantiles instead of
    draws, in random order, so that few requests have the same means as many.
    """
    random = np.random.default_rng(seed)
    prompts, outputs = (random.permutation(_log_normal(count, mean)) for mean in (mean_prompt, mean_output))
    return [Request(i, int(p), int(o)) for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))]


def _log_normal(count: int, mean: float, sigma: float = 1.2, low: int = 4, high: int = LONGEST_PROMPT) -> np.ndarray:
    """Quantiles of a log-normal cut off at both ends, with the median that gives this mean."""
    from statistics import NormalDist

    normal, at = NormalDist(), (np.arange(count) + 0.5) / count

    def quantiles(median: float) -> np.ndarray:
        ends = [normal.cdf(np.log(end / median) / sigma) for end in (low, high)]
        return median * np.exp(sigma * np.array([normal.inv_cdf(ends[0] + (ends[1] - ends[0]) * x) for x in at]))

    below, above = float(low), float(high)
    while above - below > 1e-6 * mean:
        middle = (below + above) / 2
        below, above = (middle, above) if quantiles(middle).mean() < mean else (below, middle)
    return quantiles(below).round().astype(int)

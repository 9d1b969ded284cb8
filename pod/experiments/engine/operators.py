"""The operators of an iteration, each alone, over grids and at points between: what the cost model interpolates.

`decode_context` is the mean over the requests, whose contexts differ."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from random import Random

import numpy as np

from pod.lab.measure import timing
from pod.lab.measure.timing import FLUSH_BYTES
from pod.serving.backends import backend
from pod.serving.engine import Cache
from pod.serving.model import Llama, random_weights
from pod.serving.shapes import shape
from pod.serving.step import Step

RECORDING = "operators"
KEYS = ("model", "operator", "split", "rows", "chunk", "context", "requests", "decode_context")
UNITS = ("hopper", "model")
REPEATS = 5
TIMER = f"CUDA events around one call, replayed as a graph, after a {FLUSH_BYTES >> 20} MB fill that empties L2"
K = 1024
MODELS = ("llama-3-8b", "yi-6b", "llama-2-7b")
PAGE = 256
POOL_BYTES = 40 << 30  # of one layer's keys and values; longer batches read it several times over, never in step
# Times are staircases, so grids have points before and after each step.
ROWS = tuple(sorted({1, 8, 16, 32, 4 * K, 8 * K, 16 * K, *range(64, 2 * K + 1, 64),
                     *range(65, 2 * K + 2, 64), *range(91, 2 * K, 64)}))  # fmt: skip
HEAD_ROWS = (1, 16, 64, 128, 256)
CONTEXTS = (0, 1 * K, 2 * K, 4 * K, 6 * K, 8 * K, 12 * K, 16 * K, 32 * K)
SMS, TILE_ROWS, WAVES = 132, 128, 8
# Not powers of two, which no server meets and which hurt FlashAttention-3 (3.7 TB/s instead of 4.4).
DECODE_CONTEXTS = (250, 1000, 2000, 4000, 6000, 8000, 16000, 32000)
FUSED = ((256, 512, 1 * K, 2 * K), (0, 4 * K, 8 * K, 16 * K), (1, 8, 16, 32, 64, 128), (1000, 4000, 8000, 16000))
HELD_OUT = 24  # points of each attention operator, drawn between the grid's
BACKENDS = ("fa3", "hopper")


def _case(model: str, operator: str, split: str = "grid", **sizes) -> dict:
    return {"model": model, "operator": operator, "split": split, **{key: sizes.get(key, 0) for key in KEYS[3:]}}


def _chunks(q_heads: int, kv_heads: int) -> list[int]:
    """Chunks on both sides of each step. The query heads of a KV head share a tile's rows, and as long as all tiles
    fit in one wave each of them may change in how many parts the keys are cut. Beyond, whole waves count."""
    tile = TILE_ROWS * kv_heads // q_heads
    waves = [wave * SMS // kv_heads * tile for wave in range(1, 5)]
    within = range(-(-64 // tile) * tile, waves[0] + 2 * tile, tile)
    edges = {*within, *waves, *range(TILE_ROWS, 2 * K + 1, TILE_ROWS)}
    return sorted({64, 96, *edges, *(n + 1 for n in edges), 4 * K, 16 * K})


def _decodes(kv_heads: int) -> list[int]:
    """Requests of which a decode kernel with one CTA a KV head makes whole waves, and one more: there equal ones would
    make steps, and unequal ones still bend. Fewer than a wave are cut, each number in another way."""
    whole = [wave * SMS // kv_heads for wave in range(1, WAVES + 1)]
    few = [1, 2, 3, *range(4, whole[0], 2)]
    return sorted({*few, *whole, *(n + 1 for n in whole), 64, 100, 126, 128, 256})


def _grid(model: str) -> list[dict]:
    heads = shape(model).q_heads, shape(model).kv_heads
    chunks, decodes = _chunks(*heads), _decodes(heads[1])
    cases = [_case(model, "linear", rows=n) for n in ROWS] + [_case(model, "head", rows=n) for n in HEAD_ROWS]
    for name in BACKENDS:
        cases += [_case(model, f"prefill_{name}", chunk=c, context=p) for c, p in product(chunks, CONTEXTS)]
        cases += [_case(model, f"decode_{name}", requests=n, decode_context=d)
                  for n, d in product(decodes, DECODE_CONTEXTS)]  # fmt: skip
    return cases + [_case(model, "attention_hopper", chunk=c, context=p, requests=n, decode_context=d)
                    for c, p, n, d in product(*FUSED)]  # fmt: skip


def _held_out(model: str) -> list[dict]:
    random = Random(7)
    between = lambda axis: int(random.uniform(axis[0], axis[-1]))  # noqa: E731
    cases = [_case(model, "linear", "held out", rows=between((1, 2 * K))) for _ in range(HELD_OUT)]
    for _ in range(HELD_OUT):
        chunk, context = between((64, 2 * K)), between((0, 16 * K))
        requests, decode_context = between((1, 128)), between((1 * K, 16 * K))
        prefill = {"chunk": chunk, "context": context}
        decode = {"requests": requests, "decode_context": decode_context}
        for name in BACKENDS:
            cases.append(_case(model, f"prefill_{name}", "held out", **prefill))
            cases.append(_case(model, f"decode_{name}", "held out", **decode))
        cases.append(_case(model, "attention_hopper", "held out", **prefill, **decode))
    return cases


def cases() -> list[dict]:
    """Model by model in random order, what heats the GPU last. For a tenth of a second after some long prefills its
    clock is lower, and whatever came next would be slower by up to a fifth."""
    ordered = []
    for model in MODELS:
        mine = _grid(model) + _held_out(model)
        ordered += sorted(Random(1).sample(mine, len(mine)), key=_heat)
    return ordered


def _heat(case: dict) -> int:
    """0 for calls shorter than a few milliseconds, 1 for long ones that wait for memory, 2 for long arithmetic."""
    long_prefill = max(case["rows"], case["chunk"]) >= 4 * K
    return 2 if long_prefill else int(case["requests"] * case["decode_context"] > 1500 * K)


def measure(case: dict) -> dict:
    operator, bench = case["operator"], _bench(case["model"])
    make = {"linear": bench.linear, "head": bench.head}.get(operator, bench.attention)
    taken = sorted(1e3 * t for t in timing.samples(_captured(make(case)), REPEATS + 2)[2:])
    return {"us": round(taken[REPEATS // 2], 2), "us_p10": round(taken[0], 2), "us_p90": round(taken[-1], 2)}


def _captured(call):
    """The call as a graph. In the engine the host is ahead of the GPU, so its launches must not show."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()  # torch.cuda.graph() would collect garbage each time
        call()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)

    def replay(needs=call) -> None:  # the graph does not keep the tensors alive that it reads
        graph.replay()

    return replay


def unequal(requests: int, mean: int) -> list[int]:
    """Contexts from half to one and a half of `mean`, in random order. In no server are all chats equally long, and
    equal ones would be hard on FlashAttention-3, whose CTA a KV head then leaves a last wave all but empty."""
    steps = 0.5 + (np.random.default_rng(requests).permutation(requests) + 0.5) / max(1, requests)
    return np.round(mean * steps).astype(int).tolist()


@lru_cache(maxsize=1)
def _bench(model: str) -> Bench:
    return Bench(model)


class Bench:
    """One layer of a model with its output head, and a pool of keys and values in pages in random order."""

    def __init__(self, model: str):
        import torch

        one = replace(shape(model), layers=1)
        self.model = Llama(one, random_weights(0, 1, "cuda"), "cuda", torch.bfloat16, context=64 * K)
        room = min(POOL_BYTES, torch.cuda.mem_get_info()[0] // 2)
        self.blocks = room // (one.kv_bytes_per_token * PAGE)
        self.cache = Cache(self.model, self.blocks, PAGE)
        self.cache.data.normal_()
        self.order = np.random.default_rng(0).permutation(self.blocks).astype(np.int32)
        self.shift = self.blocks // 7 | 1  # where the next round through the pool begins, so that no two requests meet
        sizes = (one.q_heads, one.kv_heads, one.head_dim, PAGE, torch.bfloat16, "cuda")
        self.backend = lambda name: backend(name, *sizes)

    def linear(self, case: dict):
        """All of a layer but attention: norms, matrices, rotation, cache, activation."""
        import torch

        model, rows, (kv,) = self.model, int(case["rows"]), list(self.cache)
        x = torch.randn(rows, model.shape.hidden, device="cuda", dtype=model.dtype)
        attended = self._queries(rows)
        positions = torch.arange(rows, device="cuda")

        def call():
            model.before(0, x, positions, positions, *kv)
            model.after(0, x, attended)

        return torch.inference_mode()(call)

    def head(self, case: dict):
        import torch

        x = torch.randn(int(case["rows"]), self.model.shape.hidden, device="cuda", dtype=self.model.dtype)
        return torch.inference_mode()(lambda: self.model.logits(x).argmax(-1))

    def attention(self, case: dict):
        import torch

        chunk, context, requests, each = (int(case[key]) for key in KEYS[4:])
        prompts, contexts = int(chunk > 0), unequal(requests, each)
        host = self._step([chunk] * prompts + [1] * requests, [context + chunk] * prompts + contexts, prompts)
        chosen = self.backend(case["operator"].partition("_")[2])
        chosen.plan(host, host.to("cuda"))
        q = self._queries(prompts * chunk + requests)
        k_cache, v_cache = next(iter(self.cache))
        return torch.inference_mode()(lambda: chosen.run(q, k_cache, v_cache))

    def _queries(self, rows: int):
        import torch

        model = self.model
        return torch.randn(rows, model.q_heads, model.shape.head_dim, device="cuda", dtype=model.dtype)

    def _step(self, q_lens, kv_lens, chunks: int):
        """Lengths and block tables only; a batch larger than the pool meets pages again."""
        used = [-(-n // PAGE) for n in kv_lens]
        table = np.zeros((len(used), max(used)), np.int32)
        first = 0
        for row, n in zip(table, used, strict=True):
            place = np.arange(first, first + n)
            row[:n] = self.order[(place + place // self.blocks * self.shift) % self.blocks]
            first += n
        header = [len(q_lens), sum(q_lens), chunks, 0, table.shape[1]]
        nothing = np.zeros(3 * sum(q_lens))
        flat = np.concatenate([header, q_lens, kv_lens, nothing, table.ravel()]).astype(np.int32)
        return Step.view(flat, header)

"""vLLM of 2023 in our engine: the same answers with every kernel and sampler, and the post's workload."""

from itertools import product

import numpy as np
import pytest

from pod import kernels
from pod.lab import paper
from pod.serving.sampler import SAMPLERS
from pod.serving.shapes import Shape
from pod.serving.vllm2023 import LADDER, LONGEST, LONGEST_PROMPT, MAX_BATCH, MAX_TOKENS, EarlyEngine, chats

torch = pytest.importorskip("torch")

from pod.serving.blocks import PagedPool  # noqa: E402
from pod.serving.engine import Engine  # noqa: E402
from pod.serving.loop import serve  # noqa: E402
from pod.serving.model import Llama, random_weights  # noqa: E402
from pod.serving.request import Request  # noqa: E402
from pod.serving.schedulers import VLLM  # noqa: E402

emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
TINY = Shape("tiny", "Tiny", layers=2, hidden=256, q_heads=2, kv_heads=2, head_dim=128, ffn=128, vocab=64, context=128)
PROMPTS = [np.random.default_rng(i).integers(0, TINY.vocab, n).tolist() for i, n in enumerate((5, 16, 33, 1))]
OUTPUTS = [6, 4, 3, 5]


@pytest.fixture(scope="module")
def model():
    return Llama(TINY, random_weights(0, TINY.layers), dtype=torch.float16)


def answers(engine, pool):
    requests = [Request(i, len(prompt), count) for i, (prompt, count) in enumerate(zip(PROMPTS, OUTPUTS, strict=True))]
    engine.texts.update({i: list(prompt) for i, prompt in enumerate(PROMPTS)})
    log = serve(requests, [VLLM(pool, 3, max_tokens=64)], engine, engine.clock)
    assert not log.refused
    return [engine.texts[i][len(prompt) :] for i, prompt in enumerate(PROMPTS)]


@emulated
def test_greedy_answers_are_the_same_with_every_kernel_and_sampler(model):
    pool = lambda: PagedPool(12, 16)  # noqa: E731
    plain = pool()
    want = answers(Engine(model, plain, "sdpa"), plain)
    assert [len(tokens) for tokens in want] == OUTPUTS
    for kernel, sampler in product(("registers", "shared"), SAMPLERS):
        used = pool()
        assert answers(EarlyEngine(model, used, kernel, sampler, temperature=0.0), used) == want, (kernel, sampler)


@emulated
def test_it_can_live_in_another_engines_memory(model):
    pool = PagedPool(12, 16)
    host = Engine(model, pool, "sdpa")
    guest = EarlyEngine(model, pool, cache=host.cache, temperature=0.0)
    assert guest.caches[1][1].data_ptr() == host.cache.data[1, 1].data_ptr()


def test_wrong_arguments_are_named(model):
    with pytest.raises(ValueError, match="^block_size: got 8"):
        EarlyEngine(model, PagedPool(4, 8))
    with pytest.raises(ValueError, match="^sampler: got 'fast'"):
        EarlyEngine(model, PagedPool(4, 16), sampler="fast")


def test_the_ladder_changes_one_thing_at_a_time():
    rungs = list(LADDER.values())
    kernels_changed = [a[0] != b[0] for a, b in zip(rungs, rungs[1:], strict=False)]
    samplers_changed = [a[1] != b[1] for a, b in zip(rungs, rungs[1:], strict=False)]
    assert all(k != s for k, s in zip(kernels_changed, samplers_changed, strict=True))


@pytest.mark.parametrize("count", [100, 1000])
def test_chats_are_as_long_as_the_post_says(count):
    requests = chats(count)
    totals = np.array([r.prompt + r.output for r in requests])
    stated = paper.value("plus34.t1.base_tokens") / paper.value("plus34.t1.base_requests")
    assert totals.mean() == pytest.approx(stated, abs=1.0)
    assert max(r.prompt for r in requests) <= LONGEST_PROMPT and totals.max() <= LONGEST
    assert min(min(r.prompt, r.output) for r in requests) >= 4
    assert LONGEST_PROMPT <= MAX_TOKENS and MAX_BATCH == 256

"""The model computes what a plain forward pass computes, whatever is cut into chunks, pages, batches and processes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pod.experiments.engine.engine_stock import as_transformers
from pod.lab.measure import ranks
from pod.serving.backends import BACKENDS, backend
from pod.serving.blocks import PagedPool
from pod.serving.engine import Cache
from pod.serving.model import Group, Llama, random_weights
from pod.serving.request import Request
from pod.serving.schedulers import Batch, Chunk
from pod.serving.shapes import Shape, shape
from pod.serving.step import Step, pack, predicting

TINY = Shape("tiny", "Tiny", layers=2, hidden=64, q_heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=96, context=256)
WIDE = replace(TINY, q_heads=8, kv_heads=2, head_dim=64)  # heads that our kernels take


def tiny(shape=TINY, dtype=torch.float64, **rest) -> Llama:
    return Llama(shape, random_weights(3, shape.layers), dtype=dtype, **rest)


def text(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, TINY.vocab, count).tolist()


def plain(model: Llama, tokens: list[int]) -> torch.Tensor:
    """Logits after every token by one full forward pass: no pages, no chunks, rotation by complex numbers."""
    s, n = model.shape, len(tokens)
    rms = lambda x, w: x * (x.square().mean(-1, keepdim=True) + s.norm_eps).rsqrt() * w  # noqa: E731
    half = s.head_dim // 2
    angle = torch.arange(n)[:, None] * s.rope_base ** -(torch.arange(half) / half)
    turn = torch.polar(torch.ones(n, half, dtype=torch.float64), angle.double())[:, None]

    def rotated(t):
        z = torch.complex(t[..., :half], t[..., half:]) * turn
        return torch.cat([z.real, z.imag], -1)

    x = model.embedding[tokens]
    for layer in model.layers:
        qkv = (rms(x, layer.attention_norm) @ layer.qkv.T).view(n, -1, s.head_dim)
        q, k, v = qkv.split((s.q_heads, s.kv_heads, s.kv_heads), 1)
        q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(s.q_heads // s.kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / s.head_dim**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        x = x + torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1) @ layer.o.T
        gate, up = (rms(x, layer.ffn_norm) @ layer.gate_up.T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ layer.down.T
    return rms(x, model.norm) @ model.head.T


def stepped(model: Llama, batches, block: int = 4, attention: str = "sdpa", texts=None) -> dict[int, list]:
    """Logits that come out for each request when the engine's parts run these batches one after the other."""
    pool = PagedPool(64, block, watermark=0.0)
    cache = Cache(model, pool.num_blocks, block)
    attend = backend(attention, model.q_heads, model.kv_heads, model.shape.head_dim, block, model.dtype, "cpu")
    out: dict[int, list] = {}
    for batch in batches:
        for request in [c.request for c in batch.prefills if not c.context] + batch.decodes:
            pool.grow(request) if request.id in pool.tables else pool.admit(request)
        step = pack(batch, texts, pool.tables, block)
        attend.plan(step, step.to("cpu"))
        logits = model.forward(step.to("cpu"), cache, attend.run)
        for request, row in zip(predicting(batch), logits, strict=True):
            out.setdefault(request.id, []).append(row)
        for request, tokens, _ in batch.prefills:
            request.advance(tokens)
        for request in batch.decodes:
            request.advance(1)
    return out


def script():
    """Two prompts in chunks, one of them beside the other's decodes, as a scheduler would have it."""
    a, b = Request(0, 11, 9), Request(1, 23, 9)
    return [Batch(prefills=[Chunk(a, 7, 0)]), Batch(prefills=[Chunk(a, 4, 7), Chunk(b, 10, 0)]),
            Batch(prefills=[Chunk(b, 12, 10)], decodes=[a]), Batch(prefills=[Chunk(b, 1, 22)], decodes=[a]),
            Batch(decodes=[a, b]), Batch(decodes=[b, a])]  # fmt: skip


TEXTS = {0: text(20, 1), 1: text(40, 2)}


@pytest.mark.parametrize("block", [1, 4, 16])
@pytest.mark.parametrize("shape", [TINY, replace(TINY, tied=True, rope_base=5e5, kv_heads=4)], ids=["gqa", "mha, tied"])
def test_chunks_pages_and_company_change_nothing(shape, block):
    model = tiny(shape)
    out = stepped(model, script(), block, texts=TEXTS)
    for id_, first in ((0, 10), (1, 22)):
        whole = plain(model, TEXTS[id_])
        assert len(out[id_]) >= 3
        for i, row in enumerate(out[id_]):
            torch.testing.assert_close(row, whole[first + i], rtol=1e-6, atol=1e-6)  # angles are float32


@pytest.mark.parametrize("method", ["serial", "pod", "lean"])
def test_our_kernels_serve_the_model(method):
    """The emulated kernels, bfloat16: as close to float64 as bfloat16 with torch's own attention is, times two."""
    exact = stepped(tiny(WIDE), script(), 16, texts=TEXTS)
    model = tiny(WIDE, torch.bfloat16)
    mine, torchs = (stepped(model, script(), 16, attention, TEXTS) for attention in (method, "sdpa"))
    error = {name: max(float((a - b).abs().max()) for i in exact for a, b in zip(got[i], exact[i], strict=True))
             for name, got in (("mine", mine), ("torch", torchs))}  # fmt: skip
    assert 0 < error["mine"] < 2 * error["torch"] < 1.0


def test_a_step_survives_its_journey():
    batch = script()[2]
    batch.prefills[0].request.computed = 10
    batch.decodes[0].advance(11)
    step = pack(batch, TEXTS, {0: [5, 2, 9], 1: [0, 1, 3, 4, 6, 7]}, 4)
    again = Step.view(step.flat)
    assert (step.q_lens.tolist(), step.kv_lens.tolist(), step.chunks) == ([12, 1], [22, 12], 1)
    assert step.slots[-1] == 9 * 4 + 3 and step.tokens[-1] == TEXTS[0][11]
    assert step.rows.tolist() == [12], "the chunk is not its prompt's last, so only the decode predicts"
    for name in ("q_lens", "kv_lens", "tokens", "positions", "slots", "rows", "table"):
        np.testing.assert_array_equal(getattr(step, name), getattr(again, name))
    assert again.chunks == 1


# ---------------------------------------------------------------- against transformers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [TINY, replace(TINY, tied=True, rope_base=5e5, kv_heads=1, q_heads=8)],
                         ids=["gqa", "mqa, tied"])  # fmt: skip
def test_logits_equal_transformers(shape, dtype):
    """Within rounding: no farther from the same weights in float64 than theirs are, times two."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    model = tiny(shape, dtype)
    theirs, exact = as_transformers(model, "eager"), as_transformers(model, "eager").double()
    out = stepped(model, script(), texts=TEXTS)
    ours_off, theirs_off = 0.0, 0.0
    with torch.inference_mode():
        for id_, first in ((0, 10), (1, 22)):
            expected, truth = (m(torch.tensor([TEXTS[id_]])).logits[0].double() for m in (theirs, exact))
            mine = torch.stack(out[id_]).double()
            rows = slice(first, first + len(mine))
            ours_off = max(ours_off, float((mine - truth[rows]).abs().max()))
            theirs_off = max(theirs_off, float((expected - truth)[rows].abs().max()))
    assert 0 < ours_off < 2 * theirs_off < {torch.float32: 1e-4, torch.bfloat16: 0.5}[dtype]


# ---------------------------------------------------------------- tensor parallelism


def _share(rank: int, size: int, device: str) -> dict[int, np.ndarray]:
    torch.set_num_threads(1)
    out = stepped(tiny(group=Group(rank, size)), script(), texts=TEXTS)
    return {id_: torch.stack(rows).numpy() for id_, rows in out.items()}


def test_two_processes_compute_what_one_does():
    alone, shared = stepped(tiny(), script(), texts=TEXTS), ranks.run(_share, 2, "cpu")
    for id_ in alone:
        np.testing.assert_allclose(shared[id_], torch.stack(alone[id_]).numpy(), rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- mistakes


def test_weights_do_not_depend_on_who_draws_them():
    a, b = random_weights(1, 2), random_weights(1, 2)
    b("layers.0.k", (4, 4))
    assert torch.equal(a("layers.1.q", (4, 8)), b("layers.1.q", (4, 8)))
    assert not torch.equal(a("layers.1.q", (4, 8)), a("layers.0.q", (4, 8)))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: tiny(group=Group(0, 3)), "tp: got 3, Tiny allows divisors of its 2 KV heads"),
    (lambda: tiny(replace(TINY, vocab=97), group=Group(0, 2)), "tp: got 2, .* vocabulary, 97"),
    (lambda: tiny(replace(TINY, gated=False)), "shape: got Tiny, allowed are models of the Llama family"),
    (lambda: Llama(TINY, lambda name, size: torch.ones(3)), r"weights: got embed of shape \(3,\), Tiny has \(96, "),
    (lambda: backend("frob", 4, 2, 16, 4, torch.float32, "cpu"), "attention: got 'frob', allowed are sdpa, auto"),
    (lambda: backend("fa3", 4, 2, 16, 4, torch.float32, "cpu"), "got 'fa3' in float32 on a CPU, allowed there are"),
    (lambda: backend("pod", 4, 2, 64, 16, torch.float32, "cpu"), "got 'pod' in float32 on a CPU, allowed there"),
    (lambda: backend("fa3", 4, 2, 64, 16, torch.float16, "cpu"), "and sdpa, and at toy sizes serial and pod$"),
    (lambda: Cache(tiny(), 2**50, 16), "blocks: got 1125899906842624 of 16 tokens, the memory of cpu has no room"),
])  # fmt: skip
def test_mistakes_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_every_backend_is_known_to_the_command_line():
    named = {"sdpa", "auto", "lean", "serial", "streams", "pod", "hopper", "hopper-serial", "fa2", "fa3", "fa3-one",
             "flashinfer"}  # fmt: skip
    assert named <= set(BACKENDS)
    assert shape("llama-3-8b").context == 8192

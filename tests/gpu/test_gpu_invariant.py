"""An invariant plan on a card: the bits of five sequences in 500 random companies."""

import random

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import pod
from pod.batch import HybridBatch

pytestmark = pytest.mark.usefixtures("hopper")

PAGE, PAGES = 16, 8192
MINE = ((1, 5000), (3, 7000), (200, 9000), (60, 60), (1, 20_000))  # new tokens and all; most are cut
SHAPES = ((8, 2, 128), (14, 2, 64))  # heads, KV heads, head_dim
COMPANIES = 250  # of each


def asked():
    for *heads, head_dim in SHAPES:
        yield "hopper", HybridBatch(*zip(*MINE, strict=True), *heads, head_dim, PAGE)


class Pool:
    """Pages full of random keys and values; each of my sequences has its own queries and places."""

    def __init__(self, q_heads: int, kv_heads: int, head_dim: int):
        torch.manual_seed(5)
        self.shape = {"num_q_heads": q_heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "page_size": PAGE}
        self.k, self.v = torch.randn(2, PAGES, PAGE, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
        self.q = [self.queries(q_len) for q_len, _ in MINE]
        self.tables = [self.places(kv_len) for _, kv_len in MINE]

    def queries(self, q_len: int):
        heads = self.shape["num_q_heads"], self.shape["head_dim"]
        return torch.randn(q_len, *heads, device="cuda", dtype=torch.bfloat16)

    def places(self, kv_len: int):
        return torch.randint(PAGES, (-(-kv_len // PAGE),), device="cuda", dtype=torch.int32)

    def outputs(self, company, **options) -> dict:
        """Of my sequences, by their numbers."""
        q_lens, kv_lens, who = zip(*company, strict=True)
        q = [self.queries(n) if i is None else self.q[i] for n, i in zip(q_lens, who, strict=True)]
        tables = [self.places(n) if i is None else self.tables[i] for n, i in zip(kv_lens, who, strict=True)]
        plan = pod.plan(q_lens, kv_lens, **self.shape, method="hopper", **options)
        out = pod.hybrid_attention(torch.cat(q), self.k, self.v, plan, pad_sequence(tables, batch_first=True))
        return {i: rows for i, rows in zip(who, out.split(list(q_lens)), strict=True) if i is not None}


def company(seed: int) -> list[tuple]:
    """(new tokens, all tokens, which of mine or None) in any order: some of mine, and up to 40 others of all kinds."""
    draw = random.Random(seed)
    mine = [(*lens, i) for i, lens in enumerate(MINE) if draw.random() < 0.7]
    others = []
    for _ in range(draw.randint(0 if mine else 1, 40)):
        q_len = draw.choice((1, 1, 1, draw.randint(2, 8), draw.randint(9, 600)))
        others.append((q_len, q_len + draw.choice((0, draw.randint(0, 3000), draw.randint(0, 30_000))), None))
    return draw.sample(mine + others, len(mine) + len(others))


def alone(pool: Pool, **options) -> list:
    return [pool.outputs([(*lens, i)], **options)[i] for i, lens in enumerate(MINE)]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_bit_of_a_sequence_depends_on_its_company(shape):
    pool = Pool(*shape)
    want, seen = alone(pool, invariant=True), [0] * len(MINE)
    for seed in range(COMPANIES):
        for i, out in pool.outputs(company(seed), invariant=True).items():
            assert torch.equal(out, want[i]), f"sequence {i} in company {seed}"
            seen[i] += 1
    assert min(seen) > COMPANIES / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_without_the_promise_some_bits_do(shape):
    """Otherwise the test above could not fail."""
    pool = Pool(*shape)
    want = alone(pool)
    others = [pool.outputs(company(seed)).items() for seed in range(20)]
    assert not all(torch.equal(out, want[i]) for outs in others for i, out in outs)

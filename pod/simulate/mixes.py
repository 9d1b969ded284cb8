"""Batches as a serving engine makes them, one iteration each: prompts, chunks, drafts and decodes in ragged mixes.

The same seed gives the same batches on every machine, and any first part of them has all kinds about equally often.
Lengths are those of requests: of the tables of data/workloads, or of short chats (pod/serving/vllm2023.py). A running
request is drawn as often as it has tokens to write, a chunk as often as its prompt has chunks. How many run is drawn
between an idle server and a full one, of which there are fewer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from pod.batch import HEAD_DIMS, HybridBatch
from pod.hardware import H200
from pod.serving.vllm2023 import chats
from pod.simulate.workload import TABLES, clip, read_table, sample

KINDS = ("decode", "spec", "spec+chunk", "fresh+chunk", "returning+decode", "mixed")
COUNT, SEED, PAGE = 300, 0, 16
SEQUENCES = 256  # that an engine runs at once
BUDGETS = (512, 1024, 2048, 8192)  # new tokens of an iteration, at most
CHUNKS = (512, 1024, 2048)
DRAFTS = (2, 8)  # tokens that a sequence has checked: what a small model guessed, and one
RETURNING, BEFORE = (20, 300), (2048, 24576)  # new tokens of somebody who comes back, and what is there already
LONGEST = 32768  # tokens of a request
MEMORY_SHARE = 0.9  # of a GPU, for weights and KV
LENGTHS = (*TABLES, "chats")
Rows = list[tuple[int, int]]  # of each sequence: new tokens, and all tokens with them


@dataclass(frozen=True)
class Served:
    """A model as its GPUs hold it: the heads are those of all `tp` together, the weights as they are published."""

    name: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    layers: int
    gigabytes: float
    tps: tuple[int, ...] = (1,)

    def tokens(self, tp: int) -> int:
        """Whose KV fits beside the weights, on GPUs of an H200's memory."""
        room = MEMORY_SHARE * H200.memory_bytes - self.gigabytes * 1e9 / tp
        return int(room / (2 * 2 * self.layers * self.num_kv_heads // tp * self.head_dim))


MODELS = (
    Served("Llama-3-8B", 32, 8, 128, 32, 16.1, (1, 2, 4, 8)),
    Served("Llama-3-70B", 64, 8, 128, 80, 141.2, (2, 4, 8)),
    Served("Llama-3.1-405B FP8", 128, 8, 128, 126, 406.0, (8,)),
    Served("Llama-3.2-3B", 24, 8, 128, 28, 6.4, (1, 2)),
    Served("Llama-2-7B", 32, 32, 128, 32, 13.5, (1, 2)),
    Served("Mistral-Large", 96, 8, 128, 88, 245.2, (4, 8)),
    Served("Qwen2.5-1.5B", 12, 2, 128, 28, 3.1),
    Served("Qwen2.5-7B", 28, 4, 128, 28, 15.2, (1, 2, 4)),
    Served("Qwen2.5-14B", 40, 8, 128, 48, 29.5, (1, 2, 4, 8)),
    Served("Qwen3-1.7B", 16, 8, 128, 28, 4.1),
    Served("Yi-6B", 32, 4, 128, 32, 12.1, (1, 2, 4)),
    Served("StarCoder2-7B", 36, 4, 128, 32, 14.3, (1, 2)),
    Served("GLM-4-9B", 32, 2, 128, 40, 18.8, (1, 2)),
    Served("Llama-3.2-1B", 32, 8, 64, 16, 2.5),
    Served("gpt-oss-20b", 64, 8, 64, 24, 13.8, (1, 2, 4, 8)),
    Served("Falcon-7B", 71, 1, 64, 32, 14.4),
    Served("Phi-3-mini", 32, 32, 96, 32, 7.6),
)
LEFT_OUT = {m.name: f"head_dim {m.head_dim}, not of {HEAD_DIMS}" for m in MODELS if m.head_dim not in HEAD_DIMS}


class Server(NamedTuple):
    """What bounds an iteration: which lengths come, new tokens at most, tokens whose KV fits."""

    lengths: str
    budget: int
    tokens: int


@dataclass(frozen=True)
class Mix:
    """An iteration: its kind, whose heads it has, which lengths were drawn from, and most new tokens allowed."""

    kind: str
    model: str
    tp: int
    lengths: str
    budget: int
    batch: HybridBatch

    @property
    def words(self) -> str:
        """32/8 heads of 128: 1 x 1024 @ 17,408; 57 x 1 @ 4,100 to 11,966"""
        b = self.batch
        rows = list(zip(b.q_lens, b.kv_lens, strict=True))
        sides = [[row for row in rows if low < row[0] <= high] for low, high in ((16, max(b.q_lens)), (1, 16), (0, 1))]
        parts = [f"{len(side)} x {_range(q for q, _ in side)} @ {_range(kv for _, kv in side)}"
                 for side in sides if side]  # fmt: skip
        return f"{b.num_q_heads}/{b.num_kv_heads} heads of {b.head_dim}: " + "; ".join(parts)


def _range(numbers: Iterator[int]) -> str:
    numbers = sorted(numbers)
    return f"{numbers[0]:,}" + (f" to {numbers[-1]:,}" if numbers[-1] > numbers[0] else "")


def mixes(count: int = COUNT, seed: int = SEED) -> list[Mix]:
    """Batch i depends on the seed and on i alone."""
    return [_mix(KINDS[i % len(KINDS)], np.random.default_rng((seed, i))) for i in range(count)]


def _mix(kind: str, draw: np.random.Generator) -> Mix:
    """Drawn again until an engine could have made it."""
    served = [model for model in MODELS if model.name not in LEFT_OUT]
    while True:
        model = _one(draw, served)
        tp = _one(draw, model.tps)
        server = Server(_one(draw, LENGTHS), _one(draw, BUDGETS), model.tokens(tp))
        rows = INGREDIENTS[kind](draw, server)
        if fits(rows, server):
            rows.sort(key=lambda row: -row[0])  # whoever makes two calls wants each one's rows side by side
            heads = (model.num_q_heads // tp, model.num_kv_heads // tp, model.head_dim)
            batch = HybridBatch(*zip(*rows, strict=True), *heads, PAGE)
            return Mix(kind, model.name, tp, server.lengths, server.budget, batch)


def fits(rows: Rows, server: Server) -> bool:
    """Whether an engine could run these at once: each brings some token, and all have room."""
    if not rows or min(q for q, _ in rows) < 1 or len(rows) > SEQUENCES:
        return False
    pages = sum(-(-kv // PAGE) for _, kv in rows)
    return sum(q for q, _ in rows) <= server.budget and pages * PAGE <= server.tokens


# ---------------------------------------------------------------- who takes part
def decodes(draw, server: Server) -> Rows:
    return [(1, kv_len) for kv_len in _running(draw, server)]


def spec(draw, server: Server) -> Rows:
    """Drafts of one length, or where they are looked up in the text, of as many as were found."""
    contexts, (least, most) = _running(draw, server), DRAFTS
    most = int(draw.integers(least, most, endpoint=True))
    found = draw.integers(least, most, len(contexts), endpoint=True)
    drafts = found.tolist() if draw.random() < 0.5 else [most] * len(contexts)
    return [(q_len, kv_len + q_len - 1) for q_len, kv_len in zip(drafts, contexts, strict=True)]


def chunk(draw, server: Server) -> Rows:
    """A later chunk of a long prompt; its last one is what is left."""
    size = min(_one(draw, CHUNKS), server.budget)
    prompts, _ = _requests(draw, _one(draw, TABLES), 64)
    prompts = prompts[prompts > size]
    if not len(prompts):
        return [(0, 0)]  # no engine runs that
    prompt = int(draw.choice(prompts, p=prompts / prompts.sum()))
    start = size * int(draw.integers(1, -(-prompt // size)))
    return [(min(size, prompt - start), min(start + size, prompt))]


def fresh(draw, server: Server) -> Rows:
    """Whole prompts, of which the last may be cut by the budget."""
    room = int(server.budget * draw.uniform(0.25, 1))
    prompts, _ = _requests(draw, server.lengths, _log_uniform(draw, 1, 32))
    before = np.minimum(prompts.cumsum() - prompts, room)
    return [(q, q) for q in np.minimum(prompts, room - before).tolist() if q]


def returning(draw, server: Server) -> Rows:
    news = [_log_uniform(draw, *RETURNING) for _ in range(_log_uniform(draw, 1, 16))]
    return [(new, _log_uniform(draw, *BEFORE) + new) for new in news]


def _together(*ingredients):
    """One after the other: each gets what is left of the budget."""

    def rows(draw, server: Server) -> Rows:
        out = []
        for ingredient in ingredients:
            left = server.budget - sum(q for q, _ in out)
            out += ingredient(draw, server._replace(budget=left)) if left > 0 else [(0, 0)]  # no engine runs that
        return out

    return rows


def _mixed(draw, server: Server) -> Rows:
    """Answers on their way, one time in four with drafts, beside one to three kinds of prompts."""
    prompts = (returning, fresh, chunk)
    chosen = sorted(draw.permutation(len(prompts))[: draw.integers(1, len(prompts), endpoint=True)].tolist())
    running = spec if draw.random() < 0.25 else decodes
    return _together(running, *(prompts[i] for i in chosen))(draw, server)


INGREDIENTS = {
    "decode": decodes,
    "spec": spec,
    "spec+chunk": _together(spec, chunk),
    "fresh+chunk": _together(fresh, chunk),
    "returning+decode": _together(returning, decodes),
    "mixed": _mixed,
}


# ---------------------------------------------------------------- lengths
def _requests(draw, lengths: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and outputs."""
    if lengths in TABLES:
        return clip(*sample(_table(lengths), count, draw), LONGEST)
    which = draw.integers(0, len(_chats()), count)
    return tuple(_chats()[which].T)


def _running(draw, server: Server) -> list[int]:
    """Tokens of requests that have written some part of their answer, the newest included."""
    prompts, outputs = _requests(draw, server.lengths, 4 * SEQUENCES)
    which = draw.choice(len(prompts), SEQUENCES, replace=False, p=outputs / outputs.sum())
    written = (draw.random(SEQUENCES) * outputs[which]).astype(int)
    contexts = prompts[which] + 1 + written
    full = min(server.budget, int((contexts.cumsum() <= server.tokens).sum()))
    return contexts[: max(1, round(full * draw.random() ** 2))].tolist()


@cache
def _table(name: str) -> np.ndarray:
    return read_table(name)


@cache
def _chats() -> np.ndarray:
    return np.array([(request.prompt, request.output) for request in chats()])


def _log_uniform(draw, low: int, high: int) -> int:
    return round(low * (high / low) ** draw.random())


def _one(draw, choices: Sequence):
    return choices[draw.integers(len(choices))]

"""vLLM's first decode kernel in six versions, beside today's, on batches as a 13B model decodes them."""

from functools import partial
from random import Random

from pod.batch import HybridBatch
from pod.experiments.lean import lean
from pod.kernels import single_query
from pod.lab.measure import peers
from pod.schedule import choose

RECORDING = "single-query"
KEYS = ("batch",)
UNITS = ("single-query", *lean.UNITS)
ROUNDS, REPEATS = 5, 15
HEADS, PAGE = 40, single_query.PAGE  # LLaMA-13B: every query head has keys of its own
CHATS = Random(1)
BATCHES = {
    "1 x 2048": [2048], "16 x 512": [512] * 16, "16 x 2048": [2048] * 16, "64 x 512": [512] * 64,
    "256 x 256": [256] * 256, "256 x 512": [512] * 256, "64 x 2048": [2048] * 64,
    "144 chats": [min(1700, max(8, round(CHATS.lognormvariate(5.75, 0.85)))) for _ in range(144)],
}  # fmt: skip
# Hopper's decode, also where its planner would take few rows of prefill.
hopper, hopper_paged = (partial(of, roles=choose.as_decode(1)) for of in (peers.ours, peers.ours_paged))
TODAY = {
    "lean": lambda s: peers.family(s, "lean"),
    "hopper": hopper,
    "hopper_page16": partial(hopper_paged, page=PAGE),
    "fa3": peers.fa3_decode,
}


def early(setting: peers.Setting, idea: str):
    """The kernel on the setting's keys and values, its pages in random order."""
    import torch

    k, v = (x.view(-1, PAGE, *x.shape[2:]) for x in (setting.k, setting.v))
    order = torch.randperm(len(k), device=k.device)
    caches = [x[order.argsort()] for x in single_query.early_layout(k, v)]  # page i lies at order[i]
    table, longest = order.view(len(setting.lens), -1).int(), max(setting.batch.kv_lens)

    def call():
        out = single_query.attention(setting.q, *caches, table, setting.lens, longest, idea)
        return out[:0], out

    return call


IDEAS = {idea.replace(" ", "_"): partial(early, idea=idea) for idea in single_query.IDEAS}


def batch(name: str) -> HybridBatch:
    lens = BATCHES[name]
    return HybridBatch((1,) * len(lens), tuple(lens), HEADS, HEADS, single_query.HEAD_DIM)


def cases() -> list[dict]:
    return [{"batch": name} for name in BATCHES]


def measure(case: dict) -> dict:
    """Milliseconds of every kernel; registers and CTAs an SM of the six versions."""
    setting = peers.Setting(batch(case["batch"]))
    row = peers.table_row(setting, IDEAS | TODAY, ROUNDS, ms=4.0)
    for name, idea in zip(IDEAS, single_query.IDEAS, strict=True):
        made = single_query.resources(idea, max(setting.batch.kv_lens))
        row |= {f"{name}_registers": made["registers"], f"{name}_ctas": made["ctas_per_sm"]}
    return row

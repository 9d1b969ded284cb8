"""transformers' continuous batching with its FlashAttention-3 and with ours, on an H200: one model, the same prompts.

Measured: 48 long prompts by transformers' generate_batch, with FlashAttention-3 as it calls it, with and without CUDA
graphs, with FlashAttention-3 from our block tables, and with our kernel, with and without graphs.
"""

import gc
from functools import lru_cache

import numpy as np

from pod.data import read
from pod.experiments.engine import running
from pod.experiments.engine.engine_stock import as_transformers, generated, show_flash_attention_3
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="transformers' generate_batch with FlashAttention-3 and with our attention",
    says="Inside transformers, with graphs, our attention saves a seventh of the time",
    chapter="14",
    method="Llama-3-8B's shape, random weights; 48 prompts of 2K to 12K tokens, 96 tokens each, 2,048 tokens an "
    "iteration; the second of two runs, on prompts that are new to it; builds and captures are in the first",
    data=("hosts",),
)
RECORDING = "hosts"
KEYS = ("attention", "graphs")
UNITS = ("hopper", "model")
REPEATS = 1
TIMER = "the host's clock around generate_batch, the second of two runs"
L2 = "warm"
K = 1024
REQUESTS, PROMPT, OUTPUT, BUDGET, PAGE = 48, (2 * K, 12 * K), 96, 2 * K, 256
THEIRS, BY_PAGES, OURS = "FlashAttention-3", "FlashAttention-3 from pages", "ours"
NAMES = {THEIRS: "flash_attention_3", BY_PAGES: "pod-fa3", OURS: "pod"}


def cases() -> list[dict]:
    runs = ((THEIRS, 1), (OURS, 1), (OURS, 0), (THEIRS, 0), (BY_PAGES, 0))
    return [{"attention": attention, "graphs": graphs} for attention, graphs in runs]


def measure(case: dict) -> dict:
    """Seconds of the second run, and how many of its answers begin as, and are, those of FlashAttention-3."""
    seconds, tokens, gaps, words = _run(case["attention"], int(case["graphs"]))
    same = _run(THEIRS, 1)[1]
    first, whole = (np.mean([a[:n] == b[:n] for a, b in zip(tokens, same, strict=True)]) for n in (1, OUTPUT))
    counts = {"prompt_tokens": sum(map(len, prompts())), "tokens": sum(map(len, tokens))}
    return {"seconds": round(seconds, 3), **counts, "tbt_p50_ms": round(float(np.median(gaps)), 2),
            "same_first_percent": round(100 * float(first), 1), "same_percent": round(100 * float(whole), 1),
            "how": words}  # fmt: skip


@lru_cache
def prompts() -> list[list[int]]:
    random, vocab = np.random.default_rng(0), running.model("llama-3-8b").shape.vocab
    return [random.integers(1, vocab, n).tolist() for n in random.integers(*PROMPT, REQUESTS)]


def _others(graphs: int) -> list[list[int]]:
    """Prompts to warm up with: as long, to capture all sizes, or else the longest and beginnings of the others, since
    the first call decides what may come."""
    longest, others = max(map(len, prompts())), [prompt[::-1] for prompt in prompts()]
    return [prompt if graphs or len(prompt) == longest else prompt[:256] for prompt in others]


@lru_cache
def _run(attention: str, graphs: int):
    """Seconds, the tokens of each answer, gaps between them in ms, and how it was run."""
    import transformers

    name = _known(attention)
    model = as_transformers(running.model("llama-3-8b"), name)
    blocks = sum(-(-(len(prompt) + OUTPUT) // PAGE) + 1 for prompt in prompts())
    batching = {"page_size": PAGE, "num_blocks": blocks, "max_batch_tokens": BUDGET, "allow_block_sharing": False}
    batching |= {"use_cuda_graph": bool(graphs), "use_async_batching": True}
    seconds, answers, made = generated(model, _others(graphs), prompts(), OUTPUT, **batching)
    words = f"transformers {transformers.__version__}, {model.config._attn_implementation}"
    words += f", graphs {made.use_cuda_graph}, async {made.use_async_batching}"
    gc.collect()
    gaps = 1e3 * np.concatenate([np.diff(a.timestamps) for a in answers])
    return seconds, [a.generated_tokens for a in answers], gaps, words


def _known(attention: str) -> str:
    """The name that a model gives, made known to transformers."""
    import pod.hosts.transformers as host

    if attention == BY_PAGES:
        host.register(NAMES[attention], FlashAttention3())
    elif attention == THEIRS:
        show_flash_attention_3()
    return NAMES[attention]


class FlashAttention3:
    """Its one call for a whole batch, from our block tables: what not copying keys and values alone would bring."""

    def build(self, *shape) -> None:
        """It comes built."""

    def bind(self, step, *shape):
        import torch
        from flash_attn_interface import flash_attn_with_kvcache

        lens = torch.from_numpy(np.concatenate([step.kv_lens, [0], np.cumsum(step.q_lens)]).astype(np.int32))
        there = lens.pin_memory().to(step.table.device, non_blocking=True)
        kv_lens, starts = there.split([len(step.kv_lens), len(step.q_lens) + 1])
        given = {"cache_seqlens": kv_lens, "page_table": step.table, "cu_seqlens_q": starts,
                 "max_seqlen_q": int(step.q_lens.max()), "causal": True}  # fmt: skip

        def call(q, k, v, scale):
            out = flash_attn_with_kvcache(q, k, v, softmax_scale=scale, **given)
            return out[0] if isinstance(out, tuple) else out

        return call


# ---------------------------------------------------------------- what it shows


def table():
    """A row a run: seconds, gaps between tokens, and how many answers begin as, and are, those of FlashAttention-3."""
    df = read("hosts")
    name = df.attention + df.graphs.map({1: ", graphs", 0: ""})
    return df.assign(name=name, times=df.seconds[(df.attention == THEIRS) & (df.graphs == 1)].iloc[0] / df.seconds)


def draw(df):
    ax = style.axes(9.5, 0.9 + 0.42 * len(df))
    colours = df.attention.map({OURS: style.colour("hybrid")}).fillna(style.FRAME)
    ax.barh(df.name, df.seconds, color=colours)
    for i, row in enumerate(df.itertuples()):
        ax.text(row.seconds, i, f" {row.seconds:.1f} s, {row.times:.2f}x", va="center", fontsize=9)
    ax.set(xlabel="seconds for all", xlim=(0, 1.2 * df.seconds.max()))
    ax.invert_yaxis()
    return ax.figure


# ---------------------------------------------------------------- what claims ask for


def gain() -> float:
    """How many times as long it takes with its own FlashAttention-3, both with graphs."""
    return float(table().set_index(["attention", "graphs"]).times[OURS, 1])

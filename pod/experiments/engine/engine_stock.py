"""An offline run by our engine and by transformers' own continuous batching, on an H200 with the same weights.

Measured: 96 requests by the engine and by transformers' continuous batching, the same random weights in both.
"""

import time
from functools import lru_cache

import numpy as np
import pandas as pd

from pod.data import read
from pod.experiments.engine import running
from pod.hardware import H200
from pod.lab.figure import Figure
from pod.lab.measure import timing
from pod.lab.show import style
from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine, answer
from pod.serving.events import Iteration
from pod.serving.loop import Ticks, serve
from pod.serving.request import Request
from pod.serving.schedulers import Sarathi
from pod.serving.shapes import shape
from pod.simulate import windows
from pod.simulate.cost import Work
from pod.simulate.metrics import token_times
from pod.simulate.scenarios import h200

FIGURE = Figure(
    title="The engine beside transformers' generate_batch",
    chapter="14",
    method="Llama-3-8B's shape, random weights shared by both; 96 prompts of 1K to 3K tokens, 128 tokens each; theirs "
    "with FlashAttention-3 and CUDA graphs, the second of two runs, on prompts that are new to it",
    data=("engine-stock",),
)
RECORDING = "engine-stock"
KEYS = ("system", "budget")
UNITS = ("hopper", "model")
REPEATS = 1
TIMER = "host clock around a whole run"
L2 = "warm"
K = 1024
MODEL, REQUESTS, PROMPT, OUTPUT = "llama-3-8b", 96, (1 * K, 3 * K), 128
OWN = 0  # the budget of tokens an iteration that a system chooses itself
CHOSEN = 8 * K  # and what that was, for transformers 5.17.0
RATE = 0.6 * H200.tensor_flops  # operations a second, as linear layers reach


def cases() -> list[dict]:
    runs = (("ours", 1 * K), ("transformers", OWN), ("ours", 4 * K), ("transformers", 1 * K))
    return [{"system": system, "budget": budget} for system, budget in runs]


def measure(case: dict) -> dict:
    """Seconds of the whole run, gaps between tokens, and whose first tokens are those of our own first run."""
    run = {"ours": _ours, "transformers": _theirs}[case["system"]]
    seconds, tokens, times, words, host = run(int(case["budget"]))
    gaps = 1e3 * np.concatenate([np.diff(mine) for mine in times])
    p50, p99 = (round(float(np.percentile(gaps, p)), 2) for p in (50, 99))
    same = np.mean([a[0] == b[0] for a, b in zip(tokens, _first_tokens(), strict=True)])
    counts = {"prompt_tokens": sum(map(len, _prompts())), "tokens": sum(map(len, tokens))}
    return {"seconds": round(seconds, 3), **counts, "tbt_p50_ms": p50, "tbt_p99_ms": p99,
            "same_first_percent": round(100 * float(same), 1), "host_percent": host, "how": words}  # fmt: skip


def lengths(random=None) -> np.ndarray:
    """Tokens of each prompt."""
    return (random or np.random.default_rng(0)).integers(*PROMPT, REQUESTS)


@lru_cache
def _prompts() -> list[list[int]]:
    random, vocab = np.random.default_rng(0), running.model(MODEL).shape.vocab
    return [random.integers(1, vocab, n).tolist() for n in lengths(random)]


@lru_cache
def _first_tokens() -> list[list[int]]:
    """Of our own run, which both systems are compared to."""
    return _ours(1 * K)[1]


@lru_cache
def _ours(budget: int):
    """Seconds, the tokens of each answer, when each came out, how it was run, and what share of an iteration the GPU
    had no work."""
    pool = _pool()
    engine = Engine(running.model(MODEL), pool)
    engine.warm(REQUESTS, budget)
    answer(engine, Sarathi(pool, REQUESTS, chunk=budget), _prompts()[:2], 4)
    answers, log = answer(engine, Sarathi(pool, REQUESTS, chunk=budget, max_prefills=REQUESTS), _prompts(), OUTPUT)
    ids, out = token_times(log)
    times = [out[ids == i] for i in np.unique(ids)]
    words = f"{type(engine.attention).__name__} attention, {len(log.iterations)} iterations"
    words += ", whole in graphs" if engine.whole else ""
    del engine
    timing.free_memory()
    seconds = log.iterations[-1].end - log.iterations[0].scheduled
    return seconds, [a.tokens for a in answers], times, words, idle_percent(log.iterations)


def _pool() -> PagedPool:
    return PagedPool(int(sum(-(-(lengths() + OUTPUT) // windows.PAGE) + 1)), windows.PAGE)


def idle_percent(events) -> float:
    """Median share of an iteration, from its begin to the next one's, in which the GPU had no work."""
    busy = np.array([sum(end - start for start, end in event.stages) for event in events[:-1]])
    begins = windows.began([event.scheduled for event in events], [event.end for event in events])
    return round(100 * float(np.median(1 - busy / np.diff(begins))), 2)


@lru_cache(maxsize=1)
def _their_model():
    show_flash_attention_3()
    return as_transformers(running.model(MODEL), "sdpa")  # which it leaves for FlashAttention when there is one


def _theirs(budget: int):
    import transformers

    options = {"max_batch_tokens": budget} if budget != OWN else {}
    warm = [prompt[::-1] for prompt in _prompts()]
    seconds, answers, made = generated(_their_model(), warm, _prompts(), OUTPUT, **options)
    attention = "FlashAttention-3" if transformers.utils.is_flash_attn_3_available() else "sdpa"
    words = f"transformers {transformers.__version__}, {attention}, {made.max_batch_tokens} tokens"
    words += f", graphs {made.use_cuda_graph}, async {made.use_async_batching}"
    return seconds, [a.generated_tokens for a in answers], [a.timestamps for a in answers], words, None


def generated(model, warm: list[list[int]], prompts: list[list[int]], output: int, **batching):
    """Seconds, the answers, and how transformers batched: the second of two runs. In the first it captures its graphs,
    on other prompts, as it remembers those it met."""
    import transformers

    asked = transformers.GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    run = {"generation_config": asked, "persistent_manager": True, "progress_bar": False, "record_timestamps": True,
           "continuous_batching_config": transformers.ContinuousBatchingConfig(**batching)}  # fmt: skip
    model.generate_batch(warm, **run)
    begin = time.perf_counter()
    answers = list(model.generate_batch(prompts, **run).values())
    if wrong := [a.error for a in answers if a.error] or len(answers) < len(prompts):
        raise RuntimeError(f"transformers answered {len(answers)} of {len(prompts)} requests: {wrong}")
    seconds = max(a.timestamps[-1] for a in answers) - begin  # without the end of its thread
    made = model._cached_continuous_batching_manager.continuous_batching_config
    model.destroy_cached_continuous_batching_manager()
    return seconds, answers, made


def show_flash_attention_3() -> None:
    """transformers looks for a package of that name, and the one that we pin is another's build of the same."""
    from importlib.util import find_spec

    from transformers.utils import import_utils

    if find_spec("flash_attn_interface") and not import_utils.is_flash_attn_3_available():
        made = getattr(import_utils, "PACKAGE_DISTRIBUTION_MAPPING", None)  # of 5.17; 5.23 has a function
        made = import_utils._package_distribution_mapping() if made is None else made
        made.setdefault("flash_attn_interface", []).append("flash-attn-3")
        import_utils.is_flash_attn_3_available.cache_clear()


def as_transformers(model, attention: str):
    """The same weights, not copied, in Hugging Face's implementation."""
    import torch
    import transformers

    s = model.shape
    config = transformers.LlamaConfig(
        vocab_size=s.vocab, hidden_size=s.hidden, intermediate_size=s.ffn, num_hidden_layers=s.layers,
        num_attention_heads=s.q_heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim, rms_norm_eps=s.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": s.rope_base}, tie_word_embeddings=s.tied,
        max_position_embeddings=model.context, attn_implementation=attention,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(config)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config).to(model.device)
    theirs.load_state_dict(_their_names(model), assign=True)
    return theirs.eval()


def _their_names(model) -> dict:
    names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "o": "self_attn.o_proj",
             "down": "mlp.down_proj"}  # fmt: skip
    state = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    state["lm_head.weight"] = model.head
    q, kv = model.q_heads * model.shape.head_dim, model.kv_heads * model.shape.head_dim
    for i, layer in enumerate(model.layers):
        place = f"model.layers.{i}"
        state |= {f"{place}.{their}.weight": getattr(layer, ours) for ours, their in names.items()}
        for name, part in zip("qkv", layer.qkv.split((q, kv, kv)), strict=True):
            state[f"{place}.self_attn.{name}_proj.weight"] = part
        for name, part in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
            state[f"{place}.mlp.{name}_proj.weight"] = part
    return state


# ---------------------------------------------------------------- what it shows


def table():
    """A row a run, smaller budgets first: seconds in all, answer tokens a second, gaps between tokens in ms, and how
    many of the first tokens are those of our own run with the smaller budget."""
    df = read("engine-stock")
    df["budget"] = df.budget.replace(OWN, CHOSEN)
    names = df.system + df.budget.map(", {:,} tokens an iteration".format)
    df = df.assign(name=names, tokens_per_second=df.tokens / df.seconds)
    return df.sort_values(["budget", "system"], ignore_index=True)


def draw(df):
    axes = style.axes(9.5, 0.9 + 0.42 * len(df), 2)
    colours = df.system.map({"ours": style.colour("hybrid"), "transformers": style.FRAME})
    for ax, column, label in zip(axes, ("seconds", "tbt_p99_ms"), ("seconds for all", "P99 gap between tokens, ms"),
                                 strict=True):  # fmt: skip
        ax.barh(df.name, df[column], color=colours)
        for i, value in enumerate(df[column]):
            digits = 2 if value < 10 else 1 if value < 100 else 0
            ax.text(value, i, f" {value:.{digits}f}", va="center", fontsize=9)
        ax.set(xlabel=label, xlim=(0, 1.15 * df[column].max()), ylim=(len(df) - 0.5, -1))
    axes[0].axvline(arithmetic(), color=style.INK, linestyle="--", linewidth=1)
    axes[0].text(arithmetic() + 0.1, -0.72, f"arithmetic alone: {arithmetic():.1f} s", fontsize=9, va="center")
    axes[1].set_yticks([])
    return axes[0].figure


def operations() -> dict[str, float]:
    """Floating point of the run: every token goes through the matrices and looks at those before it, but an answer's
    last, which is only handed out; each token of an answer took a row of the output head."""
    s, fed = shape(MODEL), lengths() + OUTPUT - 1
    return {
        "matrices": 2.0 * s.layers * s.layer_weights * fed.sum(),
        "attention": 4.0 * s.layers * s.q_heads * s.head_dim * (fed * (fed + 1) / 2).sum(),
        "output head": 2.0 * s.vocab * s.hidden * REQUESTS * OUTPUT,
    }


def arithmetic() -> float:
    """Seconds that the run's operations take at the rate of its linear layers."""
    return sum(operations().values()) / RATE


def batches(budget: int) -> list[Iteration]:
    """Of our run: nobody's time decides who is in a batch, as all requests are there from the start."""
    pool = _pool()
    asked = [Request(i, int(n), OUTPUT) for i, n in enumerate(lengths())]
    return serve(asked, [Sarathi(pool, REQUESTS, chunk=budget, max_prefills=REQUESTS)], Ticks()).iterations


def parts() -> pd.DataFrame:
    """Seconds of our runs, a row each: its operators as they were timed one by one, and what is beside them."""
    rows = {}
    for run in table().query("system == 'ours'").itertuples():
        cost = h200(MODEL, chunk=run.budget, scheduler="sarathi", attention="pod").cost()
        works = [Work(tuple((c[1], c[2]) for c in e.prefills), len(e.decodes), e.decode_context)
                 for e in batches(run.budget)]  # fmt: skip
        timed = pd.DataFrame([cost.parts(work) for work in works]).sum()
        shown = {"linear layers": timed.linear, "attention": timed.attention, "output head": timed["head"]}
        rows[run.name] = shown | {"beside them": run.seconds - sum(shown.values()), "measured": run.seconds}
    return pd.DataFrame(rows).T


# ---------------------------------------------------------------- what claims ask for


def times() -> float:
    """How many times as long transformers takes, each system with the better of its budgets."""
    best = table().groupby("system").seconds.min()
    return float(best["transformers"] / best["ours"])

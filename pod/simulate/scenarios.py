"""The experiments of the sources, as runs. Figures, chapters and claims share them, so each is simulated once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pod.data import DATA
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.events import Log
from pod.serving.loop import Ticks, serve
from pod.serving.request import Request
from pod.serving.schedulers import VLLM as VLLMScheduler
from pod.serving.schedulers import Orca, Scheduler, Static
from pod.simulate import calibrate
from pod.simulate.cost import KERNELS, in_turn
from pod.simulate.run import Run, Setup, SimExecutor, kv_tokens
from pod.simulate.workload import Workload

VLLM, SARATHI, POD = "vLLM", "Sarathi", "Sarathi+POD"
SYSTEMS = {
    VLLM: {"scheduler": "vllm", "attention": "serial"},
    SARATHI: {"scheduler": "sarathi", "attention": "serial"},
    POD: {"scheduler": "sarathi", "attention": "pod"},
}
# vAttention keeps the cache in pages of 2 MiB a layer, so a block of the published runs is that many tokens
PAGE_TOKENS = {"yi-6b": 2048, "llama-3-8b": 2048, "llama-2-7b": 512}
UNPAGED = "fa2"  # such a cache looks contiguous, so their attention kernel does not append a prompt's keys to pages


# ---------------------------------------------------------------- small enough to follow by hand: one tick an iteration

SLOTS = 4
DOZEN = ((3, 4), (2, 9), (4, 2), (2, 6), (3, 5), (2, 3), (4, 7), (2, 2), (3, 6), (2, 8), (3, 3), (2, 4))
SMALL_POOL, SMALL_BLOCK = 12, 2


def ticked(scheduler: Scheduler, lengths: Sequence[tuple[int, ...]]) -> Log:
    """Requests (prompt, output[, arrival]) through a scheduler, every iteration as long as the next."""
    return serve([Request(i, *row) for i, row in enumerate(lengths)], [scheduler], Ticks())


@cache
def slots() -> dict[str, Log]:
    """A dozen requests through four slots, batch by batch and iteration by iteration."""
    reserved = lambda: ReservedPool(SLOTS * 16, 16)  # noqa: E731
    return {"static batching": ticked(Static(reserved(), SLOTS), DOZEN),
            "iteration-level scheduling": ticked(Orca(reserved(), SLOTS), DOZEN)}  # fmt: skip


CROWD = ((5, 8), (4, 9), (3, 7), (3, 6))


@cache
def crowded() -> dict[str, Log]:
    """Four requests in a pool of 24 tokens that holds two or three of them at their full length."""
    pool = lambda: PagedPool(SMALL_POOL, SMALL_BLOCK, watermark=0.0, swap_blocks=SMALL_POOL)  # noqa: E731
    return {how: ticked(VLLMScheduler(pool(), SLOTS, preemption=how), CROWD) for how in ("recompute", "swap")}


# ---------------------------------------------------------------- the chat server: a long prompt among answers

CHATS, CHAT_CONTEXT, LONG_PROMPT, LONG_ANSWER, LONG, ARRIVES = 40, 8192, 12288, 200, 40, 0.5
FIVE = {"static": ("static", "serial"), "Orca": ("orca", "serial"), "vLLM": ("vllm", "serial"),
        "Sarathi": ("sarathi", "serial"), "Sarathi+POD": ("sarathi", "pod")}  # fmt: skip


def chats() -> list[Request]:
    return [Request(i, CHAT_CONTEXT, 300 + 11 * (i % 17)) for i in range(CHATS)]


def long_prompt() -> Request:
    return Request(LONG, LONG_PROMPT, LONG_ANSWER, ARRIVES)


@cache
def chat(system: str, chunk: int = 1024) -> Log:
    """40 chats with 8K tokens each are being answered when, half a second later, a prompt of 12,288 arrives.

    Llama-3-8B on two A100s.
    """
    scheduler, attention = FIVE[system]
    setup = Setup(tp=2, scheduler=scheduler, attention=attention, chunk=chunk, max_batch=CHATS + 1, max_tokens=13312,
                  kernels=UNPAGED)  # fmt: skip
    lanes, answered = setup.lanes(), chats()
    for request in answered:  # their prompts are done, the first token is out
        lanes[0].pool.admit(request)
        lanes[0].running.append(request)
        request.advance(request.prompt)
    log = serve([long_prompt()], lanes, SimExecutor(setup.cost()), cost=setup.cost().label)
    log.requests += [(r.id, 0.0, r.prompt, r.output) for r in answered]
    return log


# ---------------------------------------------------------------- POD §5.2 and §5.3


def offline(model: str, tp: int, pd: float, chunk: int, requests: int, total: int = 16384) -> dict[str, Run]:
    """POD §5.2: requests of `total` tokens, all there at once, under the three systems."""
    setup = Setup(model=model, tp=tp, chunk=chunk, max_batch=999, max_tokens=total, block_size=PAGE_TOKENS[model],
                  kernels=UNPAGED)  # fmt: skip
    work = Workload("uniform", requests, low=total, high=total, pd=pd)
    return {name: Run(replace(setup, **system), work) for name, system in SYSTEMS.items()}


# The artifact's own 2,048 requests. Its gaps are cut at three means, so its load is higher than it says
LISTED, LIST, LIST_RATE = "arxiv, listed", DATA / "public" / "pod-arxiv.csv", 1.0393


def online(workload: str, qps: float, chunk: int, requests: int = 2048) -> dict[str, Run]:
    """POD §5.3: Llama-3-8B on two A100s under a Poisson load, as its artifact generates and measures it."""
    setup = Setup(tp=2, chunk=chunk, max_batch=128, max_tokens=65536, block_size=PAGE_TOKENS["llama-3-8b"],
                  kernels=UNPAGED)  # fmt: skip
    if workload == LISTED:
        work = Workload(str(LIST), requests, qps * LIST_RATE)
    else:
        work = Workload(workload, requests, qps, seed=1, arrivals="truncated_poisson")
    return {name: Run(replace(setup, **system), work, "artifact") for name, system in SYSTEMS.items()}


def slower(run: Run, factor: float) -> Run:
    """The same run with every iteration `factor` times as long."""
    return run.but(slowdown=factor)


# ---------------------------------------------------------------- SARATHI on one GPU


def best_ratio(chunk: int, batch: int, aligned: bool = True) -> float:
    """P:D at which chunks and decodes run out together: C / (B - 1), less the rows that the decodes take."""
    return ((chunk - (batch - 1)) if aligned else chunk) / (batch - 1)


def reserved_a6000(length: int, batch: int, pd: float, chunk: int, requests: int) -> dict[str, Run]:
    """Orca and SARATHI with LLaMA-13B on requests of one length; `batch` of them fit, all their memory reserved."""
    base = Setup(model="llama-13b", gpu="a6000", max_batch=batch, max_tokens=length, blocks=batch * length,
                 block_size=1, host="none", chunk=chunk, kernels=UNPAGED)  # fmt: skip
    work = Workload("uniform", requests, low=length, high=length, pd=pd)
    return {name: Run(replace(base, scheduler=name), work) for name in ("orca", "sarathi_v1")}


# ---------------------------------------------------------------- SARATHI's pipeline of 64 GPUs

PIPELINE_LENGTH, GPT3 = 4096, "gpt-3-175b"
DECIMAL_80_GB = 80e9  # with which the stated batch sizes come out


def pipeline_batch(tp: int, pp: int) -> int:
    """Requests of 4K tokens in one micro-batch: the memory left by the weights, shared by pp micro-batches."""
    return kv_tokens(GPT3, "a100", tp, pp, memory_bytes=DECIMAL_80_GB) // PIPELINE_LENGTH // pp


def pipeline(requests: int) -> dict[str, Run]:
    """GPT-3 on 64 A100s: eight stages of eight GPUs under two schedulers, or eight replicas (one is simulated)."""

    def setup(scheduler: str, pp: int) -> Setup:
        batch = pipeline_batch(8, pp)
        return Setup(model=GPT3, tp=8, pp=pp, scheduler=scheduler, chunk=256, max_batch=batch, host="none",
                     max_tokens=PIPELINE_LENGTH, block_size=1, blocks=batch * pp * PIPELINE_LENGTH,
                     kernels=UNPAGED)  # fmt: skip

    work = Workload("zipf", requests, low=1024, high=PIPELINE_LENGTH, pd=10, theta=0.4)
    return {
        "TP8 x PP8, Orca": Run(setup("orca", 8), work),
        "TP8 x PP8, SARATHI": Run(setup("sarathi_v1", 8), work),
        "TP8, 8 replicas, Orca": Run(setup("orca", 1), replace(work, count=-(-requests // 8))),
    }


def speedups(minutes: Sequence[float]) -> dict[str, float]:
    """The three ratios that the post states, from the minutes of the three systems."""
    orca, sarathi, replicas = minutes
    return {"tp_over_pp": orca / replicas, "over_pp": orca / sarathi, "over_tp": replicas / sarathi}


# ---------------------------------------------------------------- the same on an H200, from measured operators

H200_BLOCK = 256  # tokens of a page, as the engine has them there
IN_TURN = "Sarathi, ours in turn"  # our kernel's halves one after the other: what is left to POD is the overlap
CAPACITY_REQUESTS = 512


def h200(model: str, **changes) -> Setup:
    """One H200, its operators measured. Iterations with prompts are as much slower as they were in real runs of the
    engine: for the host, and for lower clocks at the power limit. Otherwise as in POD §5."""
    base = Setup(model=model, gpu="h200", measured=True, host="none", max_batch=999, max_tokens=16384,
                 block_size=H200_BLOCK)  # fmt: skip
    setup = replace(base, **changes)
    kernels = in_turn(setup.kernels or KERNELS[setup.attention])
    calibration = (calibrate.hybrid_slowdown(model, setup.attention, kernels), calibrate.prompt_slowdown())
    return replace(setup, calibration=calibration)


def offline_h200(model: str, pd: float, chunk: int, requests: int, total: int = 16384) -> dict[str, Run]:
    """POD §5.2 on one H200."""
    work = Workload("uniform", requests, low=total, high=total, pd=pd)
    systems = SYSTEMS | {IN_TURN: SYSTEMS[SARATHI] | {"kernels": "hopper"}}
    return {name: Run(h200(model, chunk=chunk, **system), work) for name, system in systems.items()}


def capacity(setup: Setup, lengths: str) -> Run:
    """The same requests, all there at once: their rate is the most that the system can serve. The mean is that of all
    requests, so the tail of the last is left out by taking many."""
    return Run(setup, Workload(lengths, CAPACITY_REQUESTS, seed=1))


def online_setup(chunk: int, blocks: int | None = None, **system) -> Setup:
    """POD §5.3's server on one H200; `blocks` may cap its pool."""
    return h200("llama-3-8b", chunk=chunk, max_batch=128, max_tokens=65536, blocks=blocks, **system)


def a100_blocks() -> int:
    """Pages of Llama-3-8B that one A100 holds, a good half of an H200's."""
    return kv_tokens("llama-3-8b", "a100") // H200_BLOCK


def online_h200(
    lengths: str, qps: float, chunk: int, requests: int = 2048, blocks: int | None = None
) -> dict[str, Run]:
    """POD §5.3 on one H200."""
    work = Workload(lengths, requests, qps, seed=1, arrivals="truncated_poisson")
    setups = {name: online_setup(chunk, blocks, **system) for name, system in SYSTEMS.items()}
    return {name: Run(setup, work, "artifact") for name, setup in setups.items()}

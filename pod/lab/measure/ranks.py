"""One process a GPU: either they meet and compute one thing together, or each has work of its own."""

from collections.abc import Callable, Sequence

from pod.lab.measure import provenance


def run(work: Callable, world: int, device: str, *arguments):
    """work(rank, world, device, *arguments) in `world` processes that torch.distributed joins; what it returns in
    process 0. On "cuda" each has a GPU and they talk through NCCL, on "cpu" through gloo."""
    import tempfile

    import torch.multiprocessing as mp

    answers = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        given = (world, f"file://{folder}/meeting", device, work, arguments, answers)
        processes = mp.start_processes(_process, given, nprocs=world, join=False, start_method="spawn")
        while answers.empty():
            if processes.join(timeout=0.2):  # raises when a process failed
                break
        found, loaded = answers.get()
        while not processes.join():
            pass
    provenance.hear(loaded)
    return found


def _process(rank: int, world: int, meeting: str, device: str, work: Callable, arguments: tuple, answers) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", meeting, rank=rank, world_size=world)
    found = work(rank, world, device, *arguments)
    if rank == 0:
        answers.put((found, provenance.loaded()))
    dist.barrier()
    dist.destroy_process_group()


def own(rank: int, device: str) -> str:
    """This process's device; beside it one thread is enough."""
    import torch

    torch.set_num_threads(1)
    return f"cuda:{rank}" if device == "cuda" else device


def each(work: Callable, items: Sequence, cards: int | None = None) -> list:
    """[work(item) for item in items], as many at once as there are GPUs, in a new process each: one has a GPU for
    itself, and leaves nothing on it. `cards` is for machines that have none."""
    from concurrent.futures import ThreadPoolExecutor
    from queue import Queue

    import torch

    gpus = torch.cuda.device_count()
    free = Queue()
    for card in range(cards or gpus):
        free.put(card if gpus else None)
    with ThreadPoolExecutor(free.qsize()) as waiting:
        return list(waiting.map(lambda item: _alone(work, item, free), items))


def _alone(work: Callable, item, free):
    """What a new process answers; its GPU is free again when it has ended."""
    from multiprocessing import get_context

    context, card = get_context("spawn"), free.get()
    try:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(work, item, card, there), daemon=True)
        process.start()
        there.close()
        try:
            found, wrong, loaded = here.recv()
            provenance.hear(loaded)
        except EOFError:
            found, wrong = None, RuntimeError(f"{item!r}: got no answer, its process ended without one")
        process.join()
    finally:
        free.put(card)
    if wrong:
        raise wrong
    return found


def _answer(work: Callable, item, card: int | None, there) -> None:
    try:
        if card is not None:
            import torch

            torch.cuda.set_device(card)
        there.send((work(item), None, provenance.loaded()))
    except Exception as wrong:
        there.send((None, wrong, provenance.loaded()))

"""One process a GPU: either they meet and compute one thing together, or each has work of its own."""

from collections.abc import Callable, Sequence


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
        found = answers.get()
        while not processes.join():
            pass
    return found


def _process(rank: int, world: int, meeting: str, device: str, work: Callable, arguments: tuple, answers) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", meeting, rank=rank, world_size=world)
    found = work(rank, world, device, *arguments)
    if rank == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def each(work: Callable, items: Sequence, cards: int | None = None) -> list:
    """[work(item) for item in items], as many at once as there are GPUs, in a new process each: one has a GPU for
    itself, and leaves nothing on it. `cards` is for machines that have none."""
    import multiprocessing as mp

    import torch

    gpus = torch.cuda.device_count()
    with mp.get_context("spawn").Manager() as shared:
        free = shared.Queue()
        for card in range(cards or gpus):
            free.put(card if gpus else None)
        with mp.get_context("spawn").Pool(cards or gpus, maxtasksperchild=1) as pool:
            return pool.starmap(_alone, [(work, item, free) for item in items], chunksize=1)


def _alone(work: Callable, item, free):
    card = free.get()
    try:
        if card is not None:
            import torch

            torch.cuda.set_device(card)
        return work(item)
    finally:
        free.put(card)

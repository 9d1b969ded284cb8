"""One process a GPU: start them, let them meet, and take what process 0 found."""

from collections.abc import Callable


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

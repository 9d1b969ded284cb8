"""What exercises whose answer is a kernel share: a hidden launch, and how it is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pod.learn.cuda import Kernel
from pod.learn.judge import Outcome


@dataclass(frozen=True)
class Case:
    """kernel[grid, block](*arguments()), after which the arguments `outs`, by their names, shall be what
    wanted(*arguments) says: tensors, or a function that finds them in the run."""

    said: str
    grid: int
    block: int
    arguments: Callable[[], Sequence]
    wanted: Callable
    outs: dict[str, int]
    seed: int = 0

    def __str__(self) -> str:
        return self.said


def random(*sizes: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def launch(kernel: Kernel, case: Case) -> Outcome:
    arguments = case.arguments()
    before = copies(arguments)
    wanted = case.wanted(*copies(arguments))
    watched = kernel[case.grid, case.block].watch(*arguments, seed=case.seed)
    tried = f"{kernel.name}[{case.grid}, {case.block}] with {case.said}"
    known = {"case": case, "watched": watched, "arguments": arguments}
    if watched.fault:
        return Outcome(tried, "a run without a fault", error=watched.fault, **known)
    read = [(x, y) for i, (x, y) in enumerate(zip(before, arguments, strict=True)) if i not in case.outs.values()]
    if not all(torch.equal(x, y) for x, y in read if isinstance(x, torch.Tensor)):
        return Outcome(tried, "what is only read as it was", "it was written", **known)
    wanted = wanted(watched) if callable(wanted) else wanted
    for (name, i), should in zip(case.outs.items(), wanted, strict=True):
        said = [f"{name}{_first_difference(should, arguments[i], x)}" for x in (should, arguments[i])]
        right = _same(should, arguments[i]).all()
        known["values"] = (should, arguments[i])
        if not right:
            break
    return Outcome(tried, *said, right=bool(right), **known)


def copies(arguments: Sequence) -> list:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]


def _same(wanted: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return torch.isclose(got.double(), wanted.double(), rtol=1e-4, atol=1e-5)


def _first_difference(wanted: torch.Tensor, got: torch.Tensor, x: torch.Tensor) -> str:
    """What x has where the two differ first, as "[3] = 1.5"."""
    apart = ~_same(wanted, got)
    at = tuple(apart.nonzero()[0].tolist()) if apart.any() else (0,) * got.dim()
    place = "".join(f"[{i}]" for i in at)
    number = x[at].item() if x.numel() else "nothing"
    return f"{place} = {number:g}" if isinstance(number, float) else f"{place} = {number}"

"""CUDA in a cell: a text becomes functions on torch tensors.

    module = learn.cuda(text)                     # or %%cuda, which puts the kernels among the notebook's names
    module.scale[grid, block](y, x, 2.0, len(x))  # grid: how many CTAs; block: how many threads each

Tensors on a GPU run there. Tensors on the CPU run in the emulator, which names what a GPU passes over in silence:
races, barriers that not all reach, indices out of bounds, values that nobody has set.

It does not see everything. What nobody has set is told where it is stored, used as an index, or computed with under the
name, or as an element of the array, that was declared without a value: not behind a copy or a pointer, nor as a member
of a struct, and a `short` or a `char` never. A pointer to a variable that is no array may run past it, and so may an
`auto` pointer to a row of an array with two indices, or the address of an element of a struct's array.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory

from pod.learn import faults, gpu, program, rewrite
from pod.learn.arguments import PACKED, LaunchError, check_arguments, packed
from pod.learn.faults import CellError, CompileError, Fault
from pod.learn.rewrite import TYPES, Cell, Parameter

MOST_THREADS, MOST_CTAS = 1024, 1 << 16


def cuda(text: str) -> Module:
    """The kernels of a CUDA text, compiled."""
    if not isinstance(text, str):
        raise CellError(f"text: got {text!r:.60}, allowed is CUDA as a str")
    text = text.encode("utf-8", "replace").decode().strip("\n") + "\n"
    try:
        cell = rewrite.read(text)
    except rewrite.NotCuda as error:
        opinion = None if error.sure else _opinion(text)
        raise (opinion or CompileError(text, error.line, str(error))) from None
    return Module(cell)


def _built(cell: Cell) -> Path:
    try:
        return program.built(cell)
    except program.Endless as error:
        raise CompileError(cell.text, 1, str(error)) from None
    except program.Refused as error:
        limit = "this is CUDA, but the emulator cannot do it: "
        raise (_opinion(cell.text) or faults.complaint(str(error), cell.text, limit)) from None


def _opinion(text: str) -> CompileError | None:
    """What the compiler says of the text as it was written; None if it has nothing against it."""
    with TemporaryDirectory(prefix="pod-cell-") as folder:
        source = Path(folder) / "cell.cu"
        source.write_text(f'#include "plain.h"\n#line 1 "cell"\n{rewrite.without_includes(text)}', encoding="utf-8")
        said = program.complaints(source)
    return faults.complaint(said, text) if faults.COMPLAINT.search(said) else None


class Module:
    """The kernels of one text, as attributes."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self._program = cell, _built(cell)
        self._kernels = {name: Kernel(name, parameters, self) for name, parameters in cell.kernels.items()}

    def __getattr__(self, name: str) -> Kernel:
        kernels = self.__dict__.get("_kernels", {})
        if name not in kernels:
            raise AttributeError(f"kernel: got {name!r}, allowed are {', '.join(kernels)}")
        return kernels[name]

    @property
    def program(self) -> Path:
        """Built again if it has gone, as the oldest do: see program.sweep."""
        if not self._program.exists():
            self._program = _built(self.cell)
        return self._program

    @property
    def kernels(self) -> dict[str, Kernel]:
        return dict(self._kernels)

    def __dir__(self) -> list[str]:
        return list(self._kernels)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._kernels.values()))


@dataclass(frozen=True)
class Kernel:
    """A kernel; `kernel[grid, block]` is a launch of it."""

    name: str
    parameters: tuple[Parameter, ...]
    module: Module

    @property
    def text(self) -> str:
        """Of its cell."""
        return self.module.cell.text

    def __getitem__(self, shape) -> Launch:
        grid, block, *smem = shape if isinstance(shape, tuple) and len(shape) in (2, 3) else (None, None)
        if grid is None:
            raise LaunchError(f"{self.name}: got [{shape!r}], allowed is {self.name}[grid, block]")
        launch = Launch(self, _three("grid", grid), _three("block", block), *smem)
        launch.check()
        return launch

    def __call__(self, *arguments) -> None:
        said = ", ".join(p.name for p in self.parameters)
        raise LaunchError(f"{self.name}: got a call without a launch, allowed is {self.name}[grid, block]({said})")

    def __repr__(self) -> str:
        return f"{self.name}[grid, block]({', '.join(map(str, self.parameters))})"


def _three(name: str, size) -> tuple[int, int, int]:
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3 or any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in sizes):
        raise LaunchError(f"{name}: got {size!r}, allowed is a whole number from 1 on, or up to three as (x, y, z)")
    return (*map(int, sizes), *[1] * (3 - len(sizes)))


@dataclass(frozen=True)
class Launch:
    """A kernel with the shape of its grid and block, in x, y and z; `smem`: bytes of `extern __shared__` memory."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int = 0

    @property
    def threads(self) -> int:
        """Of one CTA."""
        return prod(self.block)

    def check(self) -> None:
        threads, ctas = self.threads, prod(self.grid)
        if threads % 32 or threads > MOST_THREADS:
            raise LaunchError(f"block: got {threads} threads, allowed are multiples of 32 up to {MOST_THREADS}")
        if ctas > MOST_CTAS:
            raise LaunchError(f"grid: got {ctas:,} CTAs, allowed are {MOST_CTAS:,}")
        if type(self.smem) is not int or not 0 <= self.smem <= 163 << 10:
            raise LaunchError(f"shared memory: got {self.smem!r} bytes, allowed are 0 to {163 << 10:,}")

    def __call__(self, *arguments) -> None:
        """Run it. A fault of the kernel is raised, and then the tensors are as they were."""
        device = check_arguments(self.kernel, arguments)
        if device == "cuda":
            return gpu.launch(self, arguments)
        watched = self.watch(*arguments)
        if watched.report.printed:
            print(watched.report.printed, end="")
        if watched.fault:
            watched.show_picture()
            raise watched.fault

    def watch(self, *arguments, seed: int = 0) -> Watched:
        """Run it in the emulator and keep who read and wrote what, also of a run that ends with a fault.

        Each seed is another order in which a GPU could run the same.
        """
        if check_arguments(self.kernel, arguments) == "cuda":
            raise LaunchError(
                f"{self.kernel.name}: got tensors on a GPU, allowed are those on the CPU: the emulator watches"
            )
        return _emulated(self, arguments, seed)


@dataclass
class Watched:
    """One run in the emulator: what happened in which order, and the fault that ended it, if one did."""

    launch: Launch
    report: program.Report
    sizes_of_tensors: dict[str, int]  # elements, by name; in the order of the report's numbers

    @cached_property
    def fault(self) -> Fault | None:
        if not self.report.fault:
            return None
        return faults.of(self.report, self.launch.kernel.module.cell, self.sizes, self.launch.grid)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of an element, by the name of a tensor."""
        return {p.name: struct.calcsize(PACKED.get(TYPES.get(p.type), "h")) for p in self.launch.kernel.parameters}

    @property
    def memories(self) -> dict[str, int]:
        """The number under which the report's events have each memory, by name; shared ones first."""
        shared = {v.name: -1 - self.report.shared(v.name).number for v in self.report.variables}
        return shared | {name: i for i, name in enumerate(self.sizes_of_tensors)}

    @property
    def lengths(self) -> dict[str, int]:
        """How many elements each memory has."""
        return {v.name: v.bytes // v.element for v in self.report.variables} | self.sizes_of_tensors

    def place(self, memory: str, index: int) -> str:
        """An element's indices, as the text has them: "[3]", or "[1][0]"."""
        shared = self.report.shared(memory)
        return shared.place(index).removeprefix(memory) if shared else f"[{index}]"

    def draw(self, memory: str | None = None, ax=None):
        """The picture of who wrote and read what, when; of the memory of the fault, or of the one that is named."""
        from pod.lab.show import history

        return history.history(self, memory, ax)

    def show_picture(self) -> None:
        """In a live notebook, beside the words of a fault."""
        from pod.lab.show.explore import is_live

        if is_live() and self.fault.element:
            from IPython.display import display
            from matplotlib import pyplot as plt

            figure = self.draw().figure
            display(figure)
            plt.close(figure)

    def __repr__(self) -> str:
        return str(self.fault) if self.fault else f"{self.launch.kernel.name}: no fault"


# ---------------------------------------------------------------- one launch in the emulator


def _emulated(launch: Launch, arguments: Sequence, seed: int) -> Watched:
    cell, words, names, tensors = launch.kernel.module.cell, [], [], []
    for parameter, x in zip(launch.kernel.parameters, arguments, strict=True):
        if not parameter.pointer:
            words += ["number", packed(parameter, x).ljust(8, b"\0")[::-1].hex()]
        elif (known := _known(tensors, x)) is not None:
            words += ["again", str(known), str(int(not parameter.const))]
        else:
            words += ["tensor", parameter.name, str(_bytes(x)), str(x.element_size()), str(int(not parameter.const))]
            tensors.append(x)
            names.append(parameter.name)
    shape = [launch.kernel.name, *map(str, (*launch.grid, *launch.block, launch.smem))]
    data = b"".join(_raw(x).numpy().tobytes() for x in tensors)
    report, after = program.run(launch.kernel.module.program, cell, [*shape, *words], data, seed)
    if not report.fault:
        _put_back(tensors, after)
    return Watched(launch, report, {name: x.numel() for name, x in zip(names, tensors, strict=True)})


def _bytes(x) -> int:
    return x.numel() * x.element_size()


def _raw(x):
    """A tensor's bytes, in place."""
    import torch

    return x.detach().reshape(-1).view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)


def _known(tensors: Sequence, x) -> int | None:
    """Which of these tensors lies where x does. One that lies there in part would have two fates."""
    for i, other in enumerate(tensors):
        begin, end = other.data_ptr(), other.data_ptr() + _bytes(other)
        if (x.data_ptr(), _bytes(x)) == (begin, end - begin):
            return i
        if x.data_ptr() < end and begin < x.data_ptr() + _bytes(x):
            raise LaunchError("tensors: got two that overlap, allowed is the same one twice, or apart")
    return None


def _put_back(tensors: Sequence, after: bytes) -> None:
    import torch

    for x in tensors:
        mine, after = after[: _bytes(x)], after[_bytes(x) :]
        if mine:
            _raw(x).copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))

"""All-reduce by machine: no faster than its floor, else a line over the bytes, steeper for more GPUs.

    seconds = max(floor, growth[gpus] * (offset + bytes / bytes_per_s))

Floors and lines are fitted to Vidur's profiles of two GPUs (of four where PCIe joins two pairs): every other row, some
of which are in data/public/all_reduce.csv. How the line grows from two GPUs to four and eight is NCCL 2.27.3's mean
over 4 to 128 MiB in NVIDIA's aiconfigurator (ai-dynamo/aiconfigurator 095f58a, Apache-2.0), another measurement on
other machines of the kind. Below 1 MiB Vidur's times scatter from 10 to 60 us at the same size, in two heaps; the floor
is where most of them are.
"""

from dataclasses import dataclass

from pod.hardware import GPU


@dataclass(frozen=True)
class Machine:
    name: str
    gpus: tuple[str, ...]  # of which it was measured; others are a guess
    floor: float
    offset: float
    bytes_per_s: float
    growth: dict[int, float]  # by the number of GPUs that take part

    def all_reduce(self, gpus: int, nbytes: float) -> float:
        return max(self.floor, self.growth[gpus] * (self.offset + nbytes / self.bytes_per_s))


MACHINES = {
    "pair": Machine("an A100 NVLink pair", ("a100",), 61.1e-6, 28.6e-6, 185.6e9, {2: 1.0}),
    "pcie": Machine("two A100 pairs over PCIe", ("a100",), 53.6e-6, 58.5e-6, 15.73e9, {4: 1.0}),
    "dgx-a100": Machine("DGX A100", ("a100",), 53.9e-6, 42.5e-6, 168.4e9, {2: 1.0, 4: 1.32, 8: 1.55}),
    "dgx-h100": Machine("DGX H100", ("h100",), 39.6e-6, 16.4e-6, 287.9e9, {2: 1.0, 4: 1.27, 8: 1.44}),
}


def default(gpu: GPU, gpus: int) -> str:
    """Where nobody says otherwise: NVLink between two A100s, else the DGX of the generation."""
    if gpu.key in ("h100", "h200"):
        return "dgx-h100"
    return "pair" if gpus == 2 else "dgx-a100"


def machine(key: str | None, gpu: GPU, gpus: int) -> Machine:
    key = key or default(gpu, gpus)
    if key not in MACHINES:
        raise ValueError(f"machine: got {key!r}, allowed are {', '.join(MACHINES)}")
    found = MACHINES[key]
    if gpus not in found.growth:
        raise ValueError(f"tp: got {gpus}, allowed on {found.name} are {', '.join(map(str, found.growth))}")
    return found

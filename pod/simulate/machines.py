"""All-reduce by machine: how long a message takes on the wire, and no less than whoever starts it needs.

    seconds = max(floor[gpus], min(latency + hop * gpus + bytes / short_bytes_per_s,
                                   growth[gpus] * (offset + bytes / bytes_per_s)))

The first line is of short messages, which NCCL sends word by word without asking whether there is room; the second of
all others. Machines named nccl are NCCL 2.27.3 and 2.29.2 in NVIDIA's aiconfigurator (ai-dynamo/aiconfigurator 095f58a,
Apache-2.0), launched in a row: what a server has whose launches are in CUDA graphs, or ahead of its GPUs.

The others are Vidur's profiles, of PyTorch that launches one all-reduce at a time, so their floor is mostly the host's:
NCCL alone needs a fifth to a half of it; short messages are NCCL's. Lines are fitted to two GPUs (to four where PCIe
joins two pairs), every other row. How the line grows from two GPUs to four and eight is NCCL's of aiconfigurator, the
mean over 8 to 256 MiB. Below 1 MiB Vidur's times scatter from 10 to 60 us, also when the same size is sent three times
in a row. The floor of each number of GPUs is where most of every other size are: on four and eight GPUs of a DGX, at
the least mean |log(ours / measured)| of these. On eight it is lower than on two, so it is no time of NCCL's, which
grows.

NCCL's line on eight Hopper GPUs is not that of two which grew: it starts later, and needs less for a byte than that of
four, as if the switch added for them (a guess). So it is fitted by itself, to rows that the grown one missed by 12 and
14 % in the middle.

On a DGX A100 most is not much: calls are short or long by turns, near 25 or 61 us on four GPUs and 34 or 61 on eight,
and messages that were sent one after the other are of one kind. They were sent by size, so a table of sizes would know
the mood of its minute, and say that 200 KiB take 62 us and 650 KiB 26: another recording has other minutes.

Fitted and held-out rows are in data/public/all_reduce.csv.
"""

from dataclasses import dataclass, field
from math import inf

from pod.hardware import GPU


@dataclass(frozen=True)
class Machine:
    name: str
    gpus: tuple[str, ...]  # of which it was measured; others are a guess
    floor: dict[int, float]  # by the number of GPUs that take part
    offset: float
    bytes_per_s: float
    growth: dict[int, float]
    latency: float = inf
    hop: float = 0.0
    short_bytes_per_s: float = inf
    own: dict[int, tuple[float, float]] = field(default_factory=dict)  # offset and bytes_per_s of so many GPUs

    def all_reduce(self, gpus: int, nbytes: float) -> float:
        short = self.latency + self.hop * gpus + nbytes / self.short_bytes_per_s
        offset, bytes_per_s = self.own.get(gpus, (self.offset, self.bytes_per_s))
        return max(self.floor.get(gpus, 0.0), min(short, self.growth[gpus] * (offset + nbytes / bytes_per_s)))


# NCCL's short messages, whoever launches them
A100 = {"latency": 7.9e-6, "hop": 1.80e-6, "short_bytes_per_s": 53.6e9}
H100 = {"latency": 3.5e-6, "hop": 1.71e-6, "short_bytes_per_s": 133e9}
H200 = {"latency": 3.1e-6, "hop": 1.84e-6, "short_bytes_per_s": 138.7e9}
MACHINES = {
    "pair": Machine("an A100 NVLink pair", ("a100",), {2: 61.1e-6}, 28.6e-6, 185.6e9, {2: 1.0}, **A100),
    "pcie": Machine("two A100 pairs over PCIe", ("a100",), {4: 53.6e-6}, 58.5e-6, 15.73e9, {4: 1.0}),
    "dgx-a100": Machine(
        "DGX A100",
        ("a100",),
        {2: 53.9e-6, 4: 50.5e-6, 8: 36.0e-6},
        42.5e-6,
        168.4e9,
        {2: 1.0, 4: 1.32, 8: 1.55},
        **A100,
    ),
    "dgx-h100": Machine(
        "DGX H100",
        ("h100",),
        {2: 39.6e-6, 4: 42.0e-6, 8: 32.0e-6},
        16.4e-6,
        287.9e9,
        {2: 1.0, 4: 1.27, 8: 1.44},
        **H100,
    ),
    "nccl-a100": Machine("NCCL on DGX A100", ("a100",), {}, 30.4e-6, 171.5e9, {2: 1.0, 4: 1.29, 8: 1.41}, **A100),
    "nccl-h100": Machine(
        "NCCL on DGX H100", ("h100",), {}, 20.2e-6, 288.6e9, {2: 1.0, 4: 1.27, 8: 1.0}, own={8: (72e-6, 265e9)}, **H100
    ),
    "nccl-h200": Machine(
        "NCCL on DGX H200", ("h200",), {}, 19.3e-6, 295.1e9, {2: 1.0, 4: 1.30, 8: 1.0}, own={8: (75e-6, 274e9)}, **H200
    ),
}
HOPPER = {"h100": "dgx-h100", "h200": "nccl-h200"}


def default(gpu: GPU, gpus: int) -> str:
    """Where nobody says otherwise: NVLink between two A100s, else the DGX of the generation. Of H200s NCCL is known."""
    if gpu.key in HOPPER:
        return HOPPER[gpu.key]
    return "pair" if gpus == 2 else "dgx-a100"


def machine(key: str | None, gpu: GPU, gpus: int) -> Machine:
    key = key or default(gpu, gpus)
    if key not in MACHINES:
        raise ValueError(f"machine: got {key!r}, allowed are {', '.join(MACHINES)}")
    found = MACHINES[key]
    if gpus not in found.growth:
        raise ValueError(f"tp: got {gpus}, allowed on {found.name} are {', '.join(map(str, found.growth))}")
    return found

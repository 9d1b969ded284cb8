"""What a GPU can do: its SMs, the slots of an SM, its two roofs, and where each number is from."""

from dataclasses import dataclass, field, replace

import numpy as np

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class GPU:
    """A GPU as the rest of this repository sees it. Rates are peaks from the data sheet, not measurements."""

    key: str
    name: str
    sms: int
    tensor_flops: float  # FLOP/s, dense, fp16 or bf16 in and fp32 out; a multiply-add counts as 2
    dram_bytes_per_s: float
    l2_bytes: int
    smem_per_sm: int
    smem_per_cta: int
    registers_per_sm: int  # 32-bit registers
    threads_per_sm: int
    ctas_per_sm: int  # hardware maximum; a kernel's shared memory and registers usually allow fewer
    clock_hz: float  # the clock at which tensor_flops is stated
    memory_bytes: int
    power_w: float
    sources: dict[str, str] = field(compare=False, repr=False)

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both roofs take equally long."""
        return self.tensor_flops / self.dram_bytes_per_s

    def compute_time(self, flops):
        """Seconds that `flops` take with all tensor cores at their peak."""
        return _amount("flops", flops) / self.tensor_flops

    def memory_time(self, nbytes):
        """Seconds that moving `nbytes` from or to DRAM takes at the peak rate."""
        return _amount("nbytes", nbytes) / self.dram_bytes_per_s

    def roofline_time(self, flops, nbytes):
        """Seconds when compute and memory overlap perfectly: the larger of the two."""
        return np.maximum(self.compute_time(flops), self.memory_time(nbytes))

    def attainable(self, intensity):
        """FLOP/s that the roofline allows at `intensity` FLOPs per byte."""
        return np.minimum(self.tensor_flops, _amount("intensity", intensity) * self.dram_bytes_per_s)


def _amount(name: str, x):
    """x, unless it is negative or no number. The simulator asks a million times, so a scalar is looked at directly."""
    if not (x >= 0 if isinstance(x, (int, float)) else np.all(np.asarray(x) >= 0)):
        raise ValueError(f"{name}: got {np.min(x)}, allowed are numbers from 0 on")
    return x


_LIMITS = "CUDA C++ Programming Guide, technical specifications by compute capability"


def _sm(capability: str, kib: int, threads: int, ctas: int, source: str = _LIMITS) -> dict:
    """What an SM has, each with its source. CUDA keeps 1 KiB of its shared memory for each CTA."""
    has = {"smem_per_sm": kib * KIB, "smem_per_cta": (kib - 1) * KIB, "registers_per_sm": 65536}
    has |= {"threads_per_sm": threads, "ctas_per_sm": ctas}
    return {name: (number, f"{source} {capability}".strip()) for name, number in has.items()}


def _gpu(key: str, name: str, **numbers: tuple[float, str]) -> GPU:
    """Of numbers that each come with their source."""
    values, sources = ({field: pair[i] for field, pair in numbers.items()} for i in (0, 1))
    return GPU(key, name, **values, sources=sources)


_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet, A100 80GB SXM"
_A100_PAPER = "NVIDIA A100 Tensor Core GPU Architecture white paper, table of A100 features"
A100 = _gpu(
    "a100",
    "A100-80GB SXM",
    **_sm("8.0", 164, threads=2048, ctas=32),
    sms=(108, _A100_PAPER),
    tensor_flops=(312e12, _A100_SHEET),
    dram_bytes_per_s=(2039e9, _A100_SHEET),
    l2_bytes=(40 * MIB, _A100_PAPER),
    clock_hz=(1.41e9, _A100_PAPER + " (boost clock)"),
    memory_bytes=(80 * GIB, _A100_SHEET),
    power_w=(400, _A100_SHEET),
)

_HOPPER_PAPER = "NVIDIA H100 Tensor Core GPU Architecture white paper, H100 SXM5 columns"
_H100_SHEET = "NVIDIA H100 Tensor Core GPU data sheet, H100 SXM (dense = half of the sparse figure)"
_BOOST = " (boost clock of the tensor-core peak; the chip may boost to 1.98 GHz)"
H100 = _gpu(
    "h100",
    "H100 SXM",
    **_sm("9.0", 228, threads=2048, ctas=32),
    sms=(132, _HOPPER_PAPER),
    tensor_flops=(989.4e12, _HOPPER_PAPER),
    dram_bytes_per_s=(3.35e12, _H100_SHEET),
    l2_bytes=(50 * MIB, _HOPPER_PAPER),
    clock_hz=(1.83e9, _HOPPER_PAPER + _BOOST),
    memory_bytes=(80 * GIB, _H100_SHEET),
    power_w=(700, _H100_SHEET),
)

_H200_SHEET = "NVIDIA H200 Tensor Core GPU data sheet, H200 SXM"
H200 = replace(
    H100,
    key="h200",
    name="H200 SXM",
    dram_bytes_per_s=4.8e12,
    l2_bytes=60 * MIB,
    memory_bytes=141 * 10**9,
    sources=H100.sources
    | dict.fromkeys(("sms", "l2_bytes"), "torch.cuda.get_device_properties on an H200")
    | dict.fromkeys(("dram_bytes_per_s", "memory_bytes", "power_w"), _H200_SHEET)
    | {"tensor_flops": _H200_SHEET + " (the same compute die as H100; dense = half of the sparse figure)"},
)

_A6000_SHEET = "NVIDIA RTX A6000 data sheet"
_A6000_PAPER = "NVIDIA Ampere GA102 GPU Architecture white paper, RTX A6000 columns"
A6000 = _gpu(
    "a6000",
    "RTX A6000",
    **_sm("8.6", 100, threads=1536, ctas=16),
    sms=(84, _A6000_PAPER),
    tensor_flops=(154.8e12, _A6000_PAPER + " (dense; the data sheet's 310 TFLOP/s counts zeros)"),
    dram_bytes_per_s=(768e9, _A6000_SHEET),
    l2_bytes=(6 * MIB, _A6000_PAPER),
    clock_hz=(1.8e9, _A6000_PAPER + " (boost clock)"),
    memory_bytes=(48 * GIB, _A6000_SHEET),
    power_w=(300, _A6000_SHEET),
)

_OURS = "ours: a machine that fits on a page, with an SM like A100's and round rates"
_ROUND = {
    "sms": 4,
    "tensor_flops": 8e12,
    "dram_bytes_per_s": 80e9,
    "l2_bytes": 1 * MIB,
    "clock_hz": 1e9,
    "memory_bytes": 1 * GIB,
    "power_w": 15,
}
_TOY = _sm("", 164, threads=2048, ctas=32, source=_OURS) | {name: (value, _OURS) for name, value in _ROUND.items()}
TOY = _gpu("toy", "Toy with 4 SMs", **_TOY)

GPUS: dict[str, GPU] = {g.key: g for g in (A100, H100, H200, TOY, A6000)}


def gpu(key: str) -> GPU:
    """The GPU with this key."""
    if key not in GPUS:
        raise ValueError(f"gpu: got {key!r}, allowed are {', '.join(GPUS)}")
    return GPUS[key]

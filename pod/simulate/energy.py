"""What an iteration costs in energy: so much for a FLOP, for a byte from DRAM, and for every second of it.

Fitted to the power and the time of recorded runs of our engine with Llama-3-8B, by `calibrate.energy`; those of
Yi-6B and Llama-2-7B are held out, and within 5 % (tests/simulate/test_energy.py). FLOPs are those of the weight
matrices and of prefill attention, as many as the mask leaves; bytes are weights, keys and values, read once. All else
that a kernel does is in the constants, so they are of one GPU and one attention kernel.

The prices of single instructions (joules.py) lead to constants of the same form: products of 128 columns, bytes from L2
for tiles of 128 by 256, bytes from DRAM, watts of being awake. They give the runs with our kernel within 5 %, with
nothing fitted, so they are a second opinion where nothing was recorded, as on GPUs that only decode. They do not
replace the others, for they give up to a quarter less than the runs with FlashAttention-3.
"""

from dataclasses import dataclass

from pod.serving.events import Iteration
from pod.serving.loop import Watcher
from pod.serving.shapes import SHAPES, Shape
from pod.simulate.cost import Cost, in_turn
from pod.simulate.windows import OFFLINE


@dataclass(frozen=True)
class Energy:
    """Joules a FLOP, joules a byte, and watts while an iteration runs."""

    flop: float
    byte: float
    watts: float

    def joules(self, flops: float, nbytes: float, seconds: float) -> float:
        return self.flop * flops + self.byte * nbytes + self.watts * seconds


FA3 = Energy(flop=0.717e-12, byte=0.122e-9, watts=280.0)
RECORDED = {
    ("h200", "fa3"): FA3,
    ("h200", "fa3-h200"): FA3,
    ("h200", "hopper"): Energy(flop=0.891e-12, byte=0.0902e-9, watts=216.0),
}
# The same by prices of single instructions at full clock, nothing of an engine in them (tests/simulate/test_energy.py)
PRICED = {("h200", "hopper"): Energy(flop=1.168e-12, byte=0.0964e-9, watts=120.2)}
IDLE_WATTS = {"h200": 79.5}  # at rest; the card of data/recorded/h200/lean-energy.csv took 83.2 before its first call


def amounts(shape: Shape, event: Iteration) -> tuple[float, float]:
    """FLOPs and bytes of an iteration, on all of its GPUs."""
    pairs = sum(new * before + new * (new + 1) / 2 for _, new, before, _ in event.prefills)
    keys = sum(new + before for _, new, before, _ in event.prefills) + event.decode_context
    weights = shape.layers * shape.layer_weights
    flops = 2 * weights * event.tokens + 4 * shape.layers * shape.q_heads * shape.head_dim * pairs
    return flops, weights * shape.dtype_bytes + keys * shape.kv_bytes_per_token


class Meter:
    """Of servers of `cost.tp` GPUs each, as many as `replicas`, by constants of recorded runs unless told others."""

    def __init__(self, cost: Cost, replicas: int = 1, constants: dict[tuple[str, str], Energy] = RECORDED):
        if why := lacking(cost):
            raise ValueError(f"joules: {why}")
        self.shape, self.gpus, self.servers = cost.shape, cost.tp, replicas
        self._energy, self._idle = constants[cost.gpu.key, in_turn(cost.kernels)], IDLE_WATTS[cost.gpu.key]
        self._limit = cost.gpu.power_w

    def iteration(self, event: Iteration) -> float:
        """No more than the GPUs are allowed: at that limit clocks give way."""
        seconds = self.gpus * event.seconds
        return min(self._energy.joules(*amounts(self.shape, event), seconds), self._limit * seconds)

    def idle(self, seconds: float) -> float:
        return self._idle * self.gpus * seconds


class Spent(Watcher):
    """Hears of a run, and adds up the joules of its iterations."""

    def __init__(self, meter: Meter):
        self.meter, self.joules = meter, 0.0

    def started(self, event: Iteration) -> None:
        self.joules += self.meter.iteration(event)


def lacking(cost: Cost) -> str | None:
    """Why nobody can say what this system's iterations take; None where it was recorded."""
    if (cost.gpu.key, in_turn(cost.kernels)) not in RECORDED:
        return f"got {cost.kernels} on {cost.gpu.key}, recorded were fa3 and hopper on h200"
    if cost.attention_method not in ("serial", "pod"):
        return f"got attention {cost.attention_method}, recorded were serial and pod"
    if cost.pp > 1:
        return f"got a pipeline of {cost.pp} stages, recorded were servers without"
    return None


def basis(cost: Cost) -> str | None:
    """What joules stand on where no run of this system was recorded; None where one was."""
    if why := lacking(cost):
        return f"none ({why})"
    unlike = [] if cost.shape.key in OFFLINE else [cost.shape.name]
    unlike += [f"{cost.tp} GPUs"] if cost.tp > 1 else []
    unlike += [f"pod by {cost.kernels}"] if cost.attention_method == "pod" and cost.kernels != "hopper" else []
    recorded = " and ".join([", ".join(SHAPES[key].name for key in OFFLINE[:-1]), SHAPES[OFFLINE[-1]].name])
    return f"a guess for {' on '.join(unlike)} (from runs of {recorded} on one {cost.gpu.name})" if unlike else None

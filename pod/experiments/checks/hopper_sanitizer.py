"""The Hopper kernel under compute-sanitizer's memcheck, on small batches of every kind."""

from itertools import product

from pod.batch import HybridBatch
from pod.experiments.checks import sanitizer
from pod.kernels import sm90

RECORDING = "hopper-sanitizer"
KEYS = ("tool",)
UNITS = ("hopper",)
REPEATS = 1
TIMER, L2 = sanitizer.TIMER, sanitizer.L2


def cases() -> list[dict]:
    """Not racecheck: it does not know the copies and products that run beside the threads."""
    return [{"tool": "memcheck"}]


def measure(case: dict) -> dict:
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    for dtype, head_dim in product(("bfloat16", "float16"), (64, 128)):
        sm90.build_for(HybridBatch((1,), (1,), 16, 1, head_dim, dtype=dtype), device)
    return sanitizer.watched(case["tool"], __name__)


def batches() -> list[HybridBatch]:
    """Prefill alone with two and three warpgroups, split and whole; decode alone, cut and whole; and both."""
    made = []
    for head_dim, page_size, dtype in ((64, None, "bfloat16"), (64, 16, "float16"), (128, 64, "bfloat16"),
                                       (128, None, "float16")):  # fmt: skip
        for q_lens in ((300, 70), (1500, 900), (200, 1, 1, 70, *[1] * 6), (1,) * 5, (1,), (200, 4, 3, 2), (4, 3)):
            kv_lens = [max(q, 2000 - 190 * i) for i, q in enumerate(q_lens)]
            made.append(HybridBatch(q_lens, kv_lens, 16, 4, head_dim, page_size, dtype))
    return made


def runs() -> list[tuple[HybridBatch, str]]:
    """Each with its method: single tokens alone both as few rows of prefill and, with "lean", as decode."""
    made = [(batch, "hopper") for batch in batches()]
    return made + [(batch, "lean") for batch, _ in made if max(batch.q_lens) == 1]


if __name__ == "__main__":
    for batch, method in runs():
        sanitizer.launch(batch, {"method": method})
    print(f"launches {len(runs())}", flush=True)

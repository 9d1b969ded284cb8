"""Does the engine compute the same with every attention, with graphs and without? On a GPU, in a few seconds.

python -m pod.lab.measure.check_engine [ATTENTION ...]
"""

import sys
import time
from dataclasses import replace

from pod.serving.shapes import shape

CHECKED = ("fa3", "fa3-one", "hopper", "hopper-serial", "lean", "pod", "serial", "flashinfer", "fa2")
PAGE, PROMPTS, OUTPUT = 64, (700, 33, 1500, 5, 260), 24


def run(attention: str, graphs: bool | str, dtype, chunk: int = 256, page: int = PAGE, group=None, device="cuda"):
    """Logits of every token that comes out, in order, and the log: five prompts that share hybrid batches. Of several
    processes that share the layers only the first has any."""
    import numpy as np
    import torch

    from pod.serving.blocks import PagedPool
    from pod.serving.engine import Engine, answer
    from pod.serving.model import Group, Llama, random_weights
    from pod.serving.schedulers import Sarathi

    small = replace(shape("llama-3-8b"), layers=3, hidden=512, q_heads=8, kv_heads=2, ffn=1024, vocab=4096)
    model = Llama(small, random_weights(0, 3, device), device, dtype, group or Group())
    pool, rows = PagedPool(100, page), []

    def forced(logits, requests):
        """Everybody goes on with the same tokens, so that a near tie does not lead to another text."""
        rows.append(logits.float())
        tokens = [(31 * r.id + 7 * r.generated) % small.vocab for r in requests]
        return torch.tensor(tokens, device=device)

    engine = Engine(model, pool, attention, forced, graphs=graphs)
    if model.group.rank:
        engine.follow()
        return None, None
    random = np.random.default_rng(0)
    texts = [random.integers(0, small.vocab, n).tolist() for n in PROMPTS]
    answers, log = answer(engine, Sarathi(pool, 8, chunk=chunk), texts, OUTPUT)
    engine.close()
    if any(len(a.tokens) != OUTPUT for a in answers):
        raise RuntimeError(f"answers: got {[len(a.tokens) for a in answers]} tokens, allowed are {OUTPUT} each")
    return torch.cat(rows), log


def main() -> int:
    import torch

    truth, _ = run("sdpa", False, torch.float32)
    torchs, _ = run("sdpa", False, torch.bfloat16)
    bound = 2 * float((torchs - truth).abs().max())
    print(f"largest error of a logit against float32; torch's own attention in bfloat16: {bound / 2:.4f}", flush=True)
    bad = 0
    for attention in sys.argv[1:] or CHECKED:
        for graphs in (False, True):
            try:
                begin = time.perf_counter()
                got, log = run(attention, graphs, torch.bfloat16)
                error, seconds = float((got - truth).abs().max()), time.perf_counter() - begin
            except ModuleNotFoundError as missing:
                print(f"{attention:<14} not installed ({missing.name})", flush=True)
                break
            except Exception as failure:
                print(f"{attention:<14} graphs {graphs!s:<6} FAILS: {type(failure).__name__}: {failure}", flush=True)
                bad += 1
                continue
            verdict = "ok" if error < bound else "WRONG"
            bad += verdict != "ok"
            gpu = sum(e.stages[0][1] - e.stages[0][0] for e in log.iterations) / log.iterations[-1].end
            line = f"{attention:<14} graphs {graphs!s:<6} error {error:.4f} {verdict:<6} {seconds:5.1f} s"
            print(f"{line}, GPU busy {gpu:.0%}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

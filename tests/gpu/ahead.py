"""The kernels that the tests of this folder ask for, built side by side: one after the other they take ten minutes.

python tests/gpu/ahead.py    # on a card, before the tests; says how far it is
"""

import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from pod.attention import METHODS
from pod.batch import HybridBatch
from pod.kernels import build, sm90

FOLDER = Path(__file__).parent
Asked = Iterable[tuple[str, HybridBatch]]  # methods, each with a batch that a test plans by it


def modules() -> list:
    """The files of tests that say by `asked` what they plan."""
    here = [import_module(path.stem) for path in sorted(FOLDER.glob("test_*.py"))]
    return [module for module in here if hasattr(module, "asked")]


def kinds(asked: Asked, device) -> list[tuple[build.Family, str]]:
    """What pod.build would build for them, each once."""
    shapes = {(method, replace(batch, q_lens=(2,), kv_lens=(2,))) for method, batch in asked}
    found = set()
    with patch.object(build, "operator", lambda family, kind, device: found.add((family, kind))):
        for method, shape in shapes:
            if method != "hopper" or sm90.available(device):
                METHODS[method].build_for(shape, device)
    return sorted(found, key=lambda one: (one[0].name, one[1]))


def build_all(wanted: list[tuple[build.Family, str]], device) -> None:
    begin = time.perf_counter()
    with build.ahead(), ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(copy_context().run, build.operator, *kind, device) for kind in wanted]
        for done, job in enumerate(as_completed(jobs), 1):
            job.result()
            print(f"{done} of {len(jobs)} kernels after {time.perf_counter() - begin:.0f} s", flush=True)


def main() -> None:
    import torch

    sys.path.insert(0, str(FOLDER.parent))  # where pytest would find what the tests share
    device = torch.device("cuda", torch.cuda.current_device())
    build_all(kinds((one for module in modules() for one in module.asked()), device), device)


if __name__ == "__main__":
    main()

"""The kernels that the tests of this folder ask for, built side by side: one after the other they take ten minutes.

python tests/gpu/ahead.py [FILE ...]    # on a card, before the tests, or before those of some files; says how far it is
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


def modules(names: Iterable[str] = ()) -> list:
    """The files of tests that say by `asked` what they plan; of these names, if there are any."""
    paths = [FOLDER / name for name in names] or sorted(FOLDER.glob("test_*.py"))
    if missing := [path.name for path in paths if not path.is_file()]:
        raise SystemExit(f"ahead.py: got {missing[0]}, allowed are files of tests/gpu")
    here = [import_module(path.stem) for path in paths]
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
    build_all(kinds((one for module in modules(sys.argv[1:]) for one in module.asked()), device), device)


if __name__ == "__main__":
    main()

"""The kernels that the tests of this folder ask for, built side by side: one after the other they take ten minutes.

python tests/gpu/ahead.py [FILE ...]    # on a card, before the tests, or before those of some files; says how far it is
"""

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from pod.lab.measure.ahead import build_all, kinds

FOLDER = Path(__file__).parent


def modules(names: Iterable[str] = ()) -> list:
    """The files of tests that say by `asked` what they plan; of these names, if there are any."""
    paths = [FOLDER / name for name in names] or sorted(FOLDER.glob("test_*.py"))
    if missing := [path.name for path in paths if not path.is_file()]:
        raise SystemExit(f"ahead.py: got {missing[0]}, allowed are files of tests/gpu")
    here = [import_module(path.stem) for path in paths]
    return [module for module in here if hasattr(module, "asked")]


def main() -> None:
    import torch

    sys.path.insert(0, str(FOLDER.parent))  # where pytest would find what the tests share
    device = torch.device("cuda", torch.cuda.current_device())
    build_all(kinds((one for module in modules(sys.argv[1:]) for one in module.asked()), device), device)


if __name__ == "__main__":
    main()

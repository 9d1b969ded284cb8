"""`python -m pod site`: refuses before any work what is missing, and has the site built."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

NEEDS = ("latex2mathml", "nbconvert", "pygments")


def configure(parser) -> None:
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder to write to (default: site)")
    parser.add_argument("--repository", default=os.environ.get("GITHUB_REPOSITORY", ""), metavar="OWNER/NAME",
                        help="on GitHub: links there, to Binder and Colab (default: $GITHUB_REPOSITORY)")  # fmt: skip


def run(args) -> int:
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise ValueError(f"packages: got none of {', '.join(missing)}, allowed are those of pip install -e '.[dev]'")
    if args.repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", args.repository):
        raise ValueError(f"--repository: got {args.repository!r}, allowed is OWNER/NAME")
    from pod.lab.site import build

    return build.run(args)

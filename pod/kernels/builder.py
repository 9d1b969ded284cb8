"""Compiles one torch extension in a process of its own: `build` starts it, and `main` is it.

torch hands its compilers the environment of the process that it runs in, and leaves them running when that one is
killed. In a process of its own, the environment is nobody else's, and whoever started it takes all of it along: the
builder ends, with its compilers, when its standard input does.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pod.files import ROOT


def build(folder: Path, include: Sequence[Path], environment: dict[str, str], **options) -> str:
    """Call load_inline(**options) in `folder`, where the library then lies. Returns what was said of a failure."""
    path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", **environment}  # for folders with umlauts
    command = [sys.executable, "-c", "from pod.kernels.builder import main; main()", *map(str, include)]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, start_new_session=True) as builder:  # fmt: skip
        try:
            builder.stdin.write(json.dumps(options).encode() + b"\n")
            builder.stdin.flush()
        except BrokenPipeError:  # it has ended already, and says why
            pass
        said = builder.stdout.read().decode(errors="replace")
    return said or f"it ended with {builder.returncode}" if builder.returncode else ""


def _end_with_the_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGTERM)


def main() -> None:
    options = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    from torch.utils import cpp_extension

    # torch quotes the folders of its headers, and not the one where its libraries are.
    cpp_extension.TORCH_LIB_PATH = shlex.quote(cpp_extension.TORCH_LIB_PATH)
    try:
        cpp_extension.load_inline(extra_include_paths=sys.argv[1:], build_directory=os.getcwd(), is_python_module=False,
                    no_implicit_headers=True, **options)  # fmt: skip
    except Exception as error:
        sys.exit(str(error))

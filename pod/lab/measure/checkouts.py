"""Kernels of another state of these sources, beside today's: of an earlier commit, or of a copy with something changed.

Each has a process of its own, since a process can load one library of a name; while one measures, the others wait.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pod.files import ROOT
from pod.lab.mutate import Mistake


class Worker:
    """A process that runs `program` with the package of a checkout. It answers each line of JSON with one."""

    def __init__(self, checkout: Path, program: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", program]
        self.checkout = checkout
        self._process = subprocess.Popen(command, cwd=checkout, env=environment, text=True, **pipes)

    def ask(self, question) -> object:
        self.tell(question)
        return self.hear()

    def tell(self, question) -> None:
        """Ask, and let others be asked before the answer is heard: to build, which all may do at once."""
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self.hear()

    def hear(self) -> object:
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"the process that measures the kernels of {self.checkout} ended")
        return json.loads(answer)


def changed(changes: Iterable[Mistake], folder: Path) -> Path:
    """A copy of package and kernels in `folder`, with these changes; their files count from the top."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("pod", "csrc"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for change in changes:
        change.apply(folder)
    return folder

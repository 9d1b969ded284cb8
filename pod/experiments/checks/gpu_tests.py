"""The tests of tests/gpu, as they went on this card. Each says how it went at once: an interrupted run tells how far it
came, and goes on with the first file that has no row."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from pod.files import ROOT

RECORDING = "gpu-tests"
KEYS = ("file",)
UNITS = ("hybrid", "hopper", "lean")
REPEATS = 1
TIMER, L2 = "wall clock of pytest in a process of its own", "warm"
FOLDER = ROOT / "tests" / "gpu"


def cases() -> list[dict]:
    return [{"file": path.name} for path in sorted(FOLDER.glob("test_*.py"))]


def measure(case: dict) -> dict:
    if ended := _python(str(FOLDER / "ahead.py"), case["file"]):
        raise RuntimeError(f"ahead.py ended with {ended}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        start = time.perf_counter()
        ended = _python("-m", "pytest", "-v", f"--junitxml={report}", str(FOLDER / case["file"]))
        if ended not in (0, 1):
            raise RuntimeError(f"{case['file']}: pytest ended with {ended}")
        return counted(report) | {"seconds": round(time.perf_counter() - start, 1)}


def _python(*arguments: str) -> int:
    """Its exit status. What it says it says here, as it goes."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command, env = [sys.executable, "-u", *arguments], os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=env).returncode


def counted(report: Path) -> dict[str, int]:
    suite = ElementTree.parse(report).getroot().find("testsuite")
    failed, skipped = int(suite.get("failures")) + int(suite.get("errors")), int(suite.get("skipped"))
    return {"passed": int(suite.get("tests")) - failed - skipped, "failed": failed, "skipped": skipped}

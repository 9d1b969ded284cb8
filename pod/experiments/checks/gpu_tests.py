"""The tests of tests/gpu, as they went on this card."""

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
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(FOLDER / case["file"])]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        print(done.stdout[-6000:] if done.returncode else "", end="", flush=True)
        return counted(report) | {"seconds": round(time.perf_counter() - start, 1)}


def counted(report: Path) -> dict[str, int]:
    suite = ElementTree.parse(report).getroot().find("testsuite")
    failed, skipped = int(suite.get("failures")) + int(suite.get("errors")), int(suite.get("skipped"))
    return {"passed": int(suite.get("tests")) - failed - skipped, "failed": failed, "skipped": skipped}

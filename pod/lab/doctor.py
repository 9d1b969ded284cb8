"""What this machine can do, and the one command that mends each lack. Nothing here needs a GPU, and nothing builds."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pod.files import INSTALLED, ROOT


@dataclass(frozen=True)
class Check:
    """One row of the report. `mend` is the command that removes the lack, "" when nothing lacks."""

    name: str
    found: str
    mend: str = ""
    known: bool = True

    @property
    def line(self) -> str:
        state = "lacks" if self.mend else "ok" if self.known else "?"
        mend = f"\n{'':19}mend it: {self.mend}" if self.mend else ""
        return f"{state:<7}{self.name:<12}{self.found}{mend}"


def badge() -> None:
    """Print, in one line, how kernels run here: on a GPU, on the CPU emulator, or as recorded results."""
    print(_mode_line())


def _mode_line() -> str:
    from pod.kernels import mode

    here = mode()
    return f"mode: {here.name} · {here.reason}"


# ---------------------------------------------------------------- the checks, in the order in which they are printed


def check_python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if (3, 10) <= sys.version_info[:2] <= (3, 13):
        return Check("Python", found)
    return Check("Python", f"{found}; 3.10 to 3.13 are supported", "make env PYTHON=/path/to/python3.12")


def check_packages() -> Check:
    """The packages that run the code and the notebooks, against the versions of constraints.txt."""
    pins = re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    missing = [name for name, _ in pins if _installed(name) is None]
    if missing:
        return Check("packages", f"not installed: {', '.join(missing)}", _pip("-e '.[dev]'"))
    other = [f"{name} {_installed(name)}" for name, pin in pins if _installed(name) != pin]
    note = f"; not the tested version: {', '.join(other)}" if other else ""
    return Check("packages", f"all {len(pins)} of constraints.txt{note}")


def check_gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        card = cards[0]
        found = f"{len(cards)} × {card.name}, {card.multi_processor_count} SMs, {card.total_memory / 2**30:.0f} GiB"
        old = "" if (card.major, card.minor) >= (8, 0) else "; older than sm_80, so our kernels do not run on it"
        return Check("GPU", found + old)
    driver = _output("nvidia-smi", "-L")
    if driver is not None and driver.startswith("GPU"):
        found = f"{driver.splitlines()[0]}, but torch {torch.__version__} cannot use it"
        return Check("GPU", found, _pip("--force-reinstall torch"))
    return Check("GPU", "none; no chapter needs one")


def check_nvcc() -> Check:
    import torch

    from pod.kernels import build

    release, wanted = build.cuda(), torch.version.cuda or ""
    if release is None:
        need = "none, and the GPU's kernels cannot be built" if wanted else "none; needed only with a GPU"
        return Check("nvcc", need, _cuda(wanted) if torch.cuda.is_available() else "")
    found = "{}.{}".format(*release)
    if wanted and str(release[0]) != wanted.partition(".")[0]:
        return Check("nvcc", f"{found}, but torch was built with CUDA {wanted}", _cuda(wanted))
    if build.too_old("90a"):
        hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        needed = "{}.{}".format(*build.OLDEST_CUDA["90a"])
        return Check("nvcc", f"{found}; the Hopper kernel needs {needed}", _cuda(wanted) if hopper else "")
    return Check("nvcc", found)


def check_compiler() -> Check:
    from pod.kernels import build

    if name := build.compiler():
        return Check("C++", _output(*name.split(), "--version").splitlines()[0])
    if os.environ.get("CXX"):
        mend = "unset CXX"
    elif platform.system() == "Darwin":
        mend = "xcode-select --install"
    else:
        mend = _install("g++", "gxx", dnf="gcc-c++")
    return Check(
        "C++", f"no compiler that knows C++20 (tried {', '.join(build.compilers())}); the emulator needs one", mend
    )


def check_ninja() -> Check:
    """Torch starts ninja by name; the package puts it beside the interpreter, which need not be on PATH."""
    path = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
    found = path and _output(path, "--version")
    return Check("ninja", found) if found else Check("ninja", "none; kernels cannot be built", _pip("ninja"))


def check_mode() -> Check:
    return Check("mode", _mode_line().removeprefix("mode: "))


def check_recordings() -> Check:
    from pod import data
    from pod.lab.measure import provenance

    count, stale = len(provenance.recordings()), provenance.stale()
    if not stale:
        return Check("recordings", f"{count} files, all made by the present kernels" if count else "none yet")
    names = ", ".join(sorted(path.relative_to(data.RECORDED).as_posix() for path in stale))
    return Check("recordings", f"{len(stale)} of {count} made by other kernels: {names}", "make measure  (on that GPU)")


CHECKS: dict[str, Callable[[], Check]] = {
    "Python": check_python,
    "packages": check_packages,
    "GPU": check_gpu,
    "nvcc": check_nvcc,
    "C++": check_compiler,
    "ninja": check_ninja,
    "mode": check_mode,
    "recordings": check_recordings,
}
OF_A_CLONE = ("packages", "recordings")  # a wheel has neither constraints.txt nor data/


def examine() -> list[Check]:
    """All checks. One that fails becomes a row too: a doctor does not faint."""

    def look(name: str, check: Callable[[], Check]) -> Check:
        try:
            return check()
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            mend = _pip("-e '.[dev]'") if isinstance(error, ImportError) else ""
            return Check(name, f"could not look: {reason}", mend, known=False)

    return [look(name, check) for name, check in CHECKS.items() if not (INSTALLED and name in OF_A_CLONE)]


# ---------------------------------------------------------------- helpers


def _output(*command: str) -> str | None:
    """What a command prints; None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed(package: str) -> str | None:
    """Version without its local part: torch 2.13.0+cpu is torch 2.13.0."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return None


def _pip(what: str) -> str:
    return f"{os.path.relpath(sys.executable)} -m pip install -c constraints.txt {what}"


def _cuda(version: str) -> str:
    """The toolkit of torch's CUDA. Its packages are in NVIDIA's own repository, not in the distribution's."""
    install = _install(f"cuda-toolkit-{version.replace('.', '-')}", f"cuda-nvcc={version}")
    return install if install.startswith("conda") else f"{install}  (first https://developer.nvidia.com/cuda-downloads)"


def _install(apt: str, conda: str, dnf: str | None = None) -> str:
    for manager, package in (("apt-get", apt), ("dnf", dnf or apt)):
        if shutil.which(manager):
            return f"sudo {manager} install {package}"
    return f"conda install -c conda-forge {conda}"


def configure(parser) -> None:
    """No options."""


def run(args) -> int:
    checks = examine()
    print("\n".join(check.line for check in checks))
    return 1 if any(check.mend for check in checks) else 0

"""The Hopper kernel as the compiler sees it: no spill, nothing serialised, the instructions that its speed rests on."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pod.files import ROOT
from pod.kernels import build, sm90
from pod.lab.measure import sources
from pod.schedule.work import NARROW

CSRC = ROOT / "csrc" / "sm90"
SOURCE = "hybrid.cu"
OPTIONS = ["-std=c++17", "-O3", "-DNDEBUG", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "--cubin",
           f"-I{ROOT / 'csrc'}", f"-I{CSRC}"]  # fmt: skip
ROWS = [(head_dim, rows) for head_dim in (64, 128) for rows in (0, 8, 16) if head_dim == 64 or rows]
NARROWS = [(head_dim, NARROW.decode_rows) for head_dim in (64, 128)]
# The others take as long again: fp16, and rules with other pages. Of capped scores some words spill.
KINDS = [sm90.kind("bfloat16", *shape, page) for shape in ROWS + NARROWS for page in sm90.PAGES]
KINDS += [sm90.kind("bfloat16", *shape, 16, rules) for shape in ROWS for rules in (("window",), ("window", "sinks"))]
CAPPED = [sm90.kind("bfloat16", *shape, 16, rules) for shape in ROWS for rules in (("softcap",), ("window", "softcap"))]
KINDS8 = [sm90.kind("bfloat16", *shape) for shape in ((128, 8, 16), (128, 16, 16), (128, 8, 8), (64, 8, 0))]
MOST_SPILLED, FEW_SPILLED, SPILLED8 = 120, 92, 16  # bytes; of 8 bits a word of the warp that widens K, once a block


def test_the_kernel_stays_small_and_is_our_own():
    files = sorted(path for path in CSRC.iterdir() if path.suffix in (".cu", ".cuh", ".cpp", ".h"))
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    plan = [lines.pop(name) for name in ("plan.cu", "plan.h", "plan_bindings.cpp")]  # makes its lists
    assert len(lines) == 4 and sum(lines.values()) < 1800 and sum(plan) < 550, lines
    for path in files:
        assert not re.search(r"#\s*include.*(cutlass|cute/)", path.read_text(encoding="utf-8")), path.name


def _nvcc() -> tuple[str, str]:
    """The compiler and its version; skips when it is missing or too old for sm_90a."""
    if build.nvcc() is None:
        pytest.skip("no nvcc here")
    if old := build.too_old("90a"):
        pytest.skip(old)
    return build.nvcc(), "{}.{}".format(*build.cuda())


@pytest.fixture(scope="module")
def built() -> tuple[str, Path]:
    """What ptxas said, and the cubin. Compiled once for each state of the sources, comments left out."""
    nvcc, version = _nvcc()
    text = "\n".join([f'#include "{SOURCE}"', *(sm90.HOPPER.kinds[kind][1] for kind in KINDS + CAPPED),
                      *(sm90.HOPPER8.kinds[kind][1] for kind in KINDS8), ""])  # fmt: skip
    key = hashlib.sha256(repr((sources.digest([CSRC / SOURCE]), text, version, OPTIONS)).encode()).hexdigest()[:16]
    folder = ROOT / ".cache" / "hopper" / key
    said, cubin = folder / "ptxas.txt", folder / "hybrid90.cubin"
    if not said.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "all.cu").write_text(text, encoding="utf-8")
        command = [nvcc, *OPTIONS, "-o", str(cubin), str(folder / "all.cu")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        said.write_text(done.stdout + done.stderr, encoding="utf-8")
    return said.read_text(encoding="utf-8"), cubin


@pytest.mark.timeout(600)
def test_every_instantiation_keeps_all_in_registers(built):
    said, _ = built
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    kernels = re.findall(r"Compiling entry function '(\S+)' for 'sm_90a'", said)
    assert len(set(kernels)) == len(spills) == len(KINDS + CAPPED + KINDS8)
    for name, (_, *spilled) in zip(kernels, spills, strict=True):
        *_, rules, bits = _numbers(name)
        most = 2 * MOST_SPILLED if rules & 2 else SPILLED8 if bits == 8 else FEW_SPILLED if rules else 0
        assert sum(map(int, spilled)) <= most, name
    assert set(re.findall(r"Used (\d+) registers", said)) == {"128"}, "512 threads share 65,536"


def _numbers(name: str) -> tuple[int, ...]:
    """head_dim, size of pages, rows of decode, rules and bits of K and V of a kernel."""
    return tuple(map(int, re.search(5 * r"Li(\d+)E", name).groups()))


def test_ptxas_serialises_no_wgmma(built):
    """C7504 to C7519 tell that it waits where the code does not, even those that it calls "info"."""
    said, _ = built
    assert not re.findall(r".*C75\d\d.*", said)


def _sass(cubin: Path) -> dict[str, str]:
    """The machine code of each kernel."""
    if shutil.which("cuobjdump") is None:
        pytest.skip("no cuobjdump on PATH")
    text = subprocess.run(["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    _, *parts = re.split(r"Function : (\S+)", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_machine_code_has_what_the_speed_rests_on(built):
    """Prefill's wide wgmma and, unless it is alone, decode's narrow one; no local memory; no older, starving mma."""
    code = _sass(built[1])
    assert len(code) == len(KINDS + CAPPED + KINDS8)
    for name, text in code.items():
        _, _, rows, rules, bits = _numbers(name)
        assert "HGMMA.64x128x16" in text and (rows < 8 or f"HGMMA.64x{rows}x16" in text), name
        assert rules & 2 or bits == 8 or not re.findall(r"\b(?:LDL|STL)\b", text), name
        assert not re.findall(r"\bHMMA\b", text) and ("F2FP.F16.E4M3.UNPACK_B" in text) == (bits == 8), name

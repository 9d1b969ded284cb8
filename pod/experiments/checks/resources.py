"""What every kernel of the sm_80 family takes of an SM: registers and shared memory, as the compiler reports them.

Registers, shared memory and spills of every kernel of csrc/sm80/hybrid.cu. `python -m pod compute resources` needs
nvcc, but no GPU. Spills would mean that a tile is too large for a thread's registers.
"""

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from pod.batch import HEAD_DIMS
from pod.data import read
from pod.hardware import GPUS, KIB
from pod.kernels import build, fusion
from pod.kernels.sm80 import HYBRID, kind
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="Registers and shared memory of every binding, and the CTAs that an SM holds",
    says="Two CTAs fill an SM's registers or its shared memory, whichever way both kinds are bound",
    chapter="08",
    method="nvcc's report (python -m pod compute resources); bf16, head dimension 128.",
    state="done",
    data=("resources",),
)
COMPUTED = "resources"
KEYS, READS = ("arch", "dtype", "head_dim", "ctas_per_sm", "binding"), ()
UNITS = ("hybrid",)
ARCHS = {"sm_80": (8, 0), "sm_90": (9, 0)}
BINDINGS = ("OnlyPrefill", "OnlyDecode", "ByBlock", "ByWarp", "ByTicket")
REGISTERS_PER_SM = 65536

# What nvcc does not say of shared memory that is asked for at launch, printed by a host program from the same source.
SIZES = """
#include <cstdio>
template <class T, int kD, int kCtas> void sizes() {
    using S = Shape<T, kD, kCtas>;
    int i = 0;
    const auto print = [&](int threads, int smem) { printf("%d %d %d %d %d\\n", kD, kCtas, i++, threads, smem); };
    print(S::template threads<OnlyPrefill>(), S::template smem<OnlyPrefill>());
    print(S::template threads<OnlyDecode>(), S::template smem<OnlyDecode>());
    print(S::template threads<ByBlock>(), S::template smem<ByBlock>());
    print(S::template threads<ByWarp>(), S::template smem<ByWarp>());
    print(S::template threads<ByTicket>(), S::template smem<ByTicket>());
}
template <int kD> void all_sizes() { sizes<__half, kD, 2>(), sizes<__half, kD, 4>(), sizes<__half, kD, 8>(); }
int main() { all_sizes<64>(), all_sizes<128>(); }
"""


def cases() -> list[dict]:
    return [{"arch": arch, "dtype": dtype, "head_dim": head_dim}
            for arch in ARCHS for dtype in build.DTYPES for head_dim in HEAD_DIMS]  # fmt: skip


def measure(case: dict) -> list[dict]:
    """One row a kernel for this kind of tensor."""
    capability = ARCHS[case["arch"]]
    return _rows(case["head_dim"], capability, _compile(kind(case["dtype"], case["head_dim"]), capability))


def _compile(name: str, capability: tuple[int, int]) -> str:
    """What ptxas says while it compiles one kind of kernel."""
    _, text = build.sources(HYBRID, (name,))
    flags = build.flags(HYBRID, capability)["extra_cuda_cflags"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.cu")
        source.write_text(text)
        command = ["nvcc", *flags, "-Xptxas", "-v", f"-I{build.CSRC}", "-cubin", str(source), "-o", f"{source}.bin"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc failed:\n{done.stderr[:4000]}")
    return done.stderr + done.stdout


@cache
def _sizes(capability: tuple[int, int]) -> dict[tuple[int, int, str], tuple[int, int]]:
    """(head_dim, CTAs an SM, binding) -> threads, bytes of shared memory."""
    flags = ["-std=c++20", "-DPOD_EMULATE", "-w", f"-DPOD_SMEM_PER_SM={build.smem_per_sm(capability)}"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "sizes.cpp"), Path(folder, "sizes")
        source.write_text((build.CSRC / HYBRID.kernels).read_text() + SIZES)
        command = ["c++", *flags, f"-I{build.CSRC}", str(source), "-o", str(program)]
        subprocess.run(command, check=True)
        lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    numbers = [tuple(map(int, line.split())) for line in lines]
    return {(d, ctas, BINDINGS[i]): (threads, smem) for d, ctas, i, threads, smem in numbers}


def _rows(head_dim: int, capability: tuple[int, int], report: str) -> list[dict]:
    sizes = _sizes(capability)
    entry = re.compile(
        r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        re.S,
    )
    rows = []
    for mangled, stores, loads, registers in entry.findall(report):
        binding = next(b for b in BINDINGS if f"{len(b)}{b}" in mangled)
        ctas = int(re.search(rf"Li{head_dim}ELi(\d)E", mangled)[1])
        threads, smem = sizes[head_dim, ctas, binding]
        per_warp = -(-int(registers) * 32 // 256) * 256  # registers are given to warps in units of 256
        by_registers = REGISTERS_PER_SM // (per_warp * threads // 32)
        by_smem = build.smem_per_sm(capability) // (smem + 1024)
        rows.append({
            "ctas_per_sm": ctas, "binding": binding, "threads": threads, "registers": int(registers),
            "smem_bytes": smem, "spill_bytes": int(stores) + int(loads), "resident_ctas": min(by_registers, by_smem),
        })  # fmt: skip
    return sorted(rows, key=lambda r: (r["ctas_per_sm"], BINDINGS.index(r["binding"])))


# ---------------------------------------------------------------- what it shows

NAMES = {
    "OnlyPrefill": "prefill alone",
    "OnlyDecode": "decode alone",
    "ByBlock": fusion.NAMES["cta"],
    "ByWarp": fusion.NAMES["warp"],
    "ByTicket": fusion.NAMES["sm-aware"],
}
ARCHITECTURES = {"sm_80": "a100", "sm_90": "h200"}


def table():
    """One row an architecture, CTAs an SM and binding; percentages are of the SM, with as many CTAs as are meant."""
    df = read("resources")
    df = df[(df.dtype == "bfloat16") & (df.head_dim == 128) & (df.ctas_per_sm < 8)]  # eight are never chosen
    df = df.reset_index(drop=True)
    sm = [GPUS[ARCHITECTURES[arch]] for arch in df.arch]
    ctas = df.ctas_per_sm // (1 + (df.binding == "ByWarp"))  # a CTA of two halves counts twice
    out = df[["arch", "ctas_per_sm"]].assign(binding=df.binding.map(NAMES), threads=df.threads, registers=df.registers)
    return out.assign(
        smem_kb=df.smem_bytes / KIB,
        spill_bytes=df.spill_bytes,
        ctas_that_fit=df.resident_ctas,
        registers_percent=100 * df.registers * df.threads * ctas / [g.registers_per_sm for g in sm],
        smem_percent=100 * (df.smem_bytes + KIB) * ctas / [g.smem_per_sm for g in sm],
    )


def draw(df):
    """Both resources of an SM, side by side, for two CTAs of each kernel on an SM: a box a CTA."""
    two = df[df.ctas_per_sm == 2]
    panels = style.axes(9.5, 2.9, columns=2, sharey=True)
    for ax, (arch, rows) in zip(panels, two.groupby("arch", sort=False), strict=True):
        y = np.arange(len(rows))
        for name, column, offset, colour in (("registers", "registers_percent", -0.2, style.WORKERS[1]),
                                             ("shared memory", "smem_percent", 0.2, style.WORKERS[6])):  # fmt: skip
            boxes = np.where(rows.binding == NAMES["ByWarp"], 1, 2)
            for i in range(2):
                mine = boxes > i
                wide = (rows[column] / boxes)[mine]
                ax.barh(y[mine] + offset, wide, left=i * wide, height=0.36, color=colour, edgecolor="white",
                        linewidth=1.5, label=name)  # fmt: skip
        ax.axvline(100, color=style.INK, linewidth=1, linestyle="--")
        ax.set_yticks(y, rows.binding)
        ax.set(xlim=(0, 112), ylim=(len(rows) - 0.5, -0.5), xlabel="% of an SM; a box is a CTA")
        ax.set_title(f"{arch} ({ARCHITECTURES[arch].upper()})", fontsize=10, loc="left")
    style.legend(panels[1], loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.1)
    return panels[0].figure

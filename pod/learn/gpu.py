"""A cell on a GPU: nvcc compiles the text as it is, with a launch for each kernel, as a torch inline extension."""

import ctypes
import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pod import files
from pod.kernels import build, builder
from pod.learn import faults
from pod.learn.rewrite import Cell

WORDS = (
    "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_runtime.h>\n#include <cstdint>\n#include <cstdio>\n"
)
LAUNCH = """
extern "C" int pod_launch_{name}(const unsigned* s, unsigned smem, void* stream, void** arguments) {{
    const auto* const kernel = reinterpret_cast<const void*>({name});
    const dim3 grid(s[0], s[1], s[2]), block(s[3], s[4], s[5]);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return cudaLaunchKernel(kernel, grid, block, arguments, smem, static_cast<cudaStream_t>(stream));
}}
"""


def source(cell: Cell) -> str:
    return f'{WORDS}#line 1 "cell"\n{cell.text}' + "".join(LAUNCH.format(name=name) for name in cell.kernels)


@cache
def _library(text: str, of: str, capability: tuple[int, int]) -> ctypes.CDLL:
    """Built unless it is in the cache. `of`: the cell's text, to quote."""
    arch = "{}{}".format(*capability)
    name = f"cell-gpu-{hashlib.sha256(f'{text} {arch} {build.cuda()}'.encode()).hexdigest()[:16]}"
    if library := files.kept(f"learn/{name}.so"):
        return ctypes.CDLL(str(library))
    build.require_tools(gpu=True)
    library = files.folder("learn") / f"{name}.so"
    options = {"name": name, "cpp_sources": [], "cuda_sources": [text], "extra_cflags": ["-std=c++17"],
               "extra_cuda_cflags": ["-std=c++17", "-O2", f"-gencode=arch=compute_{arch},code=sm_{arch}"]}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        environment = {"PATH": build._path(), "CXX": build.compiler()}
        if said := builder.build(Path(folder), [], environment, **options):
            if faults.COMPLAINT.search(said):
                raise faults.complaint(said, of)
            raise build.BuildError(f"the cell could not be built for the GPU: {said.strip().splitlines()[-1]}")
        files.keep(next(Path(folder).glob("*.so")), library)
    return ctypes.CDLL(str(library))


def launch(launch, arguments: Sequence) -> None:
    import torch

    from pod.learn.arguments import LaunchError, packed

    cell = launch.kernel.module.cell
    device = next(x.device for x in arguments if isinstance(x, torch.Tensor))
    library = _library(source(cell), cell.text, torch.cuda.get_device_capability(device))
    values = [
        ctypes.create_string_buffer(x.data_ptr().to_bytes(8, "little") if p.pointer else packed(p, x))
        for p, x in zip(launch.kernel.parameters, arguments, strict=True)
    ]
    pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
    shape = (ctypes.c_uint * 6)(*launch.grid, *launch.block)
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    function = getattr(library, f"pod_launch_{launch.kernel.name}")
    with torch.cuda.device(device):
        status = function(shape, launch.smem, stream, pointers)
    if status:
        raise LaunchError(f"{launch.kernel.name}: the launch failed with CUDA error {status}")

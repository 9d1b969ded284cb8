"""Kernels of csrc/micro that need no tensors, so no torch extension: a library for ctypes, compiled for this card."""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from pod.files import CSRC


@cache
def library(name: str) -> ctypes.CDLL:
    """csrc/micro/<name>.cu."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    capability = torch.cuda.get_device_capability()
    arch = "{}{}".format(*capability) + ("a" if capability == (9, 0) else "")  # Hopper's own instructions
    made, source = Path(tempfile.mkdtemp()) / f"{name}.so", CSRC / "micro" / f"{name}.cu"
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    flags = ["-std=c++20", "-O3", target, "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([Path(CUDA_HOME, "bin", "nvcc"), *flags, source, "-o", made], check=True)
    return ctypes.CDLL(str(made))


def checked(status: int) -> None:
    if status:
        raise RuntimeError(f"csrc/micro: the launch failed with CUDA error {status}")


def stream() -> ctypes.c_void_p:
    import torch

    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def pointer(x) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())

"""Builds the emulator's test kernels with the host compiler and calls them through ctypes."""

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pod.kernels.build import plain, pointer

HERE = Path(__file__).parent
STRICT, QUIET = ["-O2", "-Wall", "-Wextra", "-Werror"], ["-O2", "-w"]


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """One of the test sources here; the Hopper kernel is written for another compiler's warnings."""
    return plain(HERE / f"{name}.cu", QUIET if name.startswith("hybrid90") else STRICT, also=[HERE])


@contextmanager
def events_in_order(seed: int) -> Iterator[None]:
    """Emulated kernels run their warps and copies in another order for each seed; 0: in the emulator's own."""
    os.environ["POD_EMULATE_SEED"] = str(seed)
    try:
        yield
    finally:
        del os.environ["POD_EMULATE_SEED"]


def call(name: str, function: str, *args) -> str | None:
    """Run an exported function; arrays go as pointers. Returns its error text, or None."""
    run = getattr(library(name), function)
    run.restype = ctypes.c_char_p
    text = run(*[pointer(a) for a in args])
    return text.decode() if text else None


def bits16(x: np.ndarray, half: int) -> np.ndarray:
    """float32 values that 16 bits hold exactly -> those bits."""
    return x.astype(np.float16).view(np.uint16) if half else (x.view(np.uint32) >> 16).astype(np.uint16)

"""What a kernel of a cell takes: the tensors and numbers of a launch, checked, and as bytes."""

import struct
from collections.abc import Sequence
from numbers import Integral, Real

from pod.learn.faults import CellError
from pod.learn.rewrite import TYPES, Parameter

PACKED = {
    "float32": "f",
    "float64": "d",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "int16": "h",
    "bool": "?",
}


class LaunchError(CellError, ValueError):
    """A launch that does not fit its kernel."""


# ---------------------------------------------------------------- arguments


def check_arguments(kernel, arguments: Sequence) -> str:
    """The type of the device on which all tensors lie; "cpu" without any."""
    import torch

    if len(arguments) != len(kernel.parameters):
        raise LaunchError(f"{kernel.name}: got {len(arguments)} arguments, allowed are {len(kernel.parameters)}: "
                          f"{', '.join(map(str, kernel.parameters))}")  # fmt: skip
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        (_check_tensor if parameter.pointer else _check_number)(parameter, argument)
    devices = dict.fromkeys(x.device.type for x in arguments if isinstance(x, torch.Tensor)) or ["cpu"]
    if len(devices) > 1 or not {"cpu", "cuda"} & set(devices):
        raise LaunchError(f"{kernel.name}: got tensors on {' and '.join(devices)}, allowed is one device, cpu or cuda")
    return next(iter(devices))


def _check_tensor(parameter: Parameter, x) -> None:
    import torch

    wanted = TYPES.get(parameter.type, "float32" if "float" in parameter.type else "int32")
    if not isinstance(x, torch.Tensor):
        raise LaunchError(f"{parameter.name}: got {x!r:.60}, allowed is a tensor (`{parameter}`)")
    if x.dtype != getattr(torch, wanted):
        raise LaunchError(f"{parameter.name}: got {x.dtype}, allowed is torch.{wanted} (`{parameter}`)")
    if x.layout != torch.strided or x.is_nested:
        raise LaunchError(f"{parameter.name}: got {'nested' if x.is_nested else x.layout}, allowed is a dense tensor")
    if not x.is_contiguous():
        raise LaunchError(
            f"{parameter.name}: got strides {x.stride()}, allowed is a contiguous tensor: say .contiguous()"
        )


def _check_number(parameter: Parameter, x) -> None:
    kind = TYPES[parameter.type]
    if isinstance(x, bool) != (kind == "bool") or not isinstance(x, Real if "float" in kind else Integral):
        raise LaunchError(
            f"{parameter.name}: got {x!r:.60}, allowed is a {'' if 'float' in kind else 'whole '}number (`{parameter}`)"
        )
    try:
        packed(parameter, x)
    except (struct.error, OverflowError):
        raise LaunchError(f"{parameter.name}: got {x!r}, allowed is what fits `{parameter.type}`") from None


def packed(parameter: Parameter, x) -> bytes:
    """A number as the kernel's parameter has it."""
    kind = TYPES[parameter.type]
    if kind in ("float16", "bfloat16"):
        import torch

        return torch.tensor(x, dtype=getattr(torch, kind)).view(torch.int16).numpy().tobytes()
    return struct.pack("<" + PACKED[kind], x)

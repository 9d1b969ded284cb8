"""The SMs of a GPU in two parts, with a stream of each: green contexts of the CUDA driver (12.4 or later)."""

import ctypes
from functools import cache

SM, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1  # CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_..., CU_STREAM_...


class Resource(ctypes.Structure):
    """CUdevResource of cuda.h; of what it may hold, the count of SMs."""

    _fields_ = [("type", ctypes.c_int), ("_padding", ctypes.c_ubyte * 92), ("sms", ctypes.c_uint),
                ("_rest", ctypes.c_ubyte * 44)]  # fmt: skip


@cache
def split(sms: int) -> list[tuple[object, int]]:
    """A stream for `sms` SMs and one for the others, each with the count it has got: the driver rounds up."""
    device, whole, part, rest = ctypes.c_int(), Resource(), Resource(), Resource()
    _call("cuDeviceGet", ctypes.byref(device), 0)
    _call("cuDeviceGetDevResource", device, ctypes.byref(whole), SM)
    groups = ctypes.c_uint(1)
    _call("cuDevSmResourceSplitByCount", ctypes.byref(part), ctypes.byref(groups), ctypes.byref(whole),
          ctypes.byref(rest), 0, ctypes.c_uint(sms))  # fmt: skip
    return [(_stream(device, resource), resource.sms) for resource in (part, rest)]


def _stream(device, resource: Resource):
    import torch

    what, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuDevResourceGenerateDesc", ctypes.byref(what), ctypes.byref(resource), 1)
    _call("cuGreenCtxCreate", ctypes.byref(context), what, device, DEFAULT_STREAM)
    _call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, NON_BLOCKING, 0)
    return torch.cuda.ExternalStream(stream.value)


def _call(name: str, *arguments) -> None:
    if error := getattr(_driver(), name)(*arguments):
        raise RuntimeError(f"{name}: got error {error} of the CUDA driver")


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")

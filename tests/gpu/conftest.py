"""Tests that run on a card. Without one each is skipped with the reason, and the summary says that none ran."""

import pytest

from pod import kernels
from pod.attention import METHODS


@pytest.fixture(autouse=True)
def gpu():
    if kernels.mode().name != "gpu":
        pytest.skip(kernels.mode().reason)
    import torch

    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(params=METHODS)
def method(request, gpu):
    """Every method that this card runs."""
    import torch

    if request.param == "hopper" and torch.cuda.get_device_capability(gpu) != (9, 0):
        pytest.skip(f"{torch.cuda.get_device_name(gpu)} has no compute capability 9.0, which 'hopper' needs")
    return request.param


@pytest.fixture
def hopper(gpu):
    from pod.kernels import sm90

    if not sm90.available(gpu):
        import torch

        pytest.skip(f"{torch.cuda.get_device_name(gpu)} has no compute capability 9.0, which the Hopper kernel needs")

"""Tests that run on a card. Without one each is skipped with the reason, and the summary says that none ran."""

from unittest.mock import patch

import pytest

from pod import kernels
from pod.attention import METHODS
from pod.kernels import build


@pytest.fixture(scope="session", autouse=True)
def built(request):
    """All kernels that the tests at hand ask for, side by side; who asks for another one must say so in `asked`."""
    if kernels.mode().name != "gpu":
        yield
        return
    import ahead
    import torch

    device, late, compile_ = torch.device("cuda", torch.cuda.current_device()), [], build._build
    here = {item.module for item in request.session.items if hasattr(getattr(item, "module", None), "asked")}
    with build._locked(build.files.folder("kernels") / "gpu-tests"):  # of several processes the first one builds
        ahead.build_all(ahead.kinds((one for module in here for one in module.asked()), device), device)
    with patch.object(build, "_build", lambda *kind: late.append(kind[:2]) or compile_(*kind)):
        yield
    assert not late, f"asked: got nothing of {[(family.name, *kinds) for family, kinds in late]}, which a test built"


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

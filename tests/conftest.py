"""Settings shared by all tests."""

import os

import matplotlib
import pytest
from hypothesis import settings

from pod import kernels

matplotlib.use("Agg")  # no test opens a window

# The same examples everywhere: a red run can be repeated. HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Without a compiler, what runs a kernel is skipped with the reason; everything else must work."""
    try:
        return (yield)
    except kernels.BuildError as error:
        if kernels.mode().name == "recorded":
            pytest.skip(str(error))
        raise

"""Settings shared by all tests."""

import os

import matplotlib
from hypothesis import settings

matplotlib.use("Agg")  # no test opens a window

# The same examples everywhere: a red run can be repeated. HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

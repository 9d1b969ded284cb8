from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pod.lab.measure import provenance


@pytest.fixture
def unwatched(monkeypatch):
    """The watch of clock and power sees nothing."""
    seen = SimpleNamespace(summary=lambda: {"sm_clock_mhz": {"median": 0}, "power_w": {"median": 0}})
    monkeypatch.setattr(provenance, "watch", lambda seconds: nullcontext(seen))

"""Work for every card of a machine: a process each, and errors are heard. Nothing heavy is imported here, for every
process imports this again."""

import math
import os
import sys
from types import SimpleNamespace

import pytest

from pod.lab.measure import provenance, ranks


def process(item: int) -> tuple[int, int]:
    return item, os.getpid()


def test_each_item_has_a_process_of_its_own():
    found = ranks.each(process, [1, 2, 3], cards=2)
    assert [item for item, _ in found] == [1, 2, 3] and len({pid for _, pid in found} - {os.getpid()}) == 3


def test_who_fails_is_heard():
    with pytest.raises(ValueError):
        ranks.each(math.sqrt, [1, -1], cards=1)


def test_a_process_that_is_killed_is_heard_too():
    with pytest.raises(RuntimeError, match="ended without one"):
        ranks.each(os._exit, [3], cards=1)


def load_a_peer(item):
    sys.modules["vllm"] = SimpleNamespace()
    return item


def test_what_a_process_of_its_own_has_loaded_is_in_the_sidecar(monkeypatch):
    """The server's rows are measured in processes that begin for one run and end with it."""
    monkeypatch.setattr(provenance, "_by_workers", set())
    assert ranks.each(load_a_peer, [7], cards=1) == [7]
    assert "vllm" in provenance.loaded()
    assert "vllm" not in sys.modules and provenance._packages()["vllm"] == "unknown"

"""What the kernels are given stays what it was, to the bit, unless somebody says that it should not."""

import json

import pytest

pytest.importorskip("torch")


def test_the_work_lists_of_random_batches_are_those_that_were_recorded():
    from worklists import FILE, hashes

    recorded, now = json.loads(FILE.read_text(encoding="utf-8")), hashes()
    assert recorded.keys() == now.keys()
    assert [name for name in now if now[name] != recorded[name]] == []

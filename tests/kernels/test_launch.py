"""The plan on the device: the same names on both sides of the boundary, and lists that arrive as they were made."""

import re

import numpy as np
import pytest

from pod.kernels import fusion, launch
from pod.kernels.build import CSRC
from pod.kernels.launch import flat, write


@pytest.mark.parametrize(
    "header, file, struct",
    [(launch.Header, "include/hybrid.h", "Header"), (fusion.Header, "micro/fusion.h", "FusionHeader")],
)
def test_python_and_cpp_call_the_numbers_the_same(header, file, struct):
    text = (CSRC / file).read_text(encoding="utf-8")
    body = re.sub(r"//.*", "", re.search(rf"struct {struct} \{{(.*?)\n\}};", text, re.DOTALL)[1])
    lines = [line.split(maxsplit=1) for line in body.split(";") if line.strip()]
    assert {kind for kind, _ in lines} == {"int"}
    assert tuple(name.strip() for _, names in lines for name in names.split(",")) == header._fields


def test_lists_lie_one_after_the_other_and_zeros_behind_them():
    records = tuple(np.array([i, 100 + i]) for i in range(12))
    lists = (records, np.array([7, 8, 9]), np.zeros(0, int))
    want = [*range(12), *range(100, 112), 7, 8, 9]
    assert flat(lists).tolist() == want
    assert write(lists, np.full(30, -1, np.int32)).tolist() == [*want, 0, 0, 0]

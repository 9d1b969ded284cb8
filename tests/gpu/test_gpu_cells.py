"""CUDA in a cell on a card: the text that the emulator ran is compiled for it, and gives what it should."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pod import kernels, learn
from pod.lab import notebooks
from pod.learn import gpu as on_gpu
from pod.learn import judge

PUZZLES = [name for name, exercise in judge.exercises().items() if exercise.chapter == "first_kernels"]


def solution(name: str):
    """The first kernel of its part."""
    text = (notebooks.FOLDER / "solutions" / "first_kernels.md").read_text(encoding="utf-8")
    return getattr(learn.cuda(re.search(rf"^## {name}$.*?```cuda\n(.*?)```", text, re.DOTALL | re.MULTILINE)[1]), name)


@pytest.fixture(scope="module", autouse=True)
def built(built):
    """All of them, side by side."""
    if kernels.mode().name == "gpu":
        capability = torch.cuda.get_device_capability()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            cells = pool.map(lambda name: solution(name).module.cell, PUZZLES)
            list(pool.map(lambda cell: on_gpu._library(on_gpu.source(cell), cell.text, capability), cells))


@pytest.mark.parametrize("name", [name for name in PUZZLES if name != "where"])
def test_the_solution_of_a_puzzle_is_right_on_a_card(name):
    kernel = solution(name)
    for case in judge.exercises()[name].cases:
        given = case.arguments()
        wanted = case.wanted(*[x.clone() if isinstance(x, torch.Tensor) else x for x in given])
        on_card = [x.cuda() if isinstance(x, torch.Tensor) else x for x in given]
        kernel[case.grid, case.block](*on_card)
        for i, should in zip(case.outs.values(), wanted, strict=True):
            torch.testing.assert_close(on_card[i].cpu(), should, rtol=1e-4, atol=1e-5)


def test_every_cta_finds_an_sm_of_this_card(gpu):
    sms = torch.cuda.get_device_properties(gpu).multi_processor_count
    ctas = torch.zeros(2 * sms, dtype=torch.int32, device=gpu)
    sm_of = torch.full((500,), -1, dtype=torch.int32, device=gpu)
    solution("where")[500, 64](ctas, sm_of)
    assert ctas.sum() == 500 and torch.equal(sm_of.long().bincount(minlength=2 * sms).int(), ctas)


def test_a_mistake_is_told_by_the_line_of_the_cell():
    kernel = learn.cuda("__global__ void k(float* x) {\n    x[threadIdx.x] = 1;\n}").k
    two = learn.cuda("__global__ void k(float* x, float* y) { x[0] = y[0]; }").k
    with pytest.raises(learn.LaunchError, match="got tensors on cuda and cpu|allowed is one device"):
        two[1, 32](torch.zeros(1).cuda(), torch.zeros(1))
    with pytest.raises(learn.LaunchError, match="the emulator watches"):
        kernel[1, 32].watch(torch.zeros(32, device="cuda"))

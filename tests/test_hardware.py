from dataclasses import fields

import numpy as np
import pytest

from pod.hardware import A100, GPU, GPUS, H100, H200, TOY, gpu

NUMBERS = {f.name for f in fields(GPU)} - {"key", "name", "sources"}


@pytest.mark.parametrize("g", GPUS.values(), ids=GPUS)
def test_every_number_names_its_source(g):
    assert set(g.sources) == NUMBERS
    assert all(g.sources.values())


def test_tensor_peak_follows_from_sms_and_clock():
    """The tensor cores of an SM do 2048 dense fp16 FLOPs a clock on A100, twice that on Hopper."""
    for g, flops_per_clock in ((A100, 2048), (H100, 4096), (H200, 4096)):
        assert g.tensor_flops == pytest.approx(g.sms * flops_per_clock * g.clock_hz, rel=1e-3)


def test_ridges():
    assert [round(g.ridge) for g in (A100, H100, H200, TOY)] == [153, 295, 206, 100]


@pytest.mark.parametrize("g", GPUS.values(), ids=GPUS)
def test_roofline_bends_at_the_ridge(g):
    nbytes = 1e9
    assert g.compute_time(g.ridge * nbytes) == pytest.approx(g.memory_time(nbytes))
    assert g.roofline_time(0.5 * g.ridge * nbytes, nbytes) == g.memory_time(nbytes)
    assert g.roofline_time(2 * g.ridge * nbytes, nbytes) == g.compute_time(2 * g.ridge * nbytes)
    np.testing.assert_allclose(g.attainable(np.array([0.5, 1, 2]) * g.ridge), np.array([0.5, 1, 1]) * g.tensor_flops)


def test_one_cta_fits_into_an_sm():
    for g in GPUS.values():
        assert g.smem_per_cta + 1024 == g.smem_per_sm, "CUDA keeps 1 KiB of shared memory for each CTA"


def test_lookup_by_key():
    assert gpu("h200") is H200
    with pytest.raises(ValueError, match="gpu: got 'v100', allowed are a100, h100, h200, toy"):
        gpu("v100")


@pytest.mark.parametrize("x", [-1, -0.5, float("nan"), np.array([1.0, -2.0]), np.int64(-3)])
def test_negative_amounts_are_refused(x):
    for name, function in (("flops", A100.compute_time), ("nbytes", A100.memory_time), ("intensity", A100.attainable)):
        with pytest.raises(ValueError, match=rf"^{name}: got (-|nan).*, allowed are numbers from 0 on$"):
            function(x)

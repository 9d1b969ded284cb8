"""What the compiler says of every kernel: no spills, and as many CTAs an SM as the tiles are made for."""

import shutil

import pytest

from pod.data import read
from pod.experiments.checks import resources

with_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")


def fits(row) -> bool:
    """Whether an SM holds the CTAs that the configuration promises; a CTA of two halves counts twice. Eight have no
    room in an A100's shared memory, and are never chosen."""
    halves = 2 if row["binding"] == "ByWarp" else 1
    least = 7 if int(row["ctas_per_sm"]) == 8 else int(row["ctas_per_sm"])
    return int(row["resident_ctas"]) * halves >= least


def test_the_table_knows_every_kernel_and_none_spills():
    rows = read("resources").to_dict("records")
    assert len(rows) == len(resources.cases()) * 3 * len(resources.BINDINGS)
    assert [r for r in rows if r["spill_bytes"]] == []
    assert [r for r in rows if not fits(r)] == []


@with_nvcc
def test_default_kernels_compile_without_spills():
    rows = resources.measure({"arch": "sm_90", "dtype": "bfloat16", "head_dim": 128})
    assert len(rows) == 3 * len(resources.BINDINGS)
    assert [r for r in rows if r["spill_bytes"]] == []
    assert all(fits(r) for r in rows)

"""What the compiler says of every kernel: no spills, and as many CTAs an SM as the tiles are made for."""

import csv
import shutil

import pytest

from pod.measure import resources

with_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")


def fits(row) -> bool:
    """Whether an SM holds the CTAs that the configuration promises; a CTA of two halves counts twice."""
    halves = 2 if row["binding"] == "ByWarp" else 1
    return int(row["resident_ctas"]) * halves >= int(row["ctas_per_sm"])


def test_recorded_table_knows_every_kernel_and_none_spills():
    with resources.TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(resources.CAPABILITIES) * 4 * 2 * len(resources.BINDINGS)
    assert [r for r in rows if r["spill_bytes"] != "0"] == []
    assert [r for r in rows if not fits(r)] == []


@with_nvcc
def test_recorded_table_is_of_these_sources():
    with resources.TABLE.open(newline="", encoding="utf-8") as file:
        made_of = {row["csrc"] for row in csv.DictReader(file)}
    assert made_of == {resources.fingerprint()}, "kernels changed: run python -m pod.measure.resources"


@with_nvcc
def test_default_kernels_compile_without_spills():
    rows = resources.measure((9, 0), ("bfloat16_128",))
    assert len(rows) == 2 * len(resources.BINDINGS)
    assert [r for r in rows if r["spill_bytes"]] == []
    assert all(fits(r) for r in rows)

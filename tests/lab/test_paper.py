"""The quoted numbers are complete, well-formed, and admit where their source contradicts itself."""

import csv
from collections import Counter

import pytest

from pod.experiments.checks import check_numbers
from pod.lab import paper, registry
from pod.lab.figure import SOURCES


def test_columns_and_places():
    for path in paper.FOLDER.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            assert next(csv.reader(file)) == paper.COLUMNS, path.name
    for number in paper.numbers().values():
        assert number.unit and number.where and number.how, number.id
        assert number.how in {"text", "table", "caption", "figure text", "computed from the print"}, number.id
        assert number.id.split(".")[0] in SOURCES, number.id


def test_numbers_of_figures_belong_to_registered_figures():
    known = {figure.id for figure in registry.figures()}
    assert {n.figure for n in paper.numbers().values()} - {""} <= known


def test_tables_are_complete():
    count = Counter(".".join(i.split(".")[:2]) for i, n in paper.numbers().items() if n.how == "table")
    assert count["pod.t1"] == 3 * 6
    assert count["pod.t4"] == count["pod.t5"] == 2 * 3 * 8
    assert count["pod.t6"] == 4 * 4
    assert count["pod.t7"] == 4 * 5


def test_table_6_repeats_table_4():
    for metric in ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99"):
        assert paper.value(f"pod.t6.vllm.{metric}") == paper.value(f"pod.t4.1.1.vllm.{metric}")
        assert paper.value(f"pod.t6.1536.{metric}") == paper.value(f"pod.t4.1.1.pod.{metric}")


def test_text_repeats_tables():
    for said, table in (
        ("s531.ttft_p50_internal_sarathi", "t4.1.2.sarathi.ttft_p50"),
        ("s531.ttft_p50_arxiv_sarathi", "t5.0.95.sarathi.ttft_p50"),
        ("s531.ttft_p50_internal_pod", "t4.1.2.pod.ttft_p50"),
        ("s531.ttft_p50_arxiv_pod", "t5.0.95.pod.ttft_p50"),
        ("s532.tbt_p99_internal_vllm", "t4.1.2.vllm.tbt_p99"),
        ("s533.pod_latency_internal_from", "t4.1.2.vllm.latency_p99"),
        ("s533.pod_latency_arxiv_to", "t5.0.95.pod.latency_p99"),
        ("s533.chunk_ttft_from", "t6.1024.ttft_p50"),
        ("s533.chunk_tbt_to", "t6.2048.tbt_p99"),
    ):
        assert paper.value(f"pod.{said}") == pytest.approx(paper.value(f"pod.{table}"), abs=0.05), said


def test_every_contradiction_is_noted():
    rows = check_numbers.table()
    differing = rows[rows.verdict == check_numbers.DIFFERS].id
    assert len(differing) == 15
    assert [i for i in differing if not paper.numbers()[i].note] == []


def test_unknown_id():
    with pytest.raises(ValueError, match="unknown paper number 'pod.f99.x'"):
        paper.value("pod.f99.x")


def test_text_with_unit():
    names = ("pod.abstract.speedup_mean", "lean.abstract.a100_mean", "pod.f15.pd_low")
    shown = {name: paper.numbers()[name].text for name in names}
    assert list(shown.values()) == ["28 %", "1.73x", "P:D 8"]


@pytest.mark.parametrize(("stated", "relation", "value", "verdict"), [
    ("plus34.t1.smem_gain", "=", 1.104, "agrees"),
    ("plus34.t1.smem_gain", "=", 1.2, "differs"),
    ("pod.s532.vllm_stalled_500", ">", 97.8, "agrees"),
    ("pod.s532.vllm_stalled_500", ">", 90.0, "differs"),
    ("pod.s532.sarathi_stalled", "<", 5.07, "differs"),
])  # fmt: skip
def test_check_notices(stated, relation, value, verdict):
    other = "t1.base_requests" if "plus34" in stated else "s53.requests"
    check = check_numbers.Check(stated, "", lambda *_: value, other, relation)
    assert check.outcome()["verdict"] == verdict


def test_check_allows_rounding_of_the_inputs():
    """6.25 % is not 10 %, but 0.15 and 0.16 are printed so coarsely that 10 % is possible."""
    rows = check_numbers.table().set_index("id")
    row = rows.loc["pod.s532.tbt_p99_pod_gain_low"]
    assert row.verdict == check_numbers.ROUNDING and row.low < 10 < row.high

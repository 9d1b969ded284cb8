"""The page that puts the server under load, on a CPU with a model of two layers."""

from dataclasses import replace

import pytest

for package in ("starlette", "uvicorn", "prometheus_client", "psutil"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[dev]'")

from pod.experiments.engine import server as page  # noqa: E402

SMALL = page.Load("tiny", 4, 2, (5, 40), (4, 12), 3, 300, 600, (
    "--device", "cpu", "--chunk", "32", "--batch", "8", "--block-size", "4", "--pages", "400"))  # fmt: skip


@pytest.fixture(scope="module")
def small():
    with page.server(SMALL, "auto") as one:
        one.wait()
        yield one


def test_nobody_is_lost_among_people_who_vanish_and_people_who_are_rude(small):
    row = page.row(small, SMALL)
    assert (row["asked"], row["lost"], row["gone"], row["refused"], row["pages_held"]) == (8, 0, 1, 1, 0)
    assert row["tokens"] == sum(SMALL.question(i)["max_tokens"] for i in range(8))
    assert row["same_first_percent"] == 100 and row["same_percent"] > 90, "in float32 hardly a tie is near"
    assert 0 < row["ttft_p50_ms"] <= row["ttft_p99_ms"] and 0 < row["tbt_p50_ms"] <= row["tbt_most_ms"]
    assert 0 < row["host_mib_before"] < row["host_mib_after"] + 50 and row["gpu_mib_after"] >= 0


def test_an_answer_that_breaks_off_is_lost_and_one_that_comes_otherwise_is_seen(small):
    question = SMALL.question(1)
    whole, cut = page.ask(small, question), page.ask(small, question, 2)
    assert whole.complete and not cut.complete and cut.tokens == whole.tokens[:2]
    other = replace(whole, tokens=[*whole.tokens[:-1], "-1"])
    assert page._same([whole], [other])["same_percent"] == round(100 * (1 - 1 / len(whole.tokens)), 1)
    assert page._counted([whole, cut], 1.0)["lost"] == 1


def test_a_server_that_is_gone_loses_its_answers():
    with page.server(SMALL, "auto") as one:
        one.wait()
        assert one.meters()["pod_pages"] == 400 and one.end() == 0
        assert not page._heard(one, SMALL.question(0)).complete


def test_a_server_that_cannot_start_says_so():
    with page.server(replace(SMALL, model="gpt-3-175b"), "auto") as one, pytest.raises(RuntimeError, match="with 2 be"):
        one.wait()


def test_every_way_has_its_row():
    assert [case["attention"] for case in page.cases()] == list(page.WAYS) and len(page.WAYS) % page.AT_ONCE == 0


def test_ours_and_other_peoples_attention_differ_in_colour():
    df = page.table()
    for ax in page.draw(df).axes:
        tones = dict(zip(df.attention, (bar.get_facecolor() for bar in ax.patches), strict=True))
        ours = {tone for way, tone in tones.items() if way.startswith("ours")}
        assert len(ours) == 1 and ours.isdisjoint(tone for way, tone in tones.items() if not way.startswith("ours"))

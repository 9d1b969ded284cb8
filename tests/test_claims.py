"""Claims refer to stated numbers, are measured by code that exists, and fail only with a reason."""

import json
import math

import pytest

from pod import claims, paper
from pod.__main__ import main
from pod.claims import FAILS, HOLDS, OPEN, Result
from pod.figures import registry

CLAIMS = claims.load()
GOOD = """
[[claim]]
id = "a"
statement = "s"
paper = "pod.abstract.speedup_mean"
measure = "gain, %"
kind = "number"
band = [18.7, 42.0]
"""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_claim(claim):
    assert claim.statement and claim.measure and claim.source
    assert claim.shown_in == "" or registry.find(claim.shown_in)
    stated = claim.number.value
    if claim.kind == "number" and not isinstance(stated, str):
        assert claim.band[0] <= stated <= claim.band[1], "a band of kind number lies around what is stated"
    result = claims.judge(claim)
    assert (result.verdict == OPEN) == (claim.ours == "")
    assert result.ours is None or math.isfinite(result.ours)
    assert result.verdict != FAILS or claim.note, "a claim that fails says why in its note"


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.kind == "number"], ids=lambda c: c.id)
def test_bands_follow_the_rule(claim):
    """The gain within a factor of 1.5 both ways; a claim that departs from it says so in a note."""
    stated, unit = claim.number.value, claim.number.unit
    if unit not in ("%", "x") or claim.note:
        return
    base = 1 if unit == "x" else 0
    rule = sorted(base + (stated - base) * factor for factor in (1 / 1.5, 1.5))
    assert list(claim.band) == pytest.approx(rule, rel=0.02), claim.id


def test_every_paper_and_post_has_claims():
    assert {c.paper.split(".")[0] for c in CLAIMS if c.paper} == set(registry.SOURCES)


def test_our_own_claims_name_a_figure():
    ours = GOOD.replace('paper = "pod.abstract.speedup_mean"\n', "")
    with pytest.raises(ValueError, match="a claim of ours names the figure"):
        claims.load(ours)
    claim = claims.load(ours + 'figure = "pod-11"')[0]
    assert claim.source == registry.OURS and claim.number.text == "" and claim.shown_in == "pod-11"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('statement = "s"\n', "", "missing .*'statement'"),
        ('kind = "number"', 'kind = "hope"', "kind is 'hope'; allowed: ordering, trend, number"),
        ("speedup_mean", "speedup_modest", "allowed are the ids of data/paper"),
        ("[18.7, 42.0]", "[42.0, 18.7]", "allowed is \\[low, high\\]"),
        ("[18.7, 42.0]", '["18.7", 42.0]', "allowed is \\[low, high\\]"),
        ('kind = "number"', 'kind = "number"\nfigure = "pod-99"', "unknown figure 'pod-99'"),
        ('kind = "number"', 'kind = "number"\nours_is = "great"', "unexpected keyword argument 'ours_is'"),
    ],
)
def test_malformed_claims_are_refused(old, new, message):
    assert old in GOOD
    with pytest.raises(ValueError, match=message):
        claims.load(GOOD.replace(old, new))


def test_twice_the_same_id_is_refused():
    with pytest.raises(ValueError, match="id a appears twice"):
        claims.load(GOOD + GOOD)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(28.0, HOLDS), (18.7, HOLDS), (42.1, FAILS), (math.nan, FAILS), (None, OPEN)]
)
def test_verdict(ours, verdict):
    assert Result(claims.load(GOOD)[0], ours).verdict == verdict


def test_open_band():
    claim = claims.load(GOOD.replace("42.0", "inf"))[0]
    assert Result(claim, 1e9).verdict == HOLDS
    assert Result(claim, 1e9).band_text == "at least 18.7"
    assert Result(claim, 30.0).as_json()["band"] == [18.7, None]


def test_ours_is_called():
    claim = claims.load(GOOD + 'ours = "math:sqrt"')[0]
    with pytest.raises(TypeError):  # sqrt wants an argument: the expression was really called
        claims.judge(claim)
    assert claims.judge(claims.load(GOOD + 'ours = "pod.figures.pod_t1:c1"')[0]).ours == pytest.approx(0.73, abs=0.01)


def test_json_is_strict_and_complete(capsys):
    assert main(["claims", "--json"]) == 0

    def refuse(constant):
        raise ValueError(constant)

    rows = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert [row["id"] for row in rows] == [claim.id for claim in CLAIMS]
    keys = ["id", "source", "statement", "paper", "ours", "kind", "band", "verdict"]
    assert all(list(row) == keys for row in rows)
    mean = next(row for row in rows if row["id"] == "pod-speedup-mean")
    assert mean["paper"] == 28 and mean["source"] == "POD-Attention, Abstract" and mean["band"] == [18.7, 42.0]


def test_table_has_a_line_a_claim(capsys):
    assert main(["claims"]) == 0
    out = capsys.readouterr().out
    assert all(f" {claim.id}: " in out for claim in CLAIMS)
    assert f"{sum(c.ours == '' for c in CLAIMS)} are {OPEN}" in out


def test_headlines_fit_the_readme():
    rows = claims.markdown().splitlines()
    assert 12 <= len(rows) - 2 <= 20
    assert all(row.count("|") == 5 for row in rows)
    assert "| Batch C1 is balanced | balanced | 0.73 | holds |" in rows


def test_markdown_shows_a_failure_with_its_reason(monkeypatch):
    text = GOOD + 'headline = true\nnote = "because"\nours = "pod.figures.pod_t1:c1"'
    failing = claims.load(text)
    monkeypatch.setattr(claims, "load", lambda: failing)
    assert "| 28 % | 0.73 % | does not hold: because |" in claims.markdown()


def test_units():
    limited = next(c for c in CLAIMS if c.id == "pod-limited-split")
    assert Result(limited, 0.7312).ours_text == "0.731"
    assert Result(next(c for c in CLAIMS if c.id == "plus34-total"), 1.3).ours_text == "1.3x"
    assert paper.numbers()[limited.paper].text == "0.73 of serial"

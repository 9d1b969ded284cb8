"""Claims refer to stated numbers, are measured by code that exists, and fail only with a reason."""

import json
import math
import re
import shutil

import pytest

from pod.__main__ import main
from pod.experiments.pod import pod_11
from pod.files import ROOT
from pod.lab import bands, claims, paper, registry
from pod.lab.claims import CANNOT, FAILS, HOLDS, OPEN, Result
from pod.lab.figure import OURS, SOURCES

CLAIMS = claims.load()
STATEMENTS = {c.statement for c in CLAIMS}
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
    assert (result.verdict == OPEN) == (not claim.ours or claim.page.FIGURE.lacks != ())
    assert result.ours is None or math.isfinite(result.ours)
    assert result.verdict not in (FAILS, CANNOT) or result.why, "a claim that fails says why in its note"
    assert result.verdict == OPEN or (result.evidence in claims.EVIDENCE and result.base.startswith(claim.measure))
    assert "{" not in result.base + result.why


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
    assert {c.paper.split(".")[0] for c in CLAIMS if c.paper} == set(SOURCES)


def test_our_own_claims_name_a_figure():
    ours = GOOD.replace('paper = "pod.abstract.speedup_mean"\n', "")
    with pytest.raises(ValueError, match="a claim of ours names the figure"):
        claims.load(ours)
    claim = claims.load(ours + 'figure = "pod-11"')[0]
    assert claim.source == OURS and claim.number.text == "" and claim.shown_in == "pod-11"


@pytest.mark.parametrize(("old", "new", "message"), [
    ('statement = "s"\n', "", "missing .*'statement'"),
    ('kind = "number"', 'kind = "hope"', "kind is 'hope'; allowed: ordering, trend, number"),
    ("speedup_mean", "speedup_modest", "allowed are the ids of data/paper"),
    ("[18.7, 42.0]", "[42.0, 18.7]", "allowed is \\[low, high\\]"),
    ("[18.7, 42.0]", '["18.7", 42.0]', "allowed is \\[low, high\\]"),
    ('kind = "number"', 'kind = "number"\nfigure = "pod-99"', "unknown figure 'pod-99'"),
    ('kind = "number"', 'kind = "number"\nevidence = "felt"', "evidence is 'felt'; allowed: measured, simulated"),
    ('kind = "number"', 'kind = "number"\nours_is = "great"', "unexpected keyword argument 'ours_is'"),
])  # fmt: skip
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
    assert Result(claim, 1e9).band_text == "at least 18.7 †"
    assert Result(claim, 30.0).as_json()["band"] == [18.7, None]


def test_ours_is_on_a_page():
    with pytest.raises(ValueError, match="page: got 'math', allowed are the files of pod/experiments, as pod-06"):
        claims.judge(claims.load(GOOD + 'ours = "math:sqrt"')[0])


def test_ours_is_called():
    claim = claims.load(GOOD + 'ours = "pod-11:near_peak"')[0]
    with pytest.raises(TypeError):  # it wants an argument: the expression was really called
        claims.judge(claim)
    assert claims.judge(claims.load(GOOD + 'ours = "pod-t1:ratio(C1)"')[0]).ours == pytest.approx(0.73, abs=0.01)


def test_of_many_numbers_the_claim_names_one():
    gains = pod_11.gains("pod")
    for which, one in (("min", gains.min()), ("max", gains.max()), ("mean", gains.mean()), ("median", gains.median())):
        claim = claims.load(GOOD + f'ours = "pod-11:gains(pod).{which}"')[0]
        assert claims.judge(claim).ours == one and claim.filled(f"{{gains(pod).{which}:.2f}} %") == f"{one:.2f} %"
    with pytest.raises(
        ValueError, match="ours: got 'pod-11:gains.pod..std', allowed is page:function, .* and .min, .max"
    ):
        claims.judge(claims.load(GOOD + 'ours = "pod-11:gains(pod).std"')[0])


def test_json_is_strict_and_complete(capsys):
    assert main(["claims", "--json"]) == 0

    def refuse(constant):
        raise ValueError(constant)

    rows = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert [row["id"] for row in rows] == [claim.id for claim in CLAIMS]
    keys = ["id", "source", "statement", "paper", "ours", "repeats", "evidence", "base", "kind", "band",
            "band_before_evidence", "verdict", "why"]  # fmt: skip
    assert all(list(row) == keys for row in rows)
    mean = next(row for row in rows if row["id"] == "pod-speedup-mean")
    assert mean["paper"] == 28 and mean["source"] == "POD-Attention, Abstract" and mean["band"] == [18.7, 42.0]
    assert mean["evidence"] == "measured" and "820 batches" in mean["base"] and "18.8 %" in mean["why"]
    throughput = next(row for row in rows if row["id"] == "pod-throughput")
    assert throughput["evidence"] == "simulated" and "0.63 of the shorter part" in throughput["base"]


def test_table_has_a_line_a_claim(capsys):
    assert main(["claims"]) == 0
    out = capsys.readouterr().out
    assert all(f" {claim.id}: " in out for claim in CLAIMS)
    assert all(f"{r.claim.measure}; " in out for r in claims.results() if r.ours is not None)


def test_totals_count_every_claim_once():
    rows = claims.results()
    tally = claims.tally(rows)
    assert sum(sum(line[2:]) for line in tally) == len(rows)
    assert {line[:2] for line in tally} >= {(whose, "measured") for whose in claims.WHOSE}
    measured = [r for r in rows if r.claim.paper and r.evidence == "measured"]
    holds = sum(r.verdict == HOLDS for r in measured)
    assert {line[:2]: line[2] for line in tally}["of the sources", "measured"] == holds


def test_headlines_are_chosen_by_the_rule():
    stated = {c.paper for c in CLAIMS if c.headline and c.paper}
    for source in claims.POSTS:
        speedups = {c.paper for c in CLAIMS if c.paper.startswith(f"{source}.") and c.number.unit == "x"}
        assert speedups <= stated
    assert {i for i in paper.numbers() if ".abstract." in i and paper.numbers()[i].unit in "%x"} <= stated
    assert {c.figure for c in CLAIMS if c.headline and not c.paper} == set(claims.WHOLE)


def test_the_readme_shows_each_headline_and_no_cell_is_torn():
    rows = [row for row in claims.markdown().splitlines() if row.startswith("|")]
    assert {row.count("|") for row in rows} == {7, 8}, "totals, and claims"
    assert sum(c.headline for c in CLAIMS) == len([row for row in rows if row.split(" | ")[0][2:] in STATEMENTS])


def test_waiting_is_announced_and_no_part_of_the_table(capsys):
    assert main(["claims", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "ten seconds" in said.err
    assert said.out.isascii(), "a terminal's encoding changes nothing"


def test_a_file_that_is_no_toml_is_named():
    with pytest.raises(ValueError, match=r"^data/claims.toml: .*line 1"):
        claims.load("no toml")


def test_markdown_shows_a_failure_with_its_reason(monkeypatch):
    failing = claims.load(GOOD + 'base = "C1"\nnote = "because of {ratio(C0):.2f}"\nours = "pod-t1:ratio(C1)"')
    monkeypatch.setattr(claims, "load", lambda: failing)
    text = claims.markdown()
    assert "| s | 28 % | 0.73 % | 18.7 to 42 † | exact | gain, %; C1 | does not hold: because of 0.32 |" in text
    assert "| of the sources | exact | 0 | 1 | 0 | 0 |" in text
    assert "1 (†) do not" in text, "a band that no history dates"


def test_a_value_that_would_be_there_anyway_is_no_verdict():
    claim = claims.load(GOOD + 'ours = "pod-t1:ratio(C1)"\ncannot = "it is always {ratio(C1):.2f}"')[0]
    assert claims.judge(claim).verdict == CANNOT and claims.judge(claim).why == "it is always 0.73"
    assert Result(claim, None).verdict == OPEN


def test_a_sum_of_measured_parts_is_simulated():
    share = claims.judge(next(c for c in CLAIMS if c.id == "pod-attention-share"))
    assert share.evidence == "simulated" and registry.find("pod-04").state_text == "composed from H200"
    assert registry.find("pod-11").state_text == "recorded on H200"


def test_what_the_paper_gives_is_not_given_back():
    """The end-to-end claims are judged by what our own kernel hides, not by the overlap of the paper's Table 7."""
    from pod.experiments.pod import pod_12

    assert pod_12.overlap_hidden() == pytest.approx(pod_11.hidden(), abs=0.005)
    assert pod_12.overlap_hidden() < pod_12.overlap_paper()
    assert pod_12.gain_max() < pod_12.paper_overlap_max()


def test_the_gain_is_told_in_two():
    from pod.experiments.engine import engine_runs
    from pod.experiments.hopper import hopper_peers

    assert hopper_peers.halves() * hopper_peers.fusing() == pytest.approx(hopper_peers.over_fa3())
    assert hopper_peers.halves("energy") * hopper_peers.fusing("energy") == pytest.approx(hopper_peers.energy_saved())
    for model in ("llama-3-8b", "yi-6b", "llama-2-7b"):
        in_all = engine_runs.halves(model) * engine_runs.fusing(model)
        assert 100 * (1 - 1 / in_all) == pytest.approx(engine_runs.saved(model))


# ---------------------------------------------------------------- since when a band has been what it is


def test_bands_are_dated_by_the_history():
    if not bands.is_complete():
        pytest.skip("the git history is not here whole, so nothing can be dated")
    known = {row["id"]: row for row in bands.dated()}
    for claim_id, row in claims._dated().items():
        now = known.get(claim_id)
        assert now is None or (now["low"], now["high"]) != (row["low"], row["high"]) or now == row, claim_id


def test_a_part_of_the_history_dates_nothing(monkeypatch, tmp_path):
    """In a shallow clone every band would be as old as its one commit."""
    monkeypatch.setattr(bands, "FILE", tmp_path / "bands.csv")
    monkeypatch.setattr(bands, "_git", lambda *args: "true\n" if "--is-shallow-repository" in args else "")
    with pytest.raises(ValueError, match="^git history: got none or a part"):
        bands.write()
    assert not bands.FILE.exists()


def test_what_nobody_has_recorded_was_not_seen(monkeypatch):
    """The page that will measure it is there, and so is the band: it counts as fixed before."""
    monkeypatch.setattr(bands, "_recorded", lambda name: "2026-11-20 10:00:00" if name == "hopper-peers" else "")
    assert bands._seen("hopper-graphs:fusing", "2026-11-22 20:00:00") == ""
    assert bands._seen("hopper-peers:over_fa3", "2026-11-22 20:00:00") == "2026-11-20 10:00:00"
    assert bands._seen("pod-t1:ratio(C1)", "2026-11-22 20:00:00") == "2026-11-22 20:00:00"


def test_a_band_counts_as_before_only_with_its_dated_ends():
    first = next(c for c in CLAIMS if c.id == "pod-speedup-mean")
    late = next(c for c in CLAIMS if c.id == "lean-today")
    assert first.foreseen and not late.foreseen
    assert not claims.replace(first, band=(18.7, 50.0)).foreseen
    assert Result(late, 1.0).band_text.endswith(" †") and "†" not in Result(first, 1.0).band_text


def test_the_spread_over_repeats_is_shown(tmp_path, monkeypatch):
    """Of claims that were measured once more; not where another card's numbers are shown."""
    monkeypatch.setattr(claims.repeats, "values", lambda: {"pod-speedup-mean": [27.5, 30.25]})
    mean, most = (claims.judge(next(c for c in CLAIMS if c.id == f"pod-speedup-{name}")) for name in ("mean", "max"))
    assert mean.spread_text == "28.9 % (27.5 to 30.2 in 3 recordings)" and mean.as_json()["repeats"] == [27.5, 30.25]
    assert most.spread_text == most.ours_text and most.again == []
    assert "| 28.9 % (27.5 to 30.2 in 3 recordings) |" in claims.markdown()
    monkeypatch.setattr(claims.repeats, "values", lambda: {"pod-speedup-mean": [27.5, -3.0]})
    assert mean.verdict == "holds" and mean.spread_text.endswith("in 3 recordings; 1 would turn the verdict)")
    monkeypatch.setattr(claims.data, "folder", lambda: tmp_path)
    assert mean.again == []


def test_repeats_settle_the_claims_that_read_them(tmp_path, monkeypatch):
    """A process of its own reads the tables that were repeated, and those alone are told of; no NaN is, which a peer
    leaves that was not there."""
    from pod.lab import repeats

    place = tmp_path / "2026-11-22-1a2b3c4d" / "h200"
    place.mkdir(parents=True)
    shutil.copy(claims.data.RECORDED / "h200" / "hopper-peers.csv", place)
    for module in (repeats.data, claims.data):
        monkeypatch.setattr(module, "REPEATS", tmp_path)
    asked = []
    said = [{"id": "hopper-over-all", "ours": 1.25}, {"id": "pod-c1-balanced", "ours": 0.7}, {"id": "hopper-energy",
            "ours": None}, {"id": "hopper-energy", "ours": float("nan")}]  # fmt: skip
    monkeypatch.setattr(repeats, "_claims", lambda place: asked.append(place) or said)
    monkeypatch.setattr(repeats, "FILE", tmp_path / "repeats.csv")
    repeats.write()
    assert asked == ["2026-11-22-1a2b3c4d/h200"]
    assert repeats.FILE.read_text() == "id,place,value\nhopper-over-all,2026-11-22-1a2b3c4d/h200,1.25\n"


def test_the_readmes_measurements_are_thirteen_recordings():
    """What is to be repeated: data/README.md names them."""
    headlines = [r for r in claims.results() if r.claim.headline and r.claim.page]
    rows = [r for r in headlines if r.claim.page.FIGURE.state == "recorded"]
    names = {name for r in rows if not r.claim.page.FIGURE.composed for name in r.claim.page.FIGURE.data}
    names -= registry.computed().keys()
    told = re.search(r"thirteen recordings.*?```sh\n(.*?)```", (ROOT / "data" / "README.md").read_text(), re.DOTALL)[1]
    assert names == set(re.findall(r"[a-z]+-[a-z]+|joules", told.partition("\n")[0])) and len(names) == 13


def test_units():
    split = next(c for c in CLAIMS if c.id == "pod-vanilla-split")
    assert Result(split, 0.7312).ours_text == "0.731"
    assert Result(next(c for c in CLAIMS if c.id == "plus34-total"), 1.3).ours_text == "1.3x"
    assert split.number.text == "0.86 of serial"

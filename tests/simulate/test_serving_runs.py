"""Workloads, metrics, the command line, and the claim that an hour replays in seconds."""

import fcntl
import gzip
import json
import os
import re
import resource
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from pod.__main__ import main
from pod.data import DATA
from pod.experiments.engine import host_jitter
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.events import Iteration, Log, check_place
from pod.serving.schedulers import Sarathi, Static
from pod.simulate import cli, scenarios, workload
from pod.simulate.cost import Efficiency
from pod.simulate.jitter import TABLE, Jitter
from pod.simulate.metrics import bubbles, memory, metrics, requests, token_times
from pod.simulate.run import Run, Setup, simulate
from pod.simulate.scenarios import ticked
from pod.simulate.workload import Workload, fit, read_prefixes, read_table, read_trace, sample, split
from pod.sweep import sweep

# ---------------------------------------------------------------- workloads


def lengths(w: Workload):
    made = w.requests()
    return np.array([r.prompt for r in made]), np.array([r.output for r in made]), np.array([r.arrival for r in made])


@pytest.mark.parametrize(("pd", "prompt", "output"), [(8, 14563, 1821), (17, 15473, 911), (64, 16131, 253)])
def test_fixed_ratio_splits_as_the_artifact_does(pd, prompt, output):
    p, d, t = lengths(Workload("uniform", 3, low=16384, high=16384, pd=pd))
    assert set(p) == {prompt} and set(d) == {output} and set(t) == {0.0}


def test_tables_keep_the_statistics_of_their_traces():
    """arXiv, clipped: prompts of 10,041 in the mean and 7,958 in the median, outputs of 471, P:D to 40."""
    p, d, _ = lengths(Workload("arxiv", 20_000))
    assert (p.mean(), d.mean(), np.median(p)) == pytest.approx((10_041, 471, 7_958), rel=0.04)
    assert (p + d).max() <= 32768 and (p / d).max() < 41
    p, d, _ = lengths(Workload("conversation", 20_000))
    assert ((p + d).mean(), d.mean()) == pytest.approx((10_500, 331), rel=0.04)
    for name, means in (("azure-conv", (1_155, 211)), ("azure-code", (2_048, 28))):
        p, d, _ = lengths(Workload(name, 20_000))
        assert (p.mean(), d.mean()) == pytest.approx(means, rel=0.06)


def test_zipf_has_the_means_of_the_published_generator():
    for theta, mean in ((0.4, 2165), (0.6, 1916)):
        p, d, _ = lengths(Workload("zipf", 20_000, low=1024, high=4096, theta=theta, pd=10))
        assert (p + d).mean() == pytest.approx(mean, rel=0.02)
        assert (p + d).min() == 1024 and 4050 < (p + d).max() <= 4096


def test_poisson_and_the_artifacts_truncated_one():
    for arrivals, gap in (("poisson", 1.0), ("truncated_poisson", 1 - np.exp(-3))):
        *_, t = lengths(Workload("arxiv", 20_000, qps=2.0, arrivals=arrivals))
        gaps = np.diff(t)
        assert gaps.mean() == pytest.approx(0.5 * gap, rel=0.02)
        assert (gaps.max() <= 1.5 + 1e-9) == (arrivals == "truncated_poisson")


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_arrivals_have_their_rate_and_their_bursts(cv):
    *_, t = lengths(Workload("arxiv", 50_000, qps=2.0, arrivals="gamma", cv=cv))
    gaps = np.diff(t)
    assert gaps.mean() == pytest.approx(0.5, rel=0.05) and gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_bursts_lengthen_the_tail_and_not_the_work():
    calm, bursty = (Run(Setup(tp=2), Workload("arxiv", 300, 0.6, arrivals="gamma", cv=cv)).metrics() for cv in (0.5, 4))
    assert bursty["ttft_p99"] > 2 * calm["ttft_p99"] and bursty["requests"] == calm["requests"]


def test_jitter_is_what_was_recorded_of_our_engine():
    recorded = np.loadtxt(TABLE, delimiter=",", skiprows=1, usecols=2) / 1e3
    one, ten = (np.array([draw() for _ in range(100_000)]) for draw in (Jitter(1), Jitter(10)))
    np.testing.assert_allclose(ten, 10 * one)
    for share in (0.05, 0.5, 0.9, 0.99, 0.999):
        assert np.quantile(one, share) == pytest.approx(np.quantile(recorded, share), rel=0.1, abs=3e-5)
    assert 0.030 < one.max() == recorded.max() < 0.034, "launches were that late, and never 200 ms"


def test_late_iterations_come_in_a_row_as_they_were_recorded():
    def alike(series: np.ndarray, apart: int) -> float:
        """Rank correlation of neighbours."""
        ranks = series.argsort().argsort()
        return np.corrcoef(ranks[:-apart], ranks[apart:])[0, 1]

    recorded, jitter = np.loadtxt(TABLE, delimiter=",", skiprows=1, usecols=2), Jitter(1)
    drawn = np.array([jitter() for _ in range(100_000)])
    for apart in (1, 10, 50):
        assert alike(drawn, apart) == pytest.approx(alike(recorded, apart), abs=0.03)
    assert alike(drawn, 1) > 0.4 > 0.05 > abs(alike(np.random.default_rng(0).permutation(drawn), 1))
    runs = host_jitter.alike()
    assert (runs > 0.3).sum() == 11 and len(runs) == 13, "but for the two short runs at capacity"


def test_without_jitter_nothing_stalls_and_with_enough_of_it_requests_do():
    run = Run(Setup(tp=2, max_batch=128), Workload("arxiv", 200, qps=0.8))
    none, one, much = (run.but(jitter=scale).metrics() for scale in (0, 1, 200))
    assert none == run.metrics() and none["stalls_200ms"] == one["stalls_200ms"] == 0 < much["stalls_200ms"]
    assert none["tbt_p99"] < one["tbt_p99"] < 1.1 * none["tbt_p99"]
    assert run.but(jitter=1).metrics() == one, "the draws are the same each time"


def test_a_seed_draws_the_jitter_too_and_every_server_has_its_own(capsys):
    """They were all late together."""
    rows = []
    for seed in "112":
        options = "--workload uniform --low 4000 --high 4000 --requests 4 --jitter 100 --json --seed"
        assert main(["simulate", *options.split(), seed]) == 0
        rows.append(json.loads(capsys.readouterr().out)["tbt_p99"])
    assert rows[0] == rows[1] != rows[2]
    one, other = (Setup(jitter=1.0).executor(server).jitter for server in (0, 1))
    assert [one() for _ in range(9)] != [other() for _ in range(9)]


def test_the_artifacts_own_requests_are_those_of_its_recipe():
    """Means, first rows and rate as the recipe gives them, and POD's load: 5 % more than it says."""
    p, d, t = lengths(scenarios.online(scenarios.LISTED, 0.95, 1024)[scenarios.POD].workload)
    assert list(zip(p.tolist(), d.tolist(), strict=True))[:3] == [(6526, 408), (14505, 415), (5364, 214)]
    assert (p.mean(), d.mean()) == (pytest.approx(10027.6, abs=0.1), pytest.approx(470.2, abs=0.1))
    assert (p + d).max() < 32768 and 2047 / t[-1] == pytest.approx(0.987, abs=1e-3)
    assert np.diff(t).max() == pytest.approx(3 / 0.95, rel=1e-3), "gaps are cut at three means"


def test_times_that_were_rounded_are_spread_over_their_tick_again(tmp_path):
    path = tmp_path / "ticks.csv"
    rows = [f"{3000 * (i // 100)},100,10" for i in range(1000)]
    path.write_text("\n".join(["arrival_ms,prefill_tokens,decode_tokens", *rows]), encoding="utf-8")
    ticks, spread, again = (lengths(Workload(str(path), 1000, spread=s))[2] for s in (0.0, 3.0, 3.0))
    assert (np.diff(ticks) == 0).mean() > 0.98 and (spread == again).all()
    assert (np.diff(spread) > 0).all() and np.abs(spread - ticks - 1.5).max() < 1.6, "everyone stays in their tick"
    fast = Workload(str(path), 1000, qps=100.0, spread=3.0)
    np.testing.assert_allclose(lengths(fast)[2] * (999 / 100 / lengths(fast)[2][-1]), lengths(fast)[2])
    assert fast.pace == "as recorded, spread over 3 s, stretched to 100/s"


def test_what_is_skipped_at_the_beginning_is_gone_and_the_rest_is_as_it_was(tmp_path, refused):
    path = str(DATA / "public" / "mooncake.csv")
    long, rest = (list(Workload(path, n, high=1 << 17, skip=s).stream()) for n, s in ((500, 0), (300, 200)))
    begin = long[200].arrival
    for a, b in zip(long[200:], rest, strict=True):
        assert (a.id - 200, a.prompt, a.output, a.prefix) == (b.id, b.prompt, b.output, b.prefix)
        assert b.arrival == pytest.approx(a.arrival - begin)
    fast = list(Workload(path, 300, 7.0, high=1 << 17, skip=200).stream())
    assert fast[-1].arrival == pytest.approx(299 / 7) and fast[0].arrival == 0
    assert Workload(path, None, skip=12000).count == 31
    again = list(Workload(path, 40, high=1 << 17, skip=12000).stream())
    assert (again[31].prompt, again[30].arrival < again[31].arrival) == (long[0].prompt, True), "it starts again"
    assert not set(again[31].prefix) & set(long[0].prefix), "with other texts"
    long = f"--high 131072 --workload '{path}'"
    for options in ("--skip -1", f"--skip 12031 {long}", "--skip 1", f"--skip 1 --arrivals gamma --qps 1 {long}"):
        assert "skip: got" in refused("simulate", *shlex.split(options))


def test_an_hour_of_two_services_lies_here_as_its_tables_say():
    for name, count in (("azure-conv", 19366), ("azure-code", 8819)):
        work = Workload(str(DATA / "public" / f"{name}.csv"), None)
        p, d, t = lengths(work)
        assert work.count == count == len(p) and 3400 < t[-1] < 3510
        for share, prompt in read_table(name)[:, :2]:
            assert np.quantile(p, share) == pytest.approx(prompt, rel=0.02, abs=2)


def test_recorded_conversations_lie_here_with_their_times_and_beginnings():
    path = str(DATA / "public" / "mooncake.csv")
    work, names = Workload(path, None, high=1 << 17), read_prefixes(path)
    p, _, t = lengths(work)
    assert (work.pace, work.count, round(t[-1])) == ("as recorded", 12031, 3537)
    assert [len(row) for row in names] == [-(-n // 512) for n in read_trace(path)[:, 0].astype(int)]
    seen: set[int] = set()
    shared = 0
    for row in names:
        shared += len(seen & set(row))
        seen |= set(row)
    assert shared / sum(map(len, names)) == pytest.approx(0.366, abs=1e-3)


def test_a_seed_is_the_whole_story():
    same, other = ([(r.prompt, r.output, r.arrival) for r in Workload("arxiv", 50, qps=1.0, seed=s).requests()]
                   for s in (3, 4))  # fmt: skip
    assert same == [(r.prompt, r.output, r.arrival) for r in Workload("arxiv", 50, qps=1.0, seed=3).requests()] != other


def test_fitting_a_sample_of_a_table_gives_the_table():
    table = read_table("arxiv")
    again = fit(*sample(table, 200_000, np.random.default_rng(0)))
    middle = slice(3, -4)  # the ends of a quantile table are single requests
    np.testing.assert_allclose(again[middle], table[middle], rtol=0.06)


def test_split_leaves_a_token_on_either_side():
    prompts, outputs = split(np.array([2, 3, 100]), 1000)
    assert prompts.tolist() == [1, 2, 99] and outputs.tolist() == [1, 1, 1]


TRACES = {
    "vattention.csv": "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100.0,20.0,120,5\n60,2,62,30\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,20\n"
                 "2023-11-16 18:15:48.1805900,60,2\n",
    "mooncake.jsonl": '{"timestamp": 500, "input_length": 100, "output_length": 20, "hash_ids": [1]}\n'
                      '{"timestamp": 2000, "input_length": 60, "output_length": 2}\n',
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_published_traces_load_as_they_are(name, tmp_path):
    (tmp_path / name).write_text(TRACES[name])
    trace = read_trace(tmp_path / name)
    assert trace[:, :2].tolist() == [[100, 20], [60, 2]]
    np.testing.assert_allclose(trace[:, 2], [np.nan] * 2 if name.startswith("v") else [0, 1.5], atol=1e-6)
    p, d, _ = lengths(Workload(str(tmp_path / name), 5, high=110))
    assert set(zip(p.tolist(), d.tolist(), strict=True)) == {(92, 18), (60, 2)}


@pytest.mark.parametrize(("text", "words"), [
    ("prompt,answer\n1,2\n", "got the columns prompt, answer, allowed are num_prefill_tokens"),
    ("arrival_ms,prefill_tokens,decode_tokens\n0,9,9\n1,000,9,9\n", "row 3: got 4 columns, allowed are the 3 of"),
    ("num_prefill_tokens,num_decode_tokens\n5,7\n5,nan\n", "row 3, column num_decode_tokens: got 'nan'"),
    ("num_prefill_tokens,num_decode_tokens\n-5,7\n", "row 2, column num_prefill_tokens: got '-5'"),
    ("num_prefill_tokens,num_decode_tokens\n5.5,7\n", "row 2, column num_prefill_tokens: got '5.5'"),
    ("num_prefill_tokens,num_decode_tokens\n5,\n", "row 2, column num_decode_tokens: got ''"),
    ("num_prefill_tokens,num_decode_tokens\n", "got no request"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nmonday,5,7\n",
     "row 2, column TIMESTAMP: got 'monday', allowed are seconds below 1e+15, or dates"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nnan,5,7\n", "row 2, column TIMESTAMP: got 'nan'"),
    ("arrival_ms,prefill_tokens,decode_tokens\n0,5,7\ninf,5,7\n", "row 3, column arrival_ms: got 'inf'"),
    ("arrival_ms,prefill_tokens,decode_tokens\n0,5,7\n1e300,5,7\n", "row 3, column arrival_ms: got '1e300'"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,7\n5,5,7\n",
     "row 3, column TIMESTAMP: got a number, unlike above (a date)"),
    ("prefill_tokens,prefill_tokens,decode_tokens\n5,6,7\n", "row 1: got the column prefill_tokens twice"),
    ("arrival_ms,prefill_tokens,decode_tokens\n0,5\n", "row 2, column decode_tokens: got None"),
    ("num_prefill_tokens,num_decode_tokens\n5,\udce1\udcff\n", "trace.csv: got no text, but 'utf-8' codec"),
    ("", "got no request"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 7}\n' * 2, "row 1: got JSON, allowed are CSV, and JSON"),
    ('[{"input_length": 5, "output_length": 7}, {"input_length": 5, "output_length": 7}]', "row 1: got JSON"),
])  # fmt: skip
def test_a_bad_trace_is_refused_by_file_row_and_column(text, words, tmp_path, refused):
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=re.escape(words)):
        read_trace(path)
    assert words in refused("simulate", "--workload", path, "--requests", "3")


@pytest.mark.parametrize(("line", "words"), [
    ("\n{}", "t.jsonl, row 3: got the columns , allowed are"),
    ("[1, 2]", "t.jsonl, row 2: got no JSON object"),
    ('[["timestamp", 1], ["input_length", 5], ["output_length", 2]]', "t.jsonl, row 2: got no JSON object"),
    ('{"timestamp": 1, "input_length": 5, "input_length": 9, "output_length": 2}', "row 2: got input_length twice"),
    ('{"timestamp": true, "input_length": 5, "output_length": 2}',
     "row 2, column timestamp: got True, allowed are milliseconds below 1e+15, or dates"),
    ('{"timestamp": 1, "output_length": 2}', "t.jsonl, row 2: got the columns timestamp, output_length, allowed"),
    ('{"timestamp": 1, "input_length": true, "output_length": 2}', "row 2, column input_length: got True"),
    ("[" * 100_000, "t.jsonl, row 2: got no JSON object"),
    ('{"timestamp": 1, "input_length": 1%s, "output_length": 2}' % ("0" * 400), "row 2, column input_length: got 1"),
    ('{"timestamp": 1%s, "input_length": 1, "output_length": 2}' % ("0" * 400), "row 2, column timestamp: got 1"),
])  # fmt: skip
def test_a_bad_line_of_json_is_refused_by_file_and_row(line, words, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n' + line + "\n")
    with pytest.raises(ValueError) as error:
        read_trace(path)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_packed_trace_is_called_packed(name, tmp_path, refused):
    """It said that the 'utf-8' codec can't decode byte 0x8b."""
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(b"num_prefill_tokens,num_decode_tokens\n5,7\n"))
    said = refused("simulate", "--workload", path)
    assert said.endswith(f"{path}: got a file packed by gzip, allowed are CSV and JSON lines\n")


def test_a_row_is_told_by_its_line_in_the_file(tmp_path):
    """Empty lines did not count, so that an editor showed another row."""
    path = tmp_path / "t.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\r\n\r\n5,7\r\n\r\n5,0\r\n", newline="")
    with pytest.raises(ValueError, match="row 5, column num_decode_tokens: got '0'"):
        read_trace(path)


def test_lines_end_as_they_like_and_empty_ones_and_blanks_are_no_matter(tmp_path):
    """A blank after a comma named columns that nobody knows, and an empty last line no object."""
    table, objects = tmp_path / "t.csv", tmp_path / "t.JSONL"
    table.write_text("prefill_tokens,decode_tokens,,,\n5,7,,,\n")  # of an empty part of a spreadsheet
    assert read_trace(table)[:, :2].tolist() == [[5, 7]]
    for end in ("\n", "\r\n", "\r"):
        rows = ("arrival_ms, prefill_tokens, decode_tokens", "0, 5, 7", "", "2000, 6, 8", "", "")
        table.write_text(end.join(rows), newline="")
        assert read_trace(table).tolist() == [[5, 7, 0], [6, 8, 2]]
    line = '{"timestamp": %d, "input_length": 5, "output_length": 7}'
    for end in ("\n", "\r\n"):
        objects.write_text(f"{line % 0}{end}{end}{line % 2000}{end}{end}", newline="")
        assert read_trace(objects).tolist() == [[5, 7, 0], [5, 7, 2]]


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", "+02:00"])
@pytest.mark.parametrize("fraction", [".5", ".500", ".500000", ".5000000", ".500000000"])
def test_a_moment_keeps_its_zone_however_exact_it_is(zone, fraction, tmp_path):
    """The zone was cut off with the seventh digit: the next row without a fraction came two hours earlier."""
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                    f"2024-05-10 12:00:00{zone},5,7\n2024-05-10 12:00:01{fraction}{zone},5,7\n")  # fmt: skip
    assert read_trace(path)[:, 2].tolist() == [0, 1.5]


@pytest.mark.parametrize("written, read", [
    ("2024-05-10 12:00:01.1234567Z", "2024-05-10 12:00:01.123456+00:00"),
    ("2024-05-10T12:00:01.5z", "2024-05-10T12:00:01.500000+00:00"),
    ("2024-05-10 12:00:01+0200", "2024-05-10 12:00:01+02:00"),
    ("2024-05-10 12:00:01-05", "2024-05-10 12:00:01-05:00"),
    ("2024-05-10", "2024-05-10"),
])  # fmt: skip
def test_a_date_becomes_what_every_python_reads(written, read):
    """3.11 takes all of them, 3.10 only these."""
    assert workload._plain(written) == read


def test_a_date_with_a_zone_and_one_without_are_two_kinds(tmp_path):
    """Two requests a second apart came two hours apart."""
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 12:00:00+02:00,5,7\n2024-05-10 12:00:01,5,7\n")
    with pytest.raises(ValueError, match="row 3, column TIMESTAMP: got a date, unlike above .a date with a zone"):
        read_trace(path)


@pytest.mark.parametrize("name", ["Timestamp", "ARRIVED_AT", "timestamp", "arrival_time", "startTime", "timestamp_ms",
                                  "ArrivalS", "created_at", "Date", "ts"])  # fmt: skip
def test_times_under_another_name_are_refused_and_not_taken_for_none(name, tmp_path):
    """All requests would arrive at once, and nothing but a word of the first line told it."""
    path = tmp_path / "t.csv"
    path.write_text(f"{name},ContextTokens,GeneratedTokens\n0,5,7\n")
    with pytest.raises(ValueError, match=f"row 2: got the column '{name}', allowed for times beside ContextTokens is"):
        read_trace(path)


def test_columns_that_tell_no_moment_are_no_matter(tmp_path):
    path = tmp_path / "t.csv"
    columns = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio,state,timeout,attempts"
    path.write_text(f"{columns}\n5,7,12,1,,,\n")
    assert np.isnan(read_trace(path)[0, 2])


@pytest.mark.parametrize(
    "head", ["TIMESTAMP ,ContextTokens,GeneratedTokens", "\nTIMESTAMP,\tContextTokens,GeneratedTokens "]
)
def test_blanks_around_names_and_empty_lines_above_them_are_no_matter(head, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{head}\n0,5 ,\t7\n,,\n  \n2, 6,8\n")
    assert read_trace(path).tolist() == [[5, 7, 0], [6, 8, 2]]


def test_a_row_is_named_by_the_line_where_it_begins(tmp_path):
    """A quote that nobody closes makes one row of all that follow."""
    path = tmp_path / "t.csv"
    path.write_text('arrival_ms,prefill_tokens,decode_tokens\n0,5,7\n\n0,"5,7\n' + "0,5,7\n" * 90)
    with pytest.raises(ValueError, match="row 4, column prefill_tokens"):
        read_trace(path)
    path.write_text('arrival_ms,prefill_tokens,decode_tokens\n0,5,7\n0,"5,7\n' + "0,5,7\n" * 30000)
    with pytest.raises(ValueError, match="in row 3"):
        read_trace(path)


def test_the_mark_of_excel_hides_no_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_ms,prefill_tokens,decode_tokens\n0,5,7\n2000,5,7\n", encoding="utf-8-sig")
    assert Workload(str(path)).arrivals == "trace" and read_trace(path)[:, 2].tolist() == [0, 2]


def test_contexts_over_the_limit_are_refused_unless_they_shall_be_clipped(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n50,7\n5000,7\n")
    options = ["simulate", "--workload", str(path), "--requests", "2", "--max-tokens", "4096"]
    assert main(options) == 2
    words = "row 3, columns num_prefill_tokens, num_decode_tokens: got 5007 tokens in all, allowed are up to 4096"
    assert words in capsys.readouterr().err
    assert len(read_trace(path, 5007)) == 2
    assert main([*options, "--high", "4096"]) == 0


BURST = "arrival_ms,prefill_tokens,decode_tokens\n" + "".join(
    f"{t},{100 + i},{i + 1}\n" for i, t in enumerate((1000, 1000, 1100, 5000)))  # fmt: skip


@pytest.fixture
def burst(tmp_path) -> str:
    (tmp_path / "burst.csv").write_text(BURST)
    return str(tmp_path / "burst.csv")


def test_recorded_arrivals_and_their_order_are_kept(burst):
    work = Workload(burst, None)
    p, d, t = lengths(work)
    assert (work.arrivals, work.count, work.pace) == ("trace", 4, "as recorded")
    assert p.tolist() == [100, 101, 102, 103] and d.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(t, [0, 0, 0.1, 4])
    assert lengths(Workload(burst, None, seed=9))[0].tolist() == p.tolist()
    np.testing.assert_allclose(lengths(Workload(burst, 3))[2], [0, 0, 0.1])


def test_a_rate_stretches_recorded_arrivals_and_keeps_their_bursts(burst):
    work = Workload(burst, 4, qps=0.25)
    assert work.pace == "as recorded, stretched to 0.25/s"
    np.testing.assert_allclose(lengths(work)[2], [0, 0, 0.3, 12])


def test_a_trace_that_is_too_short_starts_again(burst):
    p, _, t = lengths(Workload(burst, 9))
    assert p.tolist() == [100, 101, 102, 103, 100, 101, 102, 103, 100]
    mean = 4 / 3  # the gap before it starts again
    np.testing.assert_allclose(t[4:], [4 + mean, 4 + mean, 4.1 + mean, 8 + mean, 8 + 2 * mean])


def test_recorded_rows_in_disorder_are_put_in_order(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_ms,prefill_tokens,decode_tokens\n900,5,1\n100,6,1\n")
    p, _, t = lengths(Workload(str(tmp_path / "t.csv"), None))
    assert p.tolist() == [6, 5] and t.tolist() == pytest.approx([0, 0.8])


def test_a_trace_that_was_written_anew_is_read_anew(tmp_path):
    """Files that are unpacked or copied keep their time; and what begins alike was read once for ever."""
    path = tmp_path / "t.csv"
    path.write_text("prefill_tokens,decode_tokens,like,shared\n900,5,,0\n900,5,0,1\n")
    when = path.stat().st_mtime_ns
    shared = Workload(str(path), 2, strict=False)
    assert shared.shares and sorted(lengths(shared)[0]) == [900, 900]
    path.write_text("prefill_tokens,decode_tokens\n70,5\n71,5\n")
    os.utime(path, ns=(when, when))
    assert not shared.shares and sorted(lengths(shared)[0]) == [70, 71]


def test_arrivals_that_a_file_does_not_have_are_drawn_or_refused(burst, tmp_path):
    (tmp_path / "t.csv").write_text("num_prefill_tokens,num_decode_tokens\n50,7\n51,7\n")
    timeless = Workload(str(tmp_path / "t.csv"), None, qps=2.0)
    assert (timeless.arrivals, timeless.count, timeless.pace) == ("poisson", 2048, "poisson at 2/s")
    for lengths_ in (str(tmp_path / "t.csv"), "arxiv"):
        with pytest.raises(ValueError, match="^arrivals: got trace, but .* has none, allowed are poisson, trunc"):
            Workload(lengths_, arrivals="trace")
    drawn = Workload(burst, None, arrivals="poisson")
    assert drawn.count == 2048 and drawn.pace == "all at once" and not lengths(drawn)[2].any()
    assert Workload(count=None) == Workload("arxiv", arrivals="poisson")


def test_requests_of_one_moment_keep_their_order_and_are_no_trace_without_times(tmp_path):
    """They were taken for a file without arrivals: drawn by lot, 2,048 of them, and a rate was ignored."""
    path = tmp_path / "t.csv"
    rows = [f"7,{100 + i},{i + 1}\n" for i in range(50)]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    at_once = Workload(str(path), None)
    assert (at_once.arrivals, at_once.count, at_once.pace) == ("trace", 50, "as recorded")
    prompts, _, times = lengths(at_once)
    assert prompts.tolist() == list(range(100, 150)) and not times.any()
    with pytest.raises(ValueError, match="^workload: got 50 requests of .*t.csv that arrive at once, which"):
        Workload(str(path), None, qps=2.0)
    assert Workload(str(path), None, qps=2.0, spread=3.0).pace == "as recorded, spread over 3 s, stretched to 2/s"
    assert Workload(str(path), 9, qps=2.0, arrivals="poisson").count == 9
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows) + "3,99,1\n")
    assert lengths(Workload(str(path), None))[0].tolist() == [99, *range(100, 150)], "who comes first is first"


def test_a_trace_has_all_its_times_or_none(tmp_path):
    rows = ({"timestamp": 5, "input_length": 9, "output_length": 1}, {"input_length": 9, "output_length": 1})
    for order in (rows, rows[::-1]):
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in order))
        with pytest.raises(ValueError, match="t.jsonl, row 2, column timestamp: got (no time|a number), unlike above"):
            read_trace(tmp_path / "t.jsonl")


def test_dates_count_in_seconds_in_a_column_of_milliseconds_too(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_ms,prefill_tokens,decode_tokens\n2023-11-16 18:00:00,5,7\n2023-11-16 18:00:09,5,7\n")
    assert read_trace(path)[:, 2].tolist() == [0, 9]


@pytest.mark.parametrize("place", ["UTC", "Europe/Zurich"])
def test_dates_do_not_depend_on_where_they_are_read(place, tmp_path, monkeypatch):
    """The night in which clocks in Zurich are set from 2 to 3."""
    monkeypatch.setenv("TZ", place)
    time.tzset()
    rows = "2023-03-26 01:30:00.0000000,9,1\n2023-03-26 03:30:00.0000000,9,1\n"
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    try:
        assert read_trace(tmp_path / "t.csv")[:, 2].tolist() == [0, 7200]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("options", "words"), [
    ({"qps": 0}, "qps: got 0"),
    ({"qps": -1.0}, "qps: got -1.0"),
    ({"qps": float("nan")}, "qps: got nan"),
    ({"count": 0}, "requests: got 0"),
    ({"count": 99_999_999_999}, "requests: got 99999999999, allowed are integers from 1 to 10000000"),
    ({"high": 10**12, "lengths": "zipf"}, "high: got 1000000000000, allowed are integers from 2 to 16777216"),
    ({"seed": -1}, "seed: got -1"),
    ({"lengths": "nowhere.csv"}, "workload: got 'nowhere.csv'"),
    ({"arrivals": "rush"}, "arrivals: got 'rush'"),
    ({"low": 9, "high": 8}, "low: got 9"),
    ({"pd": 0}, "pd: got 0"),
    ({"theta": 1.0}, "theta: got 1.0"),
])  # fmt: skip
def test_bad_workloads_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        Workload(**options)


# ---------------------------------------------------------------- metrics


def by_hand() -> Log:
    """Two requests; the second one's prompt stalls the first for a second."""
    log = Log(requests=[(0, 0.0, 4, 4), (1, 0.5, 9, 2)])
    for at, end, prefills, decodes, finished in (
        (0.0, 0.2, [(0, 4, 0, True)], [], []),
        (0.2, 0.3, [], [0], []),
        (0.5, 1.5, [(1, 9, 0, True)], [], []),
        (1.5, 1.6, [], [0, 1], [1]),
        (1.6, 1.7, [], [0], [0]),
    ):
        log.iterations.append(Iteration(0, at, end, prefills, decodes, 0, finished=finished))
    return log


def test_metrics_by_hand():
    r = requests(by_hand())
    assert r.ttft.tolist() == pytest.approx([0.2, 1.0]) and r.latency.tolist() == pytest.approx([1.7, 1.1])
    assert r.gaps.tolist() == pytest.approx([0.1, 1.3, 0.1, 0.1]) and r.worst_gap.tolist() == pytest.approx([1.3, 0.1])
    m = metrics(by_hand())
    assert (m["tbt_max"], m["stalls_200ms"], m["stalls_500ms"]) == pytest.approx((1.3, 50, 50))
    assert m["requests_per_minute"] == pytest.approx(2 / 1.7 * 60)
    assert m["output_tokens_per_second"] == pytest.approx(6 / 1.7)


def test_the_artifacts_definition_loses_the_first_gap():
    r = requests(by_hand(), "artifact")
    assert r.gaps.tolist() == pytest.approx([0, 1.3, 0.1, 0])
    assert r.ttft.tolist() == pytest.approx([0.2, 1.0])
    with pytest.raises(ValueError, match="definition: got 'mine', allowed are user, artifact"):
        requests(by_hand(), "mine")


def test_static_answers_only_with_its_batch():
    log = ticked(Static(ReservedPool(80, 40), 2), [(2, 1), (2, 5)])
    assert requests(log).latency.tolist() == [5.0, 5.0] and requests(log).ttft.tolist() == [1.0, 1.0]


def test_no_token_is_an_error_with_the_reason():
    log = ticked(Sarathi(PagedPool(4, 1), 2), [(9, 9)])
    with pytest.raises(ValueError, match="no token came out; 1 of 1 requests were refused, the first .* for 18 tokens"):
        metrics(log)


def test_many_that_are_refused_cost_one_line(capsys):
    """It named three of them, and did not say that there were more."""
    assert main("simulate --requests 200 --blocks 1200".split()) == 0
    said = capsys.readouterr().err
    assert said.startswith("19 of 200 requests were refused, the first (request 1) for 21381 tokens and the watermark")
    assert said.count("\n") == 1


def test_memory_counts_tokens_and_blocks():
    pool = PagedPool(10, 4, watermark=0.0)
    _, used, held = memory(ticked(Sarathi(pool, 2), [(5, 3)]), 10, 4)
    assert used.tolist() == [5, 6, 7] and held.tolist() == [8, 8, 8]


def test_bubbles_are_the_time_between_stages():
    log = by_hand()
    log.iterations[0].stages = [(0.0, 0.1), (0.15, 0.2)]
    for event in log.iterations[1:]:
        event.stages = [(event.scheduled, event.end)]
    assert bubbles(log) == pytest.approx({0: 0.05, 1: 0.0})


def test_token_times_are_ordered_within_a_request():
    log = simulate(Setup(tp=2, pp=2, scheduler="orca", max_batch=4, host="none"), Workload("arxiv", 20).requests())
    ids, times = token_times(log)
    assert (np.diff(times)[np.diff(ids) == 0] > 0).all()


# ---------------------------------------------------------------- orderings that the papers state


@pytest.fixture(scope="module")
def near_capacity():
    base = Setup(tp=2, max_batch=128, kernels="fa2")
    work = Workload("arxiv", 500, qps=0.95)
    systems = {"vllm": ("vllm", "serial"), "sarathi": ("sarathi", "serial"), "pod": ("sarathi", "pod")}
    runs = [Run(base, work).but(scheduler=s, attention=a) for s, a in systems.values()]
    return dict(zip(systems, sweep(Run.metrics, runs, quiet=True), strict=True))


def test_chunks_end_the_stalls_and_delay_the_prompt(near_capacity):
    vllm, sarathi, pod = near_capacity.values()
    assert vllm["stalls_500ms"] > 90 and sarathi["stalls_500ms"] == pod["stalls_500ms"] == 0
    assert vllm["tbt_p99"] > 5 * sarathi["tbt_p99"]
    assert vllm["ttft_p50"] < pod["ttft_p50"] < sarathi["ttft_p50"]
    assert pod["latency_p99"] < sarathi["latency_p99"]


def test_a_slower_engine_queues_out_of_proportion():
    run = Run(Setup(tp=2, max_batch=128), Workload("arxiv", 500, qps=0.95))
    nominal, slower = sweep(Run.metrics, [run, run.but(slowdown=1.05)], quiet=True)
    assert slower["ttft_p50"] > 1.2 * nominal["ttft_p50"]


def test_calibration_stretches_iterations_with_prompts():
    """By one factor beside decodes, by another alone; decodes stay as long as their operators."""
    run = Run(Setup(max_tokens=4096), Workload("uniform", 2, low=3000, high=3000, pd=70))
    runs = run, run.but(calibration=(1.2, 1.1))
    plain, stretched = (simulate(each.setup, each.workload.requests()) for each in runs)
    kinds = set()
    for a, b in zip(plain.iterations, stretched.iterations, strict=False):
        if (a.prefills, a.decodes) != (b.prefills, b.decodes):
            break
        kinds.add((bool(a.prefills), bool(a.decodes)))
        factor = (1.2 if a.decodes else 1.1) if a.prefills else 1.0
        assert b.seconds == pytest.approx(factor * a.seconds)
    assert len(kinds) == 3, "prompts alone, both, decodes alone"


def test_sweep_equals_one_by_one_and_raises_what_a_run_raises():
    runs = [Run(Setup(tp=2, chunk=c), Workload("arxiv", 30, qps=1.0)) for c in (512, 1024, 2048)]
    assert sweep(Run.metrics, runs, cores=2, quiet=True) == [run.metrics() for run in runs]
    with pytest.raises(ValueError, match="tp: got 3"):
        sweep(Run.metrics, [runs[0], runs[0].but(tp=3)], cores=2, quiet=True)


# ---------------------------------------------------------------- command line

SMALL = ["simulate", "--tp", "2", "--requests", "40", "--qps", "1"]


def test_simulate_prints_a_table_that_says_what_it_is(capsys):
    assert main(SMALL) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == (
        "times: analytical A100-80GB SXM; host: vidur-2024-01; arrivals: poisson at 1/s; "
        "joules: none (got fa2-2024 on a100, recorded were fa3 and hopper on h200); every run is simulated"
    )
    assert out[1].split()[:2] == ["scheduler", "attention"] and len(out) == 3


def test_simulate_says_whose_arrivals_they_are(burst, capsys):
    for options, words in (([], "as recorded"), (["--qps", "2"], "as recorded, stretched to 2/s"),
                           (["--qps", "2", "--arrivals", "poisson"], "poisson at 2/s")):  # fmt: skip
        assert main(["simulate", "--workload", burst, *options]) == 0
        assert capsys.readouterr().out.startswith(
            f"times: analytical A100-80GB SXM; host: vidur-2024-01; arrivals: {words}; joules: none (got fa2-2024"
        )
        assert main(["simulate", "--workload", burst, *options, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert row["arrivals"] == words and row["requests"] == (2048 if "poisson" in words else 4)


def test_whoever_mistakes_a_trace_s_unit_of_time_sees_it_in_the_first_line(tmp_path, capsys):
    """Mooncake's `timestamp` are milliseconds. With Unix seconds in it a hundred seconds are a tenth of one."""
    path = tmp_path / "mine.jsonl"
    rows = [{"input_length": 100, "output_length": 20, "timestamp": 1_700_000_000 + t} for t in (0, 40, 100)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for rates, words in (([], "0.1 s"), (["--qps", "0.5", "2"], "4 s, 3 requests within 1 s")):
        assert main(["simulate", "--workload", str(path), *rates]) == 0
        assert f"trace: 3 requests within {words}; every" in capsys.readouterr().out.splitlines()[0]
    assert main(SMALL) == 0 and "trace:" not in capsys.readouterr().out


def test_simulate_as_json_with_a_log(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    assert main([*SMALL, "--json", "--log", str(path), "--scheduler", "vllm"]) == 0
    row = json.loads(capsys.readouterr().out)
    log = Log.load(path)
    assert row["requests"] == 40 and row["cost"] == log.run["cost"] == "analytical A100-80GB SXM"
    assert {k: row[k] for k in metrics(log)} == metrics(log), "the log holds all that the metrics need"
    assert log.run["scheduler"] == "vllm" and log.run["qps"] == 1


def test_several_values_run_every_combination(capsys):
    assert main([*SMALL[:-1], "1", "2", "--scheduler", "vllm", "sarathi", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["scheduler"], r["qps"]) for r in rows] == [("vllm", 1), ("vllm", 2), ("sarathi", 1), ("sarathi", 2)]


@pytest.mark.parametrize(("extra", "words"), [
    (["--qps", "0"], "qps: got 0.0"),
    (["--chunk", "0"], "chunk: got 0"),
    (["--blocks", "0"], "blocks: got 0, allowed are integers >= 1"),
    (["--blocks", "3", "--scheduler", "orca"], "num_blocks: got 3, allowed are integers from 2048, which one req"),
    (["--tp", "3"], "tp: got 3"),
    (["--log", "x", "--chunk", "512", "1024"], "--log: got 2 runs"),
    (["--requests", "0"], "requests: got 0"),
    (["--requests", "99999999999"], "requests: got 99999999999, allowed are integers from 1 to 10000000"),
    (["--block-size", "0"], "block_size: got 0, allowed are integers >= 1"),
    (["--blocks", "99999999999"], "num_blocks: got 99999999999, allowed are up to 10000000"),
    (["--low", "5000", "--high", "100"], "low: got 5000, allowed are integers from 1 to high = 100"),
    (["--high", "0"], "high: got 0, allowed are integers from 2"),
    (["--low", "100"], "low: got 100, allowed beside --workload uniform or zipf"),
    (["--pd", "5", "10"], "pd: got 5 10, allowed beside --workload uniform or zipf"),
    (["--spread", "3"], "spread: got 3, allowed beside recorded arrivals"),
    (["--seed", "-1"], "seed: got -1, allowed are integers >= 0"),
    (["--qps", "1e-320"], "qps: got 1e-320, allowed are numbers from 1e-9"),
    (["--arrivals", "trace"], "arrivals: got trace, but arxiv has none, allowed are poisson"),
    (["--cv", "0", "--arrivals", "gamma"], "cv: got 0.0, allowed are numbers from 0.01 to 100"),
    (["--cv", "3"], "cv: got 3, allowed beside --arrivals gamma"),
    (["--jitter", "-1"], "jitter: got -1.0, allowed are numbers from 0 to 1000"),
    (["--slowdown", "inf"], "slowdown: got inf, allowed are numbers from 0.001 to 1000"),
    (["--link", "0"], "link: got 0 GB/s, allowed are numbers from 0.001 to 1e6"),
    (["--block-size", "99999999"], "block_size: got 99999999, allowed are integers from 1 to "),
    (["--machine", "pair", "--tp", "4"], "tp: got 4, allowed on an A100 NVLink pair are 2"),
    (["--kernels", "fa9"], "kernels: got 'fa9', allowed are fa2-2024, fa2, fa3"),
    (["--prefix-cache"], "prefix_cache: got arxiv, which does not say whose prompts begin alike"),
    (["--like", "vllm-0.2.7"], "scheduler: got 'sarathi', vllm-0.2.7 has vllm"),
    (["--log", "/nowhere/run.jsonl"], "log: got '/nowhere/run.jsonl', allowed are files in a folder that is there"),
    (["--log", "/"], "log: got '/', allowed are files in a folder that is there"),
    (["--log", "/proc/run.jsonl"], "log: got '/proc/run.jsonl', allowed are files"),  # whose rights say nothing
    (["--log", ""], "argument: got '', allowed are none and one with letters"),
    (["--block-size", "9" * 20], "block_size: got 99999999999999999999, allowed are integers from 1 to "),
    (["--replicas", "257"], "replicas: got 257, allowed are integers from 1 to 256"),
    (["--replicas", "256", "--blocks", "9999999"], "replicas: got 256, allowed are so many that all have 10000000"),
    (["--max-tokens", "1"], "max_tokens: got 1, allowed are integers from 2 to 16777216"),
    (["--qps", "1e-9", "--requests", "101"], "qps: got 101 requests within 1.01e+11 s, allowed are up to 1e+11 s"),
    (["--skip", "5"], "skip: got 5, allowed beside recorded arrivals"),
    (["--cv", "1e-300", "--arrivals", "gamma"], "cv: got 1e-300, allowed are numbers from 0.01 to 100"),
    (["--pp", "2", "--link", "1e-300"], "GB/s, allowed are numbers from 0.001 to 1e6"),
    (["--slowdown", "1e-320"], "slowdown: got 1e-320, allowed are numbers from 0.001 to 1000"),
    (["--measured", "--gpu", "h200", "--tp", "1", "--attention", "pod", "--kernels", "fa3"],
     "kernels: got fa3, allowed with measured operators and attention pod are hopper, fa3-best"),
    (["--measured", "--gpu", "h200", "--tp", "1", "--kernels", "fa2"],
     "kernels: got fa2, allowed with measured operators and attention serial are fa3, hopper, fa3-best"),
    (["--measured", "--gpu", "h200", "--tp", "1", "--model", "phi-3-medium"], "model: got phi-3-medium, allowed with"),
    (["--blocks", "5"], "40 of 40 requests were refused, the first (request 0) for "),
    (["--blocks", "5"], " blocks, the pool has 5"),
])  # fmt: skip
def test_bad_options_are_one_line(extra, words, refused, monkeypatch):
    monkeypatch.setattr(cli, "simulate", None)  # before anything runs
    monkeypatch.setattr(cli, "sweep", None)
    assert words in refused(*SMALL, *extra)


@pytest.mark.parametrize("arrivals", ["poisson", "truncated_poisson", "gamma"])
def test_arrivals_that_need_a_rate_are_not_quietly_others(arrivals, refused):
    """All at once, they queued as long as the run lasts."""
    said = refused("simulate", "--tp", "2", "--requests", "40", "--arrivals", arrivals)
    assert said.endswith(f"arrivals: got {arrivals} without a rate, allowed is one beside it, --qps\n")


def test_a_trace_that_is_longer_than_clocks_are_exact_is_refused(tmp_path, refused):
    """At 1e14 s a clock counts sixtieths of a second, and every gap was some of these."""
    (tmp_path / "t.csv").write_text("num_prefill_tokens,num_decode_tokens,arrived_at\n9,5,-2\n9,5,1e14\n")
    simulate = ("simulate", "--workload", tmp_path / "t.csv")
    assert "workload: got 2 requests within 1e+14 s, allowed are up to 1e+11 s" in refused(*simulate)
    (tmp_path / "t.csv").write_text("num_prefill_tokens,num_decode_tokens\n1e300,5\n")
    assert "column num_prefill_tokens: got '1e300', allowed are integers from 1 to 16777216" in refused(*simulate)


def test_a_log_never_replaces_what_the_run_reads(tmp_path, refused, monkeypatch):
    """A trace was gone, and then called empty."""
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(TRACE := "num_prefill_tokens,num_decode_tokens\n90,5\n")
    said = refused(*"simulate --workload mine.csv --requests 3 --log ./mine.csv".split())
    assert "log: got './mine.csv', which the run reads, allowed are other files" in said
    assert Path("mine.csv").read_text() == TRACE
    Path("config.json").write_text("{}")
    said = refused(*"simulate --model . --requests 3 --log config.json".split())
    assert "log: got 'config.json', which the run reads" in said


def test_a_log_says_with_which_link_and_pace_it_ran(tmp_path):
    path = tmp_path / "run.jsonl"
    assert main([*SMALL, "--pp", "2", "--link", "50", "--slowdown", "1.1", "--log", str(path)]) == 0
    run = Log.load(path).run
    assert run["efficiency"]["send_bytes_per_s"] == 50e9 and run["slowdown"] == 1.1
    plain = Run(Setup(tp=2, pp=2, efficiency=Efficiency(send_bytes_per_s=50e9)), Workload("arxiv", 40, 1.0))
    assert metrics(Log.load(path)) == plain.but(slowdown=1.1).metrics()


def test_a_pipe_takes_a_log_and_no_trial_leaves_a_file(tmp_path, monkeypatch):
    """Who opens a pipe and closes it tells its reader that this was all."""
    monkeypatch.setattr("pathlib.Path.open", lambda *_: pytest.fail("tried"))
    os.mkfifo(tmp_path / "pipe")
    check_place(tmp_path / "pipe")
    monkeypatch.undo()
    check_place(tmp_path / "new")
    (tmp_path / "old").write_text("dear")
    check_place(tmp_path / "old")
    assert not (tmp_path / "new").exists() and (tmp_path / "old").read_text() == "dear"


def test_the_last_run_of_a_sweep_is_checked_before_the_first(refused, monkeypatch):
    monkeypatch.setattr(cli, "sweep", None)
    assert "chunk: got 0" in refused(*SMALL, "--chunk", "512", "0")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full, as Linux has")
def test_a_full_disk_takes_the_log_and_not_the_numbers(capsys):
    assert main([*SMALL, "--log", "/dev/full"]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3 and "req/min" in captured.out
    assert captured.err.endswith("log: got '/dev/full', which is not complete (No space left on device)\n")
    assert captured.err.count("\n") == 1


@pytest.fixture
def terminal():
    """Runs `python -m pod ...` on a terminal of 100 columns; `keys` are pressed once `cue` can be read there."""

    def run(*options: str, cue: bytes = b"", keys: bytes = b"") -> tuple[int, str]:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        child = subprocess.Popen([sys.executable, "-m", "pod", *options], stdin=theirs, stdout=theirs, stderr=theirs,
                                 preexec_fn=_own_terminal)  # fmt: skip
        os.close(theirs)
        try:
            seen = _read(ours, cue, keys)
            return child.wait(timeout=20), seen
        finally:
            child.kill()
            child.wait()
            os.close(ours)

    return run


def _read(terminal: int, cue: bytes, keys: bytes) -> str:
    seen, end = b"", time.monotonic() + 120
    while select.select([terminal], [], [], 60)[0] and time.monotonic() < end:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # Linux's way to say that the other side is gone
            break
        if keys and cue in seen:
            os.write(terminal, keys)
            keys = b""
    return seen.decode()


def _own_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever tests in the background has it ignored
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="terminals end otherwise elsewhere")
def test_a_long_run_shows_how_far_it_is(terminal):
    code, seen = terminal("simulate", "--requests", "1000000", cue=b"/1000000 [00:0", keys=b"\x03")
    assert code == 130 and "| 0/1000000 [" in seen


@pytest.mark.skipif(sys.platform != "linux", reason="terminals end otherwise elsewhere")
@pytest.mark.parametrize("sweep", [["--qps", "1"], ["--qps", "1", "2", "3"]], ids=["one run", "sweep"])
def test_an_interrupted_run_ends_in_one_line(sweep, terminal):
    started = time.monotonic()
    code, seen = terminal("simulate", "--requests", "50000", *sweep, cue=b"[00:0", keys=b"\x03")
    assert code in (130, -signal.SIGINT), seen  # to any shell the same
    assert "Traceback" not in seen and time.monotonic() - started < 50
    assert seen.endswith("python -m pod simulate: interrupted\r\n") and seen.count("\n") == 1


# ---------------------------------------------------------------- speed


def test_the_command_that_the_page_times_runs(capsys):
    page = (Path(cli.__file__).parent / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m pod (simulate .*)--requests 65536$", page, re.MULTILINE)
    assert main([*command.split(), "--requests", "20"]) == 0 and capsys.readouterr().out.count("\n") == 3


def processor_seconds(*options: str) -> float:
    """User and system time of a whole `python -m pod simulate` process: what one free core would need."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pod", "simulate", *options], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


OFFLINE = ("--model", "llama-3-8b", "--tp", "2", "--workload", "uniform", "--low", "16384", "--high", "16384",
           "--pd", "17", "--max-batch", "999")  # fmt: skip
ONLINE = ("--tp", "2", "--workload", "arxiv", "--requests", "2048", "--qps", "0.85", "--attention", "pod")


@pytest.mark.parametrize("options", [ONLINE, (*OFFLINE, "--requests", "2000")], ids=["online", "offline"])
def test_an_hour_replays_in_seconds(options):
    assert processor_seconds(*options) < 5


def test_time_grows_linearly():
    small, large = (processor_seconds(*OFFLINE, "--requests", str(n)) for n in (1000, 3000))
    assert large < 4 * small


def test_an_hour_fits_in_a_tenth_of_a_gigabyte():
    # macOS counts in bytes. Linux's ru_maxrss starts at the peak of the parent, so the process is asked for its own.
    peak = {"darwin": "__import__('resource').getrusage(0).ru_maxrss"}.get(
        sys.platform, "1024 * int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    code = f"from pod.__main__ import main; main({['simulate', *ONLINE]!r}); print({peak})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 20e6 < int(out.split()[-1]) < 100e6

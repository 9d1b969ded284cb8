"""The analytical cost by parts, against public measurements that its constants have not seen."""

import csv
import errno
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pod.__main__ import main
from pod.experiments.engine import cost_parts, cost_single
from pod.simulate import host_time, judge
from pod.simulate.judge import COLUMNS, JUDGED, PUBLIC, errors, judged, read, recorded, totals
from pod.simulate.machines import MACHINES

PAGE = Path(judge.__file__).parent / "README.md"
# Bars that are not reached, and why.
NOISE = "the measurement itself does not reach it"
SETTING = "Vidur with its 20 us a launch, and without, differ by more"
MISSED = {
    ("all-reduce", "pair x 2", "vidur"): NOISE,
    **{("all-reduce", f"dgx-{gpu} x {n}", "vidur"): NOISE for gpu in ("a100", "h100") for n in (2, 4, 8)},
    ("whole run", "requests_per_minute", "vidur-runs"): SETTING,
    ("whole run", "requests_per_minute", "vidur-runs, no launches"): SETTING,
    ("whole run", "tbt_p50", "vidur-runs, no launches"): SETTING,
}


# Whose rows lie in this repository.
HERE = {"vidur", "vidur-unseen-gpus", "nccl", "nccl-again", "recorded", "vidur-runs", "vidur-runs, no launches"}


def overall(split: str) -> dict[tuple, dict]:
    return {(r["part"], r["what"], r["source"]): r for r in read() if r["split"] == split and r["model"] == "all"}


def test_every_part_passes_its_bars_on_what_it_has_not_seen_or_is_named():
    rows = overall("held out")
    assert {key for key, row in rows.items() if row["passes"] == "no"} == set(MISSED)
    for (part, what, _), row in rows.items():
        most, most_p95 = judge.BARS.get((part, what), (10, 25))
        assert row["passes"] == ("yes" if float(row["median"]) <= most and float(row["p95"]) <= most_p95 else "no")


def nearest(machine: str, gpus: str, sizes: int) -> np.ndarray:
    """Percent that short all-reduces, held out, are off from the median of the nearest fitted sizes."""
    mine = [r for r in judge._rows(PUBLIC / "all_reduce.csv") if (r["source"], r["machine"], r["tp"]) == (
        "vidur", machine, gpus) and int(r["bytes"]) < 1 << 20]  # fmt: skip
    fitted, held = (np.array([(int(r["bytes"]), float(r["us"])) for r in mine if r["split"] == split])
                    for split in ("fitted", "held out"))  # fmt: skip
    near = np.abs(fitted[:, 0] - held[:, :1]).argsort(axis=1, kind="stable")[:, :sizes]
    return 100 * np.abs(np.median(fitted[near, 1], axis=1) / held[:, 1] - 1)


def test_a_table_of_short_all_reduces_would_miss_too():
    """It would follow the moods of a DGX A100 on four and eight GPUs in the middle, for sizes were measured in turn."""
    which = [(*what.split(" x "), "vidur") for _, what, _ in MISSED if " x " in what]
    passes = {(machine, gpus): [np.median(off) <= 10 and np.percentile(off, 95) <= 25
                                for off in (nearest(machine, gpus, sizes) for sizes in (1, 2, 3, 4, 8))]
              for machine, gpus, _ in which}  # fmt: skip
    assert len(passes) == 7 and {key for key, mine in passes.items() if any(mine)} == {("dgx-h100", "4")}
    assert sum(passes["dgx-h100", "4"]) == 1, "by a hair, with three sizes alone"
    three = [nearest("dgx-a100", gpus, 3) for gpus in "248"]
    assert [round(float(np.median(off))) for off in three] == [16, 4, 6]
    assert [round(float(np.percentile(off, 95))) for off in three] == [66, 56, 46]


def test_the_simulator_s_page_states_these_errors():
    text = (Path(judge.__file__).parent / "README.md").read_text(encoding="utf-8")
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.endswith(("| yes |", "| no |"))]
    columns = ("part", "what", "source", "unseen", "rows", "median", "p95", "again", "passes")
    by = judge.unseen(read())
    rows = [row | {"unseen": by[key]} for key, row in overall("held out").items()]
    assert table == [[row[column] for column in columns] for row in rows]


def test_it_is_said_where_other_sizes_alone_were_held_out(capsys, tmp_path):
    """The page said of all rows that other models and numbers of GPUs were. The default kernel of A100s has one of each
    in its public profile."""
    by = judge.unseen(read())
    assert by["decode", "fa2-2024 on a100", "vidur"] == by["prefill", "fa2-2024 on a100", "vidur"] == "sizes"
    assert by["decode", "fa2 on a100", "aiconfigurator"] == by["linear", "h100", "vidur-layers"] == "models"
    assert by["host", "vidur-2024-01", "vidur"] == "GPUs, models"
    assert by["all-reduce", "dgx-a100 x 8", "vidur"] == "sizes"
    assert by["all-reduce", "dgx-a100 x 8 from 1 MiB", "vidur-unseen-gpus"] == "GPUs"
    assert by["all-reduce", "nccl-h100", "nccl-again"] == "recording"
    assert by["whole run", "tbt_p50", "vidur-runs"] == "all"
    (tmp_path / "attention.csv").write_text(HEADS + PREFILL, encoding="utf-8")
    assert main(["judge", "--only", str(tmp_path)]) == 0
    assert [row.split()[-1] for row in capsys.readouterr().out.splitlines()] == ["unseen", "models", "models"]


def test_held_out_are_other_models_and_numbers_of_gpus_than_fitted():
    rows = [r for r in read() if r["model"] != "all"]
    pairs = lambda split, part: {(r["source"], r["model"], r["tp"]) for r in rows  # noqa: E731
                                 if (r["split"], r["part"]) == (split, part)
                                 and r["source"] not in HERE}  # fmt: skip
    for part in ("prefill", "decode", "linear"):
        unseen = pairs("held out", part)
        assert not unseen & pairs("fitted", part)
        assert {tp for _, _, tp in unseen} == {"1", "2", "4", "8"} and len({m for _, m, _ in unseen}) >= 4
    unseen = {r["what"] for r in rows if r["source"] == "vidur-unseen-gpus" and r["split"] == "held out"}
    assert unseen == {f"{name} from 1 MiB" for name in ("dgx-a100 x 8", "dgx-h100 x 4", "dgx-h100 x 8")}


def test_the_table_is_what_today_s_constants_give():
    """Of all that is quoted here; what is not, was judged when the constants were made (data/public/README.md)."""
    made = [row for found in (errors(PUBLIC), recorded(), totals()) for row in judged(list(found))]
    now = {tuple(str(row[k]) for k in COLUMNS) for row in made}
    assert {row["source"] for row in made} == HERE
    assert now == {tuple(row.values()) for row in read() if row["source"] in HERE}


def test_a_kernel_that_is_a_third_slower_is_seen(monkeypatch):
    slower = judge.KERNELS["fa2-2024"].__class__(**{**vars(judge.KERNELS["fa2-2024"]), "rate": 0.45})
    monkeypatch.setitem(judge.KERNELS, "fa2-2024", slower)
    rows = [r for r in judged(list(errors(PUBLIC))) if (r["part"], r["model"]) == ("prefill", "all")]
    assert [r["passes"] for r in rows] == ["no", "no"]


def test_other_profiles_are_judged_beside_and_the_rest_stays(tmp_path, monkeypatch, capsys):
    """One who has a profile of their own writes it with the columns of data/public."""
    before = read()
    copy = tmp_path / "judged.csv"
    copy.write_text(JUDGED.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(judge, "JUDGED", copy)
    text = "source,profile,model,tp,requests,us,split\nmine,vidur-2024-05,own,1,10,1470,held out\n"
    (tmp_path / "host.csv").write_text(text, encoding="utf-8")
    assert main(["judge", str(tmp_path)]) == 0
    added = [r for r in read() if r not in before]
    assert [(r["source"], r["median"]) for r in added] == [("mine", "0.0")] * 2 and len(read()) == len(before) + 2
    assert "mine" in capsys.readouterr().out


def test_a_full_disk_leaves_the_table_as_it_was(tmp_path, monkeypatch, capsys):
    """It was cut off where the room ended, and claims count its rows."""
    copy = tmp_path / "judged.csv"
    copy.write_bytes(before := JUDGED.read_bytes())
    for name, value in (("JUDGED", copy), ("recorded", list), ("totals", list)):
        monkeypatch.setattr(judge, name, value)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(copy))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert main(["judge"]) == 2 and copy.read_bytes() == before
    assert "No space left on device" in capsys.readouterr().err


PREFILL = "mine,h100,fa3,prefill,own,1,32,8,1,1024,0,200,held out\n"
HEADS = "source,gpu,kernel,part,model,tp,q_heads,kv_heads,requests,new,before,us,split\n"


def test_a_profile_may_be_judged_without_touching_the_table_that_claims_count(tmp_path, capsys, refused):
    (tmp_path / "attention.csv").write_text(HEADS + PREFILL, encoding="utf-8")
    before = JUDGED.read_bytes()
    assert main(["judge", "--only", str(tmp_path)]) == 0 and JUDGED.read_bytes() == before
    heads, *rows = capsys.readouterr().out.splitlines()
    assert "median %" in heads and len(rows) == 2 and all("mine" in row for row in rows)
    assert refused("judge", "--only").endswith("only: got no folder, allowed is at least one\n")


@pytest.mark.parametrize(("old", "new", "words"), [
    ("prefill", "both", "row 2, column part: got 'both', allowed are prefill, decode"),
    ("held out", "test", "row 2, column split: got 'test', allowed are fitted, held out"),
    ("fa3", "fa9", "row 2, column kernel: got 'fa9', allowed are fa2-2024, fa2, fa3, fa3-h200"),
    ("h100", "rtx", "row 2, column gpu: got 'rtx', allowed are a100, "),
    (",own,", ",all,", "row 2, column model: got 'all', allowed are names, but all"),
    ("mine", "", "row 2, column source: got '', allowed are names, but all"),
    (",200,", ",1e-300,", "row 2, column us: got '1e-300', allowed are numbers from 0.001 to 1e12"),
    ("32,8,1", "32,5,1", "row 2, column q_heads: got '32', allowed are multiples of kv_heads, 5"),
    ("32,8,1", "32,8,9000000", "row 2, column requests: got '9000000', allowed are integers from 1 to 1000000"),
])  # fmt: skip
def test_a_word_that_nobody_knows_is_told_with_those_that_are_known(old, new, words, tmp_path, refused):
    (tmp_path / "attention.csv").write_text(HEADS + PREFILL.replace(old, new), encoding="utf-8")
    assert words in refused("judge", tmp_path)


ALL = "source,split,machine,tp,bytes,us\n"


@pytest.mark.parametrize(("text", "words"), [
    (None, "folder: got '{}', allowed are folders with attention.csv, linear.csv, all_reduce.csv, host.csv, or"),
    (f"{ALL}a,held out,attic,2,64,1\n", "row 2, column machine: got 'attic', allowed are pair, pcie, dgx-a100, dg"),
    ("machine,bytes,us\npair,64,1\n", "row 1: got no column source, allowed are source, machine, tp, bytes, us, "),
    (f"{ALL}a,held out,pair,2,64,\n", "row 2, column us: got '', allowed are numbers from 0.001 to 1e12"),
    (f"{ALL}a,held out,pair,2,64,nan\n", "row 2, column us: got 'nan', allowed are numbers from 0.001 to 1e12"),
    (f"{ALL}a,held out,pair,2,64,0\n", "row 2, column us: got '0', allowed are numbers from 0.001 to 1e12"),
    (f"{ALL}a,held out,pair,2,6.5,1\n", "column bytes: got '6.5', allowed are integers from 1 to 1000000000000"),
    (f"{ALL}a,held out,pair,2,{'9' * 5000},1\n", "allowed are integers from 1 to 1000000000000"),
    (f"{ALL}a,held out,pair,2\n", "row 2, column bytes: got None, allowed are integers from"),
    (f"{ALL}a,held out,pair,2,64,1,9\n", "row 2: got 7 columns, allowed are the 6 of the first row"),
    (f"{ALL}a,held out,pair,4,64,1\n", "row 2, column tp: got '4', allowed are 2 on pair"),
    (f"low,{ALL}1,a,held out,pair,2,64,1\n", "row 2, column high: got None, allowed are numbers from us, 1, on"),
    (f"low,high,{ALL}2,3,a,held out,pair,2,64,1\n", "column low: got '2', allowed are numbers above 0 up to us, 1"),
    ("machine,tp,bytes,us\n", "all_reduce.csv: got no row, allowed is at least one"),
    (b"\xff\xfem\x00", "all_reduce.csv: got no text, but 'utf-8' codec"),
])  # fmt: skip
def test_a_folder_that_cannot_be_judged_costs_one_line_and_no_row(tmp_path, refused, text, words):
    if text:
        (tmp_path / "all_reduce.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = JUDGED.read_bytes()
    assert words.format(tmp_path) in refused("judge", tmp_path)
    assert JUDGED.read_bytes() == before


def test_a_source_that_is_there_already_takes_no_other_rows(tmp_path, refused):
    """Both were in the table under one name."""
    (tmp_path / "attention.csv").write_text(HEADS + PREFILL.replace("mine", "vidur"), encoding="utf-8")
    before = JUDGED.read_bytes()
    assert "source: got vidur in two folders with prefill, allowed is it in one" in refused("judge", tmp_path)
    assert JUDGED.read_bytes() == before


def test_a_folder_given_twice_does_not_count_twice(tmp_path, refused):
    (tmp_path / "attention.csv").write_text(HEADS + PREFILL, encoding="utf-8")
    said = refused("judge", "--only", tmp_path, tmp_path)
    assert "source: got mine in two folders with prefill, allowed is it in one" in said


def test_the_page_names_the_columns_that_are_needed():
    text = (Path(judge.__file__).parent / "README.md").read_text(encoding="utf-8")
    for name, columns in judge.NEEDED.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert re.sub(r" \([^)]*\)", "", row.split("|")[2]).strip().split(", ") == columns


def test_the_quoted_rows_are_well_formed():
    for name in ("attention", "all_reduce", "host"):
        with (PUBLIC / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {r["split"] for r in rows} == {"fitted", "held out"} and all(float(r["us"]) > 0 for r in rows)


def test_exactly_the_noisy_measurements_are_missed():
    """A table with every size's own time would miss the bar against the same measurement taken again."""
    rows = [row for row in overall("held out").values() if row["again"]]
    assert len(rows) == 16
    for row in rows:
        assert (row["passes"] == "no") == (float(row["again"]) > 25)
        assert float(row["again"]) > 40 or float(row["again"]) < 9, "no bar at 25 %, and no small change, decides"


def test_the_claim_counts_them_and_the_picture_shows_all():
    df = cost_parts.table()
    assert len(df) == len(overall("held out")) and cost_parts.judged() == (df.part != judge.WHOLE).sum()
    assert cost_parts.missed() == cost_parts.untellable() == sum(why == NOISE for why in MISSED.values())
    assert 40 < cost_parts.least_again() < 50 and 3.5 < cost_parts.worse() < 4
    missed = df[~df.passes & (df.part != judge.WHOLE)]
    assert set(missed.part) == {cost_parts.ONE_BY_ONE}
    dots = sum(len(c.get_offsets()) for c in cost_parts.draw(df).axes[0].collections)
    assert dots == 3 * len(df), "half of the errors, 95 % of them, and the measurement itself"


def test_single_models_and_numbers_of_gpus_are_counted_and_named():
    df = cost_single.table()
    singles = {(r["part"], r["what"], r["source"], r["model"], r["tp"]) for r in read()
               if r["split"] == "held out" and r["model"] != "all" and r["part"] != judge.WHOLE}  # fmt: skip
    assert len(df) == len(singles) and cost_single.missed() == (df.over > 1).sum() == (~df.passes).sum()
    assert cost_single.launched() == sum(why == NOISE for why in MISSED.values())
    assert (df.passes | cost_single._hosted(df)).all(), "as the picture says"
    slow = df.assign(passes=df.passes & (df.what != "nccl-h200 from 1 MiB"))
    told = [" ".join(t.get_text() for t in cost_single.draw(rows).axes[0].texts).strip() for rows in (df, slow)]
    assert not told[0] and "(nccl-h200)" in told[1], "who misses is named"


@pytest.mark.parametrize("key", ["nccl-h100", "nccl-h200"])
def test_eight_hopper_gpus_have_a_line_of_their_own(key):
    """That of two GPUs, longer by one factor, missed fitted and held-out rows alike: too short up to 32 MiB, too long
    from 64 on."""
    eight = [row for row in read() if row["what"] == f"{key} from 1 MiB" and row["tp"] == "8"]
    assert len(eight) == 3 and all(row["passes"] == "yes" and float(row["median"]) < 5 for row in eight)
    took = MACHINES[key].all_reduce
    a_mebibyte_more = {n: took(n, 2**28) - took(n, 2**28 - 2**20) for n in (4, 8)}
    assert a_mebibyte_more[8] < a_mebibyte_more[4]


def test_january_s_host_takes_longer_with_each_gpu_and_knows_models_it_was_not_fitted_to():
    """As one line for two GPUs and more it was 6 % too long on two and 7 % too short on four, fitted ones included."""
    df = cost_single.table()
    host = df[df.part == "host"]
    assert host.passes.all() and host["median"].max() < 9 and set(host.tp) == {1, 2, 4}
    seconds = lambda tp, n: host_time.seconds("vidur-2024-01", tp, n, "llama-2-70b")  # noqa: E731
    more = [seconds(4, n) - seconds(2, n) for n in (10, 40)]
    assert more[1] == pytest.approx(4 * more[0]) and 30e-6 < more[0] / 10 < 50e-6
    assert seconds(8, 40) == seconds(4, 40), "nobody profiled eight"
    assert host_time.seconds("vidur-2024-05", 4, 40) == host_time.seconds("vidur-2024-05", 2, 40)


def test_prefill_passes_for_each_model_as_what_writes_its_keys_is_priced():
    """Without the writer six of 29 missed, most of them with heads that share no keys; its time was in theirs."""
    df = cost_single.table()
    prefill = df[df.part == "prefill"]
    assert prefill.passes.all() and set(prefill.tp) == {1, 2, 4, 8}
    assert prefill[prefill.model == "llama-2-7b"]["median"].max() < 9


def test_decode_passes_for_each_model_as_moved_heads_and_merged_parts_are_priced():
    """One KV head on eight A100s was off by 11 % in the middle and 38 % in the tail, fitted and held out alike."""
    df = cost_single.table()
    decode = df[df.part == "decode"]
    assert decode.passes.all()
    a100 = decode[decode.what == "fa2 on a100"]
    assert set(a100.tp) == {1, 2, 4, 8} and a100["median"].max() < 6 and a100.p95.max() < 18


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("gpus", [4, 8])
def test_a_floor_is_fitted_to_every_other_size_and_holds_between(name, gpus):
    """The floor of two GPUs was everybody's, and eight A100s were a third off."""
    on, short = MACHINES[name], {"fitted": [], "held out": []}
    with (PUBLIC / "all_reduce.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["machine"], row["tp"]) == (name, str(gpus)) and int(row["bytes"]) < 1 << 20:
                short[row["split"]].append((int(row["bytes"]), float(row["us"])))

    def off(split: str, floor: float) -> np.ndarray:
        with_it = replace(on, floor={gpus: floor})
        return np.array([abs(np.log(1e6 * with_it.all_reduce(gpus, n) / us)) for n, us in short[split]])

    best = min(np.arange(20e-6, 70e-6, 0.5e-6), key=lambda floor: off("fitted", floor).mean())
    assert off("fitted", on.floor[gpus]).mean() < 1.01 * off("fitted", best).mean()
    ours, before = (np.median(off("held out", floor)) for floor in (on.floor[gpus], on.floor[2]))
    assert ours < before + 0.02
    assert gpus == 4 or ours < before / 1.7, "where the floor is another one"


def test_the_page_says_where_the_percent_beside_vidur_is():
    rows, page = [r for r in judge.by_part() if r["pp"] == "1"], PAGE.read_text(encoding="utf-8")
    whole = {c: sum(r["theirs"] for r in rows if r["chunk"] == c) for c in ("512", "1024")}
    for kind in ("with prompts", "decodes alone"):
        for part in ("linear", "attention", "all-reduce"):
            mine = [next(r for r in rows if (r["chunk"], r["kind"], r["part"]) == (c, kind, part)) for c in whole]
            cells = [f"{100 * r['theirs'] / whole[r['chunk']]:.1f} | "
                     f"{100 * (r['ours'] - r['theirs']) / whole[r['chunk']]:+.1f}" for r in mine]  # fmt: skip
            assert f"| {kind} | {part} | {cells[0]} | {cells[1]} |" in page
    for chunk in whole:
        less = 1 - sum(r["ours"] for r in rows if r["chunk"] == chunk) / whole[chunk]
        error = next(float(r["bias"]) for r in read() if r["what"] == judge.THROUGHPUT and r["source"] == "vidur-runs"
                     and r["model"] == f"sarathi{chunk} arxiv pp1")  # fmt: skip
        assert 100 * less == pytest.approx(error, abs=0.4), "iterations explain the whole run"


def left(monkeypatch, run: dict, replaced: dict[tuple[str, str], float]) -> float:
    """Percent of requests a second that we are above Vidur, if parts are so many times as long as ours."""

    def stage(cost, work):
        rows, kind = work.tokens, "with prompts" if work.chunks else "decodes alone"
        layer = {"linear": cost.linear(rows), "attention": cost.attention(work), "all-reduce": 2 * cost.reduce(rows)}
        return cost._layers * sum(seconds * replaced.get((kind, part), 1.0) for part, seconds in layer.items())

    monkeypatch.setattr(judge.AnalyticalCost, "stage", stage)
    return 100 * (judge._whole(run).metrics()[judge.THROUGHPUT] / float(run[judge.THROUGHPUT]) - 1)


def test_the_page_says_what_is_left_beside_vidur_with_one_part_as_it_has_it_and_with_all(monkeypatch):
    page, theirs = PAGE.read_text(encoding="utf-8"), {}
    for row in judge.by_part():
        parts = theirs.setdefault((row["chunk"], row["pp"]), {})
        parts[row["kind"], row["part"]] = row["theirs"] / row["ours"]
    with judge.RUNS.open(encoding="utf-8") as file:
        runs = {(r["chunk"], r["pp"]): r for r in csv.DictReader(file)
                if r["workload"] == "arxiv" and r["source"] == "vidur-runs"}  # fmt: skip
    stages = ("512", "1"), ("1024", "1")
    for kind, part in (*theirs[stages[0]], ("", "none"), ("", "all")):
        wanted = [{k: v for k, v in theirs[s].items() if part == "all" or k == (kind, part)} for s in stages]
        cells = [left(monkeypatch, runs[s], replaced) for s, replaced in zip(stages, wanted, strict=True)]
        assert f"| {kind} | {part} | {cells[0]:+.1f} | {cells[1]:+.1f} |".replace("|  |", "| |") in page
        assert part != "all" or max(map(abs, cells)) < 0.3, "batches, schedulers and hosts have no share in it"
    piped = [left(monkeypatch, runs["512", "2"], replaced) for replaced in ({}, theirs["512", "2"])]
    assert piped[0] > 1.4 and abs(piped[1]) < 0.05, "all-reduces alone"


def test_again_is_the_share_of_draws_by_hand():
    """Repeats of 10, 20 and 40 us: three drawn again have the median 10 or 40 in 7 of 27 ways each."""
    noisy = judge.Error("all-reduce", "pair", "x", "fitted", "", "2", 0.0, (10 / 20, 40 / 20))
    assert judge.again([noisy]) == "100.0"  # 20 for 10
    steady = noisy._replace(repeats=(1.0, 40 / 20))
    assert judge.again([steady]) == "50.0"  # 20 for 40
    assert judge.again([steady] * 5 + [noisy]) == "50.0" and judge.again([noisy._replace(repeats=None)]) == ""
    assert sum(judge.DRAWN) == 27 and judge.DRAWN == (7, 13, 7)


def test_nccl_alone_is_foretold_below_a_mebibyte_and_on_a_gpu_of_its_own():
    rows = {key: row for key, row in overall("held out").items() if key[2].startswith("nccl")}
    assert {what.partition(" ")[0] for _, what, _ in rows} == {"nccl-a100", "nccl-h100", "nccl-h200"}
    assert all(row["passes"] == "yes" for row in rows.values()) and len(rows) == 10


def test_whole_runs_are_between_vidur_with_a_launch_and_without_or_within_one_percent():
    rows = [e for e in totals() if e.what == "requests_per_minute"]
    by_run = {}
    for e in rows:
        by_run.setdefault(e.model, []).append(100 * e.error)
    assert len(by_run) == 5
    for plain, free in by_run.values():
        assert max(abs(plain), abs(free)) < 1.5 and (abs(plain) < 1 and abs(free) < 1 or free < 0 < plain)
    assert max(plain - free for plain, free in by_run.values()) > 2, "Vidur's own setting is more than the bar"


@pytest.mark.parametrize("key", [key for key, why in MISSED.items() if why == NOISE])
def test_a_noisy_part_passes_where_messages_are_long(key):
    large = [r for r in read() if r["what"] == f"{key[1]} from 1 MiB" and r["split"] == "held out"]
    assert large and all(r["passes"] == "yes" for r in large if r["model"] == "all")

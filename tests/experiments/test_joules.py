"""The pages of energy: their rows, what they assume of csrc/micro/energy.cu, and what they make of known numbers."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod import data
from pod.experiments.hopper import hopper_any_roof
from pod.experiments.hopper.hopper_peers import batch_of
from pod.experiments.joules import joules, joules_model, joules_prices, joules_roof, joules_rungs
from pod.experiments.joules.rungs import RUNGS
from pod.files import ROOT
from pod.lab import claims
from pod.lab.measure import meter
from pod.lab.measure.checkouts import Worker, changed

SOURCE = (ROOT / "csrc" / "micro" / "energy.cu").read_text(encoding="utf-8")


def test_prices_count_what_the_source_does():
    number = lambda name: int(re.search(rf"\b{name} = (\d+)", SOURCE)[1])  # noqa: E731
    assert joules_prices.PANEL == number("kPanelRows") * number("kRowBytes")
    assert (joules_prices.THREADS, joules_prices.VALUES) == (number("kThreads"), number("kValues"))
    assert joules_prices.DEPTH == number("kDepth")
    assert [int(n) for n in re.findall(r"^POD_PRODUCT\((\d+),", SOURCE, re.MULTILINE)] == list(joules_prices.SHAPES)
    waits, ops = (re.search(rf"enum class {name} : int {{ (.*) }}", SOURCE)[1] for name in ("Wait", "Op"))
    assert waits == "test, try_, hinted, barrier, alone" and ops == "fma, exponential, packed"
    assert len(joules_prices.WAITS) == 5 and len(joules_prices.OPS) == 3


def test_a_rested_call_is_what_it_takes_over_the_rest():
    train = meter.Energy(4.0, 900.0, 890.0, 905.0, 225.0, 1980, 50)
    rest = meter.Energy(3.0, 400.0, 399.0, 401.0, 133.3, 1980, 50)
    assert joules._less(train, rest, "ours") == {
        "ours_ms": 1.0, "ours_mj": 500.0, "ours_rest_watts": 133.3, "ours_mhz": 1980}  # fmt: skip


# ---------------------------------------------------------------- what was recorded, and what is made of it


def test_a_byte_is_the_dearer_the_farther_it_comes():
    price = joules_prices.price
    shared, l2, dram = price("shared", "read"), price("copy", "l2"), price("copy", "dram")
    assert 2 * shared < l2 < dram / 2
    assert price("copy", "l2, pairs") < l2 and joules_prices.dram_over_l2() == pytest.approx(dram / l2)


def test_prices_of_the_list_are_those_of_the_table():
    listed, price = joules_prices.listed(), joules_prices.price
    assert listed.each.dram + price("copy", "l2") == pytest.approx(price("copy", "dram"))
    assert listed.each.narrow == price("product", "n8 shared") > 2 * listed.each.wide
    assert listed.mhz.wide < listed.mhz.narrow, "the wide products stood at the power limit"


def test_a_narrow_flop_is_compared_at_one_clock_too():
    least, most = joules_prices.narrow_over_wide()
    shown = joules_prices.price("product", "n8 shared") / joules_prices.price("product", "n128 shared")
    assert 1.7 < least < most < 1.9 < 2 < shown, "as chapter 18 says: nearly twice"
    registers = joules_prices.price("product", "n8 registers") / joules_prices.price("product", "n8 shared")
    assert round(100 * (1 - registers)) == 28


def test_the_list_has_a_steeper_exponent_for_products_than_was_learnt():
    assert [round(found, 1) for found in joules_prices.exponents()] == [
        1.7,
        2.2,
    ] and joules_model.prices().exponent == 1.4


def test_what_a_page_says_is_less_the_watts_awake():
    df = joules_prices.table()
    assert df[df.how == "alone"].price.item() == pytest.approx(0)
    copy = df[(df.how == "dram") & (df.data == "random")].iloc[0]
    assert copy.watts == pytest.approx(joules_prices.listed().watts + copy.price * copy.rate, rel=1e-6)


def test_batches_keep_the_power_limit_and_spread_little():
    df = joules.table()
    assert len(df) == 3 * len(joules.cases())
    limited = df.steady_watts.between(0.97 * 700, 1.03 * 700)
    assert (limited | (df.steady_mhz > 1e3 * joules_model.HIGHEST)).all() and df.steady_watts.max() < 1.03 * 700
    assert df.steady_mj.to_numpy() == pytest.approx(df.steady_watts * df.steady_ms, rel=0.02)
    assert (df.steady_ms / df.cold_ms).between(0.93, 1.35).all() and joules.spread() < 7


def test_what_is_gained_has_two_factors():
    for how, unit in (("steady", "ms"), ("steady", "mj"), ("rested", "mj")):
        fused = joules.over("ours_serial", how, unit)
        assert joules.halves(how, unit) * fused == pytest.approx(joules.over("fa3_serial", how, unit))
    table = joules.factors()
    product = table["better halves"] * table.fusing
    assert product.to_numpy() == pytest.approx(table["two FA3 calls over ours"].to_numpy())
    assert table.fusing["energy, at the full clock"] == joules.over("ours_serial", "rested", "mj")
    df = joules.table()
    turn, both = (df[df.way == joules.NAMES[way]].steady_mj.sum() for way in ("ours_serial", "ours"))
    assert joules.saved() == pytest.approx(turn - both)
    assert joules.left_at_full_clock() == pytest.approx(100 * joules.saved("rested") / (turn - both))


def test_halves_in_turn_do_the_same_work():
    """The copies and products of both ways are equal, but for how the keys are cut: what differs is clock and time."""
    fused, serial = joules_model.seen()["ours"], joules_model.seen()["ours_serial"]
    for one, other in zip(fused, serial, strict=True):
        assert one.work == pytest.approx(other.work, rel=0.02)
        assert one.mhz < other.mhz and one.joules < other.joules


def test_the_picture_says_of_clocks_what_all_its_batches_show():
    df = joules.table()
    joules_of, clock = (df.pivot(index="batch", columns="way", values=f"steady_{name}") for name in ("mj", "mhz"))
    theirs, in_turn, fused = joules.NAMES.values()
    assert (joules_of.idxmin(axis=1) == fused).all() and (clock[fused] < clock[in_turn]).all()
    assert (clock[fused] > clock[theirs]).any()  # so fused is not at the lowest clock
    title = joules.draw(df).axes[0].get_title(loc="left")
    assert "at a lower clock than its halves in turn" in title and "lowest" not in title


def test_batches_from_which_nothing_was_learnt_are_foretold():
    df = joules_model.table()
    assert df.learnt.sum() == 12 and (~df.learnt).sum() == 10
    told = df[~df.learnt]
    assert joules_model.worst() == told.off.abs().max()
    assert joules_model.worst_energy() == told.energy_off.abs().max() < 5
    paid = told[told.ghz < joules_model.HIGHEST]  # the others could not be faster with any power
    assert joules_model.at_the_limit() == paid.off.abs().max() < 5 and len(paid) >= 8
    assert df[list(joules_model.KINDS)].sum(axis=1).to_numpy() == pytest.approx(joules.watts() * df.foretold_ms)


def test_the_roof_of_joules_is_the_lowest_at_the_ridge_and_not_for_decodes():
    roof = joules_roof.roof()
    assert roof.power.iloc[0] > roof.roofs.iloc[0] and joules_roof.at_the_ridge() < 60
    assert (roof.power.diff().dropna() > 0).all()


@pytest.mark.parametrize("page", [joules, joules_prices, joules_model, joules_roof])
def test_pages_draw_what_their_tables_have(page):
    figure = page.draw(page.table())
    assert figure.axes and all(ax.get_xlabel() for ax in figure.axes)
    plt.close("all")


# ---------------------------------------------------------------- rungs, a copy of the kernel each

ASKED = """
import json, sys
from pod.batch import HybridBatch
from pod.schedule import decide
for line in sys.stdin:
    batch = HybridBatch(*json.loads(line))
    made = decide.hopper(batch, 132)
    print(json.dumps([made.yields, made.shape.decode_rows, made.prefill.seq.tolist()]), flush=True)
"""


def test_every_rung_changes_what_is_there_and_nothing_else(tmp_path):
    for rung in RUNGS:
        copy = changed(rung.changes, tmp_path)
        files = [path.relative_to(ROOT) for part in ("pod", "csrc") for path in (ROOT / part).rglob("*.*")]
        other = {str(path) for path in files
                 if path.suffix in (".py", ".cu", ".cuh", ".h", ".cpp")
                 and (copy / path).read_bytes() != (ROOT / path).read_bytes()}  # fmt: skip
        assert other == {change.file for change in rung.changes}, rung.name


def test_a_copy_plans_as_its_rung_says(tmp_path):
    short, long = ([600] + [1] * 200, [600] + [9000] * 200), ([600, 600] + [1] * 9, [90_000] * 11)
    by_name = {rung.name: rung for rung in RUNGS}
    plans = {}
    for name in ("wide", "greedy", "by_length"):
        worker = Worker(changed(by_name[name].changes, tmp_path / name), ASKED)
        plans[name] = [worker.ask([*lens, 32, 8, 128, 16]) for lens in (short, long)]
    plans["ours"] = [Worker(ROOT, ASKED).ask([*lens, 32, 8, 128, 16]) for lens in (short, long)]
    yields, rows, order = (dict(zip(plans, x, strict=True)) for x in zip(*(p[0] for p in plans.values()), strict=True))
    assert yields["ours"] and not yields["greedy"] and yields["wide"]
    assert (rows["ours"], rows["wide"]) == (8, 16)
    assert order["ours"] == order["greedy"]
    assert plans["ours"][1][2] != plans["by_length"][1][2]


def test_a_process_that_ends_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=f"the kernels of {tmp_path} ended"):
        Worker(tmp_path, "").ask({})


def test_rungs_are_percent_of_the_kernel_as_it_is(tmp_path, monkeypatch):
    names = ["ours", *(rung.name for rung in RUNGS)]
    row = joules_rungs.cases()[0] | {f"{name}_mj": 100 + i for i, name in enumerate(names)}
    row |= {f"{name}_ms": 2.0 for name in names} | {f"{name}_mj_p10": 100.0 for name in names}
    row |= {f"{name}_mj_p90": 102.0 if name == RUNGS[1].name else 101.0 for name in names}
    pd.DataFrame([row]).to_csv(tmp_path / "joules-rungs.csv", index=False)
    monkeypatch.setattr(data, "COMPUTED", tmp_path)
    df = joules_rungs.table()
    assert df.energy.tolist() == pytest.approx([1 + i for i in range(len(RUNGS))]) and not df.time.any()
    assert joules_rungs.energy(RUNGS[2].name) == pytest.approx(3) and joules_rungs.spread() == pytest.approx(2)
    plt.close(joules_rungs.draw(df))


def test_what_fusing_keeps_at_the_full_clock_is_told_by_batch_too():
    """The sum is ruled by large batches; the picture's title says between which shares the batches lie."""
    batches = joules.table()
    rested, steady = (joules.percent_saved(batches, how) for how in ("rested", "steady"))
    assert (rested > 0).all() and 100 * (rested / steady).min() < joules.left_at_full_clock() / 2
    assert (round(steady.min()), round(steady.max()), round(steady[0])) == (6, 24, 15), "as the chapter says"
    assert joules.by_ratio(batches).batch.unique()[2] == batches.batch[0], "the chapter calls it the third row's"
    left = joules.left_of_each()
    assert (left > 50).sum() == 5 and len(rested) == 11, "as the notebook's alt text says"
    assert round(joules_model.left_at_full_clock()) == 22, "as the chapter says"
    right = joules.draw(batches, 22.0).axes[1]
    whole = f"saves: {joules.left_at_full_clock():.0f} %, of a batch {left.min():.0f} to {left.max():.0f} %"
    assert right.get_title(loc="left").endswith(whole)
    lines = {line.get_label(): line.get_xdata()[0] for line in right.lines}
    assert lines == {"all together": joules.left_at_full_clock(), "by the model": 22.0}
    assert [bar.get_width() for bar in right.patches] == pytest.approx(joules.left_of_each(joules.by_ratio(batches)))
    plt.close("all")


def test_rows_are_sorted_by_prefill_over_decode():
    """Chapter 18 reads both pictures from top to bottom, and gives the shares of bytes at both ends by hand."""
    rows = joules.by_ratio(joules.table()).drop_duplicates("batch")
    assert list(rows.ratio) == sorted(rows.ratio) and len(rows) == 11
    for ax in (joules.draw(joules.table()).axes[0], joules_model.draw(joules_model.table()).axes[0]):
        said = [label.get_text().split("  (")[0] for label in ax.get_yticklabels()]
        assert said == list(rows.batch)
    bytes_ = joules_model.moving_of_each()
    assert [round(bytes_[0]), round(bytes_[-1])] == [58, 36] == [round(bytes_.max()), round(bytes_.min())]
    plt.close("all")


def test_least_is_left_where_decode_dominates():
    """Chapter 18 says so, of both recordings, and that in these five batches the halves in turn keep the full clock."""
    df = joules.by_ratio(joules.table())
    left, turn = joules.left_of_each(df), df[df.way == joules.NAMES["ours_serial"]]
    assert left[:5].max() < left[5:].min() and (turn.ratio < 0.41).sum() == 5 and (turn.ratio > 0.5).sum() == 6
    assert list(turn.steady_mhz > 0.99 * turn.rested_mhz) == 5 * [True] + 6 * [False]
    assert joules.left_by_sort().loc["decode dominates"].tolist() == ["6 to 40", "36 to 60"]
    assert joules.left_by_sort().loc["even batches"].tolist() == ["43 to 88", "62 to 144"]


def test_recordings_differ_in_what_is_left_at_the_full_clock():
    """The chapter and the note of joules-slower give the repeat's by hand."""
    (again,) = joules.left_in_repeats()
    assert round(again) == 99 and joules.left_at_full_clock() < 60
    note = next(c.note for c in claims.load() if c.id == "joules-slower")
    assert "and 99 % in a repeat of the same kernels" in note
    assert [round(more) for more in joules.more_in_repeats()] == [2, 8], "as chapter 18 says of another H200"
    less = joules.less_when_rested()
    assert (len(less), round(less.min()), round(less.max())) == (5, 3, 8)


def test_at_the_full_clock_a_call_draws_more_than_the_limit():
    """Chapter 18 gives the watts over the time of single calls, and one time, by hand."""
    df = joules.table()
    for column, watts in (("rested_ms", [979, 758, 925]), ("cold_ms", [969, 715, 910])):
        drawn = (df.rested_mj / df[column]).groupby(df.way).median()
        assert [round(drawn[way]) for way in joules.NAMES.values()] == watts
    (again,) = joules.full_watts_in_repeats()
    assert [round(watts) for watts in again] == [971, 774, 853], "all over the limit there, too"
    (ms,) = df[(df.batch == "2K @ 8K + 128 x 4K, 32/8") & (df.way == joules.NAMES["ours"])].rested_ms
    plain = batch_of(joules.cases()[6]).bytes / hopper_any_roof.ceilings().bytes
    assert [round(x, 2) for x in (ms, plain)] == [0.47, 0.48]


def test_at_the_full_clock_the_model_asks_for_too_much():
    """Chapter 18 gives both medians by hand."""
    off = {way: joules_model.off_at_full_clock(way) for way in joules_model.WAYS}
    assert {way: round(np.median(each)) for way, each in off.items()} == {"ours": 10, "ours_serial": 3}
    assert all((each > 0).all() and len(each) == 11 for each in off.values())


def test_what_the_model_misses_stays_below_the_power_limit():
    df = joules_model.table()
    missed = df[df.off.abs() > 5]
    table = joules.table().set_index(["batch", "way"]).steady_watts
    drawn = [table[row.batch, joules.NAMES[row.way]] for row in missed.itertuples()]
    others = table.drop([(row.batch, joules.NAMES[row.way]) for row in missed.itertuples()])
    assert len(drawn) == 2 and max(drawn) < others.min()
    assert joules_model.draw(df).axes[1].get_title(loc="left").endswith("two that stay below the power limit")
    plt.close("all")

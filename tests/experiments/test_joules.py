"""The pages of energy: their rows, what they assume of csrc/micro/energy.cu, and what they make of known numbers."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod import data
from pod.experiments.hopper import hopper_any_roof, hopper_peers
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
    df = joules_model.fit()
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
    left = [round(joules_roof.at_the_ridge(awake)) for awake in (None, *joules_model.AWAKE)]
    assert left == [52, 52, 52, 51], "as chapter 18 says"


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
    right = joules.draw(batches, (22.0, 45.0)).axes[1]
    whole = f"saves: {joules.left_at_full_clock():.0f} %, of a batch {left.min():.0f} to {left.max():.0f} %"
    assert right.get_title(loc="left").endswith(whole)
    lines = [(line.get_label(), line.get_xdata()[0]) for line in right.lines]
    assert lines == [("all together", joules.left_at_full_clock()), ("by a fit", 22.0), ("by a fit", 45.0)]
    assert [bar.get_width() for bar in right.patches] == pytest.approx(joules.left_of_each(joules.by_ratio(batches)))
    plt.close("all")


def test_rows_are_sorted_by_prefill_over_decode():
    """Chapter 18 reads the picture from top to bottom."""
    rows = joules.by_ratio(joules.table()).drop_duplicates("batch")
    assert list(rows.ratio) == sorted(rows.ratio) and len(rows) == 11
    said = [label.get_text().split("  (")[0] for label in joules.draw(joules.table()).axes[0].get_yticklabels()]
    assert said == list(rows.batch)
    plt.close("all")


def test_the_bills_of_four_fits_are_shown_beside_what_they_foretell():
    df, fits = joules_model.table(), joules_model.fits()
    assert df.awake_at.unique().tolist() == list(fits) == ["120 W", "200 W", "250 W", "330 W"] and len(df) == 4 * 22
    left, right = joules_model.draw(df).axes
    assert [label.get_text() for label in left.get_yticklabels()] == [f"{name} awake" for name in fits]
    tried = joules_model.by_watts()
    awake = [bar.get_width() for bar in left.containers[-1]]
    assert awake == pytest.approx(tried.loc["being awake, %"].tolist())
    assert (tried.loc["bytes, % of the joules"] > tried.loc["products, %"]).all(), "as chapter 18 says of all four"
    assert sum(len(line.get_xdata()) for line in right.lines[1:]) == 4 * 10, "only what was not learnt from"
    work = joules_model.seen()["ours"][6]
    sums = [1e3 * fit.joules(work.work, work.mhz, work.seconds) for fit in fits.values()]
    awake = [1e3 * fit.watts * work.seconds for fit in fits.values()]
    assert all(abs(mj - 1e3 * work.joules) < 3 for mj in sums) and [round(awake[0]), round(awake[-1])] == [78, 214]
    listed = joules_prices.listed().each
    paid = [round(fit.each.dram / listed.dram, 2) for fit in fits.values()]
    assert (paid[0], paid[-1]) == (0.93, 0.35), "nearly the list's, and a third of it"
    assert joules.saved("rested") / joules.saved("rested", "ms") == pytest.approx(330, abs=5), "mJ a ms: some 330 W"
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
    assert [[round(each.min()), round(each.max())] for each in off.values()] == [[1, 21], [1, 14]]
    assert all((each > 0).all() and len(each) == 11 for each in off.values())


def test_given_the_time_energy_is_hardly_a_test():
    """Chapter 18 and the note of joules-foretold-energy say so: the median watts alone do as well, but once."""
    df = joules_model.fit()
    told = df[~df.learnt]
    assert (told.watts_off.abs() < 1).sum() == 9 and joules_model.mean_energy("watts_off") < joules_model.mean_energy()
    left = told.loc[told.watts_off.abs().idxmax()]
    assert (round(left.watts_off, 1), round(left.energy_off, 1)) == (5.2, -1.9)
    assert joules_model.worst_by_watts() == pytest.approx(left.watts_off)
    note = next(c.note for c in claims.load() if c.id == "joules-foretold-energy")
    assert "({worst_by_watts:.1f} against 1.9 %)" in note


def test_the_bill_depends_on_what_being_awake_costs():
    """Chapter 18 gives some of these by hand: with 250 W the same fit foretells as well, and bytes have a third."""
    fits = joules_model.by_watts()
    first, *others = (fits[name] for name in fits.columns)
    assert first["bytes, % of the joules"] == pytest.approx(joules_model.moving())
    assert first["left at the full clock, %"] == pytest.approx(joules_model.left_at_full_clock())
    assert fits.loc["learnt: energy off, root mean square, %"].is_monotonic_decreasing
    assert fits.loc["foretold: time off at the limit, at most, %"].round(1).tolist() == [2.6, 2.5, 2.1, 3.1]
    shares = [fits.loc[name].round().tolist() for name in ("bytes, % of the joules", "products, %", "being awake, %")]
    assert shares == [[46, 40, 36, 30], [32, 27, 23, 18], [17, 29, 36, 48]]
    assert fits.loc["left at the full clock, %"].round().tolist() == [22, 36, 45, 59]
    for test, off in (("fused at the full clock", [10, 4, 3, -1]), ("fused, learnt from in turn", [9, 6, 4, 1])):
        assert fits.loc[f"{test}: energy off, median, %"].round().tolist() == off
    other = joules_model.off_in_the_other_way()
    assert (round(other.min()), round(other.max())) == (5, 13)
    assert others[1]["prefill's products, times the list's price"] == pytest.approx(0.66, abs=0.005)
    work = joules_model.seen()["ours"][6]
    mhz = np.arange(600, 2000, 20)
    for awake, cheapest in ((None, 760), (250, 1160)):  # exercise 1
        prices = joules_model.prices(awake)
        spent = [prices.joules(work.work, f, work.seconds * work.mhz / f) for f in mhz]
        assert mhz[np.argmin(spent)] == cheapest


def test_a_byte_from_dram_is_dearer_in_repeats():
    """Chapter 18 gives these by hand."""
    df = joules_prices.dram_in_repeats()
    assert df.dram.round().tolist() == [96, 110, 112] and df.kv.round().tolist() == [117, 142, 140]
    assert df.over_l2[0] == pytest.approx(joules_prices.dram_over_l2())
    assert df.over_l2.round(1).tolist() == [3.1, 3.7, 3.7]
    more = 100 * (df.iloc[1:, :2] / df.iloc[0, :2] - 1)
    assert [round(more.min(axis=None)), round(more.max(axis=None))] == [15, 21]
    rate = joules_prices.table().set_index("how").rate
    assert [round(rate[how], 1) for how in ("dram, KV", "dram, KV, 128 B")] == [3.3, 4.6]


def test_even_batches_take_longer_back_to_back():
    """Measured, without a model; the repeat's by hand in chapter 18."""
    assert [round(x) for x in joules_roof.longer_back_to_back(even=True)] == [13, 21]
    assert [round(x) for x in joules_roof.longer_back_to_back(even=False)] == [-1, 4]
    (again,) = data.repeated("joules")
    longer = 100 * (again.ours_steady_ms / again.ours - 1)
    seen = hopper_peers.table()
    even = hopper_peers.is_even(seen.prefill / seen.decode)
    assert [round(x) for x in (longer[even].min(), longer[even].max())] == [16, 22]
    assert [round(x) for x in (longer[~even].min(), longer[~even].max())] == [1, 7]
    assert joules_roof.table().intensity[even].min() > joules_roof.table().intensity[~even].max()


def test_cards_and_recordings_differ_as_chapter_18_says():
    """By hand there: which batches reach the limit, how low the fused kernel's clock is, and how long a rest took."""
    (again,), here = data.repeated("joules"), data.read("joules")
    low = here.ours_serial_steady_watts < 680
    assert here.ours_serial_steady_watts[low].round().tolist() == [659, 670]
    assert again.ours_serial_steady_watts[low].tolist() == [698.5, 695.9]
    lower = here.ours_steady_mhz - hopper_peers.table().ours_mhz
    assert [round(lower.min()), round(lower.max())] == [86, 334]
    shorter = [here[way][6] - here[f"{way}_rested_ms"][6] for way in joules.WAYS]
    assert [round(min(shorter), 2), round(max(shorter), 2)] == [0.09, 0.11]


def test_what_the_model_misses_stays_below_the_power_limit():
    df = joules_model.fit()
    missed = df[df.off.abs() > 5]
    table = joules.table().set_index(["batch", "way"]).steady_watts
    drawn = [table[row.batch, joules.NAMES[row.way]] for row in missed.itertuples()]
    others = table.drop([(row.batch, joules.NAMES[row.way]) for row in missed.itertuples()])
    assert len(drawn) == 2 and max(drawn) < others.min()

"""The page of the ladder: rates and shares follow from its recording, and the picture names every rung."""

from itertools import pairwise

import pytest

from pod.data import read
from pod.experiments.ladder import ladder as page
from pod.hardware import H200
from pod.kernels import ladder


@pytest.fixture(scope="module")
def df():
    return page.table()


def at(df, batch, name):
    return df[(df.batch == batch) & (df.kernel == name)].iloc[0]


def test_every_kernel_that_should_be_timed_was_and_is_right(df):
    assert [{"batch": row.batch, "kernel": row.kernel} for row in df.itertuples()] == page.cases()
    errors = read("ladder").error.dropna()
    assert len(errors) == len(df) - 1 and errors.max() < page.LIMIT


def test_rates_are_work_over_time_and_shares_those_of_the_limit_of_each_batch(df):
    two, split = at(df, "prefill", "two"), at(df, "decode", "split")
    assert two.tflops == pytest.approx(two.flops / (two.ms * 1e-3) / 1e12)
    assert two.percent == pytest.approx(100 * two.tflops * 1e12 / H200.tensor_flops)
    assert split.tb_per_s == pytest.approx(split.kv_bytes / (split.ms * 1e-3) / 1e12)
    assert split.percent == pytest.approx(100 * split.tb_per_s * 1e12 / H200.dram_bytes_per_s)


def test_the_best_step_is_the_largest_ratio_of_neighbours(df):
    assert page.best_step(df, "prefill")[0] == "mma" and page.best_step(df, "decode")[0] == "split"
    name, times = page.best_step(df, "decode")
    assert (
        times == at(df, "decode", "swizzle").ms / at(df, "decode", name).ms == page.gain(df, "decode", name, "swizzle")
    )


def test_copies_ahead_and_the_swizzle_bring_as_much_together_in_either_order(df):
    found = page.orders(df)
    for batch in page.BATCHES:
        first, second = found[f"{batch}, first"], found[f"{batch}, second"]
        assert first["swizzle"] * second["copies ahead"] == pytest.approx(page.gain(df, batch, "swizzle", "mma"))
        assert first["copies ahead"] * second["swizzle"] == pytest.approx(page.gain(df, batch, "swizzle", "mma"))
    ms = df[df.batch == "prefill"].set_index("kernel").ms
    saved = [round(ms[before] - ms[after], 2) for before, after in (("mma", "ahead"), ("swizzle alone", "swizzle"))]
    assert saved == [0.24, 0.20], "which chapter 08a says"


def test_the_title_names_the_ideas_that_gain_most(df):
    names = [name for name, rung in ladder.RUNGS.items() if not rung.hopper]
    gain = lambda name, before: max(page.gain(df, batch, name, before) for batch in page.BATCHES)  # noqa: E731
    gains = {name: gain(name, before) for before, name in pairwise(names)}
    assert set(sorted(gains, key=gains.get)[-3:]) == {"mma", "swizzle", "split"}
    assert all(words in page.FIGURE.title for words in ("tensor cores", "swizzle", "split keys"))


def test_the_words_of_a_rung_have_its_numbers_and_what_comes_next(df):
    said = page.words(df, "two")
    for word in ("two, 132 lines", "278 TFLOP/s", "28 %", "3.5 TB/s", "74 %", ladder.RUNGS["two"].next):
        assert word in said


def test_the_picture_has_a_labelled_bar_for_every_rung_and_what_it_is_held_to(df):
    left, right = page.draw(df).axes
    names = [tick.get_text() for tick in left.get_yticklabels()]
    assert set(names) == {rung.idea for rung in ladder.RUNGS.values()} | set(page.LABELS.values())
    assert len(left.texts) == len(right.texts) == len(names) + 1 and len(left.patches) == len(names)
    assert "231   23 %" in [text.get_text() for text in left.texts]


def test_no_kernel_passes_the_line_that_it_is_drawn_under(df):
    for ax in page.draw(df).axes:
        (line,) = ax.lines
        (most, _), last = line.get_xdata(), int(max(line.get_ydata()))
        assert max(bar.get_width() for bar in ax.patches[: last + 1]) < most < ax.get_xlim()[1]


def test_no_rung_is_above_the_roof_that_it_stands_under(df):
    roofs = {name: page.roof(whose) for name, whose in page.UNDER.items()}
    assert all(at(df, "prefill", name).tflops < most for name, most in roofs.items())
    assert at(df, "prefill", "swizzle").tflops > 3 * roofs["ahead"], "which is why the swizzle must come"
    assert roofs["swizzle"] == 8 * roofs["ahead"] == pytest.approx(535.2, abs=0.1)
    said = [text.get_text() for text in page.draw_roofs(df).axes[0].texts]
    assert said[3].startswith("52 of 67: ") and len(said) == len(roofs)

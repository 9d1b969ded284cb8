"""The search for a better plan: what is tried, and what is made of it."""

import numpy as np
import pandas as pd
import pytest

from pod.experiments.hopper import hopper_any
from pod.experiments.hopper import hopper_any_plans as page
from pod.schedule import decide


@pytest.mark.parametrize("number", [0, 1, 4, 9, 65, 278])
def test_every_plan_computes_the_whole_batch_and_the_chosen_one_is_among_them(number):
    batch = hopper_any.drawn()[number].batch

    def content(schedule):
        lists = schedule.prefill, schedule.decode
        return [column.tolist() for work in lists for column in (work.token, work.begin, work.end, work.seq)]

    chosen, seen = content(decide.hopper(batch, 132)), []
    for choice in page.plans(batch).values():
        schedule = decide.hopper(batch, 132, **choice)
        done = sum(int((w.tokens * w.heads * (w.end - w.begin)).sum()) for w in (schedule.prefill, schedule.decode))
        assert done >= batch.num_q_heads * sum(q * (kv - q) for q, kv in zip(batch.q_lens, batch.kv_lens, strict=True))
        seen.append(content(schedule))
    assert chosen in seen and len(seen) > 10


def rows() -> pd.DataFrame:
    made = {"kind": "spec", "head_dim": 128, "words": "", "plan": "another", "tried": 20, "fa3": 0.02}
    return pd.DataFrame([made | {"batch": i, "ours": ours, "best": best}
                         for i, (ours, best) in enumerate(((0.02, 0.016), (0.01, 0.0101)))])  # fmt: skip


def test_a_best_plan_that_is_slower_is_noise(monkeypatch):
    monkeypatch.setattr(page, "read", lambda name: rows())
    df = page.table()
    assert df.lost.tolist() == [1.25, 1.0] and df.best.tolist() == [1.25, 2.0] and df.chosen.tolist() == [1.0, 2.0]
    assert page.lost() == pytest.approx(100 * (1.25**0.5 - 1)) and page.worst(1).batch.tolist() == [0]
    assert page.first_percentile() == pytest.approx(np.percentile([1.25, 2], 1))
    assert page.summary(df)["below 0.98"].tolist() == [0, 0]
    assert page.summary(df)["mean gain"].tolist() == pytest.approx([2**0.5, 2.5**0.5])
    page.draw(df)


def test_the_worst_are_listed_with_the_gains_of_both_recordings():
    worst = hopper_any.worst(hopper_any.table())
    _, _, *lines = page.listed(worst).splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    here = page.table().set_index("batch").loc[worst.batch]
    for column, gains in enumerate((worst.gain, here.chosen, here.best)):
        assert [row[column] for row in cells] == [f"{gain:.2f}" for gain in gains]
    assert [row[-1] for row in cells] == list(worst.words), "six columns in each"

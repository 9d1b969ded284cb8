"""FlashAttention-2's decode with the paper's tile, and the policies widened: rows, right results, and known numbers."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod.batch import HybridBatch
from pod.experiments.methods import methods_fa2, methods_policies
from pod.experiments.pod import pod_06
from pod.lab.measure import flash2, peers
from pod.schedule.binding import POLICIES


@pytest.mark.parametrize("heads, dim", [((4, 2), 64), ((2, 2), 64), ((8, 1), 128)])
def test_decode_with_64_rows_is_right(heads, dim):
    """Heads that share keys, heads that do not, and a group of eight."""
    setting = peers.Setting(HybridBatch.of(40, 96, 3, 70, *heads, dim), device="cpu")
    _, out = flash2.decode(setting)()
    assert peers.error(setting, [out], setting.reference()[1:]) < 5e-3


def test_its_grid_is_flash_attentions():
    """One CTA a request and KV head, four warps of 16 rows, unsplit where two CTAs an SM are full."""
    full, few = (HybridBatch([1] * n, [16384] * n, 32, 4, 128) for n in (66, 4))
    made = flash2.decide(flash2.as_rows(full), 132)
    assert len(made.prefill) == 264 and made.prefill.partials == 0 and made.ctas_per_sm == 2
    assert set(made.prefill.tokens) == {8} and made.shape.prefill_rows == 64 and not made.causal
    cut = flash2.decide(flash2.as_rows(few), 132)
    assert len(cut.prefill) > 16 and set(cut.prefill.parts) == {len(cut.prefill) // 16}
    assert flash2.as_rows(HybridBatch([1], [1], 2, 2, 64)).q_lens == (2,)


def test_rows_of_the_page():
    rows = methods_fa2.cases()
    prompt = [row for row in rows if row["set"] == methods_fa2.PROMPT]
    assert len(prompt) == 64 and {row["decodes"] for row in prompt} == set(pod_06.STEPS[0])
    assert 90 < len(rows) - len(prompt) <= methods_fa2.SWEPT


@pytest.fixture
def fa2(monkeypatch):
    """64 rows: a step of a fifth and streams that hide all of it; 128: a half. FlashInfer 5 % faster, POD 1.5 times."""
    df = pd.DataFrame(methods_fa2.cases())
    more = np.where(df.decodes == pod_06.STEPS[0][1], 1.2, 1.0)
    df = df.assign(prefill=1.0, decode=1.0, fa2_prefill=1.0, fa2_decode=more**2, fa2_serial=1 + more**2,
                   fa2_streams=2.0, decode_64=more, serial_64=1 + more, streams_64=1.6, pod=(1 + more) / 1.5,
                   fi_fa2_serial=(1 + more) / 1.05, kv_bytes=2.4e9)  # fmt: skip
    df.loc[df.set == methods_fa2.SWEEP, "decode"] = [0.1 if i % 2 else 1.0 for i in range((df.set != "figure 6").sum())]
    monkeypatch.setattr(methods_fa2, "read", lambda name: df)
    return df


def test_the_steps_of_either_tile_and_who_is_ahead(fa2):
    assert methods_fa2.decode_step() == pytest.approx(20) and methods_fa2.decode_step("fa2_decode") == pytest.approx(44)
    assert methods_fa2.total_step_max() == pytest.approx(10) and methods_fa2.streams_flat() == 1
    assert methods_fa2.streams_gain_max() == pytest.approx(100 * (2.2 / 1.6 - 1))
    assert methods_fa2.over_flashinfer() == pytest.approx(1.05) and methods_fa2.over_pod() == pytest.approx(1.5)
    assert methods_fa2.batches() == (len(fa2) - 64 + 1) // 2, "the filter leaves out the lopsided"
    assert methods_fa2.share_of_read() == pytest.approx(50)
    figure = methods_fa2.draw(methods_fa2.table())
    assert len(figure.axes) == 2
    plt.close(figure)


def test_policies_are_judged_by_the_better_number_of_ctas(monkeypatch):
    df = pd.DataFrame(methods_policies.cases()).assign(prefill=1.0, decode=0.5, serial=1.5)
    assert len(df) == 48 and set(df.chunk[df.chunk == df.context]) == {2048, 8192, 16384}
    times = {"50:50_2": 1.0, "50:50_4": 1.5, "integer ratio_2": 1.02, "integer ratio_4": 1.2, "proportional_2": 1.05,
             "proportional_4": 1.3, "pod": 1.0}  # fmt: skip
    monkeypatch.setattr(methods_policies, "read", lambda name: df.assign(**times))
    assert methods_policies.gain_max() == pytest.approx(100 * (1 / 1.02 - 1))
    assert methods_policies.gain_max_of("integer ratio", 4) == pytest.approx(25)
    takes = {methods_policies.choice(methods_policies.batch_of(case)) for case in methods_policies.cases()}
    assert takes == {"50:50_2", "proportional_2"} and methods_policies.chosen_costs() == pytest.approx(5)
    assert 0 < methods_policies.chosen_mean() < 5
    figure = methods_policies.draw(methods_policies.table())
    assert len(figure.axes) == 2
    plt.close(figure)


def test_every_policy_is_measured_and_what_pod_chooses_too():
    assert {way.rpartition("_")[0] for way in methods_policies.WAYS if way[-2:] in ("_2", "_4")} == set(POLICIES)
    assert "pod" in methods_policies.WAYS

"""Chapter 07: pieces of source, tickets in the emulator and on an H200 against the Python policies, figures."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from pod import data, kernels
from pod.batch import HybridBatch
from pod.experiments.pod import pod_08, pod_09, pod_present, pod_trace
from pod.hardware import H200
from pod.kernels.trace import both_over_time, both_share, disagreements, held_both
from pod.lab import mutate
from pod.lab.measure import timing
from pod.lab.show import code, tickets
from pod.schedule import binding

pytest.importorskip("torch")
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)
RECORDING = data.RECORDED / "h200" / "pod-trace.csv"
H200_SMS = 132


# ---------------------------------------------------------------- pieces of source


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "ROOT", tmp_path)
    (tmp_path / "x.cuh").write_text(
        """// ------------- a rule
// What it does,
// and why.
template <int N>
int one(int x) {
    if (x) { return "}{"; }  // }
    return 1;
}
struct S { int a; };
int two();
    int loop() {
#pragma unroll
        for (;;) {}
    }
"""
    )
    return "x.cuh"


def test_piece_ends_where_its_block_ends_and_brings_its_comment(source):
    one = code.piece(source, "int one(")
    assert one.lines[0] == "// What it does," and one.lines[-1] == "}" and len(one.lines) == 7
    assert code.piece(source, "struct S").text == "struct S { int a; };"
    assert code.piece(source, "int two").text == "int two();"
    assert code.piece(source, "if (x)").text == 'if (x) { return "}{"; }  // }', "the rest of the function stays out"
    assert code.piece(source, "int loop(").text == "int loop() {\n#pragma unroll\n    for (;;) {}\n}"
    assert code.piece(source, "int one(", end="return 1;").lines[-1] == "    return 1;"


def test_piece_that_is_gone_or_ambiguous_is_an_error(source):
    with pytest.raises(ValueError, match="'int three', which is in 0 lines of x.cuh"):
        code.piece(source, "int three")
    with pytest.raises(ValueError, match="'int ', which is in"):
        code.piece(source, "int ")
    with pytest.raises(ValueError, match="end: got 'nowhere'"):
        code.piece(source, "int two", end="nowhere")


def test_listing_is_plain_in_print_and_coloured_in_a_notebook(source):
    two = code.piece(source, "int two")
    assert str(two) == "int two();" and two._repr_markdown_() == "`x.cuh`\n```cpp\nint two();\n```"


# ---------------------------------------------------------------- what a trace says


def trace_of(*rows):
    """Rows (sm, op, start, end)."""
    return pd.DataFrame(rows, columns=["sm", "op", "start", "end"])


def test_both_over_time_counts_sms_that_hold_both():
    table = trace_of((0, "prefill", 0, 4), (0, "decode", 1, 3), (1, "decode", 0, 2), (1, "prefill", 2, 4))
    times, sms = both_over_time(table)
    assert dict(zip(times, sms, strict=True)) == {0: 0, 1: 1, 2: 1, 3: 0, 4: 0}, "one that ends as another starts"
    assert both_share(table) == pytest.approx(2 / 8)
    assert held_both(table) == 1
    assert both_share(trace_of((0, "prefill", 0, 4), (0, "decode", 0, 4))) == 1


def test_disagreement_is_found():
    deal = binding.deal("50:50", [1] * 4, [1] * 4, 1)
    drawn = binding.draw(deal, [0] * 8, 4, 4, 1)
    table = pd.DataFrame([(a.sm, binding.OPS[a.op], a.ticket, a.draws) for a in drawn],
                         columns=["sm", "op", "ticket", "draws"])  # fmt: skip
    assert disagreements(table, deal).empty
    table.loc[2, "op"] = "decode"
    assert list(disagreements(table, deal).index) == [2]
    table.loc[2, "draws"] = 2
    assert disagreements(table, deal).empty, "it says that it asked for prefill first"


# ---------------------------------------------------------------- the suite, and its recording on the H200


@emulated
def test_suite_records_every_cta_of_every_run(monkeypatch):
    monkeypatch.setattr(pod_trace, "BATCH", HybridBatch.of(200, 200, 24, 96, 4, 2, 64))
    monkeypatch.setattr(timing, "samples", lambda call, repeats: call())
    pod_trace.trace.cache_clear()
    with kernels.machine(3):
        for run in pod_trace.RUNS:
            rows = pd.DataFrame(pod_trace.trace(run, "cpu"))
            plan = pod_trace.plan(run, "cpu")
            assert len(rows) == sum(pod_trace.ctas(plan)) and rows.start_us.min() == 0
            check(rows, plan, run, sms=3)
    pod_trace.trace.cache_clear()


def check(rows, plan, run, sms):
    """Every CTA did what its binding says, and every piece of work was done once."""
    rows, counts = pod_trace.named(rows), dict(zip(binding.OPS, pod_trace.ctas(plan), strict=True))
    assert (rows.start <= rows.end).all() and rows.sm.between(0, sms - 1).all()
    for op, count in counts.items():
        assert sorted(rows[rows.op == op].id) == list(range(count))
    if pod_trace.RUNS[run]["method"] != "pod":
        assert (rows.ticket == -1).all() and (rows.draws == 0).all()
        assert list(rows.op) == ["prefill"] * counts["prefill"] + ["decode"] * counts["decode"]
        return
    for _, on_sm in rows.groupby("sm"):
        by_ticket = on_sm.sort_values("ticket")
        assert list(by_ticket.ticket) == list(range(len(on_sm)))
        later_ends = by_ticket.end[::-1].cummin()[::-1]  # nobody starts after a CTA with a later ticket has ended
        assert (by_ticket.start <= later_ends + 0.1).all()
    assert disagreements(rows, plan.schedule().deal).empty
    for op, other in itertools.permutations(binding.OPS):
        twice = rows[(rows.op == other) & (rows.draws == 2)]
        wished = ((rows.op == op) & (rows.draws == 1)).sum() + len(twice)
        assert len(twice) == max(0, wished - counts[op]), "who drew twice is one too many for what it wished"
        assert twice.empty or twice.end.min() >= rows[rows.op == op].start.max() - 0.1, "it came too late"


@pytest.mark.parametrize("run", pod_trace.RUNS)
def test_recorded_trace_binds_as_the_python_policies_say(run):
    rows = pd.read_csv(RECORDING)
    mine = rows[rows.run == run].sort_values("cta")
    with kernels.machine(H200_SMS):
        plan = pod_trace.plan(run, "cpu")
    assert list(mine.cta) == list(range(sum(pod_trace.ctas(plan))))
    check(mine, plan, run, H200_SMS)


def test_every_cta_of_the_recording_wanted_what_its_policy_says(monkeypatch):
    """And a trace under another policy's name would be noticed."""
    found = pod_trace.surprises()
    assert list(found.CTAs) == [1024, 1024, 2048, 2048] and (found["wanted something else"] == 0).all()
    traces = pod_trace.traces()
    monkeypatch.setattr(pod_trace, "traces", lambda: traces | {"prop2": traces["even2"]})
    assert pod_trace.surprises()["wanted something else"].loc["SM-aware, proportional, 2 CTAs an SM"] > 0


def test_trace_of_another_policy_would_be_noticed():
    rows = pd.read_csv(RECORDING)
    with kernels.machine(H200_SMS):
        plan = pod_trace.plan("prop2", "cpu")
    with pytest.raises(AssertionError):
        check(rows[rows.run == "even2"], plan, "prop2", H200_SMS)


def test_summary_of_the_recording_counts_what_the_traces_hold():
    traces, df = pod_trace.traces(), pod_trace.table()
    assert set(df.run) == set(pod_trace.RUNS) == set(pod_trace.LABELS)
    assert df.sms.between(0, H200_SMS).all()
    for run, trace in traces.items():
        mine = df[df.run == run]
        assert mine.us.max() == pytest.approx(trace.end.max())
        held = np.sum(np.diff(mine.us) * mine.sms[:-1]) / (mine.us.max() - mine.us.min()) / H200_SMS
        assert held == pytest.approx(both_share(trace), abs=1e-6), "the picture drops only moments of no change"
    assert pod_trace.met_everywhere() == 100 * held_both(traces["prop2"]) / H200_SMS
    assert list(pod_trace.summary()["asked twice"]) == [(trace.draws == 2).sum() for trace in traces.values()]


def test_recording_shows_what_the_chapter_says_of_it():
    traces = pod_trace.traces()
    time = {run: trace.end.max() for run, trace in traces.items()}
    both = {run: both_share(trace) for run, trace in traces.items()}
    order = ["serial", "cta", "even2", "prop2"]
    assert [run for run in sorted(order, key=time.get, reverse=True)] == order
    assert [run for run in sorted(order, key=both.get)] == order
    least = min(time["even4"], time["prop4"])
    assert least > 0.97 * time["serial"] > 1.1 * time["prop2"], "four small CTAs win nothing over one after the other"
    assert 0.8 < both["prop4"] / both["prop2"] < 1, "though they hold both nearly as much"
    at, sms = both_over_time(traces["prop2"])
    assert sms[(at > 80) & (at < 105)].max() < 0.25 * H200_SMS < 0.9 * H200_SMS < sms[at < 60].mean(), "the valley"
    mean = traces["prop2"].groupby("op").us.mean()
    assert 3 < mean["prefill"] / mean["decode"] < 6, "a prefill CTA lasts several times as long"


def test_recording_is_small():
    assert RECORDING.stat().st_size <= 300_000


# ---------------------------------------------------------------- pictures


@emulated
def test_pod_08_is_drawn_from_what_the_kernel_does_today():
    now = pd.DataFrame(pod_08.measure({}))
    pd.testing.assert_frame_equal(now, pod_08.table(), check_dtype=False, rtol=0, atol=1e-9)


def test_pod_08_is_what_the_specification_says_of_the_emulated_machine():
    df = pod_08.table()
    assert list(df.groupby("op").size()) == [12, 8] and df.sm.nunique() == pod_08.SMS
    deal = binding.deal("50:50", [1] * 8, [1] * 12, pod_08.SMS)
    assert disagreements(df, deal).empty
    assert (df.draws == 2).any(), "the picture shows a CTA that finds nothing left"
    assert df.groupby("sm").size().nunique() > 1, "and SMs that take more tickets than others"
    assert list(df.start) == sorted(df.start)


def test_pod_09_keeps_every_line_of_the_source_and_every_note():
    df = pod_09.table()
    text = (code.ROOT / pod_09.FILE).read_text()
    assert all(line.strip() in text for line in df.code)
    assert set(df.whose) == {"", pod_09.SAME, pod_09.LEFT_OUT, pod_09.PARTLY}
    assert (df.note != "").sum() == len(pod_09.NOTES)


def test_pod_09_notices_a_changed_source(monkeypatch):
    monkeypatch.setitem(pod_09.NOTES, "no such line", (pod_09.SAME, "?"))
    with pytest.raises(ValueError, match="'no such line', which csrc/include/binding.cuh has 0 times"):
        pod_09.table()


def test_book_and_counters_show_the_first_steps_only():
    table = pd.DataFrame({"sm": [0, 1, 0], "ticket": [0, 0, 1], "op": ["prefill", "prefill", "decode"],
                          "id": [0, 1, 0], "draws": [1, 1, 2]})  # fmt: skip
    assert [t.get_text() for t in tickets.book(table, upto=2).texts] == ["P0", "P1"]
    ax = tickets.book(table)
    assert [p.get_hatch() for p in ax.patches] == [None, None, "///"]
    assert tickets.counters(table, 2) == "after 2: tickets 1, 1; prefill 2, decode 0"


def test_the_picture_of_a_step_says_what_the_counters_stand_at():
    ax = plt.subplots()[1]
    pod_08.after(ax, 8)
    assert len(ax.patches) == 8 and ax.get_title() == "after 8: tickets 2, 2, 2, 2\nprefill 4, decode 4"


def test_sms_that_hold_both_are_drawn_over_time_with_their_mean():
    ax = plt.subplots()[1]
    trace = trace_of((0, "prefill", 0, 4), (0, "decode", 1, 3), (1, "decode", 0, 4))
    assert tickets.holding(trace, ax, sms=2, tone="black") == pytest.approx(0.5)
    assert ax.lines[0].get_xydata().tolist() == [[0, 0], [1e6, 1], [3e6, 0], [4e6, 0]], "seconds, drawn as microseconds"


@pytest.fixture
def four_sms():
    """Section 4's batch and GPU."""
    batch = HybridBatch.of(256, 1024, decodes=48, decode_context=256, num_q_heads=4, num_kv_heads=2, head_dim=64)
    dram, flops = H200.dram_bytes_per_s / 33, H200.tensor_flops / 33
    return batch, replace(H200, sms=4, tensor_flops=flops, dram_bytes_per_s=dram)


WHOLE = {"prefill_splits": "none", "decode_splits": 1}


def test_a_policy_of_ones_own_is_modelled_like_ours(four_sms, monkeypatch):
    """Exercise 2 and its answer."""
    deal = lambda prefill, decode, sms, n: np.where(np.arange(n) % 4 == 0, binding.PREFILL, binding.DECODE)  # noqa: E731
    monkeypatch.setitem(binding.POLICIES, "one to three", deal)
    ways = {name: {"method": "pod", "policy": name} for name in ("50:50", "proportional", "one to three")}
    both = tickets.modelled(*four_sms, ways, ctas_per_sm=4, **WHOLE)["SMs that hold both"]
    assert dict(both) == {"50:50": "2.1", "proportional": "3.7", "one to three": "3.7"}


def test_panels_say_how_many_sms_hold_both_and_how_long_it_took(four_sms):
    axes = tickets.meeting(*four_sms, ("50:50", "proportional"), slots=(2, 4), **WHOLE).axes
    words = [ax.get_title(loc="left") for ax in axes]
    assert words[0] == "50:50, 2 CTAs an SM: 1.2 SMs hold both, 83 µs" and len(words) == 4
    assert words[3] == "proportional, 4 CTAs an SM: 3.7 SMs hold both, 76 µs"


def test_legends_of_what_is_dealt_say_how_far_apart_the_sides_come():
    """Section 5's left panel, whose numbers its words repeat."""
    cases = {"x": (np.ones(40), np.ones(76)), "y": (np.ones(40), np.ones(40))}
    ax = tickets.dealings(cases, ("50:50", "proportional"), sms=4).axes[0]
    words = [t.get_text() for t in ax.get_legend().get_texts()]
    assert words == ["50:50: up to 53 points apart", "proportional: up to 26 points apart"]


def test_each_panel_of_the_recording_says_how_long_it_took_and_how_many_sms_held_both():
    axes = pod_trace.draw(pod_trace.table()).axes
    titles = [ax.get_title() for ax in axes]
    assert len(titles) == 6 and titles[3] == "SM-aware, proportional, 2 CTAs an SM\n184 µs, 77 SMs hold both"
    df = pod_trace.table()
    assert (df.sms + df.prefill + df.decode).max() == H200_SMS
    alone = df[(df.run == "prop2") & df.us.between(80, 106)]
    assert alone.prefill.min() > 0.9 * H200_SMS, "section 6: prefill is alone there"


def test_one_sm_has_a_row_for_each_way_with_two_slots():
    (ax,) = pod_trace.draw_one(0).axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["serial", "CTAs by index", "50:50", "proportional"]


def test_shares_of_work_dealt_end_at_all_and_stay_together_under_the_proportional_policy():
    prefill, decode = np.arange(40, 0, -1), np.ones(120)
    for policy in binding.POLICIES:
        shares = tickets.dealt_shares(policy, prefill, decode, sms=4)
        assert all(s[0] == 0 and s[-1] == pytest.approx(100) and (np.diff(s) >= 0).all() for s in shares)
    ax = plt.subplots()[1]
    gaps = tickets.dealt(["proportional", "50:50", "integer ratio"], prefill, decode, 4, ax)
    assert gaps["proportional"] < gaps["integer ratio"] < gaps["50:50"]


def test_a_prefill_beside_decode_is_no_faster_than_beside_another_prefill():
    first = pod_trace.first_prefills()
    assert first.sm.nunique() == len(first) == H200_SMS and first.beside.between(0.3, 1).all()
    assert first.us.mean() > first.serial_us.mean()
    slowed = first.serial_us * (first.serial_beside + 1.5 * (1 - first.serial_beside))  # as if none had been alone
    assert round(100 * first.serial_beside.mean()) == 90 and round(slowed.mean()) == 124 < first.us.mean() - 2
    assert round(slowed.mean() / (1 + 0.5 * first.beside.mean())) == 96, "had decode left it the pace of one alone"


def test_what_rows_cover_is_counted_once():
    rows = pd.DataFrame({"start": [0, 1, 5, 9], "end": [3, 2, 6, 20]})
    assert pod_trace._covered(rows, 1, 10) == 2 + 1 + 1


def test_places_of_the_recording_grow_with_the_sms_that_hold_both():
    two = pod_trace.summary().iloc[:4]
    assert two.place.is_monotonic_increasing and two["on average"].is_monotonic_increasing and two.place.iloc[0] == 0


# ---------------------------------------------------------------- tickets that know who is here now


@emulated
def test_the_kernel_of_the_third_exercise_computes_the_same_launch_after_launch():
    def change(csrc):
        for each in (pod_present.ASK, pod_present.LEAVE):
            each.apply(csrc.parent)

    assert mutate.Outcome(mutate.POD.build(change)).text == "right result"


def test_the_third_exercise_says_what_was_recorded():
    done = pod_present.done(pod_present.table()).set_index(["batch", "way"])
    last = done[["decode done, µs", "prefill done, µs"]].max(axis=1)
    assert [last["section 6", way] for way in ("50:50", "proportional", pod_present.PRESENT)] == [191, 179, 197]
    assert [last["chat server", way] for way in ("proportional", pod_present.PRESENT)] == [592, 603]
    assert done["decode done, µs"]["section 6", pod_present.PRESENT] == 133
    both = done["SMs with both"]
    assert list(both["section 6"][1:]) == [78, 78] and list(both["chat server"][1:]) == [97, 109]
    ms = pod_present.table().set_index(["batch", "way"]).ms
    longer = [round(100 * (ms[b, pod_present.PRESENT] / ms[b, "proportional"] - 1)) for b in pod_present.BATCHES]
    assert longer == [15, 13]

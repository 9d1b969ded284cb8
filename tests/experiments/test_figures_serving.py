"""The figures of serving: what they show is what the schedulers did, and what the sources say where they say it."""

from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pod import data
from pod.experiments.engine import chosen, engine_fleet, engine_groups
from pod.experiments.engine import engine_disaggregated as disaggregated
from pod.experiments.engine import engine_replayed as replayed
from pod.experiments.orca import orca_01, orca_02
from pod.experiments.pod import pod_02, pod_12, pod_15, pod_factors
from pod.experiments.sarathi import sarathi_01, sarathi_02, sarathi_06, sarathi_08, sarathi_t1
from pod.experiments.vllm import vllm_01, vllm_02, vllm_03, vllm_04
from pod.lab import notebooks
from pod.lab.show import serving
from pod.serving.loop import serve
from pod.simulate.capacity import at
from pod.simulate.run import Run, Setup, description, simulate
from pod.simulate.scenarios import DOZEN, SLOTS, best_ratio, chat, crowded, slots
from pod.simulate.workload import Workload


def test_slots_do_the_same_work_in_fewer_iterations():
    useful = {name: sum(what != "idle" for *_, what in serving.slot_table(log, SLOTS)) for name, log in slots().items()}
    assert set(useful.values()) == {sum(output for _, output in DOZEN)}
    assert [len(log.iterations) for log in slots().values()] == [24, 17]
    assert orca_01.idle_percent() == pytest.approx(100 * (1 - 59 / 96))
    assert (orca_01.table().what == "idle").any() and not (orca_02.table().what == "idle").any()


def test_a_slot_holds_one_request_at_a_time():
    for log in slots().values():
        cells = [(slot, tick) for slot, tick, *_ in serving.slot_table(log, SLOTS)]
        assert len(cells) == len(set(cells)) and max(slot for slot, _ in cells) < SLOTS


def test_block_tables_cover_the_tokens_and_share_nothing():
    for owners in vllm_01.snapshots().values():
        held = [block for table in owners.values() for block in table]
        assert len(held) == len(set(held)) <= vllm_01.BLOCKS
    a = vllm_01.snapshots()[11][0]
    assert len(a) == 5 and sorted(a) == a != list(range(a[0], a[0] + 5)), "in order of growth, not in one piece"


def test_reserving_wastes_and_paging_does_not():
    reserve, paging = vllm_02.table().itertuples(index=False)
    assert reserve.used_percent < 50 < 90 < paging.used_percent
    assert paging.requests_per_minute > reserve.requests_per_minute
    assert paging.held_but_empty_percent < 1
    left, right = vllm_02.draw(vllm_02.table()).axes
    assert left.get_xlim() == right.get_xlim(), "what ends sooner is shorter"


def test_with_equal_memory_orcas_policy_and_vllms_are_level():
    on = vllm_02.setup("vllm")
    log = serve(vllm_02.WORK.requests(), [vllm_02.orca_over_pages(on)], on.executor(), **description(on, {}))
    chunks = [chunk for iteration in log.iterations for chunk in iteration.prefills]
    assert len(chunks) == len(vllm_02.WORK.requests())  # so every prompt was whole, as Orca has it
    assert not any(iteration.preempted for iteration in log.iterations)
    rates = vllm_02.apart().groupby("memory")["requests a minute"].agg(["min", "max", "size"])
    assert sorted(rates["size"]) == [1, 2, 2]
    assert (rates["max"] / rates["min"]).max() < 1.01


def test_preemption_takes_the_latest_whole():
    assert vllm_03.latest_share() == 1
    tokens = vllm_03.table().groupby("preemption").tokens.sum()
    assert tokens["swap"] < tokens["recompute"]
    for mode, log in crowded().items():
        assert {how for event in log.iterations for _, how in event.preempted} == {mode}


def test_prompts_and_decodes_never_mix_in_vllm():
    assert vllm_04.mixed_iterations() == 0
    table = vllm_04.table().set_index(["scheduler", "iteration"])["count"]
    assert table["Orca", "both"] == 1


def test_the_same_second_five_times():
    table = pod_02.table().set_index("system")
    gap, ttft = table.tbt_max_ms, table.ttft_long_prompt_ms
    assert gap["vLLM"] > 6 * gap["Sarathi"] > 6 * gap["Sarathi+POD"]
    assert ttft["vLLM"] < ttft["Sarathi+POD"] < ttft["Sarathi"] < ttft["static"]
    assert gap["vLLM"] == pytest.approx(ttft["vLLM"], rel=0.1), "the chats wait for as long as the prompt takes"


def test_the_long_prompt_is_carried_by_thirteen_iterations():
    steps = pod_02.gaps("Sarathi")
    assert len(steps) % 40 == 0 and (steps > 50).sum() == 40 * 12 + 40


def test_a_histogram_of_three_systems_holds_every_gap():
    rng = np.random.default_rng(0)
    gaps = {name: rng.uniform(0.01, 9, 400) for name in "ABC"}
    ax = serving.gap_histogram(gaps, limits=(0.2, 0.5)).axes[0]
    assert all(sum(line.get_data().values) == pytest.approx(1, abs=1e-4) for line in ax.patches)
    assert ax.get_xlabel() == "TBT, s (dashed: 200 and 500 ms)"


def test_lanes_show_every_token_of_the_log():
    log = chat("Sarathi")
    names = {0: "a", 40: "b"}
    came = serving.tokens(log, names)
    assert len(came["b"]) == 200 and came["a"] == sorted(came["a"])
    bars = serving.bars(log, names)
    seconds = sum(e.seconds for e in log.iterations if 0 in e.decodes)
    assert sum(end - start for row, start, end, _ in bars if row == "a") == pytest.approx(seconds)


def test_chunks_shrink_bubbles():
    assert sarathi_01.bubbles_until_done("sarathi_v1") < sarathi_01.bubbles_until_done("orca")
    for module in (sarathi_01, sarathi_02):
        rows = module.table()
        for _, mine in rows.groupby("stage"):
            start, end = np.sort(mine.start_ms), np.sort(mine.end_ms)
            assert (start[1:] >= end[:-1] - 1e-9).all(), "a stage runs one micro-batch at a time"


def test_stage_after_stage():
    log = simulate(Setup(model="llama-13b", pp=4, scheduler="orca", max_batch=3, max_tokens=4096, host="none"),
                   Workload("uniform", 20, low=500, high=4000).requests())  # fmt: skip
    for event in log.iterations:
        ends, starts = [end for _, end in event.stages], [start for start, _ in event.stages]
        assert len(ends) == 4 and all(a <= b + 1e-12 for a, b in zip(ends, starts[1:], strict=False))
        assert event.end == ends[-1]
    assert 0 < serving.bubble_share(log, 0, log.iterations[-1].end) < 1


def test_orca_takes_prompts_whole_and_sarathi_in_budget():
    table = sarathi_06.table()
    rows = table.groupby(["scheduler", "iteration"]).tokens.sum()
    assert rows["Orca", 0] == 17 and rows["SARATHI"].max() == sarathi_06.CHUNK


def test_a_decode_rides_for_a_tenth():
    assert sarathi_t1.decode_gain() == pytest.approx(10, rel=0.25)


def test_the_peak_is_where_chunks_and_decodes_run_out_together():
    table = sarathi_08.table()
    for chunk, mine in table.groupby("chunk"):
        best = mine.pd[mine.gain.idxmax()]
        assert best == pytest.approx(best_ratio(chunk, 18), rel=0.1)


def test_pod_gains_most_in_the_middle():
    table = pod_15.table()
    peak = table.gain_percent.idxmax()
    assert 0 < peak < len(table) - 1
    assert (table.gain_percent > 0).all()


def test_pod_beats_both_for_all_models():
    table = pod_12.table()
    assert (table.dropna().pod_gain_ours > 0).all()
    gains = table[table.system == "Sarathi"]
    assert (gains.pod_gain_ours < gains.pod_gain_table7).all()
    assert (gains.pod_gain_table7 < gains.pod_gain_perfect).all()


# ---------------------------------------------------------------- eight GPUs and a promise


def promised(**changes) -> tuple[float, float]:
    """The best rate of two knobs that keep all promises at 10, 20 and 30 requests a second, but for the changes."""
    rows = [(knob, qps, 0.5, 0.010, 0.0) for knob in (1, 2) for qps in (10, 20, 30)]
    runs = pd.DataFrame(rows, columns=["knob", "qps", "ttft_p99", "tbt_p99", "stalls_200ms"])
    for column, broken in changes.items():
        for (knob, qps), value in broken.items():
            runs.loc[(runs.knob == knob) & (runs.qps == qps), column] = value
    ((_, *best),) = disaggregated._best(runs, 1.0, (12,))
    return tuple(best)


def test_a_rate_counts_when_it_and_all_below_keep_every_promise():
    assert promised()[0] == 30
    assert promised(ttft_p99={(1, 30): 2.0}) == (30, 2)
    assert promised(tbt_p99={(1, 30): 0.02, (2, 30): 0.02})[0] == 20
    assert promised(ttft_p99={(1, 20): 1.1, (2, 10): 1.1}) == (10, 1), "kept again at 30 by chance"
    assert promised(ttft_p99={(knob, qps): 2.0 for knob in (1, 2) for qps in (10, 20, 30)})[0] == 0


def test_who_waits_for_a_place_to_decode_is_seen():
    """One long gap among two hundred short ones is no P99 of gaps, but one user in seven has it in the table."""
    assert promised(stalls_200ms={(1, 30): 60.0, (2, 20): 60.0}) == (20, 1)
    runs = disaggregated.read("engine-disaggregated").query("way == @disaggregated.APART and workload == 'azure-conv'")
    assert ((1e3 * runs.tbt_p99 < 25) & (runs.ttft_p99 < 1) & (runs.stalls_200ms > 14)).any()


def test_a_weaker_promise_lets_no_fewer_in():
    for _, mine in disaggregated.table().groupby(["workload", "way"]):
        assert mine.qps.is_monotonic_increasing


def test_tight_promises_want_prompts_apart_and_weak_ones_do_not():
    rates = disaggregated.table().pivot(index=["workload", "tbt_p99_ms"], columns="way", values="qps")
    for workload in ("azure-conv", "conversation"):
        assert rates.loc[workload, 10][disaggregated.APART] > rates.loc[workload, 10][disaggregated.ONCE]
        assert rates.loc[workload, 50][disaggregated.APART] < rates.loc[workload, 50][disaggregated.ONCE]
    assert (rates[disaggregated.ONCE] >= rates[disaggregated.TURN]).all()


def test_another_draw_turns_no_answer():
    draws = disaggregated.draws()
    assert draws.groupby(["workload", "way", "tbt_p99_ms"]).seed.nunique().eq(4).all()
    rates = disaggregated.spread()
    lead, near = rates["chunks lead by, %"], rates["with NVLink by, %"]
    for chats in ("azure-conv", "conversation"):
        assert lead.loc[chats, 10]["max"] < 0 and lead.loc[chats, 14]["max"] <= 0 < lead.loc[chats, 50]["min"]
    assert (lead.loc["azure-code", "min"] >= 0).all() and lead.loc["azure-code", 50]["min"] > 0
    assert near.loc["azure-code", 14]["max"] < 0 < near.loc["azure-code", 50]["min"]
    chat = rates.loc["azure-conv"]
    for way in (disaggregated.ONCE, *disaggregated.LINKS):
        step = disaggregated.RATES["azure-conv"].step
        assert (chat[way, "max"] - chat[way, "min"] <= step).all(), "one step of what was tried"


def test_chapter_15c_sets_both_sides_beside_each_other():
    chat = disaggregated.sides()["chat (Azure)"]
    assert chat.tolist() == ["70 against 110 (-36 %)", "22 ms", "160 against 130 (+14 to +23 %)"]
    assert disaggregated.sides().loc["chunks ahead from"].tolist() == ["22 ms", "never behind", "25 ms"]
    (page,) = Path("notebooks").glob("15c_*.ipynb")
    told = "".join(page.read_text().split())
    for name, ranges in disaggregated.leads().iterrows():
        row = " | ".join([name.partition(" (")[0], *ranges]).replace("-", "\N{MINUS SIGN}")
        assert "".join(row.split()) in told


def test_the_link_decides_about_code_and_hardly_about_chats():
    """Short answers have no hundred gaps, so their P99 is the one in which keys and values travel."""
    sending = {way: disaggregated.setup(way, 4).efficiency.send_bytes_per_s for way in disaggregated.LINKS}
    assert sending == disaggregated.LINKS
    rates = disaggregated.table().set_index(["workload", "tbt_p99_ms", "way"]).qps.unstack()
    once, apart, near = (rates[way] for way in (disaggregated.ONCE, *disaggregated.LINKS))
    code = rates.loc["azure-code"]
    assert (code[disaggregated.ONCE] >= code[disaggregated.APART]).all()
    assert list(code.index[code[disaggregated.NVLINK] > code[disaggregated.ONCE]]) == [14, 16]
    assert (abs(near - apart).drop("azure-code") <= 1).all(), "a step of long chats"
    assert once["azure-code", 50] > near["azure-code", 50] == apart["azure-code", 50]


def test_all_gpus_but_one_may_compute_prompts():
    """Six were once the most that was tried, and seven serve a sixth more code."""
    assert disaggregated.SPLITS[-1] == disaggregated.GPUS - 1
    best = disaggregated.table().query("workload == 'azure-code' and way == @disaggregated.APART")
    assert best.knob.max() == disaggregated.GPUS - 1


# ---------------------------------------------------------------- the same with arrivals as recorded


def test_a_replayed_run_comes_out_as_it_was():
    runs = replayed.read("engine-replayed")
    one = runs.loc[runs.minutes.idxmin()]
    case = {key: one[key] for key in replayed.KEYS[:-1]}
    made = replayed._run(case, int(one.qps))
    assert made == {name: pytest.approx(one[name], rel=1e-6) for name in made}


def test_a_replayed_rate_is_kept_and_the_next_one_is_not():
    runs, df = replayed.read("engine-replayed").query("arrivals == 'recorded'"), replayed.stretches()
    for row in df.itertuples():
        mine = runs[(runs.workload == row.workload) & (runs.way == row.way) & (runs.knob == row.knob)]
        mine = mine[mine.stretch == row.stretch].set_index("qps")
        rates = chosen.RATES[row.workload]
        kept = chosen.kept(mine, row.workload, row.tbt_p99_ms)
        if row.qps:
            assert kept[row.qps]
        above = rates[rates.index(int(row.qps)) + 1 :] if row.qps else rates
        assert not above or not kept[above[0]], "it was tried"
    shown = replayed.table()
    assert set(shown.workload) == set(replayed.NAMES) and set(shown.way) == set(replayed.WAYS)
    assert (shown.worst <= shown.qps).all() and (shown.qps <= shown.best).all()
    judged = {workload: len(chosen.following(workload)) for workload in replayed.NAMES}
    assert judged == {"azure-conv": 5, "azure-code": 4, "conversation": 5}
    assert len(df) == sum(judged[workload] for workload in shown.workload)


def test_who_is_judged_had_no_say_in_the_choice():
    """The chunk or split is the best of all on the beginning, and no stretch shares a request with it."""
    for workload, count in chosen.STRETCH.items():
        stretches = (0, *chosen.following(workload))
        begin, *judged = (list(chosen.arriving(workload, n, 5.0).stream()) for n in stretches)
        whole = list(replace(chosen.arriving(workload, 0, 5.0), count=len(stretches) * count).stream())
        together = [(r.prompt, r.output) for part in (begin, *judged) for r in part]
        assert together == [(r.prompt, r.output) for r in whole], "all of them, in order, each once"
    runs = data.read("engine-chosen")
    for (workload, way), mine in runs.groupby(["workload", "way"]):
        for promise, knob in chosen.knobs()[workload, way].items():
            edges = {k: chosen.edge(each, workload, promise) for k, each in mine.groupby("knob")}
            assert edges[knob] == max(edges.values()) > 0 and set(edges) == set(disaggregated.KNOBS[way])
            equals = chosen.tied()[workload, way][promise]
            assert knob == equals[0] and set(equals) == {k for k, edge in edges.items() if edge == edges[knob]}


def test_both_sides_of_a_tie_are_judged_and_one_of_them_turns_an_answer():
    """Four and five GPUs for prompts served as many of the first chats at 14 ms; later five serve a quarter more."""
    df = replayed.others().set_index(["workload", "way"])
    assert set(df.index) == {("azure-conv", replayed.APART), ("conversation", replayed.ONCE)}
    assert set(df.tbt_p99_ms) == {14}
    assert replayed.ahead("azure-conv", 14) > 5 and replayed.ahead_of_other("azure-conv", 14) < -5
    long = df.loc["conversation", replayed.ONCE]
    assert abs(long.qps_other / long.qps - 1) < 0.1


def test_bursts_decide_how_much_is_served_and_ticks_matter_little():
    rates, steady = replayed.table().set_index(["workload", "way", "tbt_p99_ms"]), replayed.steady_edges()
    for way in replayed.WAYS:
        spread, ticks = replayed.in_ticks(way)
        assert 0.7 * spread < ticks <= spread
        assert rates.qps["azure-code", way, replayed.LOOSE] < 0.7 * steady["azure-code", way, replayed.LOOSE]
        assert rates.best["azure-code", way, replayed.LOOSE] > 5 * rates.worst["azure-code", way, replayed.LOOSE]
        assert rates.qps["azure-conv", way, replayed.LOOSE] > 0.8 * steady["azure-conv", way, replayed.LOOSE]
    assert (replayed.each_ahead(replayed.LOOSE) > 0).sum() == 13 and replayed.least_ahead(replayed.LOOSE) == 0
    assert (replayed.each_ahead(14).loc["conversation"] < 0).all() and replayed.ahead("azure-conv", 14) >= 0


def test_no_line_of_the_factors_runs_through_a_legend():
    figure = pod_factors.draw(pod_factors.table())
    figure.canvas.draw()
    panels = [ax for ax in figure.axes if ax.get_legend()]
    for ax in panels:
        box = ax.get_legend().get_window_extent()
        lines = [line.get_path().transformed(line.get_transform()) for line in ax.lines]
        assert not any(line.intersects_bbox(box, filled=False) for line in lines), ax.get_title()
    named = {text.get_text() for ax in panels for text in ax.get_legend().get_texts()}
    assert named == {system for panel in pod_factors.PANELS for system in pod_factors.systems(panel)}


@pytest.mark.parametrize("requests, kept, broken", [(150, 15.5, 16.5), (600, 10.3, 11)])
def test_a_short_trial_flatters_a_server(requests, kept, broken):
    """Of one draw, that of the first dot of engine-fleet."""
    run = Run(Setup(gpu="h100", chunk=512), Workload("azure-conv", requests, seed=1))
    rates = [keeps(at(run, qps).metrics(), engine_fleet.PROMISE) for qps in (kept, broken)]
    assert rates == [True, False]


def test_long_chats_are_tried_for_long_enough():
    """With prompts apart their rate holds for twice as long. For half a minute two more a second would hold."""
    rows = disaggregated.table().set_index(["workload", "way", "tbt_p99_ms"])
    rate, knob = rows.loc[("conversation", disaggregated.APART, 50), ["qps", "knob"]].astype(int)
    setup, whole = disaggregated.setup(disaggregated.APART, knob), disaggregated.SECONDS["conversation"]
    most = {"ttft_p99": 2.0, "tbt_p99": 0.05, "stalls_200ms": disaggregated.STALLED}
    kept = [keeps(Run(setup, Workload("conversation", seconds * qps, qps)).metrics(), most)
            for seconds, qps in ((2 * whole, rate), (whole, rate + 1), (30, rate + 2))]  # fmt: skip
    assert kept == [True, False, True]


def keeps(felt: dict[str, float], most: dict[str, float]) -> bool:
    return all(felt[name] <= bound for name, bound in most.items())


def test_chapter_15c_says_how_full_the_fullest_second_is():
    told = {"azure-conv": (2.7, 2.9), "azure-code": (21.4, 26.1)}  # of the stretches that are judged; of the recording
    for workload, (judged, whole) in told.items():
        times = pd.Series(chosen.read_trace(data.DATA / "public" / chosen.TRACES[workload])[:, 2])
        most = times.astype(int).value_counts().max()
        assert round(replayed.fullest(workload), 1) == judged
        assert round(most * (times.max() - times.min()) / len(times), 1) == whole


def test_chapter_15c_says_what_bursts_cost_groups_of_three_sizes():
    df = engine_groups.kept()
    assert df[engine_groups.WHOLE].tolist() == [12, 40, 320] and df[engine_groups.RANDOM].tolist() == [120, 240, 520]
    assert df.kept_percent.round().tolist() == [10, 17, 62]
    random = engine_groups.table().query("arrivals == @engine_groups.RANDOM")
    assert (random.groupby("gpus").qps.nunique() == 1).all(), "three draws agree"


def test_the_burst_alone_says_what_groups_of_8_and_16_gpus_keep():
    """Each second's requests of the four stretches; a group has the burst's length and the promised second."""
    workload, every = engine_groups.CODE, chosen.following(engine_groups.CODE)
    count = chosen.STRETCH[workload]
    times = chosen.read_trace(data.DATA / "public" / chosen.TRACES[workload])[
        every[0] * count : (every[-1] + 1) * count, 2
    ]
    seconds = pd.Series(times.astype(int)).value_counts().sort_index()
    burst = seconds.reindex(range(seconds.index[0], seconds.index[-1] + 1), fill_value=0).rolling(10).sum().max()
    mean = len(times) / (times.max() - times.min())
    assert burst == 411 and round(10 * mean) == 31
    for (_, row), expected in zip(engine_groups.kept().iterrows(), (13, 44), strict=False):
        rate = mean * 10 / (burst / row[engine_groups.RANDOM] - 1)
        assert round(rate) == expected and abs(rate / row[engine_groups.WHOLE] - 1) < 0.11
    assert burst / 520 < 1, "within the promised second on 32"
    assert round(4 * mean * 10 / (4 * burst / 520 - 1)) == 58, "if bursts grow with the service"


def test_the_plain_queue_of_chapter_15c_keeps_what_its_fold_says():
    page = "\n".join(notebooks.sources(notebooks.find(["15c"])[0], "markdown"))
    fold = next(part for part in page.split("<details>") if "a plain queue</summary>" in part)
    code = fold.split("```python\n")[1].split("```")[0]
    with redirect_stdout(StringIO()) as said:
        exec(code, {})
    kept = [int(line.split()[1]) for line in said.getvalue().splitlines()]
    assert kept == [12, 48, 359] and "It keeps 12, 48 and 359 a second" in fold
    for (gpus, simulated), queue, told in zip(
        engine_groups.kept()[engine_groups.WHOLE].items(), kept, (15, 50, 360), strict=True
    ):
        steps = [step * gpus // 8 for step in engine_groups.STEPS]
        above = steps[steps.index(simulated) + 1]
        assert simulated <= queue < above == told, "the step below the queue's rate"


def test_on_32_gpus_a_longer_burst_is_the_limit():
    times = chosen.read_trace(data.DATA / "public" / chosen.TRACES[engine_groups.CODE])[1500:7500, 2]
    served = np.arange(len(times)) / 520
    late = times / 114.6 - served  # the clock that the plain queue keeps: 359 requests a second
    waits = np.maximum.accumulate(late) - late
    worst = waits.argmax()
    first = np.flatnonzero(waits[:worst] == 0)[-1]
    assert worst - first == 929 and round(times[worst] - times[first]) == 84

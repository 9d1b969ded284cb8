"""Joules of an iteration: fitted to runs of one model, held against those of two others, and counted once."""

import json

import pytest

from pod.__main__ import main
from pod.data import read
from pod.experiments.joules import joules_prices
from pod.hardware import gpu
from pod.serving.events import Iteration
from pod.serving.shapes import shape
from pod.simulate import calibrate
from pod.simulate.calibrate import METHODS, RUNS
from pod.simulate.cost import AnalyticalCost, MeasuredCost
from pod.simulate.energy import FA3, IDLE_WATTS, PRICED, RECORDED, Meter, amounts, basis, lacking
from pod.simulate.joules import Work
from pod.simulate.run import Run, Setup
from pod.simulate.workload import Workload

HELD_OUT = [run for run, (load, _) in RUNS.items() if load.model != "llama-3-8b"]


def off(run: str) -> float:
    energy = RECORDED["h200", METHODS[RUNS[run][1]][1]]
    return energy.joules(*calibrate.spent(run)) / calibrate.drawn(run) - 1


@pytest.mark.parametrize("kernels", ["fa3", "hopper"])
def test_the_constants_follow_from_the_recording(kernels):
    fitted, here = calibrate.energy(kernels), RECORDED["h200", kernels]
    for name in ("flop", "byte", "watts"):
        assert getattr(here, name) == pytest.approx(getattr(fitted, name), rel=2e-3)


@pytest.mark.parametrize("run", HELD_OUT)
def test_models_that_were_not_fitted_come_out(run):
    assert abs(off(run)) < 0.05


def priced(mhz: float, flops: float, nbytes: float, seconds: float) -> float:
    """Joules by what each instruction cost alone (chapter 18): products of 128 columns, bytes from L2 for tiles of 128
    by 256, bytes from DRAM, watts of being awake."""
    moved = flops * (1 / 128 + 1 / 256) + nbytes
    work = Work(dram=nbytes / 1e12, into_sms=moved / 1e12, wide=flops / 1e12)
    return joules_prices.listed().joules(work, mhz, seconds)


def by_price(run: str) -> float:
    """At the run's clock, over what was drawn."""
    mhz = read("engine-runs").query("run == @run").sm_clock_mhz.median()
    return priced(mhz, *calibrate.spent(run)) / calibrate.drawn(run)


def test_the_second_opinion_is_the_price_list_at_full_clock():
    full = joules_prices.listed().mhz.into_sms
    for amounts_of in ((1e15, 0, 0), (0, 1e15, 0), (0, 0, 1e3)):
        assert PRICED["h200", "hopper"].joules(*amounts_of) == pytest.approx(priced(full, *amounts_of), rel=1e-3)


@pytest.mark.parametrize("run", [run for run in RUNS if METHODS[RUNS[run][1]][1] == "hopper"])
def test_the_second_opinion_gives_whole_runs_of_our_kernel_as_nearly_as_the_fitted_one(run):
    """No GPU takes more than its limit; clocks are not known."""
    joules = PRICED["h200", "hopper"].joules(*calibrate.spent(run))
    most = gpu("h200").power_w * calibrate.seconds(run)[0]
    assert abs(min(joules, most) / calibrate.drawn(run) - 1) < 0.05


@pytest.mark.parametrize("run", [run for run in RUNS if METHODS[RUNS[run][1]][1] == "hopper"])
def test_prices_of_instructions_alone_give_the_runs_of_our_kernel(run):
    """Nothing of the engine is in them, so two roads lead to the same joules."""
    assert 0.95 < by_price(run) < 1


def test_they_do_not_give_those_of_flashattention_3_which_is_why_a_run_has_constants_of_its_own():
    shares = [by_price(run) for run in RUNS if METHODS[RUNS[run][1]][1] == "fa3"]
    assert min(shares) < 0.8 and max(shares) < 0.95


def test_a_run_at_the_limit_takes_its_watts():
    """What a joule a byte too many would be: the runs at 690 W tell it."""
    assert {run for run in RUNS if 680 < calibrate.drawn(run) / calibrate.seconds(run)[0] < 700}
    assert abs(FA3.joules(1.1 * calibrate.spent("yi-6b, fa3")[0], *calibrate.spent("yi-6b, fa3")[1:])
               / calibrate.drawn("yi-6b, fa3") - 1) > 0.015  # fmt: skip


def test_idle_watts_are_those_of_a_gpu_that_had_nothing_to_do_for_long():
    """The three of lean-energy are 83, 128 and 130 W: before the first context nothing had run, before the others a
    minute at full load, after which clocks presumably stay high for a while. So only the least is one of rest. The
    recording before had 79.5 W three times, hence the tolerance."""
    assert read("lean-energy").idle_watts.min() == pytest.approx(IDLE_WATTS["h200"], rel=0.05)


def test_work_is_counted_by_hand():
    s = shape("llama-3-8b")
    event = Iteration(0, 0.0, 0.05, [(0, 4, 10, True)], [1, 2], 300)
    flops, nbytes = amounts(s, event)
    weights = s.layers * s.layer_weights
    assert flops == 2 * weights * 6 + 4 * s.layers * s.q_heads * s.head_dim * (11 + 12 + 13 + 14)
    assert nbytes == 2 * weights + (14 + 300) * s.kv_bytes_per_token


def served(**changes) -> dict[str, float]:
    setup = Setup(gpu="h200", measured=True, attention="pod", host="none", block_size=256, max_tokens=8192, **changes)
    return Run(setup, Workload("uniform", 40, 0.4, low=4000, high=8000)).full()


def test_a_run_adds_up_to_its_watts():
    row = served()
    seconds = 60 * row["minutes"]
    total = row["joules_per_request"] * row["requests"]
    assert total == pytest.approx(row["watts_per_gpu"] * seconds)
    assert total == pytest.approx(row["joules_per_token"] * row["output_tokens_per_second"] * seconds)
    assert IDLE_WATTS["h200"] < row["watts_per_gpu"] < gpu("h200").power_w
    assert row["joules_per_iteration"] * row["iterations"] < total, "idle time costs, too"


def test_gpus_that_idle_cost_their_share():
    one, four = served(), served(replicas=4)
    assert four["watts_per_gpu"] < one["watts_per_gpu"] and four["joules_per_token"] > one["joules_per_token"]


def test_the_analytical_h200_has_them_too_and_counts_its_gpus():
    meters = [Meter(AnalyticalCost(shape("llama-3-8b"), gpu("h200"), tp)) for tp in (1, 2)]
    event = Iteration(0, 0.0, 1.0, [], [1], 100)
    assert meters[1].iteration(event) - meters[0].iteration(event) == pytest.approx(FA3.watts)


def test_no_gpu_takes_more_than_it_is_allowed():
    meter = Meter(AnalyticalCost(shape("llama-3-8b"), gpu("h200")))
    prompts = Iteration(0, 0.0, 0.1, [(0, 8192, 0, True)], [], 0)
    assert FA3.joules(*amounts(shape("llama-3-8b"), prompts), 0.1) > 70 == pytest.approx(meter.iteration(prompts))


@pytest.mark.parametrize(("cost", "words"), [
    (AnalyticalCost(shape("yi-6b"), gpu("a100")), "got fa2-2024 on a100, recorded were fa3 and hopper on h200"),
    (AnalyticalCost(shape("yi-6b"), gpu("h200"), attention="oracle"), "got attention oracle, recorded were serial"),
    (AnalyticalCost(shape("yi-6b"), gpu("h200"), pp=2), "got a pipeline of 2 stages"),
])  # fmt: skip
def test_where_nothing_was_recorded_the_reason_is_said(cost, words):
    assert words in lacking(cost)
    with pytest.raises(ValueError, match=words):
        Meter(cost)


def test_what_was_recorded_lacks_nothing():
    assert lacking(MeasuredCost(shape("yi-6b"), gpu("h200"))) is None


def test_simulate_prints_joules_or_why_not(capsys):
    options = "simulate --requests 20 --qps 2 --workload azure-conv".split()
    assert main(options) == 0
    said = capsys.readouterr().out
    assert "joules: none (got fa2-2024 on a100, recorded were" in said and "J/token" not in said
    assert main([*options, "--gpu", "h200", "--measured", "--host", "none"]) == 0
    said = capsys.readouterr().out
    assert "J/token" in said and "W/GPU" in said and "joules:" not in said
    assert main([*options, "--gpu", "a100", "h200", "--json"]) == 0
    a100, h200 = json.loads(capsys.readouterr().out)
    assert "joules_per_token" in h200 and "joules_per_token" not in a100
    assert a100["joules"].startswith("none (got fa2-2024") and "joules" not in h200


@pytest.mark.parametrize(("options", "beyond"), [
    ("--tp 2", "2 GPUs"),
    ("--model llama-3-70b --tp 4", "Llama-3-70B on 4 GPUs"),
    ("--model llama-13b", "LLaMA-13B"),
    ("--attention pod", "pod by fa3-h200"),
])  # fmt: skip
def test_joules_of_what_was_never_recorded_are_called_a_guess(options, beyond, capsys):
    """They stood in the table as those of recorded models on one GPU do."""
    asked = f"simulate --requests 5 --workload azure-conv --gpu h200 {options}"
    words = f"a guess for {beyond} (from runs of Llama-3-8B, Yi-6B and Llama-2-7B on one H200 SXM)"
    assert main(asked.split()) == 0
    said = capsys.readouterr().out
    assert f"; joules: {words};" in said and "J/token" in said
    assert main([*asked.split(), "--json"]) == 0 and json.loads(capsys.readouterr().out)["joules"] == words


def test_a_capacity_says_so_too(capsys):
    assert main("capacity --requests 5 --workload azure-conv --gpu h200 --tp 2 --slo ttft_p99=0.1 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["joules"].startswith("a guess for 2 GPUs (from runs of Llama-3-8B")


@pytest.mark.parametrize("run", RUNS)
def test_no_recorded_run_is_a_guess(run):
    assert basis(calibrate.cost(run)) is None

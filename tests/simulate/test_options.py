"""Options of the command line that would change nothing: each is refused in one line that says beside what it would.

What is refused must be heard elsewhere, so every option of `simulate` stands here with a company in which it changes
what users feel.
"""

import argparse
import json
import shlex

import pytest

from pod.__main__ import main
from pod.data import DATA
from pod.simulate import cli

TRACE = shlex.quote(str(DATA / "public" / "mooncake.csv"))
MOONCAKE = f"--workload {TRACE} --max-tokens 131072 --gpu h200 --requests 60"
RATE, FULL = "--requests 40 --qps 3", "--requests 24 --blocks 2100 --block-size 16"
PREEMPTED = "--requests 24 --blocks 300 --workload uniform --low 2000 --high 2000 --pd 1 --scheduler vllm"
HEARD = {  # option: its company, what is said
    "model": (RATE, "yi-6b"),
    "gpu": (RATE, "h100"),
    "tp": (RATE, "2"),
    "pp": (RATE, "2"),
    "scheduler": (RATE, "vllm"),
    "like": (f"{FULL} --scheduler vllm", "vllm-0.2.7"),
    "attention": (RATE, "pod"),
    "chunk": (f"{RATE} --scheduler sarathi_v1", "512"),
    "max_prefills": ("--requests 40 --workload azure-conv", "4"),
    "max_batch": (RATE, "4"),
    "max_tokens": (f"{RATE} --scheduler orca --high 8192 --blocks 9000", "16384"),
    "preemption": (PREEMPTED, "swap"),
    "prefix_cache": (MOONCAKE, ""),
    "pipeline": (f"{RATE} --pp 2", "reformed"),
    "block_size": (FULL, "256"),
    "blocks": ("--requests 24", "2100"),
    "host": (RATE, "none"),
    "machine": (f"{RATE} --tp 2", "dgx-a100"),
    "jitter": (RATE, "10"),
    "slowdown": (RATE, "1.1"),
    "kernels": (RATE, "fa2"),
    "measured": (f"{RATE} --gpu h200", ""),
    "replicas": (RATE, "2"),
    "router": (f"{RATE} --replicas 3", "shortest-queue"),
    "prompt_replicas": (f"{RATE} --replicas 3", "1"),
    "link": (f"{RATE} --replicas 2 --prompt-replicas 1", "1"),
    "workload": (RATE, "conversation"),
    "requests": ("--qps 3", "40"),
    "arrivals": (RATE, "truncated_poisson"),
    "cv": (f"{RATE} --arrivals gamma", "4"),
    "spread": (f"{MOONCAKE} --qps 3", "3"),
    "skip": (MOONCAKE, "100"),
    "low": (f"{RATE} --workload uniform", "8000"),
    "high": (RATE, "8192"),
    "pd": (f"{RATE} --workload zipf", "2"),
    "seed": (RATE, "7"),
    "qps": ("--requests 40", "0.3"),
    "definition": (RATE, "artifact"),
}
SHOWN = {"help", "json", "log"}  # how the answer is given


def felt(options: str, capsys) -> dict:
    assert main(["simulate", *shlex.split(options), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    return {name: value for name, value in answer.items() if name not in (*cli.SWEPT, "arrivals", "cost", "joules")}


def test_every_option_stands_here():
    parser = argparse.ArgumentParser()
    cli.configure(parser)
    assert {action.dest for action in parser._actions} == SHOWN | HEARD.keys()


@pytest.mark.parametrize("name", HEARD)
def test_an_option_changes_what_users_feel_in_some_company(name, capsys):
    company, value = HEARD[name]
    option = f"--{name.replace('_', '-')} {value}"
    assert felt(f"{company} {option}", capsys) != felt(company, capsys)


ORCA = "simulate --scheduler orca static"
REFUSED = [
    (f"{ORCA} --chunk 512", "chunk: got 512, allowed beside --scheduler sarathi_v1 or sarathi"),
    ("simulate --scheduler vllm --chunk 512 1024", "chunk: got 512 1024, allowed beside --scheduler sarathi_v1 or"),
    (f"{ORCA} sarathi_v1 --max-prefills 2", "max_prefills: got 2, allowed beside --scheduler sarathi"),
    ("simulate --like sarathi-serve --max-prefills 1",
     "max_prefills: got 1, allowed beside --scheduler sarathi without --like sarathi-serve"),
    (f"{ORCA} --preemption swap", "preemption: got swap, allowed beside --scheduler vllm or sarathi"),
    *((f"simulate --high 8192 --max-tokens 4096 --scheduler {names}",
       "high: got 8192, allowed beside --max-tokens from 8192") for names in ("sarathi", "orca sarathi")),
    ("simulate --pipeline reformed", "pipeline: got reformed, allowed beside --pp from 2"),
    ("simulate --machine dgx-a100", "machine: got dgx-a100, allowed beside --tp from 2"),
    ("simulate --router shortest-queue", "router: got shortest-queue, allowed beside --replicas from 2"),
    ("simulate --replicas 2 --prompt-replicas 1 --router shortest-queue",
     "router: got shortest-queue, allowed beside --replicas from 2 that do the same"),
    ("simulate --link 50", "link: got 50, allowed beside --pp from 2 or --prompt-replicas"),
    ("simulate --replicas 2 --link 50", "link: got 50, allowed beside --pp from 2 or --prompt-replicas"),
    (f"simulate {MOONCAKE} --seed 2", "seed: got 2, allowed beside lengths or times that are drawn, or --jitter"),
    ("simulate --workload uniform --low 4000 --high 4000 --seed 0",
     "seed: got 0, allowed beside lengths or times that are drawn, or --jitter"),
    ("capacity --router shortest-queue", "router: got shortest-queue, allowed beside --replicas from 2"),
    ("capacity --link 50", "link: got 50, allowed beside --pp from 2 or --prompt-replicas"),
    ("generate hello --scheduler vllm --chunk 64", "--chunk: got 64, allowed beside --scheduler sarathi_v1 or sarathi"),
    ("serve --random llama-3-8b --pages 9 --memory 0.5", "--memory: got 0.5 beside --pages 9, allowed is one of them"),
    ("trace --method serial --policy 50:50", "--policy: got '50:50', allowed beside --method pod"),
    ("keep --still reason --repeat", "--repeat: got it beside --still, which keeps nothing, allowed is one of them"),
    ("figures --list --out x", "--out: got x beside --list, which writes nothing, allowed is one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "words"), REFUSED)
def test_what_would_change_nothing_is_refused(said, words, refused):
    assert words in refused(*shlex.split(said))


@pytest.mark.parametrize("said", ["simulate --slo 2", "simulate --prompt 1 --replicas 2", "capacity --qp 3"])
def test_no_option_is_guessed_from_its_beginning(said, capsys):
    """A promise became a slowdown."""
    with pytest.raises(SystemExit):
        main(shlex.split(said))
    captured = capsys.readouterr()
    assert "unrecognized arguments: --" in captured.err and not captured.out


@pytest.mark.parametrize("said", ["--json --dates", "--json --repeats", "--dates --repeats"])
def test_claims_do_one_thing_at_a_time(said, capsys):
    with pytest.raises(SystemExit):
        main(["claims", *shlex.split(said)])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("said", [
    "--workload uniform --low 4000 --high 4000 --seed 3 --jitter 1",
    "--workload uniform --low 4000 --high 4000 --seed 3 --qps 5",
    "--scheduler orca vllm --workload uniform --low 9 --high 8192 --max-tokens 4096",
    "--scheduler orca sarathi --max-prefills 2 --preemption recompute",
    "--pp 2 --link 50 --pipeline kept",
])  # fmt: skip
def test_what_one_of_several_hears_is_taken(said, capsys):
    assert main(["simulate", "--requests", "3", *shlex.split(said)]) == 0


def test_a_chunk_that_a_scheduler_does_not_know_makes_no_second_run_of_it(capsys):
    assert main("simulate --requests 3 --scheduler vllm sarathi --chunk 512 1024 --json".split()) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["scheduler"], r["chunk"]) for r in rows] == [("vllm", None), ("sarathi", 512), ("sarathi", 1024)]


@pytest.mark.parametrize(("attention", "said"), [("pod", True), ("serial", False)])
def test_attention_that_fuses_is_said_to_have_nothing_to_fuse(attention, said, capsys):
    assert main(f"simulate --requests 3 --scheduler vllm sarathi --attention {attention}".split()) == 0
    told = "attention: any as serial with vllm, which never has prompts beside decodes"
    assert (told in capsys.readouterr().out) == said


def test_the_help_names_all_kernels_that_a_refusal_allows(capsys, monkeypatch):
    """It left out the better baseline."""
    monkeypatch.setenv("COLUMNS", "500")  # no name is cut at its hyphen
    assert main(["simulate", "--measured", "--gpu", "h200", "--kernels", "none"]) == 2
    allowed = capsys.readouterr().err.strip().rpartition(" are ")[2]
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    assert f"with --measured {allowed}" in " ".join(capsys.readouterr().out.split())


def test_figures_are_listed_by_name_too(capsys):
    assert main(["figures", "--list", "pod-06"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pod-06 ") and out.count("\n") == 1

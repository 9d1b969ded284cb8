"""The OpenAI API over HTTP: a real client, rude clients, and clients that vanish."""

import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

for package in ("starlette", "uvicorn", "prometheus_client", "psutil", "gguf", "tokenizers", "openai"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[dev]'")

import openai  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402
from served import (  # noqa: E402
    Listener,
    cancelled,
    heard_of,
    held,
    http,
    nothing_is_kept,
    service,
    text,
    wait_until,
)

from pod import files  # noqa: E402
from pod.__main__ import main  # noqa: E402
from pod.serving import http as http_module  # noqa: E402
from pod.serving import serve, tiny  # noqa: E402
from pod.serving.model_file import Gguf  # noqa: E402
from pod.serving.sampler import Sampling  # noqa: E402

HELLO = [{"role": "user", "content": "a page"}]


@pytest.fixture(scope="module")
def served(model, file):
    """A server that takes 3 ms an iteration: (service, address)."""
    one = service(model, file, pages=200, pause=0.003)
    with http(one, file) as url:
        yield one, url


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, **more):
    return client.chat.completions.create(
        **{"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 12} | more
    )


def post(url: str, body: bytes, path="/v1/completions", method="POST") -> tuple[int, dict]:
    """A request by hand: status and the JSON of the answer."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url + path, body or None, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def head_of(url: str, line: str) -> str:
    """The head of the answer to a request without a body, in small letters but for values."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        made.sendall(f"{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return made.makefile().read().partition("\n\n")[0]


# ---------------------------------------------------------------- what a client gets


def test_an_answer_has_text_reason_and_usage(client, served, file):
    answer = chat(client)
    pieces = Listener(served[0], file.conversation(HELLO), 12).rest()
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", text(pieces), "length")
    prompt = len(file.conversation(HELLO))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 12)
    assert answer.usage.total_tokens == prompt + 12 and answer.model == "tiny" and answer.object == "chat.completion"


@pytest.mark.parametrize("more", [{}, {"temperature": 1.5, "seed": 3, "top_p": 0.9}, {"stop": " w"}], ids=str)
def test_a_stream_says_what_a_whole_answer_says(more, client):
    whole = chat(client, **more)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **more))
    assert chunks[0].choices[0].delta.role == "assistant" and len({chunk.id for chunk in chunks}) == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_completion_takes_text_or_tokens_and_sixteen_tokens_when_none_are_named(client, file):
    ask = lambda prompt, **more: client.completions.create(model="tiny", prompt=prompt, temperature=0, **more)  # noqa: E731
    answer = ask(" page tile")
    assert answer.usage.completion_tokens == 16 and answer.choices[0].finish_reason == "length"
    assert ask(file.tokens(" page tile")).choices == answer.choices
    assert "".join(c.choices[0].text for c in ask(" page tile", stream=True)) == answer.choices[0].text


def test_a_chat_without_max_tokens_may_fill_the_context(client, served):
    answer = chat(client, max_tokens=None, stop=None)
    assert answer.usage.total_tokens == served[0].longest == 512 and answer.choices[0].finish_reason == "length"


def test_parts_of_text_and_the_developers_word_are_understood(client):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "page"}]}]
    assert chat(client, messages=parts).choices == chat(client).choices
    system, developer = ([{"role": role, "content": "Be brief."}, *HELLO] for role in ("system", "developer"))
    assert chat(client, messages=system).choices == chat(client, messages=developer).choices


def test_a_message_may_have_a_name_or_null(served):
    for name in ("Ada", None):
        talk = TALK | {"messages": [{"role": "user", "content": "a page", "name": name}]}
        assert post(served[1], json.dumps(talk).encode(), "/v1/chat/completions")[0] == 200


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"] == [client.models.retrieve("tiny").id]
    with pytest.raises(openai.NotFoundError, match="model: got 'gpt-9', allowed is 'tiny'"):
        client.models.retrieve("gpt-9")


def test_the_meters_count_what_was_served(model, file):
    with http(service(model, file), file) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        used = [chat(client, max_tokens=n).usage for n in (3, 5)]
        import urllib.request

        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            families = list(text_string_to_metric_families(answer.read().decode()))
    values = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert values["pod_generated_tokens_total",] == 8 and values["pod_requests_total", "length"] == 2
    assert values["pod_prompt_tokens_total",] == sum(usage.prompt_tokens for usage in used)
    assert (values["pod_first_token_seconds_count",], values["pod_between_tokens_seconds_count",]) == (2, 6)
    assert values["pod_pages",] == 400 and values["pod_preemptions_total",] == 0
    assert values["pod_pages_used",] == values["pod_requests_running",] == values["pod_requests_waiting",] == 0


# ---------------------------------------------------------------- what a client is refused

GOOD = {"model": "tiny", "prompt": " page", "max_tokens": 3}
TALK = {"model": "tiny", "messages": HELLO, "max_tokens": 3}
IMAGE = {"type": "image_url", "image_url": "x"}
BAD = [
    (GOOD, {"n": 2}, "n", "n: got 2, allowed are 1 and null"),
    (GOOD, {"temperature": 2.5}, "temperature", "temperature: got 2.5, allowed are numbers from 0 to 2"),
    (GOOD, {"temperature": float("nan")}, "temperature", "temperature: got NaN"),
    (GOOD, {"temperature": True}, "temperature", "temperature: got true"),
    (GOOD, {"top_p": 0}, "top_p", "top_p: got 0, allowed are numbers above 0"),
    (GOOD, {"seed": 2**63}, "seed", "seed: got 9223372036854775808"),
    (GOOD, {"seed": 1.5}, "seed", "seed: got 1.5, allowed are integers"),
    (GOOD, {"max_tokens": 0}, "max_tokens", "max_tokens: got 0, allowed are integers >= 1"),
    (GOOD, {"max_tokens": "9"}, "max_tokens", "max_tokens: got '9'"),
    (GOOD, {"max_tokens": 10**30}, "prompt", f"prompt: got 1 tokens and {10**30} to come, allowed are 512 together"),
    (GOOD, {"stop": ["a"] * 5}, "stop", "stop: got"),
    (GOOD, {"stop": ""}, "stop", "stop: got ''"),
    (GOOD, {"stop": "x" * 201}, "stop", "stop: got 'xxx"),
    (GOOD, {"logprobs": 5}, "logprobs", "logprobs: got 5, allowed are null"),
    (TALK, {"logprobs": True}, "logprobs", "logprobs: got true, allowed are false and null"),
    (TALK, {"top_logprobs": 2}, "top_logprobs", "top_logprobs: got 2"),
    (TALK, {"tools": [{"type": "function"}]}, "tools", "tools: got"),
    (TALK, {"response_format": {"type": "json_object"}}, "response_format", "response_format: got"),
    (GOOD, {"stream": "yes"}, "stream", "stream: got 'yes'"),
    (GOOD, {"stream_options": {"include_usage": True}}, "stream_options", "stream_options: got some"),
    (GOOD, {"stream": True, "stream_options": {"x": 1}}, "stream_options", "stream_options: got"),
    (GOOD, {"logit_bias": {"5": 3}}, "logit_bias", "logit_bias: got"),
    (GOOD, {"frobnicate": 1}, "frobnicate", "'frobnicate': got a field that is not known here"),
    (GOOD, {"prompt": None}, "prompt", "prompt: got none"),
    (GOOD, {"prompt": ""}, "prompt", "prompt: the prompt is empty"),
    (GOOD, {"prompt": ["a", "b"]}, "prompt", "prompt: got"),
    (GOOD, {"prompt": [5, 10**9]}, "prompt", "prompt: a token outside of the vocabulary"),
    (GOOD, {"prompt": [5, -1]}, "prompt", "prompt: a token outside of the vocabulary"),
    (GOOD, {"stop": "\ud800"}, "stop", "stop: got"),
    (GOOD, {"prompt": "\ud800"}, "prompt", "prompt: got half of a pair of surrogates"),
    (GOOD, {"prompt": "x" * 600}, "prompt", "prompt: got 600 tokens and 3 to come"),
    (GOOD, {"model": 5}, "model", "model: got 5"),
    (GOOD, {"model": None}, "model", "model: got none"),
    (TALK, {"messages": []}, "messages", "messages: got []"),
    (TALK, {"messages": [{"role": "user"}]}, "messages", "messages: got"),
    (TALK, {"messages": [{"role": "tool", "content": "x"}]}, "messages", "messages: got"),
    (TALK, {"messages": [{"role": ["user"], "content": "x"}]}, "messages", "messages: got"),
    (TALK, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages", "messages"),
    (TALK, {"messages": [{"role": "user", "content": "\udfff"}]}, "messages", "content: got half of a pair"),
    (TALK, {"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages", "messages: got"),
    (TALK, {"messages": [{"role": "user", "content": "x", "name": {"a": 1}}]}, "messages", "messages: got"),
    (GOOD, {"\ud800": 1}, "\\ud800", "'\\ud800': got a field that is not known here"),
    (GOOD, {"max_tokens": 10**4000}, "prompt", "prompt: got 1 tokens and 1000000000"),
]


@pytest.mark.parametrize(
    ("good", "wrong", "param", "words"), BAD, ids=[f"{list(b[1])[0]}-{i}" for i, b in enumerate(BAD)]
)
def test_a_wrong_field_is_refused_by_name(good, wrong, param, words, served):
    path = "/v1/chat/completions" if "messages" in good else "/v1/completions"
    status, answer = post(served[1], json.dumps(good | wrong).encode(), path)
    error = answer["error"]
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert error["message"].startswith(words) and set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"] and len(error["message"]) < 400


NO_OBJECTS = [b"", b"{", b"[]", b"5", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"max_tokens": ' + b"9" * 9999]


@pytest.mark.parametrize("body", NO_OBJECTS, ids=lambda body: repr(body[:9]))
def test_what_is_no_json_object_is_refused(body, served):
    status, answer = post(served[1], body)
    assert status == 400 and answer["error"]["message"].startswith("body: got") and "Traceback" not in str(answer)


def test_places_and_ways_that_are_not_there_are_said_as_the_api_says_it(served):
    assert post(served[1], b"", "/v1/nothing", "GET")[0] == 404
    status, answer = post(served[1], b"", "/v1/completions", "GET")
    assert status == 405 and answer["error"]["code"] == "unknown_url"
    assert "allow: POST" in head_of(served[1], "PUT /v1/completions")
    status, answer = post(served[1], b"", "/v1/" + "a" * 9000, "GET")
    assert status == 404 and len(answer["error"]["message"]) < 100
    status, answer = post(served[1], b"", "/v1/models/" + "a" * 9000, "GET")
    assert (status, answer["error"]["code"]) == (404, "model_not_found") and len(answer["error"]["message"]) < 100
    status, answer = post(served[1], json.dumps(GOOD | {"model": "gpt-9"}).encode())
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")


def test_the_real_client_raises_what_it_should(client):
    with pytest.raises(openai.BadRequestError, match="619 tokens and 12 to come") as raised:
        chat(client, messages=[{"role": "user", "content": "x" * 600}])
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        chat(client, model="gpt-9")


def test_a_body_without_end_is_not_kept(served, monkeypatch):
    monkeypatch.setattr(http_module, "LARGEST_BODY", 1000)
    status, answer = post(served[1], json.dumps(GOOD | {"prompt": "x" * 2000}).encode())
    assert status == 413 and answer["error"]["message"] == "body: got over 1000 bytes, allowed are so many"


@pytest.mark.parametrize("how", ["Content-Length: 99999999999999999999", "Transfer-Encoding: chunked"])
def test_a_body_that_says_it_is_long_is_not_waited_for(served, how, monkeypatch):
    monkeypatch.setattr(http_module, "LARGEST_BODY", 1000)
    part = b"7d0\r\n" + b"x" * 2000 + b"\r\n" if "chunked" in how else b"{"
    host, port = served[1].removeprefix("http://").split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n".encode() + part)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_long_prompts_are_read_by_two_threads_however_many_come(served):
    """Every thread that cuts a long text keeps some of its memory: with one a request the server grew and grew."""
    before = set(threading.enumerate())
    body = json.dumps(GOOD | {"prompt": "too long " * 9000}).encode()
    with ThreadPoolExecutor(12) as people:
        assert {status for status, _ in people.map(lambda _: post(served[1], body), range(24))} == {400}
    new = [thread.name for thread in set(threading.enumerate()) - before]
    assert len(new) <= 2 and all(name.startswith("reader") for name in new)


def test_a_file_without_a_template_answers_no_chat(model, tmp_path):
    plain = Gguf(tiny.write(tmp_path / "plain.gguf", fields={"tokenizer.chat_template": None}))
    with http(service(model, plain), plain) as url:
        status, answer = post(url, json.dumps(TALK).encode(), "/v1/chat/completions")
        assert status == 400 and "no chat template; allowed is /v1/completions" in answer["error"]["message"]
        assert post(url, json.dumps(GOOD).encode())[0] == 200


def test_a_line_that_is_full_is_said_and_may_be_tried_again(model, file):
    one = service(model, file, batch=1, waiting=0, pause=0.02)
    with http(one, file) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with held(one):
            stream = chat(client, stream=True, max_tokens=30)
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as raised:
                chat(client)
        assert raised.value.code == "rate_limit_exceeded" and raised.value.response.headers["Retry-After"] == "1"
        patient = client.with_options(max_retries=60)
        assert chat(patient, max_tokens=3).usage.completion_tokens == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_engine_is_a_500_without_a_traceback(model, file):
    one = service(model, file)
    with http(one, file) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert post(url, b"", "/health", "GET") == (200, {"status": "ok"})
        with held(one, after=1):
            stream = iter(chat(client, stream=True, max_tokens=400))
            next(stream)
            one.engine.run = lambda step: 1 / 0
        with pytest.raises(openai.APIError, match="the engine has failed"):
            list(stream)
        assert [post(url, json.dumps(GOOD).encode())[0], post(url, b"", "/health", "GET")[0]] == [503, 503]


def test_a_mistake_of_ours_is_a_500_without_a_traceback(served, monkeypatch):
    monkeypatch.setattr(served[0], "refusal", lambda *rest: 1 / 0)
    status, answer = post(served[1], json.dumps(GOOD).encode())
    assert (status, answer["error"]["type"]) == (500, "server_error") and "Zero" not in str(answer)


# ---------------------------------------------------------------- clients that vanish


@pytest.mark.parametrize("heard", [1, 4])
def test_a_stream_that_nobody_reads_any_more_ends(heard, client, served):
    one, before = served[0], cancelled(served[0])
    with held(one, after=10):
        stream = chat(client, stream=True, max_tokens=450)
        chunks = iter(stream)
        for _ in range(heard):
            next(chunks)
        wait_until(lambda: one.scheduler.running)
        stream.close()
        wait_until(lambda: heard_of(one))
    wait_until(lambda: nothing_is_kept(one))
    assert cancelled(one) == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_socket_that_is_cut_gives_its_pages_back(stream, served):
    one, url = served
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(GOOD | {"max_tokens": 500, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    before = cancelled(one)
    with held(one, after=10):
        with socket.create_connection((host, int(port))) as wire:
            wire.sendall(head + body)
            wait_until(lambda: one.scheduler.running)
        wait_until(lambda: heard_of(one))
    wait_until(lambda: nothing_is_kept(one))
    assert cancelled(one) == before + 1, "long before the answer would have been complete"


def test_half_a_body_and_no_request_at_all_harm_nobody(served, client):
    host, port = served[1].removeprefix("http://").split(":")
    for words in (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{",
        b"\x16\x03\x01\x02",
        b"GET /",
    ):
        with socket.create_connection((host, int(port))) as wire:
            wire.sendall(words)
    assert chat(client).usage.completion_tokens == 12


def test_sixteen_streams_with_vanishing_and_rude_clients_lose_nothing(served, file):
    """The small sister of load_server.py: everybody who stays gets what he would get alone."""
    one, url = served
    prompts = [" page" * (1 + 5 * i % 23) for i in range(16)]
    sampling = [{"temperature": 0}, {"temperature": 1.2, "seed": 11}, {"temperature": 0.9, "top_p": 0.8, "seed": 12}]
    asked = [{"prompt": p, "max_tokens": 10 + i, **sampling[i % 3]} for i, p in enumerate(prompts)]
    alone = [Listener(one, file.tokens(a["prompt"]), a["max_tokens"], Sampling(
        a["temperature"], a.get("top_p", 1.0), a.get("seed", 0))).rest() for a in asked]  # fmt: skip

    def stream(i: int) -> str:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            got = []
            with client.completions.create(model="tiny", stream=True, **asked[i]) as chunks:
                for chunk in chunks:
                    got.append(chunk.choices[0].text)
                    if i % 5 == 4 and len(got) == 3:
                        break
            return "".join(got)

    def rude(i: int) -> int:
        return post(url, [b"{", json.dumps(GOOD | {"prompt": "x" * 600}).encode()][i % 2])[0]

    with ThreadPoolExecutor(20) as people:
        streams, others = [people.submit(stream, i) for i in range(16)], [people.submit(rude, i) for i in range(8)]
        answers = [future.result() for future in streams]
        assert {future.result() for future in others} == {400}
    for i, (answer, pieces) in enumerate(zip(answers, alone, strict=True)):
        assert answer == (text(pieces)[: len(answer)] if i % 5 == 4 else text(pieces))
    wait_until(lambda: nothing_is_kept(one))


# ---------------------------------------------------------------- the verb


@pytest.mark.skipif(sys.platform == "win32", reason="signals as Unix has them")
def test_told_to_end_it_answers_who_is_here_and_ends_well(file):
    import signal

    command = [sys.executable, "-m", "pod", "serve", str(file.path), "--port", "0", "--device", "cpu", "--name", "mine"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url, _, words = process.stdout.readline().partition(" ")
        assert words.startswith("· mine on cpu: ") and "512 tokens a request, 64 requests at once" in words
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            chunks = iter(chat(client, model="mine", stream=True, max_tokens=450))
            first = next(chunks)
            process.send_signal(signal.SIGTERM)
            rest = list(chunks)
        assert first.choices and rest[-1].choices[0].finish_reason == "length" and len(rest) > 400
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()


TOLD_AT_ONCE = """
import signal, sys
from pod.__main__ import main
from pod.serving import serve

def say(*words, **more):
    print(*words, **more)
    signal.raise_signal(signal.SIGTERM)

serve.print = say
sys.exit(main(["serve", sys.argv[1], "--port", "0", "--device", "cpu"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals as Unix has them")
def test_told_to_end_before_it_listens_it_ends_well(file):
    ran = subprocess.run([sys.executable, "-c", TOLD_AT_ONCE, str(file.path)], capture_output=True, text=True,
                         timeout=120)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(("options", "words"), [
    (["--batch", "0"], "--batch: got 0, allowed are integers >= 1"),
    (["--chunk", "2147483648"], "--chunk: got 2147483648, allowed are up to 2147483647"),
    (["--chunk", "9" * 20], f"--chunk: got {'9' * 20}, allowed are up to 2147483647"),
    (["--chunk", "8", "--batch", "8"], "--chunk: got 8, allowed are more than --batch, 8"),
    (["--memory", "1.5"], "--memory: got 1.5, allowed is a share"),
    (["--memory", "1e-9", "--port", "0"], "--memory: got 1e-09 of"),
    (["--pages", "1", "--port", "0"], "--pages: got 1 of 16 tokens, of which 1 stays free, allowed is room"),
    (["--port", "99999"], "--port: got 99999, allowed are 0 to 65535"),
    (["--host", "192.0.2.1"], "--host, --port: got 192.0.2.1:8000, allowed is a place that is free here"),
    (["--attention", "fa3"], "attention: got 'fa3' in float32 on a CPU"),
])  # fmt: skip
def test_a_bad_option_is_one_line(options, words, file, refused):
    assert refused("serve", file.path, "--device", "cpu", *options).startswith(f"python -m pod serve: {words}")


def test_what_is_missing_is_one_line(file, refused, monkeypatch, tmp_path):
    none = tmp_path / "none.gguf"
    said = refused("serve", none, "--device", "cpu", "--port", "0")
    assert said == f"python -m pod serve: {none}: No such file or directory\n"
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert "uvicorn not installed; mend it: pip install -e '.[serve]'" in refused("serve", file.path)


def test_a_port_that_is_taken_is_one_line(file, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(file.path), "--device", "cpu", "--port", str(port)]) == 2
    assert f"got 127.0.0.1:{port}, allowed is a place that is free here" in capsys.readouterr().err


def test_the_pool_takes_its_share_of_what_is_free_and_no_more_than_it_can_use(model, monkeypatch):
    token = 2 * 2 * 2 * 16 * 8  # keys and values, layers, heads, size of a head, bytes
    monkeypatch.setattr(serve, "free_memory", lambda device: 1000 * 16 * token)
    assert serve.pages(model, 16, 64, 0.5) == 499, "one more is nobody's"
    assert serve.pages(model, 16, 2, 0.5) == 65, "two requests of 512 tokens, and a hundredth stays free"
    with pytest.raises(ValueError, match="^--memory: got 0.001 of "):
        serve.pages(model, 16, 64, 0.001)


def test_a_container_has_what_it_is_allowed(model, monkeypatch, tmp_path):
    free = serve.free_memory(model.device)
    assert free > 1 << 20
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(serve, "CGROUP", tmp_path)
    assert serve.free_memory(model.device) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert serve.free_memory(model.device) > 1 << 20

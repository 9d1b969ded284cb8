"""What the OpenAI API says: which fields a request may have, what an answer looks like, what an error is called.

A field that we cannot obey is refused by name. To ignore it would be an answer to another question.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from pod.serving.sampler import Sampling

LONGEST_STOP = 200  # letters
DEFAULT_COMPLETION = 16  # tokens, as in the API


class Refused(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400,
                 kind: str = "invalid_request_error"):  # fmt: skip
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


# ---------------------------------------------------------------- fields


@dataclass(frozen=True)
class Field:
    """null is as good as nothing: then it has its default."""

    allowed: str
    fits: Callable[[object], bool]
    default: object = None


def _integer(low: float, high: float) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _number(low: float, high: float) -> Callable[[object], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


def _stops(value) -> bool:
    several = [value] if isinstance(value, str) else value
    return isinstance(several, list) and len(several) <= 4 and all(
        isinstance(stop, str) and 0 < len(stop) <= LONGEST_STOP and _is_unicode(stop) for stop in several
    )  # fmt: skip


def _options(value) -> bool:
    return isinstance(value, dict) and set(value) <= {"include_usage"} and all(type(v) is bool for v in value.values())


def _only(*values) -> Field:
    """We have no other way; who asks for this one may."""
    words = " and ".join(json.dumps(value) for value in (*values, None))
    return Field(words, lambda value: any(type(value) is type(v) and value == v for v in values), None)


def _text_or_tokens(value) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value))


def _message(value) -> bool:
    return (isinstance(value, dict) and set(value) <= {"role", "content", "name"} and value.get("role") in list(ROLES)
            and isinstance(value.get("name") or "", str) and _content(value.get("content")) is not None)  # fmt: skip


def _content(value) -> str | None:
    """The text of a message: a string, or parts of text."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    texts = [p.get("text") if isinstance(p, dict) and p.get("type") == "text" else None for p in value]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None


ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
ANYTHING = Field("anything", lambda value: True)
SHARED = {
    "model": Field("a string", lambda value: isinstance(value, str)),
    "max_tokens": Field("integers >= 1", _integer(1, inf)),
    "temperature": Field("numbers from 0 to 2", _number(0, 2), 1.0),
    "top_p": Field("numbers above 0 and up to 1", _number(5e-324, 1), 1.0),
    "seed": Field("integers of 64 bits", _integer(-(2**63), 2**63 - 1)),
    "stop": Field(f"a string of 1 to {LONGEST_STOP} letters, or up to 4 in a list", _stops, []),
    "stream": Field("true and false", lambda value: type(value) is bool, False),
    "stream_options": Field('{"include_usage": true} and false', _options, {}),
    "n": _only(1),
    "presence_penalty": _only(0, 0.0),
    "frequency_penalty": _only(0, 0.0),
    "logit_bias": _only({}),
    "user": ANYTHING,
    "metadata": ANYTHING,
}
CHAT = SHARED | {
    "messages": Field(f"a list of messages with a role of {', '.join(ROLES)} and a text as content",
                      lambda value: isinstance(value, list) and value and all(map(_message, value))),
    "max_completion_tokens": SHARED["max_tokens"],
    "logprobs": _only(False),
    "top_logprobs": _only(0),
    "tools": _only([]),
    "tool_choice": _only("none", "auto"),
    "response_format": _only({"type": "text"}),
    "store": _only(False),
}  # fmt: skip
COMPLETION = SHARED | {
    "prompt": Field("a string or a list of tokens; one prompt a request", _text_or_tokens),
    "logprobs": _only(),
    "echo": _only(False),
    "best_of": _only(1),
    "suffix": _only(""),
}


def _read(body: bytes, fields: dict[str, Field], needed: str) -> dict:
    """The fields of a request, each as it fits or with its default."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"body: got no JSON ({str(error)[:80]}), allowed is a JSON object") from None
    if not isinstance(given, dict):
        raise Refused(f"body: got {short(given)}, allowed is a JSON object")
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if name not in fields:
            param = name[:60].encode("ascii", "backslashreplace").decode()  # half of a letter cannot be sent back
            raise Refused(f"{short(name)}: got a field that is not known here, allowed are {', '.join(fields)}", param)
        if not fields[name].fits(value):
            raise Refused(f"{name}: got {short(value)}, allowed are {fields[name].allowed}", name, "invalid_value")
    for name in ("model", needed):
        if name not in given:
            raise Refused(f"{name}: got none, allowed is {fields[name].allowed}", name, "missing_required_parameter")
    return {name: given.get(name, field.default) for name, field in fields.items()}


def short(value) -> str:
    text = json.dumps(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---------------------------------------------------------------- a request, read


@dataclass(frozen=True)
class Asked:
    model: str
    prompt: list[int]
    output: int
    sampling: Sampling
    stops: list[str]
    stream: bool
    usage: bool  # at the end of a stream


class Kind:
    """One of the two ways to ask. `file` has tokenizer and template; `longest` are prompt and answer together."""

    fields: dict[str, Field]
    needed: str
    prefix: str
    object: str
    chunk_object: str

    def read(self, body: bytes, name: str, file, longest: int) -> Asked:
        given = _read(body, self.fields, self.needed)
        if given["model"] != name:
            raise Refused(f"model: got {short(given['model'])}, allowed is {name!r}", "model", "model_not_found", 404)
        try:
            prompt = self.prompt(given, file)
        except ValueError as error:
            raise Refused(str(error), self.needed, "invalid_value") from None
        if given["stream_options"] and not given["stream"]:
            raise Refused("stream_options: got some, allowed is none without stream", "stream_options", "invalid_value")
        output = self.output(given, max(longest - len(prompt), 1))
        _check_length(len(prompt), output, longest, self.needed)
        seed = secrets.randbits(63) if given["seed"] is None else given["seed"]
        stops = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
        return Asked(name, prompt, output, Sampling(given["temperature"], given["top_p"], seed), stops,
                     given["stream"], given["stream_options"].get("include_usage", False))  # fmt: skip

    def prompt(self, given: dict, file) -> list[int]:
        raise NotImplementedError

    def output(self, given: dict, left: int) -> int:
        raise NotImplementedError

    def choice(self, text: str, end: str | None) -> dict:
        raise NotImplementedError

    def change(self, text: str, end: str | None) -> dict:
        """The choice in a chunk of a stream."""
        raise NotImplementedError

    def opening(self) -> list[dict]:
        """Choices before the first token."""
        return []


def _check_length(prompt: int, output: int, longest: int, param: str) -> None:
    if prompt + output > longest:
        words = f"{param}: got {prompt} tokens and {short(output)} to come, allowed are {longest} together"
        raise Refused(words, param, "context_length_exceeded")


class Chat(Kind):
    fields, needed = CHAT, "messages"
    prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def prompt(self, given: dict, file) -> list[int]:
        turns = [m | {"role": ROLES[m["role"]], "content": _content(m["content"])} for m in given["messages"]]
        said = [{name: text for name, text in turn.items() if text is not None} for turn in turns]
        return file.conversation([_in_unicode(turn) for turn in said])

    def output(self, given: dict, left: int) -> int:
        return given["max_completion_tokens"] or given["max_tokens"] or left

    def choice(self, text: str, end: str | None) -> dict:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": end}

    def change(self, text: str, end: str | None) -> dict:
        return {"index": 0, "delta": {"content": text} if text else {}, "logprobs": None, "finish_reason": end}

    def opening(self) -> list[dict]:
        return [self.change("", None) | {"delta": {"role": "assistant", "content": ""}}]


class Completion(Kind):
    fields, needed = COMPLETION, "prompt"
    prefix, object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def prompt(self, given: dict, file) -> list[int]:
        prompt = given["prompt"]
        return file.tokens(_in_unicode({"prompt": prompt})["prompt"]) if isinstance(prompt, str) else prompt

    def output(self, given: dict, left: int) -> int:
        return given["max_tokens"] or min(DEFAULT_COMPLETION, left)

    def choice(self, text: str, end: str | None) -> dict:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": end}

    change = choice


def _in_unicode(texts: dict[str, str]) -> dict[str, str]:
    if wrong := next((name for name, text in texts.items() if not _is_unicode(text)), None):
        raise ValueError(f"{wrong}: got half of a pair of surrogates, allowed is Unicode")
    return texts


def _is_unicode(text: str) -> bool:
    """JSON can say half of a letter, which no tokenizer knows and no answer has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- an answer, written


class Reply:
    """The objects of one answer: the same id and time in all of them."""

    def __init__(self, kind: Kind, asked: Asked):
        self.kind, self.asked = kind, asked
        self.head = {"id": kind.prefix + secrets.token_hex(12), "created": int(time.time()), "model": asked.model}

    def whole(self, text: str, end: str, made: int) -> dict:
        return {**self.head, "object": self.kind.object, "choices": [self.kind.choice(text, end)],
                "usage": self.usage(made)}  # fmt: skip

    def usage(self, made: int) -> dict:
        read = len(self.asked.prompt)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}

    def opening(self) -> list[dict]:
        return [self._chunk([choice]) for choice in self.kind.opening()]

    def change(self, text: str, end: str | None) -> dict:
        return self._chunk([self.kind.change(text, end)])

    def closing(self, made: int) -> list[dict]:
        return [self._chunk([]) | {"usage": self.usage(made)}] if self.asked.usage else []

    def _chunk(self, choices: list[dict]) -> dict:
        usage = {"usage": None} if self.asked.usage else {}
        return {**self.head, "object": self.kind.chunk_object, "choices": choices, **usage}

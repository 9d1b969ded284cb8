"""The server under load on an H200: 64 people at once over HTTP, some who vanish, some who are rude, four attentions.

Measured: `python -m pod serve` with random weights of Llama-3-8B, asked over loopback by threads of another process.
"""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from os.path import commonprefix

import numpy as np
import pandas as pd

from pod.data import read
from pod.lab.figure import Figure
from pod.lab.show import style

FIGURE = Figure(
    title="The server with 64 people at once, by attention",
    says="With short chats all four attentions give about as many tokens a second",
    chapter="14",
    method="Llama-3-8B's shape, random weights; 64 clients ask twice, 256 to 1,536 tokens each, 64 to 128 back, while "
    "16 others hang up and 16 ask what is refused; times as clients see them, over loopback",
    data=("server",),
)
RECORDING = "server"
KEYS, WHOLE = ("attention",), ()
UNITS = ("hopper", "plan", "model")
REPEATS = 1
TIMER = "the client's clock, from the request to each event of its stream"
L2 = "warm"
WAYS = {"fa3": "FlashAttention-3, two calls", "fa3-one": "FlashAttention-3, one call",
        "hopper-serial": "ours, halves in turn", "hopper": "ours, at once"}  # fmt: skip
AT_ONCE = 2  # servers that start side by side, of which one is asked at a time: the GPU has memory for two
PATIENCE = 3  # pieces of an answer after which somebody hangs up
TIMEOUT = 60  # seconds without an event, after which an answer counts as lost


@dataclass(frozen=True)
class Load:
    """`people` ask `rounds` questions each, one after the other; a quarter as many hang up, and as many are rude."""

    model: str = "llama-3-8b"
    people: int = 64
    rounds: int = 2
    prompt: tuple[int, int] = (256, 1536)
    output: tuple[int, int] = (64, 128)
    alone: int = 4  # questions that are also asked when nobody else is there
    words: int = 32000  # of the vocabulary
    too_long: int = 20_000
    options: tuple[str, ...] = ("--chunk", "1024", "--batch", "96", "--block-size", "256", "--pages", "800")

    def question(self, i: int) -> dict:
        random = np.random.default_rng(i)
        prompt = random.integers(0, self.words, random.integers(*self.prompt, endpoint=True)).tolist()
        length = int(random.integers(*self.output, endpoint=True))
        return {"model": self.model, "prompt": prompt, "max_tokens": length, "temperature": 0, "stream": True}


LOAD = Load()


def cases() -> list[dict]:
    return [{"attention": way} for way in WAYS]


def measure(case: dict) -> dict:
    return _measured()[case["attention"]]


@cache
def _measured() -> dict[str, dict]:
    ways, rows = list(WAYS), {}
    for i in range(0, len(ways), AT_ONCE):
        with ExitStack() as stack:
            started = {way: stack.enter_context(server(LOAD, way)) for way in ways[i : i + AT_ONCE]}
            for way, one in started.items():
                one.wait()
                rows[way] = row(one, LOAD)
                one.end()  # its memory is the next one's
    return rows


# ---------------------------------------------------------------- the server, as anybody starts it


class Server:
    def __init__(self, load: Load, attention: str):
        command = [sys.executable, "-m", "pod", "serve", "--random", load.model, "--port", "0", "--grace", "1"]
        self.process = subprocess.Popen([*command, "--attention", attention, *load.options], stdout=subprocess.PIPE,
                                        text=True)  # fmt: skip

    def wait(self) -> None:
        """Until it says where it listens."""
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self.process.wait()} before it listened")
        self.place = line.split("/")[2]

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT)

    @contextmanager
    def post(self, body: bytes) -> Iterator[http.client.HTTPResponse]:
        line = http.client.HTTPConnection(self.place, timeout=TIMEOUT)
        try:
            line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            yield line.getresponse()
        finally:
            line.close()

    def meters(self) -> dict[str, float]:
        line = http.client.HTTPConnection(self.place, timeout=TIMEOUT)
        line.request("GET", "/metrics")
        text = line.getresponse().read().decode()
        line.close()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in lines}

    def memory(self) -> dict[str, int]:
        """MiB of its process, and of the GPU by all that run on it."""
        import psutil
        import torch

        free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
        mine = psutil.Process(self.process.pid).memory_info().rss
        return {"host_mib": mine >> 20, "gpu_mib": (total - free) >> 20}


@contextmanager
def server(load: Load, attention: str) -> Iterator[Server]:
    one = Server(load, attention)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


# ---------------------------------------------------------------- the people


@dataclass
class Heard:
    """An answer as it came: its tokens, and when it was asked for and each piece came."""

    asked: int = 0
    tokens: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reason: str | None = None

    @property
    def complete(self) -> bool:
        return self.reason == "length" and len(self.tokens) == self.asked


def ask(one: Server, question: dict, patience: int | None = None) -> Heard:
    """`patience` pieces of the answer and then gone; None hears all of it."""
    heard = Heard(question["max_tokens"], times=[time.perf_counter()])
    with one.post(json.dumps(question).encode()) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            choice = event["choices"][0] if "choices" in event else {"text": "", "finish_reason": "error"}
            if choice["text"]:
                heard.tokens += choice["text"].split()
                heard.times.append(now)
            heard.reason = choice["finish_reason"]
            if patience and len(heard.times) > patience:
                break
    return heard


def stay(one: Server, load: Load, who: int) -> list[Heard]:
    return [_heard(one, load.question(who + load.people * i)) for i in range(load.rounds)]


def _heard(one: Server, question: dict) -> Heard:
    try:
        return ask(one, question)
    except (OSError, http.client.HTTPException):  # nobody answers: that is what is looked for
        return Heard(question["max_tokens"])


def leave(one: Server, load: Load, who: int) -> bool:
    time.sleep(0.1 * who)
    return len(ask(one, load.question(10_000 + who), PATIENCE).tokens) == PATIENCE


def be_rude(one: Server, load: Load, who: int) -> bool:
    """A prompt that is too long, or half of a JSON. Whether it was refused as it should."""
    time.sleep(0.1 * who)
    question = load.question(0) | {"prompt": [1] * load.too_long}
    with one.post(json.dumps(question).encode() if who % 2 else b'{"model": ') as answer:
        error = json.loads(answer.read())["error"]
        return answer.status == 400 and error["code"] == ("context_length_exceeded" if who % 2 else None)


def row(one: Server, load: Load) -> dict:
    """Some questions asked alone, then everybody at once, and what is left of it when they have gone."""
    alone = [ask(one, load.question(i)) for i in range(load.alone)]
    before, begin, others = one.memory(), time.perf_counter(), load.people // 4
    with ThreadPoolExecutor(load.people + 2 * others) as crowd:
        people = [crowd.submit(stay, one, load, i) for i in range(load.people)]
        gone = [crowd.submit(leave, one, load, i) for i in range(others)]
        rude = [crowd.submit(be_rude, one, load, i) for i in range(others)]
        heard = [answer for person in people for answer in person.result()]
        seconds = time.perf_counter() - begin
        counts = {"gone": sum(f.result() for f in gone), "refused": sum(f.result() for f in rude)}
    after = _at_rest(one)
    first = [people[i].result()[0] for i in range(load.alone)]
    return (_counted(heard, seconds) | counts | _same(alone, first) | {f"{k}_before": v for k, v in before.items()}
            | {f"{k}_after": v for k, v in one.memory().items()} | {"pages_held": int(after["pod_pages_used"]),
            "preempted": int(after["pod_preemptions_total"])})  # fmt: skip


def _at_rest(one: Server) -> dict[str, float]:
    """The meters when nobody is left."""
    end = time.monotonic() + TIMEOUT
    while (now := one.meters())["pod_requests_running"] + now["pod_requests_waiting"]:
        if time.monotonic() > end:
            raise RuntimeError("the server still works for people who have gone")
        time.sleep(0.05)
    return now


def _counted(heard: list[Heard], seconds: float) -> dict:
    first = [1e3 * (h.times[1] - h.times[0]) for h in heard if len(h.times) > 1]
    gaps = np.concatenate([1e3 * np.diff(h.times[1:]) for h in heard])
    told = {f"ttft_p{p}_ms": round(float(np.percentile(first, p)), 1) for p in (50, 99)}
    told |= {f"tbt_p{p}_ms": round(float(np.percentile(gaps, p)), 2) for p in (50, 99)}
    tokens = sum(len(h.tokens) for h in heard)
    return {"asked": len(heard), "lost": sum(not h.complete for h in heard), "tokens": tokens,
            "seconds": round(seconds, 2), "tokens_s": round(tokens / seconds, 1), **told,
            "tbt_most_ms": round(float(gaps.max()), 1)}  # fmt: skip


def _same(alone: list[Heard], together: list[Heard]) -> dict[str, float]:
    """Of answers in company, how many begin with the token that came alone, and how far they are the same."""
    pairs = list(zip(alone, together, strict=True))
    first = np.mean([a.tokens[:1] == b.tokens[:1] for a, b in pairs])
    far = np.mean([len(commonprefix([a.tokens, b.tokens])) / len(a.tokens) for a, b in pairs])
    return {"same_first_percent": round(100 * float(first), 1), "same_percent": round(100 * float(far), 1)}


# ---------------------------------------------------------------- what it shows


def table() -> pd.DataFrame:
    """A row an attention: who was answered, what they felt, and what memory was taken."""
    return read("server").assign(attention=lambda df: df.attention.map(WAYS))


def draw(df):
    axes = style.axes(9.5, 0.9 + 0.42 * len(df), 3)
    tones = [style.colour("hybrid") if way.startswith("ours") else style.FRAME for way in df.attention]
    shown = {"tokens_s": "tokens a second", "ttft_p50_ms": "median ms to the first token",
             "tbt_p99_ms": "P99 gap between tokens, ms"}  # fmt: skip
    for ax, (column, label) in zip(axes, shown.items(), strict=True):
        ax.barh(df.attention, df[column], color=tones)
        for i, value in enumerate(df[column]):
            ax.text(value, i, f" {value:.0f}", va="center", fontsize=9)
        ax.set(xlabel=label, xlim=(0, 1.2 * df[column].max()))
        ax.invert_yaxis()
    for ax in axes[1:]:
        ax.set_yticks([])
    return axes[0].figure


def times(over: str = "fa3") -> float:
    """How many times as many tokens a second ours at once gives."""
    rate = read("server").set_index("attention").tokens_s
    return float(rate["hopper"] / rate[over])


def _people(how: str) -> int:
    """Over all attentions. asked: answers that people who stay asked for; lost: those that did not come whole."""
    return int(read("server")[how].sum())


asked, lost, gone, refused = (partial(_people, how) for how in ("asked", "lost", "gone", "refused"))

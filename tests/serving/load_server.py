"""Load on a real server: 64 streams at once to SmolLM2, and among them people who vanish and people who are rude.

    python tests/serving/load_server.py --rounds 5      # minutes on 2 quiet cores; other options are the server's

Starts `python -m pod serve` as anybody would, asks it with the openai package over loopback, and prints one table.
Everybody who stays must get what he gets alone, nobody may wait for ever, and the memory must stay flat.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import openai
import psutil

LEAST = 6  # tokens of an answer
NOUNS = ("rain", "copper", "a bridge", "the moon", "bread", "a violin", "salt", "a river", "glass", "a clock")
WAYS = ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.0})


@dataclass
class Heard:
    text: str = ""
    times: list[float] = field(default_factory=list)  # of request, then of each piece
    reason: str | None = None

    @property
    def first(self) -> float:
        return self.times[1] - self.times[0]

    @property
    def gap(self) -> float:
        return max((b - a for a, b in zip(self.times[1:], self.times[2:], strict=False)), default=0.0)


def question(i: int) -> dict:
    words = f"Tell me something about {NOUNS[i % len(NOUNS)]}, number {i}. " + "It matters to me. " * (i % 12)
    return {"messages": [{"role": "user", "content": words}], "max_tokens": LEAST + i % 9, "seed": i, **WAYS[i % 3]}


def stream(client: openai.OpenAI, i: int, patience: int | None = None) -> Heard:
    """The answer to question i; `patience` pieces of it and then gone."""
    heard = Heard(times=[time.perf_counter()])
    with client.chat.completions.create(model="smollm", stream=True, **question(i)) as chunks:
        for chunk in chunks:
            choice = chunk.choices[0]
            if choice.delta.content:
                heard.text += choice.delta.content
                heard.times.append(time.perf_counter())
            heard.reason = choice.finish_reason
            if patience and len(heard.times) > patience:
                break
    return heard


def rude(client: openai.OpenAI, i: int) -> bool:
    """A prompt that is too long, or no JSON at all. Whether it was refused as it should."""
    if i % 2:
        return client._client.post("chat/completions", content=b'{"model": ').status_code == 400
    try:
        client.completions.create(model="smollm", prompt="too long " * 9000)
    except openai.BadRequestError as error:
        return error.code == "context_length_exceeded"
    return False


def meters(client: openai.OpenAI) -> dict[str, float]:
    text = client._client.get(str(client.base_url).replace("/v1/", "/metrics")).text
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


def attack(client: openai.OpenAI, streams: int, alone: list[Heard]) -> dict:
    """One round: everybody at once."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(2 * streams) as people:
        stay = [people.submit(stream, client, i) for i in range(streams)]
        leave = [people.submit(stream, client, i, 3) for i in range(streams // 4)]
        shout = [people.submit(rude, client, i) for i in range(streams // 4)]
        heard = [future.result() for future in stay]
        refused = sum(future.result() for future in shout)
        assert all(future.result().times for future in leave)
    same = sum(mine.text == lone.text for mine, lone in zip(heard, alone, strict=True))
    return {
        "complete": f"{sum(h.reason in ('stop', 'length') for h in heard)}/{streams}",
        "as alone": f"{same}/{streams}",
        "refused": f"{refused}/{len(shout)}",
        "first token s": f"{sorted(h.first for h in heard)[streams // 2]:.1f} ({max(h.first for h in heard):.1f})",
        "worst gap s": f"{max(h.gap for h in heard):.1f}",
        "seconds": f"{time.perf_counter() - begin:.0f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args, rest = parser.parse_known_args()
    command = [sys.executable, "-m", "pod", "serve", "--port", "0", "--name", "smollm", *rest]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        print(line, flush=True)
        client = openai.OpenAI(base_url=line.split()[0], api_key="none", max_retries=0, timeout=600)
        begin = time.perf_counter()
        alone = [stream(client, i) for i in range(args.streams)]
        print(f"{args.streams} one by one: {time.perf_counter() - begin:.0f} s", flush=True)
        for _ in range(args.rounds):
            row = attack(client, args.streams, alone)
            while (now := meters(client))["pod_requests_running"] + now["pod_requests_waiting"]:
                time.sleep(0.1)
            row["pages held"] = f"{now['pod_pages_used']:.0f}"
            row["preempted"] = f"{now['pod_preemptions_total']:.0f}"
            row["memory MiB"] = f"{psutil.Process(server.pid).memory_info().rss >> 20}"
            print(row, flush=True)
    finally:
        server.terminate()
        print("exit code", server.wait(60))


if __name__ == "__main__":
    main()

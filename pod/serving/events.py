"""The log of a run: one event an iteration. Every metric and every figure is computed from it and nothing else."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from pod.serving.request import Request
from pod.serving.schedulers.base import Batch


@dataclass(slots=True)
class Iteration:
    """What ran when. Requests appear by id; seconds count from the start of the run.

    A chunk is (id, new tokens, tokens before it, whether a token comes out). `stages` holds the (start, end) on each
    stage of a pipeline, empty without one. `free` and `waiting` are blocks and requests after scheduling.
    """

    lane: int  # of the loop; 0 without a pipeline
    scheduled: float
    end: float
    prefills: list[tuple[int, int, int, bool]]
    decodes: list[int]
    decode_context: int  # tokens that the decodes attend to, all together
    idle: list[int] = field(default_factory=list)
    preempted: list[tuple[int, str]] = field(default_factory=list)
    swapped_in: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    stages: list[tuple[float, float]] = field(default_factory=list)
    free: int = 0
    waiting: int = 0

    @property
    def tokens(self) -> int:
        return sum(chunk[1] for chunk in self.prefills) + len(self.decodes)

    @property
    def seconds(self) -> float:
        return self.end - self.scheduled


def iteration(batch: Batch, lane: int, scheduled: float, free: int, waiting: int) -> Iteration:
    """The event of a batch that is about to run; its end is filled in when it is known."""
    decodes = batch.decodes
    event = Iteration(
        lane, scheduled, scheduled,
        [(c.request.id, c.tokens, c.context, c.last) for c in batch.prefills] if batch.prefills else [],
        [r.id for r in decodes], sum([r.computed for r in decodes]) + len(decodes), free=free, waiting=waiting,
    )  # fmt: skip
    if batch.idle or batch.preempted or batch.swapped_in:  # seldom: a simulation makes millions of events
        event.idle = [r.id for r in batch.idle]
        event.preempted = [(r.id, how) for r, how in batch.preempted]
        event.swapped_in = [r.id for r in batch.swapped_in]
    return event


def following(event: Iteration, free: int) -> Iteration:
    """The event of the same batch once more, right behind: its prompts' next chunks, and its decodes one token on."""
    chunks, decodes = event.prefills, event.decodes
    return Iteration(
        event.lane, event.end, event.end,
        [(id_, new, before + new, False) for id_, new, before, _ in chunks] if chunks else [],
        decodes, event.decode_context + len(decodes), [], [], [], [], [], free, event.waiting,
    )  # fmt: skip


def check_place(path: str | Path) -> None:
    """Refuse a file that cannot be written, before the run whose log it is to hold."""
    path = Path(path)
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"log: got {str(path)!r}, allowed are files in a folder that is there")
    new = not path.exists()
    if not (new or path.is_file()):  # a pipe or a device, which looks at who opens it
        return
    try:
        path.open("a").close()  # the rights of a folder such as /proc promise what it does not keep
    except OSError:
        raise ValueError(f"log: got {str(path)!r}, allowed are files that may be written") from None
    if new:
        path.unlink()


class LogFile:
    """The same lines, written while the run goes on. `requests` is told before it, for they are known then."""

    def __init__(self, path: str | Path, run: dict):
        self.path, self.error = str(path), None
        self._open: deque[Iteration] = deque()  # in the order in which they started
        self._done: set[int] = set()  # of these, by their address
        try:
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            self.error = error
        self._write("run", **run)

    def request(self, id_: int, arrival: float, prompt: int, output: int, refusal: str | None) -> None:
        refused = {} if refusal is None else {"refused": refusal}
        self._write("request", id=id_, arrival=arrival, prompt=prompt, output=output, **refused)

    def iteration(self, event: Iteration) -> None:
        self._write("iteration", **{k: v for k, v in asdict(event).items() if v != []})

    def arrived(self, request: Request, refusal: str | None) -> None:
        """It is in the file since before the run."""

    def started(self, event: Iteration) -> None:
        self._open.append(event)

    def ended(self, event: Iteration) -> None:
        self._done.add(id(event))
        while self._open and id(self._open[0]) in self._done:
            first = self._open.popleft()
            self._done.discard(id(first))
            self.iteration(first)

    def _write(self, event: str, **rest) -> None:
        if self.error is None:
            try:
                self._file.write(json.dumps({"event": event, **rest}, separators=(",", ":")) + "\n")
            except OSError as error:  # told at the end: a disk may be full, and the numbers shall not be lost with it
                self.error = error

    def close(self) -> None:
        try:
            if self.error is None:
                self._file.close()
        except OSError as error:
            self.error = error
        if self.error:
            raise ValueError(f"log: got {self.path!r}, which is not complete ({self.error.strerror})")


@dataclass
class Log:
    """`run` says what was run, `requests` what arrived (id, arrival, prompt, output), `refused` why some never ran."""

    run: dict = field(default_factory=dict)
    requests: list[tuple[int, float, int, int]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)

    def arrived(self, request: Request, refusal: str | None) -> None:
        self.requests.append((request.id, request.arrival, request.prompt, request.output))
        if refusal is not None:
            self.refused[request.id] = refusal

    def started(self, event: Iteration) -> None:
        self.iterations.append(event)

    def ended(self, event: Iteration) -> None:
        """It is in the log since it started."""

    def save(self, path: str | Path) -> None:
        """JSON lines: the run, then a line for each request, then a line for each iteration in order."""
        file = LogFile(path, self.run)
        for id_, arrival, prompt, output in self.requests:
            file.request(id_, arrival, prompt, output, self.refused.get(id_))
        for event in self.iterations:
            file.iteration(event)
        file.close()

    @classmethod
    def load(cls, path: str | Path) -> Log:
        log = cls()
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    log._read(json.loads(line, parse_constant=_refuse))
                except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                    raise ValueError(f"{path}, line {number}: not an event of a serving log ({error})") from None
        return log

    def _read(self, row: dict) -> None:
        event = row.pop("event")
        if event == "run":
            self.run = row
        elif event == "request":
            if "refused" in row:
                self.refused[row["id"]] = row["refused"]
            self.requests.append((row["id"], row["arrival"], row["prompt"], row["output"]))
        elif event == "iteration":
            row.setdefault("prefills", [])
            row.setdefault("decodes", [])
            for key in ("prefills", "preempted", "stages"):
                row[key] = [tuple(x) for x in row.get(key, [])]
            self.iterations.append(Iteration(**row))
        else:
            raise ValueError(f"event {event!r}")


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)

"""A tiny model behind a service or behind HTTP, for tests."""

from contextlib import contextmanager
from itertools import count
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep

import torch

from pod.serving.blocks import PagedPool
from pod.serving.engine import Engine
from pod.serving.model import Llama
from pod.serving.sampler import Sampling
from pod.serving.schedulers import Sarathi
from pod.serving.service import Piece, Service

GREEDY = Sampling(0.0)


def tiny_model(file) -> Llama:
    """float64, so that no near tie is decided by the order of a sum."""
    return Llama(file.shape, file.weights, dtype=torch.float64)


def service(model, file, pages=400, batch=8, chunk=32, waiting=256, pause=0.0, ahead=False) -> Service:
    """`pause` seconds an iteration, where something is to happen while it runs."""
    pool = PagedPool(pages, 4)
    engine = Engine(model, pool, stop=file.stops, ahead=ahead)
    forward = engine.run
    engine.run = lambda step: sleep(pause) or forward(step)
    return Service(engine, Sarathi(pool, batch, chunk=chunk), file.piece, waiting)


@contextmanager
def held(service: Service, after: int = 0):
    """The engine goes through so many more iterations, and stands until this block ends: what happens here is early
    enough, however slow this machine is."""
    forward, gone_through, on = service.engine.run, count(), Event()
    service.engine.run = lambda step: (next(gone_through) < after or on.wait(60)) and forward(step)
    try:
        yield
    finally:
        on.set()


class Listener:
    """Hears the pieces of one answer."""

    def __init__(self, service: Service, prompt, output, sampling=GREEDY, stops=()):
        self.pieces, self.service = SimpleQueue(), service
        self.job = service.ask(prompt, output, sampling, stops, self.pieces.put)

    def next(self) -> Piece:
        return self.pieces.get(timeout=60)

    def rest(self) -> list[Piece]:
        pieces = [self.next()]
        while pieces[-1].end is None:
            pieces.append(self.next())
        return pieces


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def wait_until(true, seconds: float = 60) -> None:
    end = monotonic() + seconds
    while not true():
        assert monotonic() < end, "it never came true"
        sleep(0.002)


def cancelled(service: Service) -> int:
    return service.meters.requests.labels("cancelled")._value.get()


def heard_of(service: Service) -> bool:
    """Whether somebody's word to leave came: it lies in the inbox, or was read."""
    return not (service.jobs and service._inbox.empty())


def nothing_is_kept(service: Service) -> bool:
    """No request, no page, no text of anybody who has gone."""
    engine, scheduler = service.engine, service.scheduler
    left = (service.jobs, engine.texts, engine.held, engine.on_host, scheduler.running, scheduler.waiting,
            scheduler.pool.tables, scheduler.pool.swapped, service.loop.busy, service._news)  # fmt: skip
    return not any(left) and len(engine.marks) <= 1 and len(scheduler.pool.free) == scheduler.pool.num_blocks


@contextmanager
def http(service: Service, file, name="tiny", **config):
    """The address of a server over it, in a thread."""
    from pod.serving.http import app

    with serving(app(service, file, name), **config) as url:
        yield url


@contextmanager
def serving(app, **config):
    """The address of a server over any application, in a thread."""
    import uvicorn

    from pod.serving import patience

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", **patience.OPTIONS, **config))
    thread = Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()

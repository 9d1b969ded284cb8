"""Clients that stop in the middle of a request, or of an answer: they are waited for, but not for ever."""

import socket
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[serve]'")

import h11  # noqa: E402
from served import serving  # noqa: E402
from uvicorn.protocols.http.flow_control import FlowControl  # noqa: E402
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: E402

from pod.serving import patience  # noqa: E402
from pod.serving.patience import Patient  # noqa: E402

CHUNK = b"x" * 65536


class Answers:
    """Reads a body, then sends without end, as long as somebody is there."""

    def __init__(self):
        self.gone = threading.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/short":
            return await send({"type": "http.response.body", "body": b"done"})
        while not await self._left(receive, send):
            pass
        self.gone.set()

    async def _left(self, receive, send) -> bool:
        import asyncio

        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        try:
            return (await asyncio.wait_for(receive(), 0.001))["type"] == "http.disconnect"
        except asyncio.TimeoutError:
            return False


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(Patient, "patience", 0.2)


@pytest.fixture
def server():
    app = Answers()
    with serving(app, lifespan="off", timeout_graceful_shutdown=1) as url:
        yield app, url


def connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60)


def hung_up(client: socket.socket) -> bool:
    """Waits until the server has closed, or for the minute that the socket waits."""
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("sent", [
    pytest.param(b"", id="nothing"),
    pytest.param(b"POST / HTTP/1.1\r\nHost: a", id="half a head"),
    pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{", id="half a body"),
    pytest.param(b"GET /short HTTP/1.1\r\nHost: a\r\n\r\nGET /short HT", id="half of a second request"),
])  # fmt: skip
def test_who_stops_in_a_request_is_hung_up_on(hasty, server, sent):
    with connected(server[1]) as client:
        client.sendall(sent)
        assert hung_up(client)


def test_who_reads_nothing_is_hung_up_on(hasty, server):
    app, url = server
    with connected(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert app.gone.wait(60), "the answer went on although nobody read it"


def test_who_does_not_read_the_end_of_an_answer_is_hung_up_on(hasty, monkeypatch):
    """A finished one, of which less is left than the mark at which writing pauses."""
    mine, lost = [], threading.Event()

    class Seen(Patient):
        def connection_made(self, transport):
            super().connection_made(transport)
            mine.append(self)

        def connection_lost(self, exc):
            super().connection_lost(exc)
            lost.set()

    async def ends_soon(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not mine[0].transport.get_write_buffer_size():  # the system has room for megabytes
            await send({"type": "http.response.body", "body": CHUNK[:16384], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setitem(patience.OPTIONS, "http", Seen)
    with serving(ends_soon, lifespan="off", timeout_graceful_shutdown=1, timeout_keep_alive=1) as url:
        with connected(url) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert lost.wait(10), "it would have waited for ever"


def test_a_drip_of_bytes_buys_no_time(hasty, server):
    with connected(server[1]) as client:
        with pytest.raises(ConnectionError):
            for _ in range(10_000):
                client.sendall(b"G")
                threading.Event().wait(0.01)


def test_whole_requests_are_answered(server):
    with connected(server[1]) as client:
        for _ in range(3):
            client.sendall(b"POST /short HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            answer = b""
            while not answer.endswith(b"\r\n0\r\n\r\n"):
                answer += client.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200") and b"done" in answer


# ---------------------------------------------------------------- by a clock of our own
class Loop:
    """Timers that ring when the test says."""

    def __init__(self):
        self.timers = []

    def call_later(self, seconds, call, *arguments):
        timer = SimpleNamespace(call=lambda: call(*arguments), seconds=seconds, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append(timer)
        return timer

    def ring(self) -> None:
        waiting, self.timers = [t for t in self.timers if not t.cancelled], []
        for timer in waiting:
            timer.call()


@pytest.fixture
def protocol():
    made = Patient.__new__(Patient)
    made.loop, made.left, made.aborted = Loop(), 70_000, False
    made.transport = SimpleNamespace(get_write_buffer_size=lambda: made.left, abort=lambda: setattr(made, "aborted", 1),
                                     is_closing=lambda: made.closing)  # fmt: skip
    made.flow, made.closing, made.cycle = FlowControl(made.transport), False, SimpleNamespace(response_complete=False)
    made.conn = SimpleNamespace(their_state=h11.IDLE)
    return made


def assert_waits_until_it_stops(protocol) -> None:
    """Of a client that reads a byte between two rings of its clock, fifty times, and then none."""
    for _ in range(50):
        protocol.left -= 1
        protocol.loop.ring()
        assert not protocol.aborted
    protocol.loop.ring()
    assert protocol.aborted


def test_a_slow_reader_is_waited_for_as_long_as_it_reads(protocol):
    protocol.pause_writing()
    assert_waits_until_it_stops(protocol)


def test_what_was_read_in_time_stops_the_clock(protocol):
    protocol.pause_writing()
    protocol.resume_writing()
    protocol.loop.ring()
    assert not protocol.aborted and protocol._answer is None


def test_the_end_of_an_answer_has_a_clock_too(protocol):
    """Below the mark nobody was waited for, nor hung up on: uvicorn closes, and waits for ever until all is read."""
    protocol.pause_writing()
    protocol.left, protocol.cycle.response_complete = 10_000, True
    protocol.resume_writing()
    assert_waits_until_it_stops(protocol)


def test_who_has_read_all_of_an_answer_has_no_clock(protocol):
    protocol.left, protocol.cycle.response_complete = 0, True
    protocol._wait_for_reader()
    assert not protocol.loop.timers


def test_an_answer_that_grows_is_no_answer_that_nobody_reads(protocol):
    """Its reader has read the last one, and of this one nothing was taken back."""
    protocol.left, protocol.cycle.response_complete = 10, True
    protocol._wait_for_reader()
    protocol.left, protocol.cycle = 5000, SimpleNamespace(response_complete=False)
    protocol.loop.ring()
    assert not protocol.aborted and not protocol.loop.timers


def test_what_is_said_at_a_hang_up_has_a_clock_too(protocol, monkeypatch):
    monkeypatch.setattr(H11Protocol, "send_400_response", lambda self, msg: setattr(self, "closing", True))
    protocol.left = 100
    protocol.send_400_response("Invalid HTTP request received.")
    protocol.loop.ring()
    assert protocol.aborted


def test_a_request_has_one_clock_from_its_first_byte_to_its_last(protocol):
    for state in (h11.IDLE, h11.IDLE, h11.SEND_BODY):
        protocol.conn.their_state = state
        protocol._expect()
    (timer,) = protocol.loop.timers
    assert timer.seconds == patience.SECONDS == 60
    protocol.conn.their_state = h11.DONE
    protocol._expect()
    protocol.loop.ring()
    assert not protocol.aborted

"""How long the server waits for a client: uvicorn itself would wait for ever, once a request has begun."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 60  # for a whole request to come, and for some of an answer to be read


class Patient(H11Protocol):
    """Hangs up on who stops in the middle of a request, and on who reads nothing of an answer. A slow reader is waited
    for as long as it reads; between two requests uvicorn's keep-alive holds."""

    patience = SECONDS
    _request = _answer = None  # timers

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def _expect(self) -> None:
        """The rest of a request, from its first byte on, and no matter how often a byte comes."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop("_request")
        elif not self._request:
            self._request = self.loop.call_later(self.patience, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop("_answer")
        super().resume_writing()

    def _wait_for_reader(self, left: int) -> None:
        self._answer = self.loop.call_later(self.patience, self._has_read, left)

    def _has_read(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._wait_for_reader(left)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_request")
        self._stop("_answer")
        super().connection_lost(exc)

    def _stop(self, timer: str) -> None:
        if running := getattr(self, timer):
            running.cancel()
            setattr(self, timer, None)


OPTIONS = {"http": Patient, "ws": "none"}  # of uvicorn.Config; a websocket would have a protocol of its own

"""How long the server waits for a client: uvicorn itself would wait for ever, once a request has begun."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 60  # for a whole request to come, and for some of an answer to be read


class Patient(H11Protocol):
    """Hangs up on who stops in the middle of a request, and on who reads nothing of an answer, or of its end. A slow
    reader is waited for as long as it reads; between two requests uvicorn's keep-alive holds."""

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
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_for_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_reader()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        self._stop("_answer")
        if self._only_shrinks and (left := self.transport.get_write_buffer_size()):
            self._answer = self.loop.call_later(self.patience, self._has_read, left)

    def _has_read(self, before: int) -> None:
        if self._only_shrinks and self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._wait_for_reader()

    @property
    def _only_shrinks(self) -> bool:
        """Whether what lies here for the client can but become less: nothing is written above the mark, nor after the
        end of an answer. Of any other one that lies here, nobody can say what of it was read."""
        complete = not self.cycle or self.cycle.response_complete
        return complete or self.flow.write_paused or self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_request")
        self._stop("_answer")
        super().connection_lost(exc)

    def _stop(self, timer: str) -> None:
        if running := getattr(self, timer):
            running.cancel()
            setattr(self, timer, None)


OPTIONS = {"http": Patient, "ws": "none"}  # of uvicorn.Config; a websocket would have a protocol of its own

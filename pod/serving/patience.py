"""The wire of the server: whoever stops in the middle of a request, or of reading an answer, is not waited for."""

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 60.0  # seconds


def config(app, **more) -> uvicorn.Config:
    return uvicorn.Config(app, http=Patient, ws="none", **more)


class Patient(H11Protocol):
    """Looks from time to time whether it waits for its client, and cuts off one who has done nothing since.

    A byte now and then is nothing: each such connection would hold a file of the server for ever, of which there are
    about a thousand.
    """

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._look()

    def connection_lost(self, error) -> None:
        self._next_look.cancel()
        super().connection_lost(error)

    def shutdown(self) -> None:
        """Half a request will not be answered any more."""
        if self.conn.their_state is h11.SEND_BODY and not self.cycle.response_complete:
            self.transport.close()
        else:
            super().shutdown()

    def _look(self, before=None) -> None:
        unread = self.transport.get_write_buffer_size()
        now = (self.cycle, self.conn.their_state, unread)
        if now == before and (unread or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)):
            self.transport.abort()  # to close it would be to wait until all is read
        else:
            self._next_look = self.loop.call_later(PATIENCE, self._look, now)

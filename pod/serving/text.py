"""An answer as it grows: from bytes to letters, up to a stop string, of which nothing is ever let out."""

from codecs import getincrementaldecoder
from collections.abc import Sequence


class Text:
    """Tokens are pieces of bytes. A letter may lie in several of them, and so may a stop string.

    The text ends before the stop string that is complete first, wherever the borders of tokens are. So what might
    become one is kept back until it cannot any more.
    """

    def __init__(self, stops: Sequence[str] = ()):
        self.stops, self.stopped, self._kept = tuple(stops), False, ""
        self._letters = getincrementaldecoder("utf-8")("replace")

    def add(self, piece: bytes, last: bool = False) -> str:
        """What may be shown now. `last`: nothing follows."""
        text = self._kept + self._letters.decode(piece, last)
        if ends := [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]:
            self.stopped, self._kept = True, ""
            return text[: min(ends)[1]]
        shown = len(text) - (0 if last else self._begun(text))
        self._kept = text[shown:]
        return text[:shown]

    def _begun(self, text: str) -> int:
        """Letters at the end that are the beginning of a stop string."""
        return max((n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)

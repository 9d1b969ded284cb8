"""What a GGUF file says of itself, counted before anybody believes it: the reader would fetch what is not there entry
by entry, until the memory is full."""

import mmap
import stat
import struct
from pathlib import Path

MAGIC, READ = b"GGUF", (2, 3)  # versions
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by GGUF's numbers of types
STRING, ARRAY = 8, 9
LEAST = {"fields": 13, "tensors": 24}  # bytes that one of them takes


def check(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: got no regular file, allowed is a GGUF file")
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8 or head[:4] != MAGIC or int.from_bytes(head[4:], "little") not in READ:
            return  # the reader says what this is
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _Walk(data).through()
            except ValueError as error:
                raise ValueError(f"{path}: got {error} of {len(data):,} bytes, allowed is a whole GGUF file") from None


class _Walk:
    def __init__(self, data):
        self.data, self.at = data, 8

    def through(self) -> None:
        tensors, fields = self._number("<Q"), self._number("<Q")
        self._room(tensors, LEAST["tensors"], "tensors")
        self._room(fields, LEAST["fields"], "fields")
        for _ in range(fields):
            self._string()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._string()
            self._skip(self._number("<I"), 8, "dimensions")
            self._skip(4, 1, "bytes of a type")
            if (start := self._number("<Q")) > len(self.data):
                raise ValueError(f"a tensor that starts at byte {start:,} in a file")

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self._string()
        elif kind != ARRAY:
            self._skip(1, self._size(kind), "value")
        else:
            inner, count = self._number("<I"), self._number("<Q")
            if inner != STRING:
                return self._skip(count, self._size(inner), "entries of an array")
            self._room(count, 8, "entries of an array")
            for _ in range(count):
                self._string()

    def _size(self, kind: int) -> int:
        if kind not in SIZES:
            raise ValueError(f"a value of type {kind}, which is none or an array of arrays, in a file")
        return SIZES[kind]

    def _string(self) -> None:
        self._skip(self._number("<Q"), 1, "letters")

    def _number(self, form: str) -> int:
        at = self.at
        self._skip(struct.calcsize(form), 1, "bytes of a number")
        return struct.unpack_from(form, self.data, at)[0]

    def _skip(self, count: int, size: int, what: str) -> None:
        self._room(count, size, what)
        self.at += count * size

    def _room(self, count: int, size: int, what: str) -> None:
        if count * size > len(self.data) - self.at:
            raise ValueError(f"{count:,} {what} at byte {self.at:,} in a file")

"""A member of a streams group (KIP-1071), as far as its coordinator knows one: heartbeats.

librdkafka has no Streams and Kafka's own is a library of Java, so the one request that makes a
member is written here byte by byte (StreamsGroupHeartbeat v0): one subtopology, one topic, no
state. For brokers of one node, which coordinate everything.
"""

import socket
import struct
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_HEARTBEAT = 88
_NULL = b"\xff"
_NONE = b"\0"
_LOADING = frozenset({14, 15, 16})
"""A coordinator that is not there yet: its partition of the offsets topic is being made or read."""


class NotYet(Exception):
    """Ask again."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data) + 1) + data


def _array(items: Sequence[bytes]) -> bytes:
    return _varint(len(items) + 1) + b"".join(items)


class Cursor:
    """An answer, read from its front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, kind: str) -> int:
        """A number of a fixed size, by its struct letter."""
        (found,) = struct.unpack_from(f">{kind}", self._data, self._at)
        self._at += struct.calcsize(f">{kind}")
        return int(found)

    def varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def text(self) -> str | None:
        size = self.varint() - 1
        if size < 0:
            return None
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def tags(self) -> None:
        """The end of a struct without tags."""
        assert self.varint() == 0

    def tasks(self) -> dict[str, list[int]] | None:
        """Partitions by subtopology; None: as before."""
        count = self.varint() - 1
        if count < 0:
            return None
        found: dict[str, list[int]] = {}
        for _ in range(count):
            name = self.text()
            found[name or ""] = [self.number("i") for _ in range(self.varint() - 1)]
            self.tags()
        return found


class StreamsMember:
    """One member; every call is a heartbeat."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._group, self._topic = group, topic
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.tasks: dict[str, list[int]] = {}
        self._asked = 0

    def beat(self) -> None:
        """Join, or live on; NotYet, or AssertionError with what the coordinator says against it."""
        joins = self.epoch == 0
        answer = self._send(
            topology=self._topology() if joins else _NULL, tasks={} if joins else self.tasks
        )
        self.epoch = answer["epoch"]
        if answer["tasks"] is not None:
            self.tasks = answer["tasks"]

    def leave(self) -> None:
        self.epoch = -1
        self._send(topology=_NULL, tasks={})
        self._socket.close()

    def _topology(self) -> bytes:
        one = _text("0") + _array([_text(self._topic)]) + _array([]) * 5 + _NONE
        return b"\1" + struct.pack(">i", 0) + _array([one]) + _NONE

    def _send(self, *, topology: bytes, tasks: dict[str, list[int]]) -> dict[str, Any]:
        self._asked += 1
        active = [
            _text(name) + _array([struct.pack(">i", n) for n in numbers]) + _NONE
            for name, numbers in tasks.items()
        ]
        header = struct.pack(">hhi", _HEARTBEAT, 0, self._asked) + b"\0\1s" + _NONE
        body = b"".join(
            (
                _text(self._group),
                _text(self.member_id),
                struct.pack(">ii", self.epoch, 0),
                _NONE * 2,  # no instance, no rack
                struct.pack(">i", 60_000),
                topology,
                _array(active),
                _array([]) * 2,  # standby and warm-up tasks
                _text(self.member_id),  # the process
                _NULL,  # no endpoint
                _array([]),  # tags of the client
                _NONE * 2,  # no offsets of tasks
                b"\0",
                _NONE,
            )
        )
        sent = header + body
        self._socket.sendall(struct.pack(">i", len(sent)) + sent)
        answer = Cursor(self._received())
        assert answer.number("i") == self._asked
        answer.tags()
        answer.number("i")
        error, why = answer.number("h"), answer.text()
        if error in _LOADING:
            raise NotYet
        assert error == 0, (error, why)
        answer.text()
        epoch = answer.number("i")
        for _ in range(3):
            answer.number("i")
        for _ in range(answer.varint() - 1):  # what is wrong with the topology, or is not yet
            answer.number("b")
            answer.text()
            answer.tags()
        return {"epoch": epoch, "tasks": answer.tasks()}

    def _received(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker closed the connection"
            found += more
        return found


def settle(
    members: Sequence[StreamsMember], partitions: int, *, after: int = 0, limit: float = 240.0
) -> int:
    """Beat until these members share everything at an epoch after this one; that epoch."""
    end = time.monotonic() + limit
    while True:
        with suppress(NotYet):
            for member in members:
                member.beat()
        owned = sorted(n for member in members for mine in member.tasks.values() for n in mine)
        epochs = {member.epoch for member in members}
        if owned == list(range(partitions)) and len(epochs) == 1 and min(epochs) > after:
            for member in members:
                member.beat()  # with what it owns, so that the coordinator knows
            return min(epochs)
        assert time.monotonic() < end, [(m.epoch, m.tasks) for m in members]
        time.sleep(0.2)

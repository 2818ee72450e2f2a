"""Bytes of answers: put together as kafka-python does itself, read from a socket to its end."""

import random
import socket
from collections.abc import Iterator

import pytest

from fleet.kafka_source.connections import _receive, load

ROOM = 64


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, which never blocks, and the broker's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_is_what_the_library_would_have(seed: int):
    """Written in pieces, from views too; read by number, from anywhere, and all that is left."""
    load()
    from kafka.protocol import frame, parser

    assert parser.KafkaBytes is not frame.KafkaBytes
    rng = random.Random(seed)
    data = rng.randbytes(rng.randint(1, 200))
    buffers = ours, _ = parser.KafkaBytes(len(data)), frame.KafkaBytes(len(data))
    at = 0
    while at < len(data):
        piece = data[at : at + rng.randint(1, 60)]
        at += len(piece)
        ours.write(rng.choice([piece, memoryview(piece)]))
        buffers[1].write(piece)
        assert {each.tell() for each in buffers} == {at}
    assert bytes(buffers[0]) == bytes(buffers[1]) == data
    start = rng.randint(0, 3)
    for each in buffers:
        each.seek(start)
    for wanted in (4, rng.randint(0, 90), None, 2, None):
        ours_read, theirs_read = (each.read(wanted) for each in buffers)
        assert bytes(ours_read) == theirs_read
        assert {each.tell() for each in buffers} == {ours.tell()}
    load()
    assert type(ours) is parser.KafkaBytes, "another one each time"


def test_what_the_socket_has_is_taken_and_no_more(ends):
    """Nothing yet, a little, more than there is room for."""
    ours, theirs = ends
    room = bytearray(ROOM)
    assert _receive(ours, room) == (b"", None)
    theirs.sendall(b"abc")
    taken, ended = _receive(ours, room)
    assert (bytes(taken), ended) == (b"abc", None)
    sent = bytes(range(2 * ROOM + 5))
    theirs.sendall(sent)
    parts = [bytes(_receive(ours, room)[0]) for _ in range(4)]
    assert parts == [sent[:ROOM], sent[ROOM : 2 * ROOM], sent[2 * ROOM :], b""]


class InDrops:
    """A socket that gives three bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self.left = data

    def recv_into(self, view: memoryview) -> int:
        if not self.left:
            raise BlockingIOError
        drop, self.left = self.left[: min(3, len(view))], self.left[3:]
        view[: len(drop)] = drop
        return len(drop)


def test_what_comes_in_drops_stands_in_its_order():
    """One behind the other."""
    taken, ended = _receive(InDrops(b"abcdefgh"), bytearray(ROOM))
    assert (bytes(taken), ended) == (b"abcdefgh", None)


def test_what_came_before_the_end_counts(ends):
    """Such as why a login was refused; the end is told the next time."""
    ours, theirs = ends
    room = bytearray(ROOM)
    theirs.sendall(b"refused")
    theirs.close()
    taken, ended = _receive(ours, room)
    assert (bytes(taken), ended) == (b"refused", None)
    taken, ended = _receive(ours, room)
    assert bytes(taken) == b""
    assert str(ended) == "the broker closed the connection"


def test_a_connection_that_breaks_is_told(ends):
    """With what the system says."""
    ours, _ = ends
    ours.close()
    taken, ended = _receive(ours, bytearray(ROOM))
    assert bytes(taken) == b""
    assert ended is not None

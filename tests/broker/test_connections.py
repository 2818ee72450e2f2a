"""What a broker does with requests of one connection, in the bytes of the protocol (R49)."""

import socket
import struct
import time

import pytest

from tests.conftest import RunningBroker
from tests.support.waiting import until

pytestmark = pytest.mark.broker

FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT = 10, 11, 12
UNKNOWN_MEMBER_ID = 25
COORDINATOR_NOT_AVAILABLE = 15
MOVING = {14, COORDINATOR_NOT_AVAILABLE, 16}
DELAY = 3.0
"""group.initial.rebalance.delay.ms: so long the first JoinGroup is parked."""


def text(value: str) -> bytes:
    """A string of the protocol's older versions."""
    return struct.pack(">h", len(value)) + value.encode()


def request(api: int, version: int, number: int, body: bytes) -> bytes:
    """With its size; `number` is its correlation id."""
    whole = struct.pack(">hhi", api, version, number) + text("raw") + body
    return struct.pack(">i", len(whole)) + whole


def join(number: int, group: str) -> bytes:
    """A first JoinGroup, of a version without MEMBER_ID_REQUIRED."""
    protocols = struct.pack(">i", 1) + text("range") + struct.pack(">i", 0)
    how = struct.pack(">ii", 10_000, 30_000)
    return request(
        JOIN_GROUP, 2, number, text(group) + how + text("") + text("consumer") + protocols
    )


def beat(number: int, group: str) -> bytes:
    """A heartbeat of nobody, which is answered at once."""
    return request(HEARTBEAT, 0, number, text(group) + struct.pack(">i", 1) + text("nobody"))


def answered(connection: socket.socket) -> tuple[int, bytes, float]:
    """(correlation id, the rest, when)."""
    read = connection.makefile("rb", buffering=0)
    (size,) = struct.unpack(">i", read.read(4))
    whole = b""
    while len(whole) < size:
        whole += read.read(size - len(whole))
    return int.from_bytes(whole[:4], "big"), whole[4:], time.monotonic()


def coordinates(connection: socket.socket, group: str) -> bool:
    """Whether the group's partition of `__consumer_offsets`, made by the first question, is up."""
    connection.sendall(request(FIND_COORDINATOR, 0, 0, text(group)) + beat(0, group))
    answered(connection)
    _, answer, _ = answered(connection)
    return int.from_bytes(answer[:2], "big") == UNKNOWN_MEMBER_ID


def both(one: socket.socket, other: socket.socket, group: str) -> tuple[int, float]:
    """A join with a heartbeat behind it, and a heartbeat elsewhere, which is answered before.

    The error that the join ended with, and after how long.
    """
    began = time.monotonic()
    one.sendall(join(1, group) + beat(2, group))
    other.sendall(beat(3, group))
    number, _, when = answered(other)
    assert (number, when - began < DELAY) == (3, True)
    first, answer, joined = answered(one)
    second, _, _ = answered(one)
    assert (first, second) == (1, 2)
    return int.from_bytes(answer[4:6], "big"), joined - began


def test_a_parked_join_holds_up_what_comes_behind_it(broker: RunningBroker, unique: str) -> None:
    """A heartbeat on its connection is answered after it, one on another at once (R49)."""
    host, port = broker.bootstrap_servers.split(",")[0].split(":")
    group = f"raw-{unique}"
    with (
        socket.create_connection((host, int(port)), timeout=60) as one,
        socket.create_connection((host, int(port)), timeout=60) as other,
    ):
        until(lambda: coordinates(other, group), "the coordinator")
        error, took = COORDINATOR_NOT_AVAILABLE, 0.0
        for _ in range(20):  # its partition may take no write yet
            error, took = both(one, other, group)
            if error not in MOVING:
                break
            time.sleep(0.25)
        assert error == 0
        assert took >= DELAY

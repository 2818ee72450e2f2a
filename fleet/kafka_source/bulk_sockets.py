"""kafka-python's connection manager, mended where it falls short of large answers and of outages.

Problem: it reads 4 KiB at a time, copies an answer five times before it is read (12 MB: 28 ms of
CPU, here 1), leaves sockets open that never got connected, and tries a refused login again and
again without a word. Choice: a subclass that makes the sockets itself, reads what there is into one
place, and keeps why the last connection failed; answers are put together in a buffer that copies
once. Cost: it overrides what is not documented; the version is pinned, and tests with real brokers
see each part. Tasks of Spark get this code by value, where there is no Fleet, so kafka-python is
imported where it is used. It is imported whole first: its parts import each other in circles, and
of two threads that begin at different ones one would find half a module.
"""

from __future__ import annotations  # cloudpickle does not see the names that a class's body uses

import ssl
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from fleet.kafka_source.no_answer import NoAnswer, NoAnswerKind, no_answer

_READ: Final = 1 << 18
"""Bytes that are taken from a socket at once."""
_LEAST_MS: Final = 1000.0


def load() -> None:
    """All of kafka-python, before any part of it is imported; with another buffer of answers."""
    import kafka  # noqa: F401, PLC0415
    from kafka.protocol import frame, parser  # noqa: PLC0415

    if parser.KafkaBytes is frame.KafkaBytes:
        parser.KafkaBytes = _whole_answer(frame.KafkaBytes)


def _whole_answer(base: Any) -> Any:
    class WholeAnswer(base):  # type: ignore[misc]
        """An answer's bytes, copied in; what is read is a view of them."""

        _idx: int

        def read(self, nbytes: int | None = None) -> memoryview | bytes:
            """The next bytes; all that are left are not copied."""
            start, end = self._idx, len(self)
            if nbytes is None:
                self._idx = end
                return memoryview(self)[start:]
            self._idx = min(start + nbytes, end)
            return bytes(memoryview(self)[start : self._idx])

        def write(self, data: bytes | memoryview) -> None:
            """Put behind what was written."""
            start = self._idx
            self._idx += len(data)
            memoryview(self)[start : self._idx] = data

    return WholeAnswer


def telling_manager(net: Any, config: Mapping[str, Any]) -> Any:
    """A manager, not yet connected. Raises ValueError for what is no address."""
    load()
    from kafka.net.manager import KafkaConnectionManager  # noqa: PLC0415

    class TellingManager(KafkaConnectionManager):  # type: ignore[misc]
        """`failed` is why the last connection failed; `transports` are all that may be open.

        `reached`: whether there was a connection to a broker at an address that brokers name.
        """

        failed: BaseException | None = None
        reached = False

        def __init__(self) -> None:
            super().__init__(net, **config)
            self.transports: weakref.WeakSet[Any] = weakref.WeakSet()
            self.room = bytearray(_READ)
            """For what is received, by all connections in turn."""

        def get_connection(self, node_id: Any, timeout_ms: Any = None, **options: Any) -> Any:
            """The connection to a broker, there already or made now; not yet open."""
            known = self._conns.get(node_id)
            if timeout_ms is not None and self.cluster.is_bootstrap(node_id):
                # One at a time is tried at the door: one that is silent leaves time for another.
                timeout_ms = max(_LEAST_MS, timeout_ms / 2)
            found = super().get_connection(node_id, timeout_ms, **options)
            if found is not known:
                found.init_future.add_both(partial(self._tell, node_id))
            return found

        def _tell(self, node_id: Any, outcome: Any) -> None:
            self.failed = outcome if isinstance(outcome, BaseException) else None
            self.reached |= self.failed is None and not self.cluster.is_bootstrap(node_id)

        async def _build_transport(self, node: Any, timeout_at: Any = None) -> Any:
            made = await _transport(self, node, timeout_at)
            self.transports.add(made)
            return made

    return TellingManager()


async def _transport(manager: Any, node: Any, timeout_at: Any) -> Any:
    """As kafka-python's own, but that nothing stays open where it fails."""
    from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport  # noqa: PLC0415

    kind, options = KafkaTCPTransport, {}
    if manager.ssl_enabled:
        kind = KafkaSSLTransport
        options = {name: each for name, each in manager.config.items() if name[:4] == "ssl_"}
    sock = await _socket(manager, node, timeout_at)
    try:
        transport = kind(manager._net, sock, host=node.host, **options)  # noqa: SLF001
    except BaseException:
        sock.close()
        raise
    try:
        await transport.handshake()
    except BaseException:
        transport._close()  # noqa: SLF001 - at once, also where all is ended
        raise
    transport._sock_recv = partial(_received, transport._sock, manager.room)  # noqa: SLF001
    return transport


async def _socket(manager: Any, node: Any, timeout_at: Any) -> Any:
    """A connected one."""
    from kafka.errors import KafkaConnectionError, KafkaError  # noqa: PLC0415
    from kafka.net.inet import KafkaNetSocket  # noqa: PLC0415

    network, error = KafkaNetSocket(manager.config["proxy_url"]), None
    addresses = network.dns_lookup(node.host, node.port, raise_error=True)
    for family, type_, protocol, _, address in addresses:
        sock = network.socket(family, type_, protocol)
        try:
            sock.setblocking(False)
            for option in manager.config["socket_options"]:
                sock.setsockopt(*option)
            net = manager._net  # noqa: SLF001
            return await network.sock_connect(net, sock, address, timeout_at=timeout_at)
        except (KafkaError, OSError) as failed:
            sock.close()
            error = failed
        except BaseException:
            sock.close()
            raise
    raise error or KafkaConnectionError("no address")


def ended(manager: Any, net: Any) -> None:
    """Close at once: what is still to be sent is of no use any more."""
    for connection in list(manager._conns.values()):  # noqa: SLF001 - its close() waits for writes
        connection.close(NoAnswer("closed here", NoAnswerKind.LOST))
    manager.close()
    for transport in list(manager.transports):
        transport._close()  # noqa: SLF001 - one that is still to write would stay open
    net.close()


def _received(sock: Any, room: bytearray) -> tuple[bytes | memoryview, BaseException | None]:
    """What the socket has now, and why it ended, if it did; good until the next call.

    All of it under TLS: nothing tells later of what was received and not yet taken.
    """
    if isinstance(sock, ssl.SSLSocket):
        return _decrypted(sock)
    view, total = memoryview(room), 0
    while total < len(room):
        try:
            count = sock.recv_into(view[total:])
        except (BlockingIOError, InterruptedError):
            break
        except OSError as error:
            return _before_the_end(view[:total], no_answer(error, 0.0))
        if not count:
            return _before_the_end(view[:total], _closed())
        total += count
    return view[:total], None


def _decrypted(sock: ssl.SSLSocket) -> tuple[bytes | memoryview, BaseException | None]:
    found: list[bytes] = []
    while True:
        try:
            data = sock.recv(_READ)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b"".join(found), None
        except OSError as error:
            return _before_the_end(b"".join(found), no_answer(error, 0.0))
        if not data:
            return _before_the_end(b"".join(found), _closed())
        found.append(data)


def _closed() -> NoAnswer:
    return NoAnswer("the broker closed the connection", NoAnswerKind.LOST)


def _before_the_end(
    found: bytes | memoryview, ended: BaseException
) -> tuple[bytes | memoryview, BaseException | None]:
    """The last answer counts, such as why a login was refused; the end is seen once more."""
    return (found, None) if found else (b"", ended)

"""kafka-python's connection manager, mended where it falls short of large answers and of outages.

Problem: it reads 4 KiB at a time, leaves sockets open that never got connected, and tries a refused
login again and again without a word. Choice: a subclass that makes the sockets itself, reads what
there is, and keeps why the last connection failed. Cost: it overrides what is not documented; the
version is pinned, and tests with real brokers see each part.
"""

import ssl
import weakref
from functools import partial
from typing import Any, Final

from kafka.errors import KafkaConnectionError, KafkaError
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from fleet.kafka_source.no_answer import NoAnswer, NoAnswerKind, told

_READ: Final = 1 << 18
_MOST_READ: Final = 1 << 23
_LEAST_MS: Final = 1000.0


class TellingManager(KafkaConnectionManager):  # type: ignore[misc]
    """Takes what a socket has in large pieces; `failed` is why the last connection failed."""

    failed: BaseException | None = None

    def __init__(self, net: Any, **options: Any) -> None:
        super().__init__(net, **options)
        self.transports: weakref.WeakSet[Any] = weakref.WeakSet()

    def get_connection(self, node_id: Any, timeout_ms: Any = None, **options: Any) -> Any:
        """The connection to a broker, there already or made now; not yet open."""
        known = self._conns.get(node_id)
        if timeout_ms is not None and self.cluster.is_bootstrap(node_id):
            # One at a time is tried at the door: a broker that is silent leaves time for another.
            timeout_ms = max(_LEAST_MS, timeout_ms / 2)
        found = super().get_connection(node_id, timeout_ms, **options)
        if found is not known:
            found.init_future.add_errback(self._tell)
        return found

    def _tell(self, error: BaseException) -> None:
        self.failed = error

    async def _build_transport(self, node: Any, timeout_at: Any = None) -> Any:
        """As kafka-python's own, but that nothing stays open where it fails."""
        kind, options = KafkaTCPTransport, {}
        if self.ssl_enabled:
            kind = KafkaSSLTransport
            options = {name: each for name, each in self.config.items() if name[:4] == "ssl_"}
        sock = await self._socket_to(node, timeout_at)
        try:
            transport = kind(self._net, sock, host=node.host, **options)
        except BaseException:
            sock.close()
            raise
        try:
            await transport.handshake()
        except BaseException:
            transport._close()  # noqa: SLF001 - at once, also where all is ended
            raise
        transport._sock_recv = partial(_received, transport._sock)  # noqa: SLF001
        self.transports.add(transport)
        return transport

    async def _socket_to(self, node: Any, timeout_at: Any) -> Any:
        network, error = KafkaNetSocket(self.config["proxy_url"]), None
        addresses = network.dns_lookup(node.host, node.port, raise_error=True)
        for family, type_, protocol, _, address in addresses:
            sock = network.socket(family, type_, protocol)
            try:
                sock.setblocking(False)
                for option in self.config["socket_options"]:
                    sock.setsockopt(*option)
                return await network.sock_connect(self._net, sock, address, timeout_at=timeout_at)
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


def _received(sock: Any) -> tuple[bytes, BaseException | None]:
    """What the socket has now, and why it ended, if it did.

    All of it under TLS: nothing tells later of what was received and not yet taken.
    """
    found: list[bytes] = []
    total = 0
    while total < _MOST_READ or isinstance(sock, ssl.SSLSocket):
        try:
            data = sock.recv(_READ)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            break
        except OSError as error:
            return _before_the_end(found, NoAnswer(told(error), NoAnswerKind.LOST))
        if not data:
            return _before_the_end(
                found, NoAnswer("the broker closed the connection", NoAnswerKind.LOST)
            )
        found.append(data)
        total += len(data)
    return b"".join(found), None


def _before_the_end(found: list[bytes], ended: BaseException) -> tuple[bytes, BaseException | None]:
    """The last answer counts, such as why a login was refused; the end is seen once more."""
    return (b"".join(found), None) if found else (b"", ended)

"""Connections to all brokers of a cluster, for requests that librdkafka does not offer.

Problem: librdkafka gives records one by one, hides where transactions end, and its admin client
may abort the process when a broker pauses (librdkafka #4605). Choice: connections, logins and
answers come from kafka-python, which sends any request and is plain Python; what is asked is the
caller's business. All brokers are asked at once, and one deadline holds for all. Larger reads
than its own 4 KiB, since answers here are megabytes. Cost: 0.2 s and 15 MB where it is imported.

For one thread at a time. Nothing is retried here but the first connection.
"""

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from fleet.system.closing import Closing

_READ: Final = 1 << 18
_MOST_READ: Final = 1 << 23
_MOST_ANSWER: Final = (1 << 31) - 1
_AGAIN: Final = 0.1
_OPTIONS: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
}
"""librdkafka's options, and what kafka-python calls them."""


def kafka_python(options: Mapping[str, Any]) -> dict[str, Any]:
    """Address and login in librdkafka's options, as kafka-python's; others are left out."""
    found = {ours: options[name] for name, ours in _OPTIONS.items() if options.get(name)}
    servers = str(found["bootstrap_servers"])
    found["bootstrap_servers"] = [each.strip() for each in servers.split(",") if each.strip()]
    found["security_protocol"] = str(found.get("security_protocol", "PLAINTEXT")).upper()
    return found


class NoAnswer(ConnectionError):
    """No broker answered in time; or, for one broker, why not."""


class Connections(Closing):
    """Asks brokers. `options` are librdkafka's, with bootstrap.servers and security."""

    def __init__(self, options: Mapping[str, Any], *, client_id: str) -> None:
        self._config = {
            **kafka_python(options),
            "client_id": client_id,
            "receive_message_max_bytes": _MOST_ANSWER,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 1000,
            "socket_connection_setup_timeout_ms": 5000,
            "max_in_flight_requests_per_connection": 20,
        }
        self._net: Any = None
        self._manager: Any = None

    def close(self) -> None:
        """Close all connections; the next question opens new ones."""
        manager, net = self._manager, self._net
        self._manager = self._net = None
        if manager is not None:
            manager.close()
            net.close()

    def connect(self, timeout: float) -> None:
        """Reach any broker, if none was reached yet; raises NoAnswer after `timeout` seconds."""
        if self._manager is not None:
            return
        from kafka.errors import KafkaError  # noqa: PLC0415 - only where it is asked
        from kafka.net.manager import KafkaConnectionManager  # noqa: PLC0415
        from kafka.net.selector import NetworkSelector  # noqa: PLC0415

        logging.getLogger("kafka").addHandler(logging.NullHandler())  # what matters is raised
        net = NetworkSelector(client_id=self._config["client_id"])
        manager = KafkaConnectionManager(net, **self._config)
        manager._build_transport = partial(_bulk, manager._build_transport)  # noqa: SLF001
        manager.cluster.config["allow_auto_create_topics"] = False
        deadline = time.monotonic() + timeout
        try:
            reaching = manager.bootstrap_async(timeout_ms=timeout * 1000)
            # A refused login would be tried again until the time is up: it is told at once.
            while not reaching.is_done and time.monotonic() < deadline:
                net.poll(timeout_ms=50, future=reaching)
                if manager._auth_failures:  # noqa: SLF001 - it offers them by node only
                    raise next(iter(manager._auth_failures.values()))  # noqa: SLF001
            if reaching.exception is not None:
                raise reaching.exception
            if not reaching.is_done:
                raise NoAnswer(f"no broker answered within {timeout:.0f} s")
        except (KafkaError, OSError, ValueError) as error:
            manager.close()
            net.close()
            raise NoAnswer(told(error)) from error
        self._net, self._manager = net, manager

    def brokers(self) -> tuple[int, ...]:
        """Ids of the brokers that the last metadata named."""
        return tuple(sorted(each.node_id for each in self._manager.cluster.brokers()))

    def send(self, broker: int | None, request: Any, *, timeout: float) -> Any:
        """Send to one broker, or to any (None); its answer to come, for `wait`."""
        return self._manager.send(request, broker, request_timeout_ms=timeout * 1000)

    def wait(self, sent: Iterable[Any], timeout: float, *, first: bool = False) -> None:
        """Until all of what was sent (or the first of it) is answered or has failed."""
        left = [each for each in sent if not each.is_done]
        every = len(left)
        deadline = time.monotonic() + timeout
        while left and not (first and len(left) < every):
            patience = deadline - time.monotonic()
            if patience <= 0:
                return
            self._net.poll(timeout_ms=patience * 1000, future=None)
            left = [each for each in left if not each.is_done]

    def pause(self, seconds: float) -> None:
        """Ask nothing for so long; connections go on."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._net is None:
                time.sleep(left)
            else:
                self._net.poll(timeout_ms=left * 1000, future=None)

    def ask(self, requests: Mapping[int, Any], timeout: float) -> dict[int, Any]:
        """Each broker's answer to its request, all asked at once.

        NoAnswer stands for a broker that did not answer within `timeout` seconds.
        """
        sent = {node: self.send(node, each, timeout=timeout) for node, each in requests.items()}
        self.wait(sent.values(), timeout)
        return {node: _answer(each, timeout) for node, each in sent.items()}

    def ask_any(self, request: Any, timeout: float) -> Any:
        """Any broker's answer; asks another while there is time. Raises NoAnswer."""
        self.connect(timeout)
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.1, deadline - time.monotonic())
            sent = self.send(None, request, timeout=left)
            self.wait([sent], left)
            answer = _answer(sent, timeout)
            if not isinstance(answer, NoAnswer):
                return answer
            if time.monotonic() + _AGAIN >= deadline:
                raise answer
            self.pause(_AGAIN)

    def metadata(self, topics: Iterable[str] | None, timeout: float) -> Any:
        """A MetadataResponse on these topics (None: all); brokers' addresses are kept from it."""
        from kafka.protocol.metadata import MetadataRequest  # noqa: PLC0415 - see connect

        named = None
        if topics is not None:
            named = [MetadataRequest.MetadataRequestTopic(name=each) for each in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False, max_version=12)
        found = self.ask_any(request, timeout)
        self._manager.cluster.update_metadata(found)
        return found


def _answer(sent: Any, timeout: float) -> Any:
    if not sent.is_done:
        return NoAnswer(f"no answer within {timeout:.0f} s")
    if sent.exception is not None:
        return NoAnswer(told(sent.exception))
    return sent.value


def told(error: BaseException) -> str:
    """An error of kafka-python in words."""
    text = " ".join(str(part) for part in error.args).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _bulk(build: Callable[..., Any], node: Any, timeout_at: float | None = None) -> Any:
    """A transport that takes what its socket has in large pieces."""
    transport = await build(node, timeout_at)
    transport._sock_recv = partial(_received, transport._sock)  # noqa: SLF001
    return transport


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
            return b"".join(found), NoAnswer(told(error))
        if not data:
            return b"".join(found), NoAnswer("the broker closed the connection")
        found.append(data)
        total += len(data)
    return b"".join(found), None

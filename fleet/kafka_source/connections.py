"""Connections to all brokers of a cluster, for requests that librdkafka does not offer.

Problem: librdkafka returns records one by one and hides where transactions end. Its admin client
may abort the process when a broker pauses (librdkafka #4605). Choice: connections, logins and
answers come from kafka-python, which sends any request and is plain Python. All brokers are asked
at once, with one deadline for all. Reads are larger than its own 4 KiB, because answers here are
megabytes. Cost: 0.2 s and 15 MB for its import.

For one thread at a time. A request by `ask`, `ask_each` or `ask_any` may be sent twice: a lost
connection is reopened and the request repeated. If no broker answers, everything is closed, and the
next request begins at bootstrap.servers again (KIP-899).
"""

from __future__ import annotations  # cloudpickle does not see the names that a class's body uses

import copy
import logging
import re
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final

from fleet.kafka_source.login import NoToken, kafka_python_provider
from fleet.system.closing import Closing

# Why a broker does not answer: in words, and as far as callers need the difference.


class NoAnswerKind(StrEnum):
    """Why there is no answer, as far as callers need the difference."""

    LOGIN = "login"
    """The broker refuses the login."""
    TOKEN = "token"  # noqa: S105 - a kind
    """No token is available to log in with."""
    TLS = "tls"
    """Certificates or TLS itself failed."""
    LISTENER = "listener"
    """The listener at bootstrap.servers does not match the login."""
    LOST = "lost"
    """No connection, or one that was closed: another may work."""
    SILENT = "silent"
    """Connected, but no answer in time."""
    OLD = "old"
    """The broker does not know the request."""


class NoAnswer(ConnectionError):
    """No broker answered in time; for one broker, why it did not."""

    def __init__(self, text: str, kind: NoAnswerKind = NoAnswerKind.SILENT) -> None:
        super().__init__(text)
        self.kind = kind


def no_answer(error: BaseException | None, timeout: float) -> NoAnswer:
    """Returns why there is no answer after so many seconds; error None: not known yet."""
    from kafka import errors  # noqa: PLC0415 - loads kafka-python

    if error is None or isinstance(error, errors.KafkaTimeoutError | errors.RequestTimedOutError):
        return NoAnswer(f"no answer within {timeout:.3g} s", NoAnswerKind.SILENT)
    if isinstance(error, NoAnswer):
        return error
    if isinstance(error, NoToken):
        return NoAnswer(str(error), NoAnswerKind.TOKEN)
    text = describe_error(error)
    if isinstance(error, _login_errors()):
        return NoAnswer(text, NoAnswerKind.LOGIN)
    ended = ssl.SSLEOFError | ssl.SSLZeroReturnError
    if isinstance(error, ssl.SSLError) and not isinstance(error, ended):
        return NoAnswer(text, NoAnswerKind.TLS)
    if isinstance(error, errors.IncompatibleBrokerVersion | errors.UnsupportedVersionError):
        return NoAnswer(text, NoAnswerKind.OLD)
    return NoAnswer(text, NoAnswerKind.LOST)


def _login_errors() -> tuple[type[BaseException], ...]:
    from kafka import errors  # noqa: PLC0415 - loads kafka-python

    return (
        errors.SaslAuthenticationFailedError,
        errors.UnsupportedSaslMechanismError,
        errors.IllegalSaslStateError,
    )


_WORDS: Final = (
    (re.compile("ECONNREFUSED"), "nothing listens there"),
    (re.compile("DNS"), "the name is not known"),
    (re.compile("NodeNotReadyError|UnknownBrokerIdError"), "no connection to it"),
    (re.compile("socket disconnected|closed the connection"), "the broker closed the connection"),
)


def describe_error(error: BaseException) -> str:
    """Describes an error of kafka-python."""
    parts = [error.strerror] if isinstance(error, OSError) and error.strerror else error.args
    text = " ".join(str(part) for part in parts).strip()
    for pattern, words in _WORDS:
        if pattern.search(f"{type(error).__name__}: {text}"):
            return words
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# kafka-python's own connections read 4 KiB at a time and copy an answer five times (12 MB: 28 ms of
# CPU, here 1). They leave unconnected sockets open and repeat a refused login without a message.
# The overridden parts are undocumented, so the version is pinned and tests with real brokers cover
# each. Spark's tasks get this code by value, so kafka-python is imported where it is used. All of
# it is imported first, because its parts import each other in circles.


_READ: Final = 1 << 18
"""Bytes read from a socket at once."""
_LEAST_MS: Final = 1000.0


def load() -> None:
    """Imports all of kafka-python before any part of it, with another buffer for answers."""
    import kafka  # noqa: F401, PLC0415
    from kafka.protocol import frame, parser  # noqa: PLC0415

    if parser.KafkaBytes is frame.KafkaBytes:
        parser.KafkaBytes = _whole_answer(frame.KafkaBytes)


def _whole_answer(base: Any) -> Any:
    class WholeAnswer(base):  # type: ignore[misc]
        """Holds an answer's bytes; reads are views of them."""

        _idx: int

        def read(self, nbytes: int | None = None) -> memoryview | bytes:
            """Returns the next bytes; if they are the rest, without copying."""
            start, end = self._idx, len(self)
            if nbytes is None:
                self._idx = end
                return memoryview(self)[start:]
            self._idx = min(start + nbytes, end)
            return bytes(memoryview(self)[start : self._idx])

        def write(self, data: bytes | memoryview) -> None:
            """Appends bytes behind those written before."""
            start = self._idx
            self._idx += len(data)
            memoryview(self)[start : self._idx] = data

    return WholeAnswer


def make_manager(net: Any, config: Mapping[str, Any]) -> Any:
    """Returns a connection manager, not yet connected. Raises ValueError for an invalid address."""
    load()
    from kafka.net.manager import KafkaConnectionManager  # noqa: PLC0415

    class ReportingManager(KafkaConnectionManager):  # type: ignore[misc]
        """`failed` is why the last connection failed; `transports` may be open.

        `reached`: whether a broker was reached at an address that brokers advertise.
        """

        failed: BaseException | None = None
        reached = False

        def __init__(self) -> None:
            super().__init__(net, **config)
            self.transports: weakref.WeakSet[Any] = weakref.WeakSet()
            self.room = bytearray(_READ)
            """Buffer that all connections receive into, in turn."""

        def get_connection(self, node_id: Any, timeout_ms: Any = None, **options: Any) -> Any:
            """Returns the connection to a broker, new or known; not yet open."""
            known = self._conns.get(node_id)
            if timeout_ms is not None and self.cluster.is_bootstrap(node_id):
                # Bootstrap addresses are tried one by one: a silent one must leave time for others.
                timeout_ms = max(_LEAST_MS, timeout_ms / 2)
            found = super().get_connection(node_id, timeout_ms, **options)
            if found is not known:
                found.init_future.add_both(partial(self._record_outcome, node_id))
            return found

        def _record_outcome(self, node_id: Any, outcome: Any) -> None:
            self.failed = outcome if isinstance(outcome, BaseException) else None
            self.reached |= self.failed is None and not self.cluster.is_bootstrap(node_id)

        async def _build_transport(self, node: Any, timeout_at: Any = None) -> Any:
            made = await _transport(self, node, timeout_at)
            self.transports.add(made)
            return made

    return ReportingManager()


async def _transport(manager: Any, node: Any, timeout_at: Any) -> Any:
    """Opens a transport as kafka-python does, but closes everything if it fails."""
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
    transport._sock_recv = partial(_receive, transport._sock, manager.room)  # noqa: SLF001
    return transport


async def _socket(manager: Any, node: Any, timeout_at: Any) -> Any:
    """Returns a connected socket."""
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


def close_at_once(manager: Any, net: Any) -> None:
    """Closes all connections at once: what is not sent yet is not needed any more."""
    for connection in list(manager._conns.values()):  # noqa: SLF001 - its close() waits for writes
        connection.close(NoAnswer("closed here", NoAnswerKind.LOST))
    manager.close()
    for transport in list(manager.transports):
        transport._close()  # noqa: SLF001 - one that is still to write would stay open
    net.close()


def _receive(sock: Any, room: bytearray) -> tuple[bytes | memoryview, BaseException | None]:
    """Returns what the socket has now, and why it was closed if it was; valid until the next call.

    With TLS it reads everything, because a later poll does not show decrypted bytes.
    """
    if isinstance(sock, ssl.SSLSocket):
        return _decrypt(sock)
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


def _decrypt(sock: ssl.SSLSocket) -> tuple[bytes | memoryview, BaseException | None]:
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
    """Returns the last answer before the end, such as a refused login; the end is seen again."""
    return (found, None) if found else (b"", ended)


# Diagnoses an address at which no login succeeds. A wrong name, a wrong port and TLS to a listener
# without TLS all end in silence. One try with plain sockets (a TLS handshake, ApiVersions) shows
# what listens there. All addresses are tried in parallel, because one good address is enough.


_CONNECTING: Final = 0.7
_ANSWERING: Final = 1.5
_MOST: Final = 16
"""Addresses that are tried at once."""
_HELLO: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request for ApiVersions, version 0, correlation 1, no client id, with its length."""
_CHECK: Final = "check cluster.bootstrap_servers"


def diagnose_listener(servers: list[str], *, tls: bool) -> str | None:
    """Says why no connection works at these addresses; None if brokers answer as they should.

    `tls`: whether the login uses TLS.
    """
    with ThreadPoolExecutor(max_workers=_MOST) as looking:
        told = list(looking.map(partial(_diagnose_address, tls=tls), servers))
    return None if None in told else told[0]


def _diagnose_address(address: str, *, tls: bool) -> str | None:
    host, _, port = address.rpartition(":")
    where = (host.strip("[]"), int(port))
    try:
        socket.create_connection(where, timeout=_CONNECTING).close()
    except socket.gaierror:
        return f"the name {where[0]} is not known; {_CHECK}"
    except ConnectionRefusedError:
        return f"nothing listens at {address}; {_CHECK}, and whether the broker runs"
    except OSError as error:
        why = "it accepts no connection" if isinstance(error, TimeoutError) else error.strerror
        return (
            f"{address} cannot be reached ({why}); {_CHECK}, and the network and firewalls between"
        )
    if tls:
        if _speaks_tls(where):
            return None
        said = _request_versions(where)
        if _is_kafka(said):
            return f"{address} does not use TLS: set cluster.security.protocol to {_OTHER[False]}"
        return _describe_external(address, said)
    said = _request_versions(where)
    if _is_kafka(said):
        return None
    if said is not None and not said.startswith(b"HTTP/") and _speaks_tls(where):
        return (
            f"{address} uses TLS: set cluster.security.protocol to {_OTHER[True]}, or give "
            "`fleet init` a login with --security FILE"
        )
    return _describe_external(address, said)


_OTHER: Final = {True: "SSL or SASL_SSL", False: "PLAINTEXT or SASL_PLAINTEXT"}


def _request_versions(where: tuple[str, int]) -> bytes | None:
    """Returns the answer to ApiVersions: b"" if the connection is closed, None for silence."""
    try:
        with socket.create_connection(where, timeout=_CONNECTING) as sock:
            sock.settimeout(_ANSWERING)
            sock.sendall(_HELLO)
            return sock.recv(64)
    except TimeoutError:
        return None
    except OSError:
        return b""


def _is_kafka(said: bytes | None) -> bool:
    return said is not None and len(said) >= len(_HELLO) and said[4:8] == _HELLO[8:12]


def _speaks_tls(where: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with suppress(OSError), socket.create_connection(where, timeout=_CONNECTING) as sock:
        sock.settimeout(_ANSWERING)
        with context.wrap_socket(sock, server_hostname=where[0]):
            return True
    return False


def _describe_external(address: str, said: bytes | None) -> str:
    if said is None:
        does = "accepts connections and does not answer"
    elif said.startswith(b"HTTP/"):
        does = "answers as a web server"
    else:
        does = "answers with something else" if said else "closes every connection"
    return f"{address} is not a Kafka listener: it {does}; {_CHECK}, the port may be wrong"


__all__ = ["Connections", "NoAnswer", "NoAnswerKind", "describe_error", "kafka_python"]

_MOST_ANSWER: Final = (1 << 31) - 1
_IN_FLIGHT: Final = 200
"""Requests sent on one connection before the first is answered."""
_AGAIN: Final = 0.1
_RECONNECTING: Final = 2.0
"""Seconds for which a lost connection to one broker is retried before the others' answers are
returned."""
_REFUSED_SOON: Final = 1.0
"""Seconds after which a refused login is reported; a broker that just started may refuse at first.
"""
_DIAGNOSE_AFTER: Final = 2.5
"""Seconds without a first connection after which the listener is diagnosed."""
_DIAGNOSE_SOON: Final = ("closed the connection", "nothing listens", "the name is not known")
"""Reasons for which the listener is diagnosed after a fifth of that time."""
_PERMANENT: Final = frozenset({NoAnswerKind.LOGIN, NoAnswerKind.TLS, NoAnswerKind.TOKEN})
_NAMED: Final = 3
"""Number of brokers that a sentence names."""
_HEDGE: Final = 1.0
"""Seconds after which a request that any broker can answer is sent to another one as well."""
_OPTIONS: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""librdkafka's options → kafka-python's names."""


def kafka_python(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns address and login of librdkafka's options under kafka-python's names."""
    found = {ours: options[name] for name, ours in _OPTIONS.items() if options.get(name)}
    servers = str(found["bootstrap_servers"])
    found["bootstrap_servers"] = [each.strip() for each in servers.split(",") if each.strip()]
    found["security_protocol"] = str(found.get("security_protocol", "PLAINTEXT")).upper()
    if source := options.get("oauth_cb"):
        found["sasl_oauth_token_provider"] = kafka_python_provider(source)
    return found


class Connections(Closing):
    """Sends requests to brokers. `options`: librdkafka's, with bootstrap.servers and security."""

    def __init__(self, options: Mapping[str, Any], *, client_id: str) -> None:
        self._config = {
            **kafka_python(options),
            "client_id": client_id,
            "receive_message_max_bytes": _MOST_ANSWER,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 1000,
            "socket_connection_setup_timeout_ms": 5000,
            "request_timeout_ms": 5000,  # of its own requests; this module's have their own
            "max_in_flight_requests_per_connection": 2 * _IN_FLIGHT,
        }
        self._net: Any = None
        self._manager: Any = None
        self._end: weakref.finalize[..., Any] | None = None
        self._known = False
        """Whether any connection ever succeeded."""
        self._lost = False
        """No broker answered: they may have moved, so the next request starts at bootstrap."""

    def close(self) -> None:
        """Closes all connections; the next request opens new ones."""
        if self._end is not None:
            self._end()
        self._net = self._manager = self._end = None
        self._lost = False

    def connect(self, timeout: float) -> None:
        """Reaches any broker unless one was reached; raises NoAnswer after `timeout` seconds."""
        if self._lost:
            self.close()
        if self._manager is not None:
            return
        load()
        from kafka.errors import KafkaError  # noqa: PLC0415 - only where it is asked
        from kafka.net.selector import NetworkSelector  # noqa: PLC0415

        _quieten()
        net = NetworkSelector(client_id=self._config["client_id"], slow_task_threshold_secs=0)
        try:
            manager = make_manager(net, self._config)
        except ValueError as error:
            net.close()
            raise NoAnswer(describe_error(error), NoAnswerKind.LOST) from error
        manager.cluster.config["allow_auto_create_topics"] = False
        began, looking = time.monotonic(), not self._known
        try:
            reaching = manager.bootstrap_async(timeout_ms=timeout * 1000)
            while not reaching.is_done and time.monotonic() < began + timeout:
                net.poll(timeout_ms=50, future=reaching)
                # kafka-python retries until the time is up, whatever the reason.
                refused = no_answer(manager.failed, timeout)
                hopeless = refused.kind in _PERMANENT
                if hopeless and time.monotonic() > began + min(_REFUSED_SOON, timeout / 2):
                    raise self._with_diagnosis(refused)
                # An answer that is not Kafka's costs memory by its first four bytes, each time. A
                # port that refuses and an unknown name do not change by waiting.
                odd = any(words in str(refused) for words in _DIAGNOSE_SOON)
                if looking and time.monotonic() > began + (
                    _DIAGNOSE_AFTER / 5 if odd else _DIAGNOSE_AFTER
                ):
                    looking = False
                    if (found := self._with_diagnosis(refused)) is not refused:
                        raise found
            if not reaching.is_done or reaching.exception is not None:
                raise no_answer(manager.failed, timeout)
        except (KafkaError, OSError, ValueError) as error:
            close_at_once(manager, net)
            raise (
                error if isinstance(error, NoAnswer) else NoAnswer(describe_error(error))
            ) from error
        self._net, self._manager, self._known = net, manager, True
        self._end = weakref.finalize(self, close_at_once, manager, net)

    def _with_diagnosis(self, refused: NoAnswer) -> NoAnswer:
        """Returns the same error, or what is wrong at bootstrap.servers."""
        told = refused.kind in {NoAnswerKind.LOGIN, NoAnswerKind.TOKEN} or (
            refused.kind is NoAnswerKind.TLS and "certificate" in str(refused).lower()
        )
        encrypted = self._config["security_protocol"].endswith("SSL")
        why = None if told else diagnose_listener(self._config["bootstrap_servers"], tls=encrypted)
        return refused if why is None else NoAnswer(why, NoAnswerKind.LISTENER)

    def brokers(self) -> tuple[int, ...]:
        """Returns the broker ids of the last metadata."""
        return tuple(sorted(each.node_id for each in self._manager.cluster.brokers()))

    def knows(self, request: type[Any], version: int = 0) -> bool:
        """Whether the brokers know this version of a request."""
        there = self._manager.broker_version_data.api_versions.get(request.API_KEY)
        return there is not None and there[1] >= version

    def send(self, broker: int | None, request: Any, *, timeout: float) -> Any:
        """Sends to one broker, or to any (None); returns the pending answer for `wait`.

        Not more than a few hundred to one broker before the first is answered.
        """
        load()
        from kafka.errors import KafkaError  # noqa: PLC0415 - see connect
        from kafka.future import Future  # noqa: PLC0415

        if self._manager is None:
            return Future().failure(NoAnswer("not connected", NoAnswerKind.LOST))
        # A request keeps the version that was negotiated with its first broker.
        asked = copy.copy(request)
        try:
            return self._manager.send(asked, broker, request_timeout_ms=timeout * 1000)
        except KafkaError as error:  # an unknown broker, or one that refused the login
            return Future().failure(error)

    def wait(self, sent: Iterable[Any], timeout: float, *, first: bool = False) -> None:
        """Waits until every request is answered or has failed; `first`: until one more has."""
        left = [each for each in sent if not each.is_done]
        every = len(left)
        deadline = time.monotonic() + timeout
        while left and not (first and len(left) < every):
            grace = deadline - time.monotonic()
            if grace <= 0:
                return
            self._net.poll(timeout_ms=grace * 1000, future=None)
            left = [each for each in left if not each.is_done]

    def pause(self, seconds: float) -> None:
        """Sends nothing for so long; connections stay open."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._net is None:
                time.sleep(left)
            else:
                self._net.poll(timeout_ms=left * 1000, future=None)

    def ask(self, requests: Mapping[int, Any], timeout: float) -> dict[int, Any]:
        """Returns each broker's answer to its request; all are sent at once.

        NoAnswer stands for a broker that did not answer within `timeout` seconds.
        """
        answers = self.ask_each(list(requests.items()), timeout)
        return dict(zip(requests, answers, strict=True))

    def ask_each(self, requests: Sequence[tuple[int, Any]], timeout: float) -> list[Any]:
        """Returns answers to (broker, request) pairs in order, any number for each broker."""
        deadline = time.monotonic() + timeout
        found: list[Any] = []
        for first in range(0, len(requests), _IN_FLIGHT):
            left = max(_AGAIN, deadline - time.monotonic())
            found += self._ask_at_once(requests[first : first + _IN_FLIGHT], left)
        return found

    def _ask_at_once(self, requests: Sequence[tuple[int, Any]], timeout: float) -> list[Any]:
        began = time.monotonic()
        found: list[Any] = [None] * len(requests)
        asked = list(range(len(requests)))
        while True:
            left = max(_AGAIN, began + timeout - time.monotonic())
            sent = {i: self.send(*requests[i], timeout=left) for i in asked}
            self.wait(sent.values(), left)
            found = [_answer(sent[i], timeout) if i in sent else f for i, f in enumerate(found)]
            asked = [i for i in asked if _may_answer_yet(found[i])]
            late = time.monotonic() + _AGAIN >= began + min(timeout, _RECONNECTING)
            if not asked or late:
                return found
            self.pause(_AGAIN)

    def ask_any(self, request: Any, timeout: float) -> Any:
        """Returns any broker's answer; asks another while there is time. Raises NoAnswer."""
        deadline = time.monotonic() + timeout
        self.connect(timeout)
        while True:
            answer = self._ask_any_broker(request, max(_AGAIN, deadline - time.monotonic()))
            if not isinstance(answer, NoAnswer):
                return answer
            if time.monotonic() + _AGAIN >= deadline or not _may_answer_yet(answer):
                self._lost = True
                known = self._manager.failed  # the reason of a lost connection says more
                raise self._with_advertised_listeners(
                    answer if known is None else no_answer(known, timeout)
                )
            self.pause(_AGAIN)

    def _with_advertised_listeners(self, found: NoAnswer) -> NoAnswer:
        """Returns the error, or that no advertised listener can be reached."""
        named = [f"{each.host}:{each.port}" for each in self._manager.cluster.brokers()]
        passing = found.kind in {NoAnswerKind.LOST, NoAnswerKind.SILENT}
        if self._manager.reached or not named or not passing:
            return found
        return NoAnswer(
            f"{', '.join(self._config['bootstrap_servers'])} answers and sends clients to "
            f"{', '.join(sorted(named)[:_NAMED])}, where no connection succeeds ({found}): "
            "advertised.listeners of the brokers must name addresses that this machine can reach",
            NoAnswerKind.LISTENER,
        )

    def _ask_any_broker(self, request: Any, timeout: float) -> Any:
        """Returns the first answer; after a second without one, another broker is asked too."""
        deadline = time.monotonic() + timeout
        others = iter(self._in_order())
        sent: list[Any] = []
        while (left := deadline - time.monotonic()) > 0:
            broker = next(others, None)
            if broker is not None:
                sent.append(self.send(broker, request, timeout=left))
            elif all(each.is_done for each in sent):
                break
            self.wait(sent, min(left, _HEDGE) if broker is not None else left, first=True)
            for each in sent:
                if each.is_done and each.exception is None:
                    return each.value
        return (
            _answer(sent[-1], timeout)
            if sent
            else NoAnswer("no broker is known", NoAnswerKind.LOST)
        )

    def _in_order(self) -> list[int]:
        """Returns the brokers, the connected one with the least load first."""
        first = self._manager.least_loaded_node()
        return sorted(self.brokers(), key=lambda broker: broker != first)

    def metadata(
        self, topics: Iterable[str] | None, timeout: float, *, operations: bool = False
    ) -> Any:
        """Returns a MetadataResponse on these topics (None: all) and keeps the brokers' addresses.

        operations: with what this login may do to each topic (KIP-430).
        """
        load()
        from kafka.protocol.metadata import MetadataRequest, MetadataResponse  # noqa: PLC0415

        named = None
        if topics is not None:
            named = [MetadataRequest.MetadataRequestTopic(name=each) for each in topics]
        request = MetadataRequest(
            topics=named,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=operations,
            min_version=4,
            max_version=12,
        )
        found = self.ask_any(request, timeout)
        brokers = MetadataResponse(
            version=found.API_VERSION,
            brokers=found.brokers,
            cluster_id=found.cluster_id,
            controller_id=found.controller_id,
            topics=[],
        )
        self._manager.cluster.update_metadata(brokers)
        return found


def _quieten() -> None:
    """Silences kafka-python, which logs each closed connection as an ERROR.

    An explicit level for `kafka.net` stays.
    """
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    net = logging.getLogger("kafka.net")
    if net.level == logging.NOTSET:
        net.setLevel(logging.CRITICAL)


def _answer(sent: Any, timeout: float) -> Any:
    if sent.is_done and sent.exception is None:
        return sent.value
    return no_answer(sent.exception, timeout)


def _may_answer_yet(answer: Any) -> bool:
    return isinstance(answer, NoAnswer) and answer.kind is NoAnswerKind.LOST

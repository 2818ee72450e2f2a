"""Connections to all brokers of a cluster, for requests that librdkafka does not offer.

Problem: librdkafka gives records one by one, hides where transactions end, and its admin client
may abort the process when a broker pauses (librdkafka #4605). Choice: connections, logins and
answers come from kafka-python, which sends any request and is plain Python; what is asked is the
caller's business. All brokers are asked at once, and one deadline holds for all. Larger reads
than its own 4 KiB, since answers here are megabytes. Cost: 0.2 s and 15 MB where it is imported.

For one thread at a time. Whatever is asked by `ask`, `ask_each` or `ask_any` may be asked twice: a
connection that was lost meanwhile is made anew and the question repeated. Where nobody answers,
everything is closed, and the next question begins at bootstrap.servers again (KIP-899).
"""

import copy
import logging
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fleet.kafka_source.bulk_sockets import ended, load, telling_manager
from fleet.kafka_source.door import at_the_door
from fleet.kafka_source.no_answer import NoAnswer, NoAnswerKind, no_answer, told
from fleet.kafka_source.tokens import kafka_python_provider
from fleet.system.closing import Closing

__all__ = ["Connections", "NoAnswer", "NoAnswerKind", "kafka_python", "told"]

_MOST_ANSWER: Final = (1 << 31) - 1
_IN_FLIGHT: Final = 200
"""Requests that one connection takes before the first is answered."""
_AGAIN: Final = 0.1
_RECONNECTING: Final = 2.0
"""Seconds for which a lost connection to one broker is made anew before the others' answers go."""
_REFUSED_SOON: Final = 1.0
"""Seconds after which a refused login is told: a broker that just started may refuse at first."""
_LOOKING: Final = 2.5
"""Seconds without a first connection after which it is looked what listens there."""
_ODD: Final = ("closed the connection", "nobody listens", "the name is not known")
"""Why there is no connection, where it is looked sooner: a fifth of that."""
_HOPELESS: Final = frozenset({NoAnswerKind.LOGIN, NoAnswerKind.TLS, NoAnswerKind.TOKEN})
_NAMED: Final = 3
"""Brokers that a sentence names."""
_HEDGE: Final = 1.0
"""Seconds after which a question that any broker can answer is put to another one as well."""
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
"""librdkafka's options, and what kafka-python calls them."""


def kafka_python(options: Mapping[str, Any]) -> dict[str, Any]:
    """Address and login in librdkafka's options, as kafka-python's; others are left out."""
    found = {ours: options[name] for name, ours in _OPTIONS.items() if options.get(name)}
    servers = str(found["bootstrap_servers"])
    found["bootstrap_servers"] = [each.strip() for each in servers.split(",") if each.strip()]
    found["security_protocol"] = str(found.get("security_protocol", "PLAINTEXT")).upper()
    if source := options.get("oauth_cb"):
        found["sasl_oauth_token_provider"] = kafka_python_provider(source)
    return found


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
            "request_timeout_ms": 5000,  # of its own requests; ours tell
            "max_in_flight_requests_per_connection": 2 * _IN_FLIGHT,
        }
        self._net: Any = None
        self._manager: Any = None
        self._end: weakref.finalize[..., Any] | None = None
        self._known = False
        """Whether there was a connection ever."""
        self._lost = False
        """Nobody answered: brokers may have moved, so the next question asks at the door."""

    def close(self) -> None:
        """Close all connections; the next question opens new ones."""
        if self._end is not None:
            self._end()
        self._net = self._manager = self._end = None
        self._lost = False

    def connect(self, timeout: float) -> None:
        """Reach any broker, if none was reached yet; raises NoAnswer after `timeout` seconds."""
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
            manager = telling_manager(net, self._config)
        except ValueError as error:
            net.close()
            raise NoAnswer(told(error), NoAnswerKind.LOST) from error
        manager.cluster.config["allow_auto_create_topics"] = False
        began, looking = time.monotonic(), not self._known
        try:
            reaching = manager.bootstrap_async(timeout_ms=timeout * 1000)
            while not reaching.is_done and time.monotonic() < began + timeout:
                net.poll(timeout_ms=50, future=reaching)
                # It is tried again and again until the time is up, whatever the reason.
                refused = no_answer(manager.failed, timeout)
                hopeless = refused.kind in _HOPELESS
                if hopeless and time.monotonic() > began + min(_REFUSED_SOON, timeout / 2):
                    raise self._looked_at(refused)
                # What is no broker's answer costs memory by its first four bytes, each time; a
                # port that refuses and a name that is unknown are as they are.
                odd = any(words in str(refused) for words in _ODD)
                if looking and time.monotonic() > began + (_LOOKING / 5 if odd else _LOOKING):
                    looking = False
                    if (found := self._looked_at(refused)) is not refused:
                        raise found
            if not reaching.is_done or reaching.exception is not None:
                raise no_answer(manager.failed, timeout)
        except (KafkaError, OSError, ValueError) as error:
            ended(manager, net)
            raise error if isinstance(error, NoAnswer) else NoAnswer(told(error)) from error
        self._net, self._manager, self._known = net, manager, True
        self._end = weakref.finalize(self, ended, manager, net)

    def _looked_at(self, refused: NoAnswer) -> NoAnswer:
        """The same, or what else is the matter at bootstrap.servers."""
        told = refused.kind in {NoAnswerKind.LOGIN, NoAnswerKind.TOKEN} or (
            refused.kind is NoAnswerKind.TLS and "certificate" in str(refused).lower()
        )
        encrypted = self._config["security_protocol"].endswith("SSL")
        why = None if told else at_the_door(self._config["bootstrap_servers"], tls=encrypted)
        return refused if why is None else NoAnswer(why, NoAnswerKind.DOOR)

    def brokers(self) -> tuple[int, ...]:
        """Ids of the brokers that the last metadata named."""
        return tuple(sorted(each.node_id for each in self._manager.cluster.brokers()))

    def knows(self, request: type[Any], version: int = 0) -> bool:
        """Whether the brokers know this version of a request."""
        there = self._manager.broker_version_data.api_versions.get(request.API_KEY)
        return there is not None and there[1] >= version

    def send(self, broker: int | None, request: Any, *, timeout: float) -> Any:
        """Send to one broker, or to any (None); its answer to come, for `wait`.

        Not more than a few hundred to one broker before the first is answered.
        """
        load()
        from kafka.errors import KafkaError  # noqa: PLC0415 - see connect
        from kafka.future import Future  # noqa: PLC0415

        if self._manager is None:
            return Future().failure(NoAnswer("not connected", NoAnswerKind.LOST))
        # A request keeps the version that was agreed upon with the first broker that it went to.
        asked = copy.copy(request)
        try:
            return self._manager.send(asked, broker, request_timeout_ms=timeout * 1000)
        except KafkaError as error:  # a broker that is not known any more, or refused the login
            return Future().failure(error)

    def wait(self, sent: Iterable[Any], timeout: float, *, first: bool = False) -> None:
        """Until all of what was sent is answered or has failed; `first`: one more than now."""
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
        answers = self.ask_each(list(requests.items()), timeout)
        return dict(zip(requests, answers, strict=True))

    def ask_each(self, requests: Sequence[tuple[int, Any]], timeout: float) -> list[Any]:
        """The same for (broker, request) pairs, any number for each broker; answers in order."""
        deadline = time.monotonic() + timeout
        found: list[Any] = []
        for first in range(0, len(requests), _IN_FLIGHT):
            left = max(_AGAIN, deadline - time.monotonic())
            found += self._asked_at_once(requests[first : first + _IN_FLIGHT], left)
        return found

    def _asked_at_once(self, requests: Sequence[tuple[int, Any]], timeout: float) -> list[Any]:
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
        """Any broker's answer; asks another while there is time. Raises NoAnswer."""
        deadline = time.monotonic() + timeout
        self.connect(timeout)
        while True:
            answer = self._asked_of_any(request, max(_AGAIN, deadline - time.monotonic()))
            if not isinstance(answer, NoAnswer):
                return answer
            if time.monotonic() + _AGAIN >= deadline or not _may_answer_yet(answer):
                self._lost = True
                known = self._manager.failed  # why there is no connection says more
                raise self._advertised(answer if known is None else no_answer(known, timeout))
            self.pause(_AGAIN)

    def _advertised(self, found: NoAnswer) -> NoAnswer:
        """The same, or that bootstrap.servers sends us to where nobody is reached."""
        named = [f"{each.host}:{each.port}" for each in self._manager.cluster.brokers()]
        passing = found.kind in {NoAnswerKind.LOST, NoAnswerKind.SILENT}
        if self._manager.reached or not named or not passing:
            return found
        return NoAnswer(
            f"{', '.join(self._config['bootstrap_servers'])} answers, and sends clients on to "
            f"{', '.join(sorted(named)[:_NAMED])}, where they get no connection ({found}): "
            "advertised.listeners of the brokers must name addresses that this machine reaches",
            NoAnswerKind.DOOR,
        )

    def _asked_of_any(self, request: Any, timeout: float) -> Any:
        """The first answer; a broker that is silent for a second gets company."""
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
        """The brokers, the one first that is connected and has least to do."""
        first = self._manager.least_loaded_node()
        return sorted(self.brokers(), key=lambda broker: broker != first)

    def metadata(
        self, topics: Iterable[str] | None, timeout: float, *, operations: bool = False
    ) -> Any:
        """A MetadataResponse on these topics (None: all); brokers' addresses are kept from it.

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
    """What matters is raised; kafka-python tells each connection that it closes as an ERROR.

    A level that somebody set for `kafka.net` stays.
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

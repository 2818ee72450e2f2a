"""Checks whether brokers answer a worker that waits for a slot.

Problem: a standby needs no broker, so one that reaches none would count as ready. A rollout during
a Kafka outage, or with a wrong address, would replace every good worker by such a one, and no old
worker could drain. Choice: before a standby is ready for the first time, and every few seconds
without a slot, it requests the metadata of one topic. That runs in a thread of its own, because the
standby must poll leases meanwhile. An owner does not check; its commits show it. If no broker
answers and the login's files were replaced, the check uses their present content. Cost: one
consumer that never joins, and a request every five seconds.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

from fleet.config.topic_patterns import is_pattern
from fleet.errors import FleetError
from fleet.worker.login_files import LoginFiles

TIMEOUT: Final = 5.0
"""Seconds after which brokers that have not answered count as unreachable."""
EVERY: Final = 5.0
"""Seconds between two checks."""
EVERY_BY_PATTERN: Final = 30.0
"""The same for topics by pattern: then the answer has all topics of the cluster."""
_NOT_YET: Final = "no broker has answered yet"


class BrokerReach:
    """Checks Kafka for a standby; `trouble` says why it cannot serve now, None: it can.

    ask: returns if a broker answered, raises KafkaException if none did.
    """

    def __init__(self, ask: Callable[[], object], *, bootstrap: str, every: float = EVERY) -> None:
        self.trouble: str | None = _NOT_YET
        self._ask = ask
        self._bootstrap = bootstrap
        self._every = every
        self._lock = threading.Condition()
        self._wanted = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="reach", daemon=True)

    def watch(self) -> None:
        """Checks now, and from now on."""
        with self._lock:
            self._wanted = True
            if not self._thread.is_alive():
                self._thread.start()
            self._lock.notify_all()

    def pause(self) -> None:
        """Stops checking: the worker has a slot."""
        with self._lock:
            self._wanted = False

    def end(self) -> None:
        """Stops checking for good."""
        with self._lock:
            self._wanted, self._ended = False, True
            self._lock.notify_all()

    def check(self) -> None:
        """Checks once."""
        try:
            self._ask()
        except KafkaException as error:
            why = error.args[0].str()
            self.trouble = f"no broker answers at {self._bootstrap} ({why})"
        else:
            self.trouble = None

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._wanted or self._ended)
                if self._ended:
                    return
            self.check()
            with self._lock:
                self._lock.wait(self._every)


def make_broker_reach(
    login: Callable[[], Mapping[str, Any]],
    *,
    files: LoginFiles,
    group: str,
    topics: Sequence[str],
    bootstrap: str,
    client: Callable[[dict[str, Any]], Any] = Consumer,
) -> BrokerReach:
    """Returns the check of a worker; login: librdkafka's options as its files hold them now."""

    def made() -> Any:
        return client(
            {
                **login(),
                "group.id": group,
                "allow.auto.create.topics": False,
                "enable.auto.commit": False,
                "error_cb": lambda _: None,
                "log_level": 2,
            }
        )

    consumer = made()
    named = next((topic for topic in topics if not is_pattern(topic)), None)

    def ask() -> object:
        nonlocal consumer
        try:
            consumer.poll(0)  # never subscribed: it only serves the login's and errors' queue
            if named is None:
                return consumer.list_topics(timeout=TIMEOUT)
            return consumer.list_topics(named, timeout=TIMEOUT)
        except KafkaException:
            if files.replaced():
                files.read_again()
                with contextlib.suppress(FleetError, KafkaException):  # the next check tries again
                    before, consumer = consumer, made()
                    before.close()
            raise

    return BrokerReach(
        ask, bootstrap=bootstrap, every=EVERY if named is not None else EVERY_BY_PATTERN
    )

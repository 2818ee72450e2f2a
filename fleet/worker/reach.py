"""Whether brokers answer a worker that waits for a slot.

Problem: a standby needs no broker, so that one which reaches none counts as ready; a rollout while
Kafka is away (or with a wrong address) replaces every good worker by such a one, and none of the
old ones can drain. Choice: before it is ready for the first time, and every few seconds as long as
it has no slot, it asks for the metadata of one topic of its own, in a thread of its own: whoever
waits for a slot looks at leases meanwhile, and must not be held up. An owner does not ask: what it
commits shows it. Where no broker answers and the files of the login were replaced, it asks by what
they hold now. Cost: one consumer that never joins, and a request every five seconds.
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
"""Seconds after which brokers that have not answered count as away."""
EVERY: Final = 5.0
"""Seconds between two looks."""
EVERY_BY_PATTERN: Final = 30.0
"""The same where topics are named by a pattern: the answer names all topics of the cluster."""
_NOT_YET: Final = "no broker was asked yet"


class Reach:
    """A standby's looks at Kafka; `trouble` says why it cannot serve now, None: it can.

    ask: returns where a broker answered, raises KafkaException where none did.
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
        """Look now, and from now on."""
        with self._lock:
            self._wanted = True
            if not self._thread.is_alive():
                self._thread.start()
            self._lock.notify_all()

    def pause(self) -> None:
        """Look no more: the worker has a slot."""
        with self._lock:
            self._wanted = False

    def end(self) -> None:
        """Nobody asks any more."""
        with self._lock:
            self._wanted, self._ended = False, True
            self._lock.notify_all()

    def look(self) -> None:
        """One look."""
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
            self.look()
            with self._lock:
                self._lock.wait(self._every)


def reach_of(
    login: Callable[[], Mapping[str, Any]],
    *,
    files: LoginFiles,
    group: str,
    topics: Sequence[str],
    bootstrap: str,
    client: Callable[[dict[str, Any]], Any] = Consumer,
) -> Reach:
    """Of a worker; login: librdkafka's options for that, as its files hold them at the call."""

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
            consumer.poll(0)  # never subscribed: this only serves what a login and errors queue up
            if named is None:
                return consumer.list_topics(timeout=TIMEOUT)
            return consumer.list_topics(named, timeout=TIMEOUT)
        except KafkaException:
            if files.replaced():
                files.read_again()
                with contextlib.suppress(FleetError, KafkaException):  # the next look tries again
                    before, consumer = consumer, made()
                    before.close()
            raise

    return Reach(ask, bootstrap=bootstrap, every=EVERY if named is not None else EVERY_BY_PATTERN)

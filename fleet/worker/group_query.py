"""Asks the coordinator about a worker's own group: its members, and the owner of each partition.

Problem: librdkafka's admin client aborts its process if the connection to a coordinator drops
during a request about a group (librdkafka #4605; seen when a broker was bounced). A poll must not
end a worker. Choice: each query runs in a process of its own. The login goes in by reference and is
resolved there. kafka-python, which fleet.observe uses, would cost every worker 15 MB for good.
Cost: 0.15 s of a core and 40 MB per query: a few per minute, in one worker per group.

As a program it reads the query (JSON) from standard input and writes the answer to standard output;
a failure is an answer too.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from fleet.errors import FleetError
from fleet.kafka_source.login import References, resolve
from fleet.model import Member, TopicPartition
from fleet.slots import Phase, Slot, SlotTargets
from fleet.worker.events import WorkerContext

REQUEST_SECONDS: Final = 5.0
ANSWER_TIMEOUT: Final = 3 * REQUEST_SECONDS
"""Seconds that a query may take, with its process."""
_PART: Final = 1 << 16
"""Bytes read at once: what a pipe holds."""
_UNKNOWN_TOPIC: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueryAnswer:
    """The group, and the existing partitions of the requested topics."""

    state: str
    """STABLE and others, by librdkafka's names."""
    members: tuple[Member, ...]
    partitions: frozenset[TopicPartition]


class GroupQuery:
    """One query, started by its construction.

    login: where the options of a client are (fleet.kafka_source.login.references). Raises
    FleetError if no process can be started.
    """

    def __init__(self, login: References, *, group: str, topics: Sequence[str] = ()) -> None:
        self._group = group
        try:
            self._asker = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise FleetError(
                f"cannot ask the coordinator of {group}: no process could be started ({error})"
            ) from error
        self._told = b""
        asked = {"login": dict(login), "group": group, "topics": list(topics)}
        assert self._asker.stdin is not None
        assert self._asker.stdout is not None
        os.set_blocking(self._asker.stdout.fileno(), False)
        try:
            self._asker.stdin.write(json.dumps(asked).encode())
            self._asker.stdin.close()
        except OSError:  # it has ended already; its exit code says so
            pass
        self._asker.stdin = None

    def done(self) -> bool:
        """Whether `answer` will not wait.

        Call it again and again to receive a long answer, because its writer waits for room in the
        pipe.
        """
        assert self._asker.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._asker.stdout.fileno(), _PART):
                self._told += part
        return self._asker.poll() is not None

    def answer(self) -> GroupQueryAnswer:
        """Returns the answer, after at most ANSWER_TIMEOUT. Raises FleetError with the reason if
        there is none.
        """
        try:
            rest, _ = self._asker.communicate(timeout=ANSWER_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.end()
            raise FleetError(
                f"the coordinator of {self._group} did not answer within {ANSWER_TIMEOUT:g} s"
            ) from None
        if self._asker.returncode != 0:
            raise FleetError(
                f"asking the coordinator of {self._group} ended with {self._asker.returncode}"
            )
        made = json.loads(self._told + rest)
        if "error" in made:
            raise FleetError(made["error"])
        return GroupQueryAnswer(
            state=made["state"],
            members=tuple(
                Member(**{**each, "partitions": _partitions(each["partitions"])})
                for each in made["members"]
            ),
            partitions=_partitions(made["partitions"]),
        )

    def end(self) -> None:
        """Abandons the query."""
        self._asker.kill()
        self._asker.communicate()


def _partitions(pairs: Sequence[Sequence[Any]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(str(topic), int(number)) for topic, number in pairs)


# Finds partitions without an owner in a Stable group, and asks for the rebalance that they need.
#
# Problem: a cooperative rebalance has two rounds. A member gives a partition up in the first and
# asks for the second, in which the new owner gets it. If that member or the coordinator dies in
# between, static members come back without a rebalance (KIP-345) and the second round never comes.
# Then no member reads the partition until something else changes (seen: a broker's kill -9 after an
# opened slot). Choice: the owner of the lowest active slot polls its group now and then. If a
# Stable group leaves a partition of its topics without an owner for `GRACE`, it asks for one forced
# rebalance by a synchronized join, as an operator may. Cost: a query per group and 20 s (0.7 % of a
# core, in one worker), and a rebalance that no plan names, reported in a sentence. Members find a
# new partition by themselves within their 30 s of metadata age, so the grace period is longer.


CHECK_EVERY: Final = 20.0
GRACE: Final = 45.0


class OrphanWatch:
    """One owner's watch over its group; `step` never blocks. `end` it with the owner.

    ask: starts the query for the group and these topics; raises FleetError if it cannot.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        rejoin: Callable[[], None],
        ask: Callable[[Sequence[str]], GroupQuery] | None = None,
    ) -> None:
        login, group = context.login, context.group
        self._ask = ask or (lambda topics: GroupQuery(login, group=group, topics=topics))
        topics = context.settings.group.topics
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._rejoin = rejoin
        self._clock = context.clock
        self._events = context.events
        self._next = self._clock.monotonic() + CHECK_EVERY
        self._asked: GroupQuery | None = None
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._since = 0.0
        self._judged_at = 0.0

    def step(self, number: int, targets: SlotTargets, slots: Sequence[Slot]) -> None:
        """Queries the group when it is due, and asks for the rebalance after the grace period."""
        if not _is_checker(number, targets, slots):
            self._orphans = frozenset()
            self.end()
            return
        now = self._clock.monotonic()
        if self._asked is not None:
            self._judge(self._asked, now)
        elif now >= self._next and self._topics:
            self._next = now + CHECK_EVERY
            try:
                self._asked = self._ask(self._topics)
            except FleetError as error:  # transient: no process can be started
                self._events.log_rarely(str(error), key="orphans")

    def end(self) -> None:
        """Abandons a query under way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.end()

    def _judge(self, asked: GroupQuery, now: float) -> None:
        if not asked.done():
            if now >= self._next:
                self.end()
            return
        self._asked = None
        try:
            found = find_orphans(asked.answer())
        except FleetError:  # transient: poll again later
            return
        gap, self._judged_at = now - self._judged_at, now
        if (
            found != self._orphans or gap > 2 * CHECK_EVERY
        ):  # a gap between polls proves nothing [39]
            self._orphans, self._since = found, now
        elif found and now - self._since >= GRACE:
            self._orphans = frozenset()
            names = ", ".join(map(str, sorted(found)[:5]))
            self._events.log(f"no member has owned {names} for {GRACE:g} s: asking for a rebalance")
            self._events.emit("orphans", partitions=[str(tp) for tp in sorted(found)])
            self._rejoin()


def _is_checker(number: int, targets: SlotTargets, slots: Sequence[Slot]) -> bool:
    """Whether nothing is being changed, and this is the lowest active slot."""
    tokens = {each.number: each.token for each in slots}
    # A request to a former owner is void.
    asked = {n: pin.token for n, pin in targets.handover.items()}.items() | targets.rejoin.items()
    if targets.leaving or asked & tokens.items():
        return False
    active = [each.number for each in slots if each.phase is Phase.ACTIVE]
    return bool(active) and min(active) == number


def find_orphans(seen: GroupQueryAnswer) -> frozenset[TopicPartition]:
    """Returns partitions of the topics without an owner; none if the group is not Stable."""
    if seen.state != "STABLE":
        return frozenset()
    return seen.partitions.difference(*(member.partitions for member in seen.members))


def main() -> int:
    """Runs the query as a program."""
    asked = json.load(sys.stdin)
    try:
        options = resolve(asked["login"], os.environ, who="of this worker")
        told = _asked(AdminClient(options), asked["group"], asked["topics"])
    except ValueError as error:
        told = {"error": f"cannot ask who is a member of {asked['group']}: {error}"}
    except KafkaException as error:
        told = {
            "error": f"cannot read who is a member of {asked['group']}: "
            f"{error.args[0].str()}; this principal needs DESCRIBE on the group"
        }
    json.dump(told, sys.stdout)
    return 0


def _asked(admin: AdminClient, group: str, topics: Sequence[str]) -> dict[str, Any]:
    (described,) = admin.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS).values()
    known: Mapping[str, Any] = {}
    if topics:
        collection = TopicCollection(list(topics))
        known = admin.describe_topics(collection, request_timeout=REQUEST_SECONDS)
    found = described.result()
    return {
        "state": found.state.name,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "partitions": [
                    (tp.topic, tp.partition)
                    for tp in (each.assignment.topic_partitions if each.assignment else ())
                ],
            }
            for each in found.members
        ],
        "partitions": [
            (topic.name, each.id)
            for topic in filter(None, map(_there, known.values()))
            for each in topic.partitions
        ],
    }


def _there(description: Any) -> Any:
    """Returns a topic's description; None if the topic is missing, so that others are answered."""
    try:
        return description.result()
    except KafkaException as error:
        if error.args[0].code() == _UNKNOWN_TOPIC:
            return None
        raise


if __name__ == "__main__":
    sys.exit(main())

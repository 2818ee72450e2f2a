"""What a worker asks its coordinator about its own group: who is in it, and who owns what.

Problem: librdkafka's admin ends its process, by an assertion and with no error, where the
connection to a coordinator drops while a question about a group is under way (librdkafka #4605;
seen when a broker was bounced). A worker must not end for a look. Choice: each question is put
by a process that lives for it alone; how to log in goes in by reference and is resolved there.
Asking by kafka-python, as fleet.observe does, would cost every worker 15 MB for good. Cost: 0.15 s
of a core and 40 MB for a moment, per question: a few in a minute and one worker per group.

As a program: reads the question (JSON) from standard input and writes the answer to standard
output; what went wrong is an answer too.
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
LONGEST: Final = 3 * REQUEST_SECONDS
"""Seconds that a question may take with the process around it."""
_PART: Final = 1 << 16
"""Bytes read at once: what a pipe holds."""
_UNKNOWN_TOPIC: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The group, and the partitions that the asked topics have."""

    state: str
    """STABLE and others, by librdkafka's names."""
    members: tuple[Member, ...]
    partitions: frozenset[TopicPartition]


class Question:
    """One question, under way once it is made.

    login: where the options of a client are found (fleet.kafka_source.login.references).
    Raises FleetError where no process is to be had for it.
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
                f"the coordinator of {group} cannot be asked: no process for it ({error})"
            ) from error
        self._told = b""
        asked = {"login": dict(login), "group": group, "topics": list(topics)}
        assert self._asker.stdin is not None
        assert self._asker.stdout is not None
        os.set_blocking(self._asker.stdout.fileno(), False)
        try:
            self._asker.stdin.write(json.dumps(asked).encode())
            self._asker.stdin.close()
        except OSError:  # it is gone already; its end says so
            pass
        self._asker.stdin = None

    def done(self) -> bool:
        """Whether `answer` will not wait; a long answer is taken by asking this again and again,
        since whoever writes it waits for room in the pipe.
        """
        assert self._asker.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._asker.stdout.fileno(), _PART):
                self._told += part
        return self._asker.poll() is not None

    def answer(self) -> Answer:
        """Wait for it, at most LONGEST. Raises FleetError where it cannot be told, with why."""
        try:
            rest, _ = self._asker.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            self.end()
            raise FleetError(
                f"the coordinator of {self._group} did not answer within {LONGEST:g} s"
            ) from None
        if self._asker.returncode != 0:
            raise FleetError(
                f"asking the coordinator of {self._group} ended with {self._asker.returncode}"
            )
        made = json.loads(self._told + rest)
        if "error" in made:
            raise FleetError(made["error"])
        return Answer(
            state=made["state"],
            members=tuple(
                Member(**{**each, "partitions": _partitions(each["partitions"])})
                for each in made["members"]
            ),
            partitions=_partitions(made["partitions"]),
        )

    def end(self) -> None:
        """Give it up."""
        self._asker.kill()
        self._asker.communicate()


def _partitions(pairs: Sequence[Sequence[Any]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(str(topic), int(number)) for topic, number in pairs)


# Partitions that nobody in a quiet group owns, and the one rebalance that gives them an owner.
#
# Problem: a cooperative rebalance comes in two rounds: a partition is given up in the first and
# given to its new owner in the second, which the member that gave it up asks for. Where that
# member or the coordinator dies in between, static members come back without a rebalance
# (KIP-345), the second round never comes, and a partition is read by nobody for as long as nothing
# else changes (seen: a broker's kill -9 after an opened slot). Choice: the owner of the lowest
# active slot looks at its group now and then; a partition of its topics that a Stable group has
# left without an owner for `GRACE` is cured by one forced rebalance by a synchronized join, the
# same that a person may ask for. Cost: a question per group and 20 s (fleet.worker.asking: 0.7 % of
# a core, in one worker), and a rebalance that no plan has named, told in a sentence. A partition
# that was just added is found by the members themselves within their 30 s of metadata age, so that
# the grace period is longer.


LOOK: Final = 20.0
GRACE: Final = 45.0


class Orphans:
    """One owner's watch over its group; `step` never blocks. `end` it with the owner.

    ask: puts the question about the group and these topics; FleetError where it cannot.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        rejoin: Callable[[], None],
        ask: Callable[[Sequence[str]], Question] | None = None,
    ) -> None:
        login, group = context.login, context.group
        self._ask = ask or (lambda topics: Question(login, group=group, topics=topics))
        topics = context.settings.group.topics
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._rejoin = rejoin
        self._clock = context.clock
        self._events = context.events
        self._next = self._clock.monotonic() + LOOK
        self._asked: Question | None = None
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._since = 0.0
        self._judged_at = 0.0

    def step(self, number: int, targets: SlotTargets, slots: Sequence[Slot]) -> None:
        """Look where it is time and ours to; ask for the rebalance where grace period has ended."""
        if not _ours(number, targets, slots):
            self._orphans = frozenset()
            self.end()
            return
        now = self._clock.monotonic()
        if self._asked is not None:
            self._judge(self._asked, now)
        elif now >= self._next and self._topics:
            self._next = now + LOOK
            try:
                self._asked = self._ask(self._topics)
            except FleetError as error:  # weather: no process is to be had
                self._events.log_rarely(str(error), key="orphans")

    def end(self) -> None:
        """Give up what is under way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.end()

    def _judge(self, asked: Question, now: float) -> None:
        if not asked.done():
            if now >= self._next:
                self.end()
            return
        self._asked = None
        try:
            found = orphans(asked.answer())
        except FleetError:  # weather: look again later
            return
        gap, self._judged_at = now - self._judged_at, now
        if found != self._orphans or gap > 2 * LOOK:  # who did not look does not know [39]
            self._orphans, self._since = found, now
        elif found and now - self._since >= GRACE:
            self._orphans = frozenset()
            names = ", ".join(map(str, sorted(found)[:5]))
            self._events.log(f"nobody owns {names} since {GRACE:g} s: asking for a rebalance")
            self._events.emit("orphans", partitions=[str(tp) for tp in sorted(found)])
            self._rejoin()


def _ours(number: int, targets: SlotTargets, slots: Sequence[Slot]) -> bool:
    """Whether nothing is being changed, and ours is the lowest active slot."""
    tokens = {each.number: each.token for each in slots}
    # What was asked of a former owner asks nobody any more.
    asked = {n: pin.token for n, pin in targets.handover.items()}.items() | targets.rejoin.items()
    if targets.leaving or asked & tokens.items():
        return False
    active = [each.number for each in slots if each.phase is Phase.ACTIVE]
    return bool(active) and min(active) == number


def orphans(seen: Answer) -> frozenset[TopicPartition]:
    """Partitions of the topics without an owner; none where the group is not Stable."""
    if seen.state != "STABLE":
        return frozenset()
    return seen.partitions.difference(*(member.partitions for member in seen.members))


def main() -> int:
    """The program."""
    asked = json.load(sys.stdin)
    try:
        options = resolve(asked["login"], os.environ, who="of this worker")
        told = _asked(AdminClient(options), asked["group"], asked["topics"])
    except ValueError as error:
        told = {"error": f"who is a member of {asked['group']} cannot be asked: {error}"}
    except KafkaException as error:
        told = {
            "error": f"who is a member of {asked['group']} cannot be read: "
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
    """A topic's description; None where there is no such topic, so that the others are told."""
    try:
        return description.result()
    except KafkaException as error:
        if error.args[0].code() == _UNKNOWN_TOPIC:
            return None
        raise


if __name__ == "__main__":
    sys.exit(main())

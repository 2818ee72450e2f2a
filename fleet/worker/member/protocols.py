"""The options and answers of a member that differ by protocol.

The classic protocol and KIP-848 (`protocol: consumer`) are both here. One table says what error
codes mean for both: each code has one meaning, and only one protocol uses some.
"""

from collections.abc import Sequence
from typing import Any, Final

from fleet.config.spec import ClassicWorker, ConsumerWorker
from fleet.errors import FleetError
from fleet.worker.member.member_state import End

# KIP-848: the broker assigns, and heartbeats tell members; session and assignor are the broker's.
#
# Problem: the options of a classic member (session, heartbeat, assignor) are refused here. A new
# member is refused (111) while the coordinator believes that its instance id has an owner: there is
# no surge handover. Choice: the classic protocol's calls, with increments only. A
# slot that was not released is freed first (`fleet.worker.slot.leave_completion`). A clean close
# sends epoch -2, after which the next owner replaces it without a new epoch [17].


FENCED: Final = 82
UNRELEASED: Final = 111
IDLE_AFTER: Final = 15.0
"""The longest assignment interval that Fleet sets, and two heartbeats to learn of it."""
_OTHERS_HEAR: Final = 0.25
_WRAPPED: Final = -150
"""librdkafka's own fatal error; poll() returns it without fatal()."""
FATAL: Final = {
    23: "no assignor in common with the group's other members (23): all of them must leave before "
    "one of another assignor joins",
    24: "the broker refuses the group id (24)",
    26: "worker.session_timeout is outside the broker's group.min/max.session.timeout.ms (26)",
    29: "not authorised to read the topics (29): give this principal READ on them",
    30: "not authorised for the group (30): give this principal READ on it",
    69: "the coordinator does not know the group any more (69)",
    81: "the group has reached the broker's group.max.size (81)",
    112: "the broker does not have the assignor that the group asks for (112)",
}
"""Codes that waiting never cures, with what to do [10]."""
RETRIED: Final = frozenset(
    {22, 27, 113, 7, 14, 15, 16, 19, 88, -185, -195, -187, -180, -166, -169, -181}
)
"""Codes of a commit to retry: rebalance in progress, stale epoch, and transient errors of the
connection.

22 is one of them: in a cooperative rebalance kept partitions stay owned while the generation moves
on, and a commit sent just before the JoinGroup response gets 22. Its retry carries the new
generation. If the membership is really over, the token is void by then. -169 and -181 are a failed
login or TLS handshake: a token that expired before the next one, or an unreachable identity
provider. A member that is refused for good soon has no session.
"""
VOID: Final = frozenset({25, 82, 110, -142, -144, -150})
"""Codes of a commit: the membership of the batch is over [2]."""


class Fenced(FleetError):
    """Another process uses this instance id (82)."""


class Unreleased(FleetError):
    """The coordinator believes that another member still has this instance id (111)."""


class MemberProtocol:
    """What differs by protocol and assignor; of a member that may be static."""

    def __init__(self, worker: ClassicWorker | ConsumerWorker) -> None:
        self._worker = worker
        assignor = worker.assignor if isinstance(worker, ClassicWorker) else None
        classic = assignor is not None
        self._incremental = assignor in {None, "cooperative-sticky"}
        self.idle_after = None if classic else IDLE_AFTER
        """Seconds after which a member without partitions counts as idle; None: not by time."""
        self.heartbeats_on_subscribe = not classic
        """Whether subscribing again to the same topics is a heartbeat, and no new join [41]."""
        self.rejoins_after = _OTHERS_HEAR if classic and self._incremental else 0.0
        """Least seconds from a revocation to the rejoin that it causes; 0 if it causes none.

        A rejoin within milliseconds ends the round for a member that has not synced yet. That
        member gets 27, joins again with all it had, learns only then what to revoke, and costs a
        third round.
        """

    def options(self, instance_id: str | None) -> dict[str, Any]:
        """Returns librdkafka's options for membership.

        max.poll.interval.ms is the rebalance timeout of a KIP-848 member.
        """
        worker = self._worker
        named: dict[str, Any] = {} if instance_id is None else {"group.instance.id": instance_id}
        if isinstance(worker, ClassicWorker):
            named["partition.assignment.strategy"] = worker.assignor
            named["session.timeout.ms"] = int(worker.session_timeout * 1000)
            named["heartbeat.interval.ms"] = int(worker.heartbeat_interval * 1000)
        return {
            "group.protocol": worker.protocol,
            "max.poll.interval.ms": int(worker.max_poll_interval * 1000),
            **named,
        }

    def assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """Accepts newly assigned partitions at their offsets."""
        if self._incremental:
            consumer.incremental_assign(list(partitions))
        else:
            consumer.assign(list(partitions))

    def unassign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """Gives partitions up."""
        if self._incremental:
            consumer.incremental_unassign(list(partitions))
        else:
            consumer.unassign()

    def restart(self, consumer: Any, stopped: Sequence[Any], others: Sequence[Any]) -> bool:
        """Fetches `stopped` again at their offsets; True if `others` began again, too.

        The eager protocol can only replace the whole assignment.
        """
        if self._incremental:
            consumer.incremental_unassign(list(stopped))
            consumer.incremental_assign(list(stopped))
            return False
        consumer.assign([*stopped, *others])
        return True


def reading_options(worker: ClassicWorker | ConsumerWorker) -> dict[str, Any]:
    """Returns librdkafka's options for reading."""
    return {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": worker.isolation,
        "allow.auto.create.topics": False,
        # Records wait in Spark, not in the client: prefetch about one batch, in at most 32 MiB,
        # and ask again soon after a pause.
        "queued.min.messages": max(1000, min(100_000, worker.batch.inline)),
        "queued.max.messages.kbytes": 32768,
        # Small shares, so that partitions take turns: the client returns what it fetched of one
        # partition before the next one's, 1 MiB by default, and a batch may be a few records.
        # A larger batch of the log comes whole.
        "max.partition.fetch.bytes": 65536,
        # The maximum: it limits an answer, and what a zstd batch may unpack to.
        "receive.message.max.bytes": 2_147_483_647,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        # New partitions and topics are seen within it; librdkafka's own 5 min is too long.
        "topic.metadata.refresh.interval.ms": int(worker.metadata_refresh * 1000),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
    }


def is_fenced(error: Any) -> bool:
    """Whether a KafkaError says that another process uses this instance id.

    librdkafka wraps 82 into its own fatal error (-150) and has the code only in its text.
    """
    if error.code() in {FENCED, -144}:
        return True
    return bool(error.code() == _WRAPPED and "fenced" in error.str().lower())


def is_unreleased(error: Any) -> bool:
    """Whether a KafkaError says that this instance id still has another owner (111).

    It is wrapped into -150 as well, with the broker's text for UNRELEASED_INSTANCE_ID.
    """
    if error.code() == UNRELEASED:
        return True
    return bool(error.code() == _WRAPPED and "still used by another member" in error.str().lower())


def fatal_of(error: Any) -> FleetError | None:
    """Returns what a KafkaError outside a commit means: Fenced, a fatal sentence, or None if
    transient.
    """
    if is_fenced(error):
        return Fenced(error.str())
    if is_unreleased(error):
        return Unreleased(error.str())
    if error.fatal() or error.code() in {_WRAPPED, *FATAL}:
        return FleetError(FATAL.get(error.code(), f"{error.str()} ({error.code()})"))
    return None


def end_of(error: FleetError | None) -> End:
    """Returns how a membership ends after this error."""
    if isinstance(error, Fenced):
        return End.FENCED
    return End.UNRELEASED if isinstance(error, Unreleased) else End.FATAL

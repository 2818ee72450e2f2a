"""A membership made from a worker's settings: options, reading, assigner.

Everything that librdkafka is told is here and in `protocols.py`, with the reason beside it.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import ClassicWorker
from fleet.errors import ConfigError, FleetError
from fleet.kafka_source.columns import Odd, Tell
from fleet.kafka_source.login import references, resolved
from fleet.kafka_source.pieces import OffsetRange
from fleet.model import TopicPartition
from fleet.security import client_config
from fleet.slots import Gate, Phase, Slot
from fleet.worker.asking import Answer, Question
from fleet.worker.batch.adaptive_reader import AdaptiveReader
from fleet.worker.batch.batches import InlineReading
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.batch.ranges import NamedBatch, PartitionEnds
from fleet.worker.events import Events
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.losses import QuarantinedPartitions
from fleet.worker.member.member_state import BackingOff, MembershipOptions
from fleet.worker.member.membership import Membership, Nudging, wanted
from fleet.worker.member.protocols import MemberProtocol
from fleet.worker.offsets.assigning import Assigner

# Partitions that nobody in a quiet group owns, and the one rebalance that gives them an owner.
#
# Problem: a cooperative rebalance comes in two rounds: a partition is given up in the first and
# given to its new owner in the second, which the member that gave it up asks for. Where that
# member or the coordinator dies in between, static members come back without a rebalance
# (KIP-345), the second round never comes, and a partition is read by nobody for as long as nothing
# else changes (seen: a broker's kill -9 after an opened slot). Choice: the holder of the lowest
# active slot looks at its group now and then; a partition of its topics that a Stable group has
# left without an owner for `PATIENCE` is cured by one forced rebalance through the gate, the same
# that a person may ask for. Cost: a question per group and 20 s (fleet.worker.asking: 0.7 % of a
# core, in one worker), and a rebalance that no plan has named, told in a sentence. A partition
# that was just added is found by the members themselves within their 30 s of metadata age, so
# that the patience is longer.


LOOK: Final = 20.0
PATIENCE: Final = 45.0


class Orphans:
    """One holder's watch over its group; `step` never blocks. `end` it with the holder.

    `ask` puts the question about the group and these topics; FleetError where it cannot.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[str]], Question],
        *,
        topics: Sequence[str],
        rejoin: Callable[[], None],
        clock: Clock,
        events: Events,
    ) -> None:
        self._ask = ask
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._rejoin = rejoin
        self._clock = clock
        self._events = events
        self._next = clock.monotonic() + LOOK
        self._asked: Question | None = None
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._since = 0.0
        self._judged_at = 0.0

    def step(self, number: int, gate: Gate, slots: Sequence[Slot]) -> None:
        """Look where it is time and ours to; ask for the rebalance where patience has ended."""
        if not _ours(number, gate, slots):
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
        elif found and now - self._since >= PATIENCE:
            self._orphans = frozenset()
            names = ", ".join(map(str, sorted(found)[:5]))
            self._events.log(f"nobody owns {names} since {PATIENCE:g} s: asking for a rebalance")
            self._events.emit("orphans", partitions=[str(tp) for tp in sorted(found)])
            self._rejoin()


def _ours(number: int, gate: Gate, slots: Sequence[Slot]) -> bool:
    """Whether nothing is being changed, and ours is the lowest active slot."""
    tokens = {each.number: each.token for each in slots}
    # What was asked of a former holder asks nobody any more.
    asked = {n: pin.token for n, pin in gate.handover.items()}.items() | gate.rejoin.items()
    if gate.leaving or asked & tokens.items():
        return False
    active = [each.number for each in slots if each.phase is Phase.ACTIVE]
    return bool(active) and min(active) == number


def orphans(seen: Answer) -> frozenset[TopicPartition]:
    """Partitions of the topics without an owner; none where the group is not Stable."""
    if seen.state != "STABLE":
        return frozenset()
    return seen.partitions.difference(*(member.partitions for member in seen.members))


DELAY: Final = "FLEET_COMMIT_DELAY"


def session_timeout(settings: WorkerSettings) -> float:
    """Seconds that a member may be silent."""
    worker = settings.group.worker
    return worker.session_timeout if isinstance(worker, ClassicWorker) else 60.0


def membership_of(
    settings: WorkerSettings,
    slot: Slot,
    *,
    name: str,
    open_at: float,
    protocol: MemberProtocol,
    runner: BatchRunner,
    marks: QuarantinedPartitions,
    may_join: Callable[[], bool | None],
    begun: Callable[[], Collection[str]],
    may_wait: Callable[[], bool],
    nudging: Nudging,
    clock: Clock,
    events: Events,
    columnar: Columnar | None = None,
) -> Membership:
    """A membership for a slot, not yet started. Raises ConfigError where a login is missing."""
    worker = settings.group.worker
    assert worker is not None
    files = LoginFiles(references(settings.cluster, settings.bootstrap_servers))
    base = client_config(settings.cluster, settings.bootstrap_servers, os.environ)
    # What librdkafka logs about connections comes through the error callback as well.
    log: dict[str, Any] = {"logger": events.librdkafka_logger(), "log_level": 2}
    instance = slot.instance_id() if worker.membership == "static" else None
    quiet: dict[str, Any] = {**base, **log, "error_cb": lambda _: None}
    admin = AdminClient(quiet)
    return Membership(
        terms=MembershipOptions(
            options={
                **base,
                **log,
                **reading_options(settings),
                **protocol.options(instance),
                "group.id": settings.group.group,
                "client.id": name,
            },
            topics=settings.group.topics,
            open_at=open_at,
            may_join=may_join,
            drain_timeout=settings.group.rollout.drain_timeout,
            patience=session_timeout(settings),
            commit_delay=commit_delay(os.environ),
            skip_truncated=worker.on_truncated == "skip",
            metadata_refresh=worker.metadata_refresh,
            revision=settings.revision,
            replaced=files.replaced,
        ),
        protocol=protocol,
        reading=_reading(settings, admin, columnar, clock, events),
        runner=runner,
        assigner=Assigner(
            admin=admin,
            start_from=worker.start_from,
            isolation=worker.isolation,
            patience=session_timeout(settings),
            clock=clock,
            config=quiet,
            begun=begun,
            say=events.log,
        ),
        marks=marks.on_assign,
        poisoned=marks.poisoned,
        backing_off=BackingOff(patience=worker.entrypoint_patience, may_wait=may_wait, clock=clock),
        nudging=nudging if wanted(os.environ) and protocol.heartbeats_on_subscribe else None,
        clock=clock,
        events=events,
    )


def columnar_of(settings: WorkerSettings, *, runner: BatchRunner, events: Events) -> Columnar:
    """How a worker's backlogs go by column; one for all of its memberships."""
    worker = settings.group.worker
    assert worker is not None
    login = references(settings.cluster, settings.bootstrap_servers)

    def tell_columnar(why: str | None) -> None:
        sentence = "by column" if why is None else f"by ranges, not by column: {why}"
        events.log_rarely(f"a backlog is read {sentence}", key=f"columnar {why is None}")
        events.emit("columnar", on=why is None, why=why)

    def gather(named: NamedBatch, check: Callable[[], None]) -> Any:
        from fleet.worker.batch.reading_ahead import tables_of  # noqa: PLC0415 - loads kafka-python

        return tables_of(
            resolved(login, os.environ),
            named.wanted,
            isolation=worker.isolation,
            tell=_odd_to(events),
            check=check,
        )

    return Columnar(
        most=worker.batch.memory << 20,
        read=gather,
        sessions=runner,
        told=tell_columnar,
        cores=len(os.sched_getaffinity(0)),
    )


def orphans_of(
    settings: WorkerSettings, *, rejoin: Callable[[], None], clock: Clock, events: Events
) -> Orphans:
    """A holder's watch over partitions without an owner."""
    login = references(settings.cluster, settings.bootstrap_servers)
    group = settings.group.group
    return Orphans(
        lambda topics: Question(login, group=group, topics=topics),
        topics=settings.group.topics,
        rejoin=rejoin,
        clock=clock,
        events=events,
    )


def commit_delay(environ: Mapping[str, str]) -> float:
    """The seam of fault tests: FLEET_COMMIT_DELAY seconds between a batch's end and its commit.

    The member polls on meanwhile. Raises ConfigError where it is no number from 0 to 60.
    """
    text = environ.get(DELAY, "0")
    try:
        delay = float(text)
    except ValueError:
        delay = -1.0
    if not 0.0 <= delay <= 60.0:
        raise ConfigError(f"{DELAY}={text}: write seconds from 0 to 60, or unset it")
    return delay


def _reading(
    settings: WorkerSettings,
    admin: Any,
    columnar: Columnar | None,
    clock: Clock,
    events: Events,
) -> AdaptiveReader:
    worker = settings.group.worker
    assert worker is not None
    login = references(settings.cluster, settings.bootstrap_servers)

    def read(spark: Any, ranges: Sequence[OffsetRange]) -> Any:
        from fleet.kafka_source.source import frame_of_ranges  # noqa: PLC0415 - loads PySpark

        return frame_of_ranges(spark, ranges, login=login, isolation=worker.isolation)

    def tell(way: str, waiting: int) -> None:
        events.log(f"reading {'by ranges' if way == 'ranges' else way}: {waiting} records wait")
        events.emit("reading", way=way, waiting=waiting)

    return AdaptiveReader(
        mode=worker.reading,
        batch=worker.batch,
        inline=InlineReading(
            limit=worker.batch.inline,
            max_wait=worker.batch.max_wait,
            max_seconds=worker.batch.max_seconds,
            clock=clock,
            tell=_odd_to(events),
        ),
        ends=PartitionEnds(
            admin=admin,
            isolation=worker.isolation,
            say=lambda sentence: events.log_rarely(sentence, key="leaders"),
        ),
        read=read,
        clock=clock,
        tell=tell,
        columnar=columnar,
    )


def _odd_to(events: Events) -> Tell:
    def tell(odd: Odd) -> None:
        events.log_rarely(str(odd), key=f"odd {odd.field}")
        events.emit("odd", **odd._asdict())

    return tell


def reading_options(settings: WorkerSettings) -> Mapping[str, Any]:
    """How a member's client reads: librdkafka's options."""
    worker = settings.group.worker
    assert worker is not None
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
        # Small shares, so that partitions take turns: the client hands out what it fetched of one
        # partition before it comes to the next, 1 MiB by default, and a batch may be a few records.
        # A larger batch of the log comes whole.
        "max.partition.fetch.bytes": 65536,
        # The most that there is: it bounds an answer, and what a zstd batch may unpack to.
        "receive.message.max.bytes": 2_147_483_647,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        # New partitions and topics are seen within it; librdkafka's own 5 min is too long.
        "topic.metadata.refresh.interval.ms": int(worker.metadata_refresh * 1000),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
    }

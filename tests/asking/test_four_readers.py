"""One table of odd groups, four readers: the command, the exporter, Dagster's check, the page.

Each group is looked at twice: at once, and with a clock that is two minutes ahead. To every reader
it has the same verdict, and its offsets, ends and lags are those that Kafka's own tool prints,
but for the differences that docs/reference/metrics.md explains.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.consumer import OffsetCommitRequest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fleet.clock import SystemClock
from fleet.commands.groups.group_status import GroupStatus, gather
from fleet.commands.ui import Watch
from fleet.dagster.check_outcomes import CheckOutcome, lag_outcome
from fleet.exporter import Exporter
from fleet.kafka_source.connections import Connections
from fleet.manager.cycle import Fleet
from fleet.manager.lag_assessment import lag_statuses
from fleet.manager.live_cluster import LiveCluster
from fleet.model import LagCase, PartitionState
from tests.support import kafka_tools
from tests.support.waiting import until

RECORDS: Final = 100
OTHERS: Final = 24
"""Groups that stand at ordinary places: there are 60 and more in all."""
LATER: Final = 120.0


@dataclass(frozen=True)
class Odd:
    """A group: what it committed by (topic, partition), and the verdicts now and two minutes later.

    `kafka`: by (topic, partition) what Kafka's tool prints as lag where ours is another figure.
    """

    commits: dict[tuple[str, int], int] = field(default_factory=dict)
    now: str = "OK"
    later: str = "STOP"
    kafka: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    """(Kafka's, ours); "-": none."""
    cases: frozenset[LagCase] = frozenset()
    """That some partition has two minutes later."""


def case(name: LagCase) -> frozenset[LagCase]:
    return frozenset({name})


P, Q = ("plain", 0), ("plain", 1)
LIVING: Final = {
    "member-keeps-up": Odd({P: RECORDS, Q: RECORDS}, later="OK"),
    "member-commits-nothing": Odd({P: 40, Q: RECORDS}),
    "member-beyond-the-end": Odd(
        {P: 8000, Q: RECORDS}, kafka={P: ("-7900", "-")}, cases=case(LagCase.BEYOND_END)
    ),
    "member-never-committed": Odd(
        {}, now="UNSCORED", later="UNSCORED", cases=case(LagCase.NEVER_COMMITTED)
    ),
    "member-left-a-topic": Odd(
        {P: RECORDS, Q: RECORDS, ("trimmed", 0): 50}, later="OK",
        kafka={("trimmed", 0): ("50", "-")}, cases=case(LagCase.LEFT),
    ),
    "consumer-protocol-left-a-topic": Odd(
        {P: RECORDS, Q: RECORDS, ("trimmed", 0): 50}, later="OK",
        kafka={("trimmed", 0): ("50", "-")}, cases=case(LagCase.LEFT),
    ),
}  # fmt: skip
"""Those with a member that is subscribed to `plain` and commits no more."""
GONE: Final = {
    "assign-only": Odd({P: 50}),
    "assign-only-at-the-end": Odd({P: RECORDS}, later="OK"),
    "one-waits": Odd({P: RECORDS - 1}, later="OK"),
    "two-wait": Odd({P: RECORDS - 2}),
    "beyond-the-end": Odd(
        {P: 8000}, now="UNSCORED", kafka={P: ("-7900", "-")}, cases=case(LagCase.BEYOND_END)
    ),
    "beyond-the-end-of-nothing": Odd(
        {("empty", 0): 7}, now="UNSCORED", later="UNSCORED", kafka={("empty", 0): ("-7", "-")},
        cases=case(LagCase.BEYOND_END),
    ),
    "below-the-start": Odd(
        {("trimmed", 0): 10}, now="LOSS", later="LOSS", kafka={("trimmed", 0): ("90", "60")},
        cases=case(LagCase.BELOW_START),
    ),
    "below-the-start-and-silent": Odd(
        {("trimmed", 0): 10, P: 10}, now="LOSS", kafka={("trimmed", 0): ("90", "60")}
    ),
    "at-the-start": Odd({("trimmed", 0): 40}),
    "minus-one": Odd({P: -1}, now="UNSCORED", later="UNSCORED"),
    "minus-two": Odd(
        {P: -2}, now="UNSCORED", later="UNSCORED", cases=case(LagCase.NEVER_COMMITTED)
    ),
    "minus-two-and-five": Odd({P: -2, Q: 5}),
    "least": Odd({P: -(1 << 63), Q: RECORDS}, later="OK"),
    "greatest": Odd(
        {P: (1 << 63) - 1}, now="UNSCORED", kafka={P: (str(RECORDS - (1 << 63) + 1), "-")}
    ),
    "empty-topic": Odd({("empty", 0): 0}, later="OK"),
    "before-the-marker": Odd({("marker", 0): 20}, later="OK", cases=case(LagCase.NOTHING)),
    "behind-the-marker": Odd({("marker", 0): 21}, later="OK"),
    "in-a-committed-transaction": Odd({("marker", 0): 5}),
    "before-aborted-records": Odd({("aborted", 0): 10}, later="OK", cases=case(LagCase.NOTHING)),
    "in-aborted-records": Odd({("aborted", 0): 15}, later="OK", cases=case(LagCase.NOTHING)),
    "before-readable-and-aborted": Odd({("aborted", 0): 9}),
    "before-an-open-transaction": Odd({("open", 0): 10}, later="HELD", cases=case(LagCase.HELD)),
    "in-an-open-transaction": Odd({("open", 0): 15}, later="HELD", cases=case(LagCase.HELD)),
    "before-readable-and-open": Odd({("open", 0): 3}),
    "held-and-silent": Odd({("open", 0): 10, P: 10}),
    "held-and-aborted": Odd({("open", 0): 10, ("aborted", 0): 10}, later="HELD"),
    "two-large-batches": Odd({("large", 0): 0}),
    "some-partitions": Odd({Q: 30}),
    "mixed": Odd({P: 100, Q: 99, ("empty", 0): 0, ("aborted", 0): 10}, later="OK"),
    "mixed-with-loss": Odd(
        {P: 100, ("trimmed", 0): 1}, now="LOSS", later="LOSS", kafka={("trimmed", 0): ("99", "60")}
    ),
    "deleted-topic": Odd({P: RECORDS, ("deleted", 0): 5}, later="OK"),
    "recreated-topic": Odd({P: RECORDS, ("recreated", 0): 90}, later="OK"),
}  # fmt: skip
TABLE: Final = {
    **LIVING,
    **GONE,
    **{f"at-{4 * number}": Odd({P: 4 * number, Q: 4 * number}) for number in range(OTHERS)},
    "share": Odd(later="OK"),
}


class Ahead(SystemClock):
    """A clock two minutes ahead: what was just committed is as old as that."""

    def now(self) -> float:
        return super().now() + LATER


@dataclass
class Ground:
    """The groups on a real broker."""

    broker: Any
    config: dict[str, str]
    unique: str
    folder: Path

    def named(self, name: str) -> str:
        return f"{name}-{self.unique}"

    def fleet(self, clock: SystemClock) -> Fleet:
        """All groups declared, in a home that never looked before."""
        home = self.folder / type(clock).__name__
        home.mkdir(exist_ok=True)
        groups = [{"group": self.named(name), "topics": [self.named("plain")]} for name in TABLE]
        spec = {
            "cluster": {"name": "main", "bootstrap_servers": self.config["bootstrap.servers"]},
            "mode": "observe",
            "exporter": {"listen": "127.0.0.1:0", "groups": {"allow": [f".*-{self.unique}"]}},
            "fleets": groups,
        }
        path = home / "fleet.yaml"
        path.write_text(yaml.safe_dump(spec))
        return Fleet.open(path, home=home, clock=clock)


@pytest.fixture(scope="module")
def ground(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(
        broker.broker, {"bootstrap.servers": broker.bootstrap_servers}, uuid.uuid4().hex[:8],
        tmp_path_factory.mktemp("four"),
    )  # fmt: skip
    held = written(made)
    members = list(joined(made))
    with Connections(made.config, client_id="raw") as net:
        for name, odd in TABLE.items():
            if name not in LIVING and odd.commits:
                commit_raw(net, made, name, odd)
    admin = AdminClient(made.config)
    gone = [made.named(name) for name in ("deleted", "recreated")]
    for done in admin.delete_topics(gone).values():
        done.result(120)
    until(lambda: not set(gone) & admin.list_topics(timeout=10).topics.keys(), "deleted topics")
    admin.create_topics([NewTopic(gone[1], 1, 1)])[gone[1]].result(120)
    yield made
    for member in members:
        member.close()
    held.abort_transaction(20)


def written(ground: Ground) -> Producer:
    """The topics; the producer has a transaction open."""
    admin = AdminClient(ground.config)
    topics = dict.fromkeys(("trimmed", "empty", "marker", "aborted", "open", "shared"), 1)
    topics |= {"plain": 2, "deleted": 1, "recreated": 1, "large": 1}
    made = admin.create_topics([NewTopic(ground.named(t), n, 1) for t, n in topics.items()])
    for done in made.values():
        done.result(120)
    plain = Producer(ground.config)
    for number in range(RECORDS):
        for topic, partition in (P, Q, ("trimmed", 0), ("deleted", 0), ("recreated", 0)):
            plain.produce(ground.named(topic), str(number), partition=partition)
    for number in range(10):
        for topic in ("aborted", "open"):
            plain.produce(ground.named(topic), str(number), partition=0)
    assert plain.flush(120) == 0
    for _ in range(2):  # more than there is room for among other partitions
        plain.produce(ground.named("large"), b"x" * 500_000, partition=0)
        assert plain.flush(120) == 0
    trimmed = KafkaPartition(ground.named("trimmed"), 0, 40)
    admin.delete_records([trimmed])[trimmed].result(120)
    for topic in ("marker", "aborted", "open"):
        name = ground.named(topic)
        producer = Producer(
            {**ground.config, "transactional.id": name, "transaction.timeout.ms": 600_000}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(20):
            producer.produce(name, str(number), partition=0)
        assert producer.flush(120) == 0
        if topic == "marker":
            producer.commit_transaction(60)
        elif topic == "aborted":
            producer.abort_transaction(60)
    return producer


def joined(ground: Ground) -> Iterator[Any]:
    """Members of the living groups, whose commits are all there are."""
    for name, odd in LIVING.items():
        protocol = "consumer" if name.startswith("consumer-protocol") else "classic"
        member = Consumer(
            {
                **ground.config, "group.id": ground.named(name), "group.protocol": protocol,
                "enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 0,
            }
        )  # fmt: skip
        member.subscribe([f"^{ground.named('plain')}"])
        until(lambda m=member: (m.poll(0.1) and False) or len(m.assignment()) == 2, "an assignment")
        offsets = [
            KafkaPartition(ground.named(topic), number, offset)
            for (topic, number), offset in odd.commits.items()
        ]
        if offsets:
            member.commit(offsets=offsets, asynchronous=False)
        yield member
    share = ShareConsumer({**ground.config, "group.id": ground.named("share"), "log_level": 0})
    share.subscribe([ground.named("shared")])
    producer = Producer(ground.config)
    got: list[Any] = []

    def read() -> bool:
        producer.produce(ground.named("shared"), b"x")
        producer.flush(20)
        got.extend(share.poll(0.5))
        return len(got) > 10

    until(read, "records of a share group")
    share.poll(0.5)  # what it gave before is done with
    yield share


def commit_raw(net: Connections, ground: Ground, name: str, odd: Odd) -> None:
    """As an old client commits: whatever offset."""
    asked = OffsetCommitRequest.OffsetCommitRequestTopic
    request = OffsetCommitRequest(
        group_id=ground.named(name),
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            asked(
                name=ground.named(topic),
                partitions=[
                    asked.OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offset, committed_metadata=""
                    )
                ],
            )
            for (topic, number), offset in odd.commits.items()
        ],
        max_version=7,
    )

    def done() -> bool:
        answer = net.ask_any(request, 10.0)
        return not any(part.error_code for topic in answer.topics for part in topic.partitions)

    until(done, "commits")


@dataclass
class Told:
    """What the four say."""

    status: dict[str, GroupStatus]
    exported: dict[str, list[Sample]]
    """Samples of each group."""
    checks: dict[str, CheckOutcome | None]
    page: dict[str, GroupStatus]


def told(ground: Ground, clock: SystemClock) -> Told:
    with ground.fleet(clock) as fleet:
        names = {ground.named(name) for name in TABLE}
        _, found, *_ = gather(fleet, [])
        exporter = Exporter.of(fleet, listen="127.0.0.1:0", say=lambda _: None)
        try:
            exporter.wait_for_log()
            exporter.refresh()
            text = exporter.text()
        finally:
            exporter.close()
        exported: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                exported.setdefault(sample.labels.get("group", ""), []).append(sample)
        with LiveCluster(fleet, groups=names.__contains__, beat=1.0) as live:
            seen = live.refresh()
        keep_up = lag_statuses(seen)
        watch = Watch(fleet, every=1.0)
        watch.start()
        try:
            until(
                lambda: (now := watch.latest().value) is not None and now.view.recent.known,
                "the page",
            )
            shown = watch.latest().value
        finally:
            watch.close()
    return Told(
        status={each.group: each for each in found if each.group in names},
        exported=exported,
        checks={group: lag_outcome(seen.groups[group], keep_up.get(group)) for group in names},
        page={group: each for group, each in shown.statuses.items() if group in names},
    )


@pytest.fixture(scope="module")
def looks(ground: Ground) -> dict[str, Told]:
    return {"now": told(ground, SystemClock()), "later": told(ground, Ahead())}


@pytest.mark.parametrize("when", ["now", "later"])
@pytest.mark.parametrize("name", TABLE)
def test_four_readers_say_the_same(ground, looks, name, when):
    """The verdict of the table; the check passes where its level is OK."""
    group, seen = ground.named(name), looks[when]
    status = seen.status[group].lag_status
    samples = seen.exported[group]
    (exported,) = [s.labels for s in samples if s.name == "fleet_group_lag_status"]
    read_cases = {LagCase(s.labels["case"]) for s in samples if s.name == "fleet_group_partitions"}
    answer = status.status, status.sentence
    assert status.status == getattr(TABLE[name], when), answer
    assert (exported["status"], exported["level"]) == (status.status, status.level), answer
    assert seen.page[group].lag_status.status == status.status, answer
    check = seen.checks[group]
    assert check.passed == (status.level == "OK"), (check.sentence, answer)
    cases = {part.case for part in seen.status[group].seen.partitions}
    # What was never committed stands in no record of the offsets topic.
    assert read_cases - cases == set()
    assert cases - read_cases <= {LagCase.NEVER_COMMITTED}
    if when == "later":
        assert cases >= TABLE[name].cases
        held = f"(transactional.id open-{ground.unique}) since "
        assert (held in status.sentence) == (answer[0] == "HELD"), answer


def test_offsets_ends_and_lags_are_those_of_kafkas_own_tool(ground, looks):
    """Of all groups in one run of it, and of the share group in one of its own tool."""
    named = [ground.named(name) for name in TABLE if name != "share"]
    rows = kafka_tools.consumer_group_command(
        ground.broker, "--describe", "--offsets", *(x for each in named for x in ("--group", each))
    )
    theirs: dict[str, dict[tuple[str, int], tuple[str, ...]]] = {each: {} for each in named}
    for row in rows:
        at = row["TOPIC"].removesuffix(f"-{ground.unique}"), int(row["PARTITION"])
        theirs[row["GROUP"]][at] = row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]
    assert len(theirs) >= 60
    for name in TABLE:
        if name == "share":
            continue
        expected = theirs[ground.named(name)]
        for at, (kafkas, ours) in TABLE[name].kafka.items():
            assert expected[at][2] == kafkas, (name, at)
            expected[at] = (*expected[at][:2], ours)
        seen = looks["now"].status[ground.named(name)].seen
        assert {shown(ground, part) for part in seen.partitions} == {
            (at, *each) for at, each in expected.items()
        }, name


def shown(ground: Ground, part: PartitionState) -> tuple[Any, ...]:
    figures = (part.committed, part.log_end, part.lag)
    at = part.tp.topic.removesuffix(f"-{ground.unique}"), part.tp.partition
    return at, *("-" if each is None else str(each) for each in figures)

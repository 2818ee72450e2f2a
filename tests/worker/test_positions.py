"""Where reading begins is committed before a record is read from it [42].

The real membership, pipeline and assigner on a cluster in memory; deleted commits on a broker.
"""

import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.log.records import partition_for, record_key
from fleet.model import TopicPartition
from fleet.worker.member.assigning import Assigner, Start
from fleet.worker.member.commit_metadata import (
    decode_cluster,
    decode_parts,
    decode_plan,
    decode_topic,
    encode_plan,
    parse_group_metadata,
)
from tests.conftest import RunningBroker
from tests.support.batch_parts import worker_context
from tests.support.brokers import running_broker
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import MemoryKafka
from tests.worker.rig import Drive, Driven

P = [TopicPartition("t", number) for number in range(8)]
PROTOCOLS = [
    pytest.param({"assignor": "range"}, id="range"),
    pytest.param({"assignor": "cooperative-sticky"}, id="cooperative"),
    pytest.param({"protocol": "consumer"}, id="consumer"),
]


def first_of(kafka: MemoryKafka, what: str) -> int:
    return [kind for kind, _ in kafka.done].index(what)


def refused(kafka: MemoryKafka) -> bool:
    return any(what == "refused" for what, _ in kafka.done)


def given_up(kafka: MemoryKafka) -> bool:
    return any(what == "unassign" for what, _ in kafka.done)


def metadata(kafka: MemoryKafka, tp: TopicPartition) -> dict:
    return json.loads(kafka.commits[tp][1])


@pytest.mark.parametrize("worker", PROTOCOLS)
@pytest.mark.parametrize("reading", ["inline", "ranges"])
def test_latest_is_committed_before_it_is_read(kafka, drive: Drive, worker, reading):
    """Then a clean handover of an idle topic skips nothing, whatever arrives in between."""
    first = drive(*P[:2], start_from="latest", reading=reading, **worker)
    first.until(lambda: first.member.state.phase == "active", "it to be ready")
    assert {tp: kafka.committed(tp) for tp in P[:2]} == {P[0]: [3], P[1]: [3]}
    assert first_of(kafka, "commit") < first_of(kafka, "assign")
    first.drain()
    first.until(lambda: first.member.ended is not None, "the end")
    kafka.produce(P[0], b"between")
    second = drive(*P[:2], start_from="latest", reading=reading, **worker)
    kafka.produce(P[1], b"after")
    second.until(lambda: len(second.rows) == 2, "both records")
    assert sorted(second.values()) == [b"after", b"between"]
    second.until(lambda: kafka.committed(P[0])[-1] == 4, "their commit")
    assert metadata(kafka, P[0])["parts"] == 2, "every commit goes on telling it"


@pytest.mark.parametrize(("isolation", "at"), [("read_committed", 2), ("read_uncommitted", 3)])
def test_latest_is_the_end_that_can_be_read(kafka, drive: Drive, isolation: str, at: int):
    """What an open transaction has written comes later than the group."""
    kafka.parts[P[0]].stable = 2
    driven = drive(P[0], start_from="latest", isolation=isolation)
    driven.until(lambda: bool(kafka.committed(P[0])), "the beginning")
    assert kafka.committed(P[0]) == [at]
    kafka.parts[P[0]].stable = None
    driven.until(lambda: kafka.committed(P[0])[-1] == 3, "the rest")
    assert driven.values() == [b"c"][: 3 - at]


def test_earliest_is_committed_and_a_clean_failover_commits_nothing_more(kafka, drive: Drive):
    """A roll costs no request that it did not cost before."""
    first = drive(P[0])
    first.until(lambda: kafka.committed(P[0])[-1:] == [3], "the records")
    assert kafka.committed(P[0])[0] == 0
    first.drain()
    first.until(lambda: first.member.ended is not None, "the end")
    commits, asked = len(kafka.committed(P[0])), kafka.asked
    second = drive(P[0])
    second.until(lambda: second.member.state.phase == "active", "it to be ready")
    assert len(kafka.committed(P[0])) == commits
    # The coordinator found; committed offsets and log start at the assignment: as ever.
    assert kafka.asked - asked == 3


@pytest.mark.parametrize("code", [27, 22, 113, 16])
@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_commit_that_has_to_wait_is_tried_again_before_reading(kafka, drive: Drive, worker, code):
    """The group is rebalancing: the position is neither given up nor used meanwhile."""
    kafka.answers.extend([code] * 3)
    driven = drive(P[0], **worker)
    driven.until(lambda: len(driven.rows) == 3, "the records")
    told = [what for what, _ in kafka.done if what in {"refused", "commit", "read"}]
    assert told[:4] == ["refused", "refused", "refused", "commit"]
    assert kafka.committed(P[0])[0] == 0
    assert driven.values() == [b"a", b"b", b"c"]


def test_a_record_that_comes_before_its_time_comes_again(kafka, drive: Drive):
    """It was under way when its partition was paused: it is not read then, but nor skipped."""
    kafka.answers.extend([27] * 2)
    kafka.under_way = True
    driven = drive(P[0])
    driven.until(lambda: len(driven.rows) == 3, "the records")
    told = [what for what, _ in kafka.done if what in {"refused", "commit", "read"}]
    assert told[:2] == ["refused", "read"]
    assert kafka.committed(P[0])[0] == 0
    assert driven.values() == [b"a", b"b", b"c"]


def test_it_is_not_ready_before_its_choice_is_committed(kafka, drive: Drive):
    """A roll that went on now would hand over what nobody wrote down."""
    kafka.answers.extend([27] * 9999)
    driven = drive(P[0], start_from="latest")
    driven.until(lambda: refused(kafka), "a refusal")
    driven.turns()
    assert driven.member.state.phase == "joining"
    kafka.answers.clear()
    driven.until(lambda: driven.member.state.phase == "active", "it to be ready")
    assert kafka.committed(P[0]) == [3]


@pytest.mark.parametrize("then", ["drain", "revoke"])
def test_whoever_goes_commits_its_choice_first(kafka, drive: Drive, then):
    """Else the successor would choose again, at a later end."""
    kafka.answers.extend([27] * 2)
    driven = drive(P[0], start_from="latest")
    if then == "drain":
        driven.until(lambda: refused(kafka), "a refusal")
        driven.drain()
        driven.until(lambda: driven.member.ended is not None, "the end")
    else:
        kafka.revoke(P[0])
        driven.until(lambda: not driven.member.state.partitions and given_up(kafka), "it to go")
    assert kafka.committed(P[0]) == [3]


def test_what_is_lost_is_not_committed(kafka, drive: Drive):
    """Somebody else has the partition by now: its position is not ours to choose [2]."""
    kafka.answers.extend([27] * 99)
    driven = drive(*P[:2], start_from="latest")
    driven.until(lambda: refused(kafka), "a refusal")
    kafka.lose(P[1])
    driven.until(lambda: driven.member.state.partitions == {P[0]}, "the loss")
    kafka.answers.clear()
    driven.until(lambda: driven.member.state.phase == "active", "what is left to be ready")
    assert kafka.committed(P[0]) == [3]
    assert kafka.committed(P[1]) == []


def test_another_member_id_commits_no_choice(kafka, drive: Drive):
    """Kafka would take it: it checks the member of now, not the one that was given it [2]."""
    kafka.answers.extend([25])
    driven = drive(P[0], start_from="latest")
    driven.until(lambda: refused(kafka), "a refusal")
    kafka.member = "m2"
    driven.turns(20)  # of 50 ms: longer than the pause between two tries
    assert kafka.committed(P[0]) == []


def test_members_that_begin_together_begin_at_the_end(kafka, drive: Drive):
    """A neighbour's first commit does not make the other partitions new ones."""
    one = drive(P[0], start_from="latest")
    one.until(lambda: kafka.committed(P[0]) == [3], "the first")
    other = drive(P[1], start_from="latest")
    other.until(lambda: bool(kafka.committed(P[1])), "the second")
    assert kafka.committed(P[1]) == [3]


@pytest.mark.parametrize(
    ("topics", "at"), [({"t"}, 0), ({"another"}, 3)], ids=["this one", "another one"]
)
def test_a_group_whose_commits_nobody_remembers_is_not_new(
    kafka, drive: Drive, monkeypatch: pytest.MonkeyPatch, topics: set[str], at: int
):
    """The store knows that it has committed the topic: it skips nothing, and names the gap [53]."""
    monkeypatch.setattr(Driven, "begun", staticmethod(lambda: topics))
    driven = drive(P[0], start_from="latest")
    driven.until(lambda: bool(kafka.committed(P[0])), "the beginning")
    assert kafka.committed(P[0])[0] == at
    gap = driven.member.state.gap
    assert gap is None if at else gap and "reading goes on at 0, the log's start" in gap
    assert driven.member.state.committed == {"t"}
    other = drive(P[1], start_from="latest")
    other.until(lambda: bool(kafka.committed(P[1])), "its neighbour")
    assert kafka.committed(P[1])[0] == at


def test_a_commit_that_is_there_is_told_to_the_store(kafka, drive: Drive):
    """Of an idle topic, too: nothing may come to it before Kafka forgets the group [53]."""
    kafka.commits[P[0]] = (3, '{"v":1,"rev":"r1","topic":"id-1","parts":2}')
    driven = drive(P[0], start_from="latest")
    driven.until(lambda: driven.member.state.phase == "active", "it to be ready")
    assert not kafka.committed(P[0])
    assert driven.member.state.committed == {"t"}


def test_what_the_store_knows_is_asked_before_what_kafka_knows(
    kafka, drive: Drive, monkeypatch: pytest.MonkeyPatch
):
    """A neighbour that begins at this moment commits before it tells the store [53]."""

    def begun() -> set[str]:
        kafka.commits[P[0]] = (3, '{"v":1,"rev":"r1","topic":"id-1","parts":2}')
        return {"t"}

    monkeypatch.setattr(Driven, "begun", staticmethod(begun))
    driven = drive(P[1], start_from="latest")
    driven.until(lambda: bool(kafka.committed(P[1])), "the beginning")
    assert kafka.committed(P[1]) == [3]


def test_a_silent_store_is_waited_for_before_a_group_counts_as_new(
    kafka, drive: Drive, monkeypatch: pytest.MonkeyPatch
):
    """Its answer decides whether records are skipped [53]."""
    answers = [{"t"}]

    def begun() -> set[str]:
        if answers:
            raise Unreachable("the store is locked")
        return {"t"}

    monkeypatch.setattr(Driven, "begun", staticmethod(begun))
    driven = drive(P[0], start_from="latest")
    time.sleep(0.5)
    assert not kafka.committed(P[0])
    answers.clear()
    driven.until(lambda: bool(kafka.committed(P[0])), "the beginning")
    assert kafka.committed(P[0])[0] == 0


def test_an_added_partition_begins_at_its_start(kafka, drive: Drive):
    """With `latest`, too: what came before it was noticed belongs to the group."""
    driven = drive(*P[:2], start_from="latest")
    driven.until(lambda: kafka.committed(P[1]) == [3], "the beginning")
    kafka.make("t", 3)
    kafka.produce(P[2], b"early")
    kafka.assign(P[2])
    driven.until(lambda: driven.values() == [b"early"], "the added partition")
    assert kafka.committed(P[2])[0] == 0
    assert metadata(kafka, P[2])["parts"] == 2


def test_an_idle_partition_of_unknown_age_begins_at_its_start(kafka, drive: Drive):
    """The topic's commits do not tell how many partitions it had: nothing may be skipped."""
    kafka.commits[P[0]] = (2, '{"v":1,"rev":"r0","topic":"id-1"}')
    driven = drive(*P[:2], start_from="latest")
    driven.until(lambda: len(driven.rows) == 4, "the rest of one, all of the other")
    assert kafka.committed(P[1])[0] == 0
    assert "parts" not in metadata(kafka, P[1]), "the next one without a commit begins there too"


def test_a_loss_that_is_skipped_is_committed(kafka, drive: Drive):
    """The position behind it is a choice like any other."""
    kafka.commits[P[0]] = (0, "")
    kafka.truncate(P[0], 2)
    driven = drive(P[0], on_truncated="skip")
    driven.until(lambda: driven.values() == [b"c"], "what is left")
    assert kafka.committed(P[0])[0] == 2
    assert first_of(kafka, "commit") < first_of(kafka, "read")


def test_a_loss_that_stops_keeps_its_commit_until_it_is_lifted(kafka, drive: Drive):
    """The next owner has to hear of it, too."""
    kafka.commits[P[0]] = (0, "")
    kafka.truncate(P[0], 2)
    driven = drive(P[0])
    driven.until(lambda: driven.member.state.stopped_partitions == {P[0]}, "the quarantine")
    driven.turns()
    assert kafka.committed(P[0]) == []
    driven.member.lift(frozenset({P[0]}))
    driven.until(lambda: driven.values() == [b"c"], "what is left")
    assert kafka.committed(P[0])[0] == 2


def test_a_topic_made_again_is_committed_before_it_is_read(kafka, drive: Drive):
    """While the group runs: noticed by its id, begun at its start."""
    driven = drive(P[0], start_from="latest", metadata_refresh="1s")
    driven.until(lambda: kafka.committed(P[0]) == [3], "the beginning")
    with kafka.lock:
        kafka.make("t", 2, "id-2")
        kafka.produce(P[0], b"new1", b"new2")
    driven.until(lambda: driven.values() == [b"new1", b"new2"], "the new topic")
    assert kafka.committed(P[0])[1] == 0
    assert metadata(kafka, P[0])["topic"] == "id-2"


# --- whose offset it is -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position"),
    [
        pytest.param(encode_plan(None, "r", "id-1", cluster="this-cluster"), 2, id="ours"),
        pytest.param(encode_plan(None, "r", "id-0", cluster="this-cluster"), 0, id="recreated"),
        pytest.param(encode_plan(None, "r", "id-0", cluster="another"), 2, id="copied"),
        pytest.param(encode_plan(None, "r", "id-1", cluster="another"), 2, id="restored"),
        pytest.param(encode_plan(None, "r", "id-0"), 2, id="of no named cluster"),
        pytest.param("checkpoint 7", 2, id="another program"),
        pytest.param("", 2, id="none"),
    ],
)
def test_another_clusters_topic_id_is_believed(kafka, drive: Drive, text: str, position: int):
    """Offsets that a mirroring tool copied hold; only this cluster's other id is another topic."""
    kafka.commits[P[0]] = (2, text)
    driven = drive(P[0])
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the rest")
    assert [offset for _, offset, _ in driven.rows] == list(range(position, 3))
    told = metadata(kafka, P[0])
    assert (told["cluster"], told["topic"], told["v"]) == ("this-cluster", "id-1", 1)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        pytest.param(encode_plan(2, "r", "id-1", cluster="this-cluster"), 2, id="ours"),
        pytest.param(encode_plan(2, "r", "id-1"), 2, id="of no named cluster"),
        pytest.param(encode_plan(2, "r"), 2, id="without an id"),
        pytest.param(encode_plan(2, "r", "id-0", cluster="another"), 3, id="copied"),
        pytest.param(encode_plan(2, "r", "id-0"), 3, id="copied, of no named cluster"),
    ],
)
def test_a_plan_made_elsewhere_is_not_repeated(kafka, drive: Drive, text: str, first: int):
    """A planned end is an offset of the log that it was made for [4]."""
    kafka.commits[P[0]] = (0, text)
    driven = drive(P[0], batch={"max_wait": "200ms"})
    driven.until(driven.began, "a batch")
    assert driven.contexts[0].ranges[0].end == first


def test_a_cluster_without_an_id(kafka, drive: Drive):
    """Nothing is known of whose offsets these are: they are believed."""
    kafka.cluster_id = ""
    kafka.commits[P[0]] = (2, encode_plan(None, "r", "id-0", cluster="this-cluster"))
    driven = drive(P[0])
    driven.until(lambda: driven.values() == [b"c"], "the rest")
    assert "cluster" not in metadata(kafka, P[0])


@pytest.mark.parametrize("noticed", ["by the join alone", "by the topic's id before"])
def test_a_worker_that_is_led_to_another_cluster_goes_on_there(kafka, drive: Drive, noticed: str):
    """The name of its brokers leads to a mirror: offsets were brought along, ids were not."""
    refresh = "1s" if "id" in noticed else "5m"
    driven = drive(P[0], metadata_refresh=refresh)
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the records")
    with kafka.lock:
        kafka.cluster_id, kafka.ids["t"] = "the-mirror", "id-9"
    if refresh == "5m":
        kafka.lose(P[0])  # it is no member there, and joins anew
        kafka.assign(P[0])
    driven.until(lambda: [what for what, _ in kafka.done].count("assign") > 1, "another beginning")
    kafka.produce(P[0], b"d")
    driven.until(lambda: kafka.committed(P[0])[-1:] == [4], "the new record")
    assert driven.values() == [b"a", b"b", b"c", b"d"], "nothing is read from the beginning"
    told = metadata(kafka, P[0])
    assert (told["cluster"], told["topic"]) == ("the-mirror", "id-9")


# --- commit metadata, and which partitions a late commit may still name [2] -------------------


NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
NAMES = st.none() | st.text(min_size=1, max_size=12)


@given(st.none() | NUMBERS, st.text(max_size=12), NAMES, NAMES, st.none() | NUMBERS)
def test_what_one_worker_plans_its_successor_reads(
    end: int | None, revision: str, topic: str | None, cluster: str | None, parts: int | None
):
    """Each key alone, and none where nothing is known."""
    text = encode_plan(end, revision, topic, cluster=cluster, parts=parts)
    plan = decode_plan(text, 0)
    assert (plan and (plan.end, plan.revision)) == (None if end is None else (end, revision))
    assert (decode_topic(text), decode_cluster(text), decode_parts(text)) == (topic, cluster, parts)
    assert ('"topic":' in text, '"parts":' in text) == (topic is not None, parts is not None)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "checkpoint 7", "[1]", '{"v":1}', '{"v":2,"next":5,"topic":"a"}'),
        '{"v":1,"next":true,"topic":3}',
    ],
)
def test_foreign_metadata_is_no_plan_and_names_no_topic(text: str | None):
    """Of another program, or of a later version: an offset without a topic id is believed."""
    found = [decode_plan(text, 0), decode_topic(text), decode_cluster(text), decode_parts(text)]
    assert found == [None] * 4


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"CGMDv2:" + struct.pack("=i", 7) + b"g1\0i1-0f6b\0i1\0", (7, "i1-0f6b", "g1")),
        *((each, None) for each in (None, b"", b"CGMDv2:", b"CGMDv9:\0\0\0\0g\0m\0")),
    ],
)
def test_group_metadata_of_librdkafka(raw: bytes | None, expected):
    """Generation, member id and group out of opaque bytes; another format is unknown, no guess."""
    assert parse_group_metadata(raw) == expected


# --- a topic's id: sinks keep offsets by it, so no luck is needed -----------------------------


T0 = TopicPartition("t", 0)
TIMED_OUT = KafkaError._TIMED_OUT
GRACE = 180.0


class Scene:
    """One topic, and an assigner over it with a clock of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka()
        self.kafka.make("t", 1)
        context = worker_context(clock=self.clock)
        assert context.session_timeout == GRACE
        self.assigner = Assigner(context, self.kafka.admin({}))

    def start(self) -> Start:
        """Of the topic's partition, as it is assigned."""
        (found,) = self.assigner.starts(self.kafka.consumer({}), [T0])
        return found


@pytest.fixture
def scene() -> Scene:
    """A new one."""
    return Scene()


@pytest.mark.parametrize(
    ("answers", "topic_id", "known"),
    [
        pytest.param([TIMED_OUT] * 3, "id-1", "id-1", id="asked for until it is told"),
        pytest.param([KafkaError.UNSUPPORTED_VERSION] * 9, "t", None, id="brokers without ids"),
        pytest.param([KafkaError._UNSUPPORTED_FEATURE] * 9, "t", None, id="a client without"),
        pytest.param([KafkaError.UNKNOWN_TOPIC_OR_PART] * 9999, "t", None, id="deleted meanwhile"),
    ],
)
def test_an_id_that_was_never_told(
    scene: Scene, answers: list[int], topic_id: str, known: str | None
):
    """The name stands in only where there is none; nobody waits long for that."""
    scene.kafka.silent.extend(answers)
    began = scene.clock.monotonic()
    start = scene.start()
    assert (start.topic_id, start.known_id) == (topic_id, known)
    assert scene.clock.monotonic() - began < 10


def test_an_id_that_nobody_tells_is_brokers_that_are_away(scene: Scene):
    """The name does not stand in: the batch in hand would be written once more under it."""
    scene.kafka.silent.extend([TIMED_OUT] * 9999)
    began = scene.clock.monotonic()
    with pytest.raises(Unreachable, match="did not return where the assigned partitions begin"):
        scene.start()
    assert GRACE <= scene.clock.monotonic() - began < GRACE + 1


def test_a_topic_made_again_has_its_own_id(scene: Scene):
    """Never the former one, under which its first records would count as written."""
    former = scene.start()
    scene.kafka.make("t", 1, "id-2")
    scene.kafka.silent.append(TIMED_OUT)
    found = scene.assigner.anew(scene.kafka.consumer({}), T0, former)
    assert found.topic_id == "id-2"


# --- `latest` after Kafka has deleted a group's commits, on a real broker [53] ----------------


class Deleted:
    """A topic of two partitions with 100 records in each, and a group of the same name."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.config = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.config)
        self.said: list[str] = []
        self.make()

    def make(self) -> None:
        """The topic, with its records."""
        self.admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result(60)
        self.produce(100)

    def produce(self, count: int) -> None:
        """So many to each partition."""
        producer = Producer(self.config)
        for number in range(2 * count):
            producer.produce(self.name, b"x", partition=number % 2)
        producer.flush(60)

    def consumer(self, **more: Any) -> Consumer:
        """A member that never joins."""
        usual = {"group.id": self.name, "enable.auto.commit": False}
        return Consumer({**self.config, **usual, **more})

    def commit(self, *offsets: int, metadata: str = "") -> None:
        """Of partition 0, and of partition 1 where two are given."""
        consumer = self.consumer()
        entries = [
            KafkaPartition(self.name, number, offset, metadata=metadata)
            for number, offset in enumerate(offsets)
        ]
        consumer.commit(offsets=entries, asynchronous=False)
        consumer.close()

    def expire(self) -> None:
        """All that the group committed."""
        self.admin.delete_consumer_groups([self.name])[self.name].result(60)

    def commit_partitions(self) -> int:
        """Of the coordinator's log."""
        topics = self.admin.list_topics("__consumer_offsets", timeout=10).topics
        return len(topics["__consumer_offsets"].partitions)

    def starts(
        self, start_from: str = "latest", bootstrap: str | None = None, **more: Any
    ) -> list[Start]:
        """Of both partitions."""
        group = group_spec(worker={"start_from": start_from})
        settings = settings_of(group, bootstrap=bootstrap or self.config["bootstrap.servers"])
        context = worker_context(settings)
        context.events.log = self.said.append  # type: ignore[method-assign]
        assigner = Assigner(context, self.admin, **more)
        consumer = self.consumer()
        try:
            tps = [TopicPartition(self.name, number) for number in range(2)]
            return list(assigner.starts(consumer, tps))
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker of these tests alone."""
    with running_broker(tmp_path_factory.mktemp("deleted")) as made:
        yield made


@pytest.fixture
def deleted(own: RunningBroker, unique: str) -> Deleted:
    """A new one."""
    return Deleted(own.bootstrap_servers, f"deleted-{unique}")


@pytest.mark.broker
def test_a_group_that_only_the_store_remembers_begins_at_the_start(deleted: Deleted) -> None:
    """The coordinator's log holds nothing of it any more; another topic of its is new."""
    begun = deleted.starts(begun=lambda: {deleted.name})
    assert [(each.position, each.expired, each.resumes) for each in begun] == [(0, 100, False)] * 2
    assert [each.position for each in deleted.starts(begun=lambda: {"another"})] == [100, 100]


@pytest.mark.broker
def test_a_group_goes_on_at_its_last_position(deleted: Deleted) -> None:
    """Of the partition that it had; a reset to an earlier offset was its last word."""
    deleted.commit(90)
    deleted.commit(60)
    deleted.expire()
    deleted.produce(100)
    start, other = deleted.starts()
    assert (start.position, start.committed, start.lost) == (60, None, None)
    assert (start.expired, start.resumes, start.is_chosen) == (200, True, True)
    assert (other.position, other.expired) == (200, None)


@pytest.mark.broker
def test_a_planned_range_is_repeated(deleted: Deleted) -> None:
    """The commit's metadata is believed as if it stood."""
    deleted.commit(40, metadata=json.dumps({"v": 1, "next": 70, "rev": "r1"}))
    deleted.expire()
    assert deleted.starts()[0].replay_to == 70


@pytest.mark.broker
def test_what_retention_took_is_a_named_loss(deleted: Deleted) -> None:
    """The log begins behind the last position."""
    deleted.commit(50)
    deleted.expire()
    for future in deleted.admin.delete_records([KafkaPartition(deleted.name, 0, 80)]).values():
        future.result(60)
    start = deleted.starts()[0]
    assert (start.position, start.lost, start.resumes) == (80, (50, 80), False)


@pytest.mark.broker
def test_a_position_behind_the_log_s_end_is_a_named_loss(deleted: Deleted) -> None:
    """As after an unclean election: the log was cut, and begins anew for this group."""
    deleted.commit(900)
    deleted.expire()
    start = deleted.starts()[0]
    assert (start.position, start.lost, start.expired) == (0, (900, 0), 100)


@pytest.mark.broker
def test_a_position_that_is_not_known_any_more_is_the_start(deleted: Deleted) -> None:
    """Compaction has left the tombstone alone."""
    producer = Producer({**deleted.config, "client.id": "__admin_client"})
    producer.produce(
        "__consumer_offsets",
        key=record_key(1, deleted.name, deleted.name, 1),
        partition=partition_for(deleted.name, deleted.commit_partitions()),
    )
    producer.flush(60)
    start, other = deleted.starts()
    assert (start.position, start.expired) == (100, None)
    assert (other.position, other.expired, other.resumes) == (0, 100, False)


@pytest.mark.broker
def test_a_commit_of_an_aborted_transaction_counts_for_nothing(deleted: Deleted) -> None:
    """The position before it is the last."""
    deleted.commit(30)
    with_offsets(deleted, deleted.name).abort_transaction(60)
    deleted.expire()
    assert deleted.starts()[0].position == 30


@pytest.mark.broker
def test_an_open_transaction_of_another_group_holds_nothing_up(deleted: Deleted) -> None:
    """The reading ends before it, and what stands there counts."""
    deleted.commit(30)
    deleted.expire()
    partitions = deleted.commit_partitions()
    here = partition_for(deleted.name, partitions)
    others = (f"{scene.name}-{number}" for number in range(10_000))
    other = next(name for name in others if partition_for(name, partitions) == here)
    producer = with_offsets(deleted, other)
    start = deleted.starts()[0]
    producer.abort_transaction(60)
    assert (start.position, deleted.said) == (30, [])


def with_offsets(deleted: Deleted, group: str) -> Producer:
    """A producer in a transaction that holds a commit of this group."""
    producer = Producer({**deleted.config, "transactional.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = deleted.consumer(**{"group.id": group})
    entry = KafkaPartition(deleted.name, 0, 95)
    producer.send_offsets_to_transaction([entry], consumer.consumer_group_metadata(), 60)
    consumer.close()
    return producer


@pytest.mark.broker
def test_brokers_that_cannot_be_read_are_named(deleted: Deleted) -> None:
    """Then the group is taken for a new one."""
    deleted.commit(50)
    deleted.expire()
    assert deleted.starts(bootstrap="127.0.0.1:1")[0].position == 100
    assert "it is not known whether group" in deleted.said[0]

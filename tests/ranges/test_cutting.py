"""How ranges are named, cut into tasks, and when they are named at all."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from pyspark import cloudpickle

from fleet.config.spec import ClusterSpec
from fleet.kafka_source.login import references, resolve
from fleet.kafka_source.pieces import LogBounds, OffsetRange, shares
from fleet.kafka_source.source import FleetKafka, by_value
from fleet.model import TopicPartition
from fleet.worker.batch.adaptive_reader import ranges_pay
from fleet.worker.batch.ranges import Ranges, fair

P0, P1, P2 = (TopicPartition("orders", n) for n in range(3))


def ranges(**waiting: int) -> Ranges:
    """p0=5: partition 0 stands at 0 and five offsets wait."""
    made = Ranges()
    for name, size in waiting.items():
        tp = TopicPartition("orders", int(name[1:]))
        made.add_partition(tp, topic_id="T", start=0, replay_to=None)
        made.learn({tp: LogBounds(0, size, size)})
    return made


def ids(made: Ranges, limit: int) -> list[str]:
    return [each.id for each in made.cut(limit)]


def test_a_batch_ends_at_the_known_ends():
    """All that waits, once; behind it nothing is named again."""
    made = ranges(p0=5, p1=3)
    assert made.waiting == 8
    assert ids(made, 100) == ["T-0-0-5", "T-1-0-3"]
    assert ids(made, 100) == []


def test_more_than_a_batch_is_shared_fairly():
    """Small partitions are finished, large ones share what is left."""
    assert fair({P0: 100, P1: 3, P2: 100}, 53) == {P1: 3, P0: 25, P2: 25}
    assert sum(fair({P0: 7, P1: 7, P2: 7}, 10).values()) == 10
    made = ranges(p0=100, p1=3)
    assert ids(made, 13) == ["T-0-0-10", "T-1-0-3"]
    assert ids(made, 13) == ["T-0-10-23"]


def test_a_replay_without_a_leader_comes_later_and_alone():
    """Fault: others wait for it, or it is repeated with what is new [4]."""
    made = ranges(p0=5)
    made.add_partition(P1, topic_id="T", start=10, replay_to=20)
    made.miss([P1])
    assert not made.replay_due
    assert ids(made, 3) == ["T-0-0-3"]
    assert made.replaying
    made.learn({P1: LogBounds(0, 90, 90)})
    assert ids(made, 5) == ["T-1-10-20"]


def test_a_replay_is_named_exactly_and_alone():
    """A successor's first range is its predecessor's, whatever else waits [4]."""
    made = ranges(p0=500)
    made.add_partition(P1, topic_id="T", start=10, replay_to=20)
    assert ids(made, 5) == [], "its log may be shorter than the plan: looked at first"
    made.learn({P1: LogBounds(0, 90, 90)})
    assert ids(made, 5) == ["T-1-10-20"], "no limit cuts it short"
    assert not made.replaying
    assert ids(made, 600) == ["T-0-0-500", "T-1-20-90"]


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        pytest.param(20, ["T-0-10-20"], id="ends at the plan"),
        pytest.param(15, ["T-0-10-15"], id="log shorter than the plan"),
        pytest.param(10, [], id="nothing left of it"),
    ],
)
def test_a_plan_beyond_the_log_ends_with_it(high: int, expected: list[str]):
    """After an unclean election there is no more to repeat than there is."""
    made = Ranges()
    made.add_partition(P0, topic_id="T", start=10, replay_to=20)
    made.learn({P0: LogBounds(0, high, high)})
    assert ids(made, 100) == expected


@pytest.mark.parametrize(
    ("look", "outside"),
    [
        pytest.param(LogBounds(0, 100, 100), False, id="inside"),
        pytest.param(LogBounds(51, 100, 100), True, id="start is gone"),
        pytest.param(LogBounds(0, 49, 49), True, id="log ends before"),
        pytest.param(LogBounds(0, 40, 60), False, id="an open transaction is before it"),
    ],
)
def test_outside_of_the_log(look: LogBounds, outside: bool):
    """A position that the log does not hold is told, and not named until it is decided [7]."""
    made = Ranges()
    made.add_partition(P0, topic_id="T", start=50, replay_to=None)
    assert made.learn({P0: look}) == (((P0, 50),) if outside else ())
    assert made.known is not outside
    assert bool(made.cut(1000)) is (not outside and look.stable > 50)


@pytest.mark.parametrize(
    ("waiting", "now", "slow", "expected"),
    [
        pytest.param(149_999, False, False, False, id="inline below three batches"),
        pytest.param(150_000, False, False, True, id="ranges from three batches"),
        pytest.param(50_001, True, False, True, id="ranges as long as more than one waits"),
        pytest.param(50_000, True, False, False, id="inline again"),
        pytest.param(9_000_000, False, True, False, id="a slow job gains nothing by ranges"),
        pytest.param(9_000_000, True, True, False, id="nor by going on with them"),
    ],
)
def test_what_waits_decides(waiting: int, now: bool, slow: bool, expected: bool):
    """With hysteresis, so that a wavering backlog does not switch at every look [8]."""
    assert ranges_pay(waiting, inline=50_000, slow_job=slow, now=now) is expected


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_shares_tile_the_ranges(tasks: int):
    """Equal shares, at most one per task, that together are the ranges; a hot one is split."""
    given = [
        OffsetRange("t", 0, 7, 1_000_007),
        OffsetRange("t", 1, 0, 10),
        OffsetRange("t", 2, 5, 5),
    ]
    made = shares(given, tasks)
    assert len(made) == tasks
    sizes = [sum(r.end - r.start for r in share) for share in made]
    assert sum(sizes) == 1_000_010
    assert max(sizes) - min(sizes) < tasks
    flat = [each for share in made for each in share if each.partition == 0]
    assert (flat[0].start, flat[-1].end) == (7, 1_000_007)
    assert all(a.end == b.start for a, b in pairwise(flat))


def test_small_ranges_share_a_task():
    """A task is not started for a handful of records."""
    given = [OffsetRange("t", n, 0, 100) for n in range(12)]
    assert [len(share) for share in shares(given, 4)] == [12]
    assert shares([], 4) == ()


NO_FLEET = """
import sys
for absent in ["fleet", *sys.argv[2:]]:
    sys.modules[absent] = None  # whoever imports it now gets an ImportError
from pyspark import cloudpickle
source = cloudpickle.loads(sys.stdin.buffer.read())
options = {"shares": '[[["t", 0, 0, 5]]]', "login": sys.argv[1]}
reader = source({**options, "isolation": "read_committed", "read_timeout": "1"}).reader(None)
(share,) = reader.partitions()
reader, share = cloudpickle.loads(cloudpickle.dumps((reader, share)))  # driver to executor
try:
    list(reader.read(share))
except Exception as error:
    print(type(error).__name__, error)
"""


def of_a_task(*absent: str) -> str:
    """What a task says whose machine lacks some packages, of brokers that are not there."""
    with by_value():
        sent = cloudpickle.dumps(FleetKafka)
    assert len(sent) < 250_000
    login = json.dumps({"bootstrap.servers": {"value": "127.0.0.1:1"}})
    asked = [sys.executable, "-c", NO_FLEET, login, *absent]
    done = subprocess.run(asked, input=sent, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ((), "nothing listens at"),
        (("kafka",), "of this Spark task lacks kafka-python: install it"),
        (("google_crc32c",), "of this Spark task lacks google-crc32c: install it"),
    ],
)
def test_a_task_needs_no_fleet(absent: tuple[str, ...], words: str):
    """The source is sent with all it uses, twice; what else its machine lacks is no record's."""
    told = of_a_task(*absent)
    assert "FLEET_RANGE_UNREAD" in told
    assert words in told


def test_credentials_travel_as_references(tmp_path):
    """An option names where a secret is; the task reads it, or says what is missing [11]."""
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    security = {
        "protocol": "SASL_PLAINTEXT",
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "username_env": "KAFKA_USER",
            "password_file": str(secret),
        },
    }
    cluster = ClusterSpec.model_validate({"bootstrap_servers": "b:9092", "security": security})
    travels = references(cluster, "b:9092")
    assert "s3cret" not in str(travels)
    found = resolve(travels, {"KAFKA_USER": "alice"})
    assert (found["sasl.username"], found["sasl.password"]) == ("alice", "s3cret")
    with pytest.raises(ValueError, match="KAFKA_USER is not set for this Spark task"):
        resolve(travels, {})
    secret.unlink()
    with pytest.raises(ValueError, match="does not exist for this Spark task"):
        resolve(travels, {"KAFKA_USER": "alice"})

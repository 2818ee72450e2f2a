"""The embedded broker: it starts, outlives its starter, and its data survives every end."""

import json
import os
import shutil
import socket
from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.broker import Broker, embedded_bootstrap
from fleet.broker import embedded as cluster
from fleet.errors import ConfigError, FleetError, Refused, SchemaTooNew, Unreachable
from tests.support.command import process

pytestmark = pytest.mark.broker

QUIET = {"log_level": 0}
WAIT = 300.0
"""Seconds for what starts: a busy machine's."""


@pytest.fixture
def own(tmp_path):
    """A broker of this test alone; not started."""
    embedded = Broker(tmp_path, overrides={"offsets.topic.num.partitions": "3"})
    yield embedded
    embedded.purge()


def put(servers: str, topic: str, values: list[str], *, create: bool = True, copies: int = 1):
    """Write values to partition 0 of a topic and wait for the acknowledgements."""
    if create:
        admin = AdminClient({"bootstrap.servers": servers, **QUIET})
        for future in admin.create_topics([NewTopic(topic, 1, copies)]).values():
            future.result(timeout=120)
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **QUIET})
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(120) == 0


def read(servers: str, topic: str, count: int) -> list[str]:
    """The first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", **QUIET})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=30)
        return [message.value().decode() for message in messages]
    finally:
        consumer.close()


def test_life_of_a_broker(own, tmp_path) -> None:
    """Start, start again, stop, kill -9: the address stays, acknowledged data stays."""
    assert not own.status().running
    assert embedded_bootstrap(tmp_path) is None
    first = own.start(wait=WAIT)
    assert first.running
    assert own.start(wait=WAIT) == first, "starting what runs changes nothing"
    servers = first.bootstrap_servers
    assert embedded_bootstrap(tmp_path) == servers
    assert os.getsid(first.nodes[0].pid) == first.nodes[0].pid, "in a session of its own"
    put(servers, "kept", ["a", "b"])

    own.stop()
    assert not own.status().running
    assert embedded_bootstrap(tmp_path) is None
    own.stop()
    assert own.start(wait=WAIT).bootstrap_servers == servers
    assert read(servers, "kept", 2) == ["a", "b"]

    put(servers, "kept", ["c"], create=False)
    own.kill()
    assert own.status().nodes[0].pid is None
    assert own.start(wait=WAIT).bootstrap_servers == servers
    assert read(servers, "kept", 3) == ["a", "b", "c"]
    assert first.nodes[0].server_log.exists()

    own.purge()
    assert [path.name for path in (tmp_path / "broker").iterdir()] == [".lock"]
    assert not own.status().nodes


def test_start_in_hard_times(own, tmp_path) -> None:
    """Too slow, cut off, made with another size, its port taken: each is named, nothing doubled."""
    with pytest.raises(Unreachable, match=r"node 1 at .* does not answer"):
        own.start(wait=0.0)
    node = own.start(wait=WAIT).nodes[0]  # it went on starting
    file = tmp_path / "broker" / "state.json"
    state = json.loads(file.read_text())
    state["nodes"][0]["process"] = None
    file.write_text(json.dumps(state))  # its starter was killed before it wrote this down
    assert not own.status().running
    assert own.start(wait=WAIT).nodes[0].pid == node.pid

    with pytest.raises(Refused, match="stop --purge"):
        Broker(tmp_path, brokers=3).start()
    with pytest.raises(ConfigError, match="1 or 3"):
        Broker(tmp_path, brokers=2)

    own.stop()
    host, port = node.host_port.split(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(FleetError, match=f"another program listens on port {port} of {host}"):
            own.start()
    assert not own.status().running


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_both_group_protocols_work(broker, unique, protocol) -> None:
    """Classic and KIP-848 groups read, commit and are logged by the coordinator."""
    topic, group = f"t-{unique}", f"g-{unique}"
    put(broker.bootstrap_servers, topic, ["x", "y"])
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(2, timeout=30)
        assert [message.value() for message in messages] == [b"x", b"y"]
        consumer.commit(asynchronous=False)
        assert consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 2
    finally:
        consumer.close()
    log = broker.broker.status().nodes[0].coordinator_log.read_text()
    assert group in log
    if protocol == "classic":
        assert f"Stabilized group {group} generation 1" in log


def test_topics_are_not_made_by_accident(broker, unique) -> None:
    """A misspelt topic is an error, not a new topic."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    client.list_topics(f"misspelt-{unique}", timeout=10)
    assert f"misspelt-{unique}" not in client.list_topics(timeout=10).topics


@pytest.mark.slow
def test_three_nodes(tmp_path) -> None:
    """One node of three may die: the others serve, a start brings it back, a stop ends all."""
    embedded = Broker(tmp_path, brokers=3, overrides={"offsets.topic.num.partitions": "3"})
    try:
        status = embedded.start(wait=WAIT)
        assert len(status.nodes) == 3
        put(status.bootstrap_servers, "kept", ["a"], copies=3)
        before = [node.pid for node in status.nodes]
        embedded.kill(2)
        assert [node.pid for node in embedded.status().nodes] == [before[0], None, before[2]]
        put(status.bootstrap_servers, "kept", ["b"], create=False)
        with pytest.raises(ConfigError, match="no node 4"):
            embedded.kill(4)
        again = Broker(tmp_path).start(wait=WAIT)
        assert len(again.nodes) == 3, "an existing broker keeps its size"
        assert again.nodes[0].pid == before[0], "living nodes are left alone"
        assert again.nodes[1].pid not in {None, before[1]}
        assert read(status.bootstrap_servers, "kept", 2) == ["a", "b"]
        embedded.stop()
        assert not embedded.status().running
    finally:
        embedded.purge()


def test_listening_elsewhere(own, tmp_path) -> None:
    """At the address asked for and at no other; it is kept, and changed only while stopped."""
    listening = Broker(tmp_path, host="127.0.0.2")
    servers = listening.start(wait=WAIT).bootstrap_servers
    assert servers.startswith("127.0.0.2:")
    put(servers, "elsewhere", ["a"])
    assert read(servers, "elsewhere", 1) == ["a"], "clients are sent to the same address"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(servers.partition(":")[2]))) != 0
    assert own.start(wait=WAIT).bootstrap_servers == servers
    with pytest.raises(Refused, match=r"runs at 127\.0\.0\.2; run `fleet dev broker stop`"):
        Broker(tmp_path, host="127.0.0.1").start()
    own.stop()
    with pytest.raises(FleetError, match=r"no interface of this machine has .* 192\.0\.2\.77"):
        Broker(tmp_path, host="192.0.2.77").start()
    back = Broker(tmp_path, host="127.0.0.1").start(wait=WAIT).bootstrap_servers
    assert back == servers.replace("127.0.0.2", "127.0.0.1")
    assert read(back, "elsewhere", 1) == ["a"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        pytest.param("num.network.threads", "none", "num.network.threads", id="at-formatting"),
        pytest.param("metric.reporters", "no.such.Class", "no.such.Class", id="at-start"),
    ],
)
def test_node_that_does_not_come_up_tells_why(tmp_path, key, value, words) -> None:
    """Its last words are in the message without a stack trace, long before the wait is over."""
    embedded = Broker(tmp_path, overrides={key: value})
    with pytest.raises(FleetError) as caught:
        embedded.start(wait=60)
    assert words in str(caught.value)
    assert "\tat " not in str(caught.value)
    assert not embedded.status().running


@pytest.mark.parametrize(
    ("name", "value"), [("JAVA_HOME", "no-such-folder"), ("FLEET_KAFKA_LIBS", "no-such-folder")]
)
def test_missing_parts_are_said_before_anything_starts(tmp_path, monkeypatch, name, value) -> None:
    """No Java, no jars: no file of a node is written."""
    monkeypatch.setenv(name, value)
    with pytest.raises(FleetError, match=f"{name}={value}"):
        Broker(tmp_path).start()
    assert not list((tmp_path / "broker").glob("node-*"))


def test_a_home_that_kafka_would_take_for_two(tmp_path) -> None:
    """Its folders of data are a list."""
    with pytest.raises(ConfigError, match="comma"):
        Broker(tmp_path / "one,two").start()


def test_a_start_that_was_cut_off_makes_one_cluster(tmp_path, monkeypatch) -> None:
    """Three nodes are formatted one after the other: the next start goes on with the same id."""
    clusters: list[str] = []

    class CutOff(BaseException):
        """Ctrl-C, or kill -9."""

    def prepared(kafka, node, nodes, *, cluster_id, **_) -> None:
        clusters.append(cluster_id)
        if node.id == 2:
            raise CutOff

    monkeypatch.setattr(cluster, "prepare", prepared)
    for _ in range(2):
        with pytest.raises(CutOff):
            Broker(tmp_path, brokers=3).start()
    assert len(clusters) == 4
    assert len(set(clusters)) == 1


def test_full_disk_is_said_before_anything_starts(tmp_path, monkeypatch) -> None:
    """Less than 1 GiB is too little."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=500 * 2**20))
    with pytest.raises(FleetError, match="500 MiB free, Kafka needs 1024"):
        Broker(tmp_path).start()
    assert not list((tmp_path / "broker").glob("node-*"))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        pytest.param('{"schema": 99}', SchemaTooNew, "newer", id="newer-schema"),
        pytest.param('{"schema": 1}', FleetError, "not the state of a broker", id="no-state"),
        pytest.param("{", FleetError, "not valid JSON", id="cut-off"),
    ],
)
def test_state_that_cannot_be_read(tmp_path, text, error, message) -> None:
    """Refused with the file's name; never overwritten."""
    file = tmp_path / "broker" / "state.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(error, match=message):
        Broker(tmp_path).start()
    assert file.read_text() == text


def test_command(tmp_path) -> None:
    """The address is printed, status as JSON is a contract, logs and stop do what they say."""
    fleet = partial(process, "dev", "broker", home=tmp_path)
    try:
        assert fleet("logs").returncode == 1
        started = fleet("start", "--set", "offsets.topic.num.partitions=3")
        assert started.returncode == 0, started.stderr
        status = json.loads(fleet("status", "-o", "json").stdout)
        assert status["schema_version"] == 1
        assert status["running"] is True
        assert status["bootstrap_servers"] == started.stdout.strip()
        assert set(status["nodes"][0]) == {
            "id", "pid", "host_port", "server_log", "coordinator_log", "data"
        }  # fmt: skip
        assert "started" in fleet("logs", "-n", "500").stdout
        assert "GroupCoordinator" in fleet("logs", "--coordinator").stdout
        assert started.stdout.strip() in fleet("status").stdout
        assert fleet("start", "--set", "nonsense").returncode == 2
        assert fleet("start", "--brokers", "2").returncode == 2
        assert fleet("stop").returncode == 0
        assert "stopped" in fleet("status").stdout
        assert fleet("stop", "--purge").returncode == 0
        assert json.loads(fleet("status", "-o", "json").stdout)["nodes"] == []
    finally:
        Broker(tmp_path).purge()


def test_cluster_id_is_an_argument() -> None:
    """Kafka's length, never with a leading dash."""
    for _ in range(500):
        text = cluster._cluster_id()
        assert len(text) == 22
        assert not text.startswith("-")

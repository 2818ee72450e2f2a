"""What the configuration of a node says."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.broker.node_config import NodeConfig, check_host, server_logging, server_properties
from fleet.errors import ConfigError


def cluster(count: int) -> list[NodeConfig]:
    """Nodes on made-up ports."""
    return [
        NodeConfig(id=i, port=9000 + i, controller_port=9100 + i, home=Path(f"/home/node-{i}"))
        for i in range(1, count + 1)
    ]


def rendered(count: int, overrides: dict[str, str] | None = None) -> dict[str, str]:
    """The first node's settings."""
    nodes = cluster(count)
    lines = server_properties(nodes[0], nodes, overrides).splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(("count", "copies", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_replication_follows_the_number_of_nodes(count, copies, in_sync) -> None:
    """One node keeps one copy; three keep three, of which two must be in sync."""
    settings = rendered(count)
    assert settings["offsets.topic.replication.factor"] == copies
    assert settings["default.replication.factor"] == copies
    assert settings["transaction.state.log.min.isr"] == in_sync
    assert len(settings["controller.quorum.voters"].split(",")) == count


@pytest.mark.parametrize("home", ["/home/jürgen", "/home/заказы/😀", "C:\\u0041"])
def test_a_path_is_read_as_it_was_written(home) -> None:
    """Java reads a file of properties as Latin-1: what is not ASCII is written by its units."""
    node = replace(cluster(1)[0], home=Path(home))
    text = server_properties(node, [node])
    assert text.isascii()
    path = dict(line.split("=", 1) for line in text.splitlines())["log.dirs"]
    read = re.sub(
        r"\\\\|(?:\\u[0-9a-f]{4})+",
        lambda found: (
            "\\"
            if found[0] == "\\\\"
            else bytes.fromhex(found[0].replace("\\u", "")).decode("utf-16-be")
        ),
        path,
    )
    assert read == str(node.data)


def test_group_behaviour_keeps_kafkas_defaults() -> None:
    """What is seen here must be what a real cluster does."""
    settings = rendered(1)
    assert settings["group.initial.rebalance.delay.ms"] == "3000"
    assert settings["offsets.topic.num.partitions"] == "50"
    assert settings["auto.create.topics.enable"] == "false"
    assert int(settings["log.cleaner.min.compaction.lag.ms"]) == 7 * 24 * 3600 * 1000


def test_clients_are_told_the_address_that_was_asked_for() -> None:
    """At 127.0.0.1 by default; elsewhere only the clients' listener, controllers stay here."""
    assert rendered(1)["advertised.listeners"] == "BROKER://127.0.0.1:9001"
    node = replace(cluster(1)[0], host="10.100.0.1")
    settings = dict(line.split("=", 1) for line in server_properties(node, [node]).splitlines())
    assert settings["advertised.listeners"] == "BROKER://10.100.0.1:9001"
    assert settings["listeners"] == "BROKER://10.100.0.1:9001,CONTROLLER://127.0.0.1:9101"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:9101"


@pytest.mark.parametrize(
    ("host", "why"),
    [
        pytest.param("0.0.0.0", "since clients get", id="any"),
        pytest.param("224.0.0.1", "since clients get", id="multicast"),
        pytest.param("here", "name an IPv4 address", id="name"),
        pytest.param("::1", "name an IPv4 address", id="other-family"),
    ],
)
def test_addresses_that_no_client_could_use(host, why) -> None:
    """Said before anything starts."""
    with pytest.raises(ConfigError, match=why):
        check_host(host)


def test_overrides_win() -> None:
    """A setting given replaces ours; an unknown one passes through to Kafka."""
    settings = rendered(1, {"offsets.topic.num.partitions": "4", "x.y": "a b"})
    assert settings["offsets.topic.num.partitions"] == "4"
    assert settings["x.y"] == "a b"


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"node.id": "7"}, id="fixed-by-the-layout"),
        pytest.param({"log.dirs": "elsewhere"}, id="elsewhere"),
        pytest.param({"a": "b\nnode.id=7"}, id="second-line-in-a-value"),
        pytest.param({"a=b": "c"}, id="sign-in-a-key"),
        pytest.param({"": "c"}, id="no-key"),
    ],
)
def test_overrides_that_are_refused(overrides) -> None:
    """Nothing may move the node or smuggle in a line."""
    with pytest.raises(ConfigError):
        rendered(1, overrides)


def test_logging_is_xml_with_a_log_for_the_coordinator() -> None:
    """The coordinator's lines go to their own file only."""
    loggers = ET.fromstring(server_logging()).iter("Logger")
    assert [(each.get("name"), each.get("level"), each.get("additivity")) for each in loggers] == [
        ("org.apache.kafka.coordinator.group", "INFO", "false")
    ]

"""A home is its owner's alone: logs, marks and an embedded broker's files hold records."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.broker import Broker
from fleet.broker.embedded import prepare
from fleet.broker.jars import Kafka
from fleet.broker.node_config import NodeConfig
from fleet.errors import FleetError
from fleet.system.home import make_home


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """As a machine of many users has it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(folder: Path) -> int:
    """Who may do what with it."""
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_home_is_its_owners(tmp_path: Path) -> None:
    """One that is there already stays as somebody wanted it."""
    assert mode(make_home(tmp_path / "new")) == 0o700
    (tmp_path / "theirs").mkdir()
    assert mode(make_home(tmp_path / "theirs")) == 0o755


def test_one_that_the_broker_makes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fleet broker start` comes first where one tries the broker alone."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(FleetError, match="/nowhere"):
        Broker(tmp_path / "home").start()
    assert mode(tmp_path / "home") == 0o700


def test_a_nodes_files_are_its_owners_in_any_home(tmp_path: Path) -> None:
    """What ACLs keep from a user of the broker stands in them."""
    node = NodeConfig(id=1, port=9001, controller_port=9101, home=tmp_path / "broker" / "node-1")
    kafka = Kafka(Path("/bin/false"), tmp_path)
    with pytest.raises(FleetError, match="cannot format"):
        prepare(kafka, node, [node], cluster_id="c", overrides={})
    assert mode(node.home) == 0o700

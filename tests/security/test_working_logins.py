"""Tokens that end while they are used, and certificates: a worker and its manager work on.

Problem: a connection by OAUTHBEARER ends with its token unless it is logged in anew (KIP-368),
and each part of Fleet does that by a library of its own. Choice: tokens of six seconds for one
worker whose batches go both ways, and for a manager that looks and records beside it, until each
of them must have logged in anew twice. Cost: a quarter of a minute of waiting.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from fleet.clock import SystemClock
from fleet.config.acls import Part, grants
from fleet.config.spec import ClusterSpec, Security
from fleet.manager.cycle import Fleet
from fleet.manager.history_session import open_recorder
from tests.ranges.test_reading import SMALL, size
from tests.security.conftest import Guarded
from tests.support.kafka_tools import rebalances
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

LOGINS = (
    "login_by_short_tokens",
    pytest.param("login_by_certificate", marks=pytest.mark.long),
    pytest.param("login_by_function", marks=pytest.mark.long),
)
LIVES = 2.5
"""Lifetimes of tokens: whoever is in for so long has logged in anew twice."""
AMISS = ("lost", "lost_records", "void", "unhealthy", "quarantined", "topic_deleted", "begun_again")


@pytest.fixture
def group(
    guarded: Guarded, spark_home: Path, unique: str, tmp_path: Path, login: str
) -> Iterator[Group]:
    """A group whose workers log in so."""
    name = f"logins-{unique}"
    security = _allowed(guarded, login, f"worker-{unique}", name, "worker")
    address = guarded.address(security)
    cluster = ClusterSpec(bootstrap_servers=address, security=security)
    client = {**guarded.config, "log_level": 0}
    made = Group(spark_home, address, name, tmp_path, cluster=cluster, client=client)
    try:
        yield made
    finally:
        made.end()


def _allowed(guarded: Guarded, login: str, user: str, group: str, *parts: Part) -> Security:
    security: Security = getattr(guarded, login)(user)
    needed = [g for p in parts for g in grants(p, groups=[group], topics=[f"{group}-topic"])]
    guarded.allow(user, needed)
    return security


@contextmanager
def _manager(
    guarded: Guarded, login: str, group: Group, folder: Path, user: str
) -> Iterator[Fleet]:
    """One that looks as the manager does, and may record the history."""
    security = _allowed(guarded, login, user, group.name, "act", "history")
    declared = {
        "cluster": {
            "name": "main",
            "bootstrap_servers": guarded.address(security),
            "security": security.model_dump(mode="json", exclude_none=True),
        },
        "history": {"path": str(folder / "history")},
        "fleets": [{
            "group": group.name,
            "topics": [group.topic],
            "worker": {"entrypoint": "worker_job:process", "python_path": [str(folder)]},
        }],
    }  # fmt: skip
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(declared))
    with Fleet.open(file, home=group.home, clock=SystemClock()) as fleet:
        yield fleet


@pytest.mark.parametrize("login", LOGINS)
def test_a_worker_and_its_manager_work_on(guarded, group, login, tmp_path, unique):
    """Inline and by Spark's tasks, looking and recording: nothing lost, twice or ended by it."""
    held = guarded.issuer.lifetimes.get(f"worker-{unique}", 0.0)
    lifetime = held if held < 60 else 0.0
    group.standbys("w1", batch=SMALL)
    group.open(0)
    with (
        _manager(guarded, login, group, tmp_path, f"manager-{unique}") as fleet,
        open_recorder(fleet, spark=None, polled=False, say=print) as recorder,
    ):
        until = time.monotonic() + LIVES * lifetime
        rounds = 0
        while rounds < 2 or time.monotonic() < until:
            group.produce(900 if rounds % 2 else 60)  # ranges from 300 waiting records on
            group.drained()
            seen = fleet.snapshot([group.name])
            assert seen.problems == ()
            assert seen.groups[group.name].lag == 0
            recorder.catch_up()
            rounds += 1
        recorded = recorder.catch_up()
    assert recorded.problems == {}
    sizes = [size(line) for line in group.journal()]
    assert max(sizes) > 250, "some by Spark's tasks"
    assert set(group.times_called().values()) == {1}
    assert sum(group.times_called().values()) == sum(group.produced.values())
    assert not [event for kind in AMISS for event in group.events(kind)]
    assert rebalances(guarded.broker, group.name) == 1
    assert group.end() == {"w1": 0}
    assert "kafka.net" not in group.logs(), "a connection closed as it should is no error"
    if lifetime:
        assert guarded.issuer.count(f"worker-{unique}") >= 3
        assert guarded.issuer.count(f"manager-{unique}") >= 3

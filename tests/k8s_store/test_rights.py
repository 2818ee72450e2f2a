"""A worker's role lets it do its work on its own group's objects, and nothing one step beyond."""

from dataclasses import replace

import pytest

from fleet.errors import Unreachable
from fleet.kubernetes.client.api import CONFIG_MAP, LEASE
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_objects import blank
from fleet.kubernetes.leases.lease_store import worker_rules
from fleet.model import TopicPartition
from fleet.slots import Phase, SlotTargets
from tests.support.fleet_leases import make_leases
from tests.support.slot_records import report_of, stopped
from tests.support.waiting import until

pytestmark = pytest.mark.kubernetes
GROUP = "orders"
SLOTS = 2


@pytest.fixture
def granted(place):
    """Two groups with open slots, and a user `worker` of GROUP."""
    server = place.server
    server.grant(place.name, "worker", worker_rules(place.names, slots=SLOTS, reports=8))
    manager = place.manager()
    for group in (GROUP, "other"):
        make_leases(manager, group, slots=SLOTS)
        assert manager.write_targets(SlotTargets(group=group, open=frozenset(range(SLOTS))))
    return place


def test_a_worker_can_do_its_work(granted):
    """From the first look to the release, with reports and marks, by named objects only; a worker
    of a new revision claims its trial.
    """
    worker = granted.worker("r1~abc", user="worker")
    slot, other = worker.slots(GROUP)
    assert worker.known_since() is not None
    assert worker.since(GROUP, "abc", 5.0) == 5.0
    held = worker.take(slot, worker="w", revision="r1~abc", spark_session=None)
    held = worker.renew(replace(held, phase=Phase.ACTIVE, member_id="m"))
    report = report_of("w", GROUP, revision="r1~abc", phase="active", slot=0)
    worker.report(report)
    assert worker.reports(GROUP) == (report,)
    tp = TopicPartition("orders", 3)
    worker.stop_partition(stopped(tp, GROUP))
    assert [mark.tp for mark in worker.stopped_partitions(GROUP)] == [tp]
    assert worker.lift(GROUP, tp) == 1
    assert worker.change(GROUP) is None
    targets = worker.targets(GROUP)
    assert worker.write_targets(replace(targets, rejoin={0: held.token})) is not None
    assert worker.committed_topics(GROUP, "orders") == {"orders"}
    worker.beat(GROUP)
    assert worker.release(held, clean=True)
    held = worker.take(other, worker="w", revision="r1~abc", spark_session=None)
    assert worker.release(held, clean=True)
    fresh = granted.worker("r2", user="worker")
    one, two = fresh.slots(GROUP)
    assert fresh.take(one, worker="x", revision="r2", spark_session=None) is not None
    assert fresh.take(two, worker="y", revision="r2", spark_session=None) is None, "on trial"


def refused(call) -> bool:
    """Whether the server refused, in words that name the role."""
    with pytest.raises(Unreachable, match=r"refuses .* the Role"):
        call()
    return True


def test_a_worker_is_refused_one_step_beyond(granted):
    """The slot targets and another group's objects to write; creating and deleting.

    Leases of the namespace are its to read: RBAC knows no labels.
    """
    worker = granted.worker("r1", user="worker")
    calls, other = worker.leases.api, ObjectNames("main", "other")
    assert worker.slots(GROUP)
    granted.manager().leases.api.create(blank(LEASE, granted.names.change, granted.names))
    theirs = (other.slot(0), other.targets, other.report(0))
    for name in (*theirs, granted.names.targets, granted.names.change):
        found = calls.get(LEASE, name)
        assert refused(lambda found=found: calls.replace(found))
    own = calls.get(LEASE, granted.names.slot(0))
    assert refused(lambda: calls.delete(LEASE, granted.names.slot(0)))
    assert refused(lambda: calls.create({**own, "metadata": {"name": "x"}}))
    assert refused(lambda: calls.merge(CONFIG_MAP, other.stopped_partitions, {"data": {"x": "y"}}))
    assert refused(lambda: calls.get(CONFIG_MAP, granted.names.manager_state))
    assert granted.server.api(granted.name, "worker").allowed("get", "Secret") is False


def test_a_foreign_slot_open_in_the_targets_does_not_blind_a_worker(granted):
    """replicas.max grew, the Role has not yet: the slot is seen and not taken, the others are."""
    manager = granted.manager()
    worker = granted.worker("r1", user="worker")
    targets = manager.targets(GROUP)
    assert manager.write_targets(replace(targets, open=frozenset(range(SLOTS + 1))))
    until(lambda: len(worker.slots(GROUP)) == SLOTS + 1, "the slot", still=5.0, every=0.01)
    (first, *_, last) = worker.slots(GROUP)
    assert refused(lambda: worker.take(last, worker="w", revision="r1", spark_session=None))
    assert worker.known_since() is not None
    assert worker.take(first, worker="w", revision="r1", spark_session=None) is not None

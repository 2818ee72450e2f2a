"""KIP-848's side of the protocol seam, and who may be evicted for a taken slot [16, 17]."""

from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, KafkaError

from fleet.clock import ManualClock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import ClusterSpec, GroupSpec
from fleet.errors import FleetError
from fleet.model import Member
from fleet.worker.events import Events
from fleet.worker.member.member_state import End
from fleet.worker.member.protocols import (
    RETRIED,
    VOID,
    Fenced,
    Unreleased,
    end_of,
    protocol_of,
    verdict,
)
from fleet.worker.slot.takeover import ForeignHolder, Former, Takeover


def protocol(**worker):
    """The protocol of a worker declared so."""
    declared = {"entrypoint": "m:f", "protocol": "consumer", **worker}
    spec = GroupSpec.model_validate({"group": "g", "topics": ["t"], "worker": declared})
    return protocol_of(
        WorkerSettings(cluster=ClusterSpec(), bootstrap_servers="x", group=spec, revision="r")
    )


def test_options_are_what_librdkafka_takes():
    """It refuses session, heartbeat and strategy under group.protocol=consumer; we name none."""
    options = protocol(max_poll_interval="2m").options("g-3")
    assert options == {
        "group.protocol": "consumer",
        "group.instance.id": "g-3",
        "max.poll.interval.ms": 120_000,
    }
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", **options, "log_level": 0})
    assert "group.instance.id" not in protocol(membership="dynamic").options(None)


def test_only_consumer_groups_refuse_a_newcomer():
    """Classic: the newcomer replaces the old process; KIP-848: it is refused while that lives."""
    assert protocol().exclusive
    assert not protocol(protocol="classic").exclusive


@pytest.mark.parametrize(
    ("code", "text", "how"),
    [
        (82, "fenced", End.FENCED),
        (111, "still there", End.UNRELEASED),
        (-150, "Broker: The instance ID is still used by another member in the group", None),
        (112, "no such assignor", End.FATAL),
        (69, "no such group", End.FATAL),
    ],
)
def test_codes_end_a_membership(code, text, how):
    """111 is answered by freeing the id, 82 by [15], the rest ends the worker [10]."""
    error = verdict(KafkaError(code, text))
    assert error is not None
    assert end_of(error) is (how or End.UNRELEASED)
    assert isinstance(error, Fenced) == (code == 82)
    assert isinstance(error, Unreleased) == (code in {111, -150})


def test_commits_of_a_stale_epoch_are_retried_and_of_a_fenced_one_void():
    """113 passes with the next heartbeat, 110 and 25 mean that the membership is over [2]."""
    assert 113 in RETRIED
    assert {110, 25} <= VOID
    assert not RETRIED & VOID


class Coordinator:
    """Who has the instance id, and what was sent."""

    def __init__(self, member: str | None, client: str = "w1") -> None:
        self.member = member
        self.client = client
        self.sent: list[tuple[str, str]] = []
        self.broken = False

    def leave(self, group: str, members: Sequence[tuple[str, str]]) -> str | None:
        """0 or 25: None; 82: a sentence."""
        self.sent += members
        if self.broken:
            raise FleetError("no broker")
        ((_, member),) = members
        if self.member in {None, member}:
            self.member = None
            return None
        return "g-0 now belongs to another process (82), which was left alone"

    def holder(self, instance: str) -> Member | None:
        """What a describe says."""
        if self.member is None:
            return None
        return Member(
            member_id=self.member,
            instance_id=instance,
            client_id=self.client,
            host="/h",
            partitions=frozenset(),
        )

    def takeover(self) -> Takeover:
        """By a worker named w2."""
        events = Events(worker="w2", clock=ManualClock(), environ={})
        return Takeover(group="g", leave=self.leave, holder_of=self.holder, events=events)


def former(*ids: str, workers: Sequence[str] = ("w1", "w2")) -> Former:
    return Former(instance_id="g-0", member_ids=ids, workers=frozenset(workers))


def test_the_member_that_the_slot_names_leaves():
    """One request, with both names."""
    coordinator = Coordinator("m1")
    assert coordinator.takeover().free(former("m1")) is None
    assert coordinator.sent == [("g-0", "m1")]


def test_a_member_that_is_gone_is_free():
    """25 is done."""
    assert Coordinator(None).takeover().free(former("m1")) is None
    assert Coordinator(None).takeover().free(former()) is None


def test_a_dead_workers_unwritten_member_id_is_looked_up():
    """It died between its join and its next write: its client id is its name."""
    coordinator = Coordinator("m2", client="w1")
    assert coordinator.takeover().free(former("m1")) is None
    assert coordinator.sent == [("g-0", "m1"), ("g-0", "m2")]


def test_a_stranger_is_never_evicted():
    """Another store's worker, or anybody else who uses our id."""
    coordinator = Coordinator("m2", client="theirs-1")
    with pytest.raises(ForeignHolder, match="theirs-1 at /h"):
        coordinator.takeover().free(former("m1"))
    assert coordinator.sent == [("g-0", "m1")]
    assert coordinator.member == "m2"


def test_a_silent_cluster_is_told():
    """Not a crash: the join tells, and it is tried again."""
    coordinator = Coordinator("m1")
    coordinator.broken = True
    assert coordinator.takeover().free(former("m1")) == "no broker"

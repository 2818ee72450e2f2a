"""KIP-848's side of the protocol seam; who may be evicted is in test_takeover.py [10, 17]."""

import pytest
from confluent_kafka import Consumer, KafkaError

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
from tests.support.declared import group_spec, settings_of


def protocol(**worker):
    """The protocol of a worker declared so."""
    return protocol_of(settings_of(group_spec(worker={"protocol": "consumer", **worker})))


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

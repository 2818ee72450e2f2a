"""A cluster that never had a group: everything has an answer, and nothing crashes meanwhile."""

import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.model import GroupState
from fleet.observe.admin import Observer


@pytest.mark.broker
@pytest.mark.slow
def test_the_first_group_of_a_cluster_is_seen_coming_up(tmp_path):
    """Before, no offsets topic; while it loads, "not coordinator" (librdkafka #5040 crashed)."""
    embedded = Broker(tmp_path)
    try:
        config = {"bootstrap.servers": embedded.start().bootstrap_servers}
        look = Observer(cluster="test", config=config, clock=SystemClock())
        with GroupLog(config, clock=SystemClock()) as log:
            assert (log.position("g"), log.read("g", 0), log.last_state("g", 0)) == (0, (), ())
            assert log.position_at("g", 0.0) == 0
            assert not look.snapshot(["g"]).groups["g"].exists
            assert look.state("g") in {GroupState.DEAD, GroupState.UNKNOWN}
            admin = AdminClient(config)
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(120)
            member = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
            member.subscribe(["t"])
            end = time.monotonic() + 120
            seen = look.snapshot(["g"]).groups["g"]
            while seen.state is not GroupState.STABLE and time.monotonic() < end:
                member.poll(0.02)
                seen = look.snapshot(["g"]).groups["g"]
            assert (seen.exists, look.state("g")) == (True, GroupState.STABLE)
            assert log.position("g") == len(log.read("g", 0)) > 0
            member.close()
    finally:
        embedded.purge()

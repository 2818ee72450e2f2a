"""What brokers allow, and how long they wait for the members after the first, asked of them."""

import pytest

from fleet.kafka_source.broker_settings import broker_limits
from fleet.kafka_source.connections import Connections
from fleet.model import UNKNOWN, BrokerLimits
from tests.conftest import RunningBroker

pytestmark = pytest.mark.broker


def test_it_is_known_where_brokers_tell_it(broker: RunningBroker):
    options = {"bootstrap.servers": broker.bootstrap_servers}
    with Connections(options, client_id="test") as connections:
        assert broker_limits(connections) == BrokerLimits(
            initial_delay=3.0,
            least_session=1.0,
            longest_session=1800.0,
            classic_members=2**31 - 1,
            consumer_members=2**31 - 1,
        )


def test_where_nobody_answers_nothing_is_known():
    options = {"bootstrap.servers": "127.0.0.1:1"}
    with Connections(options, client_id="test") as connections:
        assert broker_limits(connections) == UNKNOWN

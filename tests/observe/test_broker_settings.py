"""How long brokers wait for the members that come after the first, asked of them."""

import pytest

from fleet.kafka_source.broker_settings import initial_delay
from fleet.kafka_source.connections import Connections
from tests.conftest import RunningBroker
from tests.support.ports import free_port

pytestmark = pytest.mark.broker


def test_it_is_known_where_brokers_tell_it(broker: RunningBroker):
    options = {"bootstrap.servers": broker.bootstrap_servers}
    with Connections(options, client_id="test") as connections:
        assert initial_delay(connections) == 3.0


def test_where_nobody_answers_nothing_is_known():
    options = {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
    with Connections(options, client_id="test") as connections:
        assert initial_delay(connections) is None

"""Brokers are away while pods roll, by every way of membership: nothing lost, nothing twice.

What processes of one machine meet is in tests/faults/matrix_faults.py, an API server that takes no
write in tests/faults/test_refused_writes.py.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.faults.six_fleets import WAYS
from tests.support.brokers import running_broker
from tests.support.kube import Kube
from tests.support.pod_ground import Ground, opened

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]

SLOTS = 2
AWAY = 25.0
"""Seconds without brokers: a drain has 30."""


@pytest.fixture
def ground(
    request: pytest.FixtureRequest, kube: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """Two workers and a standby, as the parameter says, on a broker that may be killed."""
    place = tmp_path_factory.mktemp("weather")
    with contextlib.ExitStack() as ending:
        running = ending.enter_context(running_broker(place / "broker", host=kube.host_address))
        group = f"weather-{uuid.uuid4().hex[:8]}"
        fleet = opened(
            kube, running, place / "home", group=group, slots=SLOTS, worker=WAYS[request.param]
        )
        made = ending.enter_context(fleet)
        made.serve()
        yield made


@pytest.mark.parametrize("ground", WAYS, indirect=True)
def test_brokers_are_away_in_a_roll(ground: Ground) -> None:
    """What is not done then is done after; nobody is let go with a batch in hand."""
    old = set(ground.pods())
    ground.shop.new_code()
    manager = ground.manager("apply", ground.shop.group)
    ground.shop.until(
        lambda: "canary: slot" in ground.said() or manager.poll() is not None, "the roll to begin"
    )
    assert manager.poll() is None, ground.said()
    ground.broker.kill()
    time.sleep(AWAY)
    ground.broker.start(wait=300)
    if manager.wait(600) != 0:
        print(ground.said())
        ground.ended(ground.manager("apply", ground.shop.group))
    ground.serve()
    assert not old & set(ground.pods())
    assert ground.account() == (0, 0)

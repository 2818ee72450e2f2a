"""Bad weather over every way of membership: nothing lost, nobody living evicted, nobody stopped.

Twice is only what an unclean end had in hand. The fleets of pods have theirs in
tests/kubernetes: writes that the API server refuses, quota, a rollout without brokers. In the short
form a full disk is met by the fleet of test_kills.py, the others by tests of one fault each.
"""

import contextlib
from collections.abc import Iterator

import pytest

from tests.faults.weather import FAULTS, WAYS, Weather, WeatherShop, disk_of_its_own
from tests.support import needs
from tests.support.brokers import running_broker
from tests.support.workshop import ending

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MEGABYTES = 96
"""Of the home: far more than it needs."""


@pytest.fixture(scope="module")
def weather(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Weather]:
    """A fleet at work, its members as the parameter says; at its end nothing of it runs."""
    place = tmp_path_factory.mktemp("weather")
    with contextlib.ExitStack() as stack:
        home = place / "home"
        if needs.missing("mounts") is None:
            stack.enter_context(disk_of_its_own(home, MEGABYTES))
        own = stack.enter_context(running_broker(place / "broker"))
        terms = WAYS[request.param]
        shop = WeatherShop(home, place, own.bootstrap_servers, "weather", **terms)
        shop.create_topic(4)
        shop.create_another("letters", 1)
        made = Weather(shop, own.broker)
        stack.enter_context(ending(shop))
        made.begin()
        yield made


@pytest.mark.long
@pytest.mark.parametrize("weather", WAYS, indirect=True, scope="module")
@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[pytest.mark.mounts] if f == "disk full" else []) for f in FAULTS],
)
def test_a_fault(weather: Weather, fault: str) -> None:
    """It passes, and all is as it was."""
    assert weather.play(FAULTS[fault]) == []

"""The assignment interval of a group: what its owner wrote is put back, whoever widened it [19]."""

import pytest

from fleet.act.kafka import SEEN_LIMIT, SETTING, JoinWindow
from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.slots.sqlite import SqliteStore


class Brokers:
    """A group's own settings; what was set shows after a while."""

    def __init__(self, clock: ManualClock, value: str | None) -> None:
        self.clock = clock
        self.value = self.shown = value
        self.slow = 0.0
        self.shows_at = 0.0
        self.refused = False

    def group_setting(self, group: str, name: str) -> str | None:
        assert (group, name) == ("g", SETTING)
        if self.clock.monotonic() >= self.shows_at:
            self.shown = self.value
        return self.shown

    def set_group_setting(self, group: str, name: str, value: str | None) -> None:
        if self.refused:
            raise FleetError("not allowed")
        self.value, self.shows_at = value, self.clock.monotonic() + self.slow


class Place:
    """A window over a store that outlives its manager."""

    def __init__(self, folder, value: str | None) -> None:
        self.clock = ManualClock()
        self.brokers = Brokers(self.clock, value)
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.said: list[str] = []

    def window(self) -> JoinWindow:
        """Of the next manager."""
        return JoinWindow(
            "g", self.store, self.brokers, clock=self.clock, say=self.said.append
        )  # fmt: skip


@pytest.mark.parametrize("owners", [None, "700"])
def test_it_is_put_back_by_whoever_comes(tmp_path, owners):
    """Also where two managers have widened it, one after the other: ours is never the owner's."""
    place = Place(tmp_path, owners)
    assert place.window().widen() is None
    assert place.brokers.value == "5000"
    assert place.window().widen() is None
    assert place.window().restore()
    assert place.brokers.value == owners
    assert not place.window().restore()


def test_an_owners_wider_one_is_left(tmp_path):
    """Nothing to put back either."""
    place = Place(tmp_path, "9000")
    assert place.window().widen() is None
    assert not place.window().restore()
    assert place.brokers.value == "9000"


@pytest.mark.parametrize("owners", [None, "700"])
def test_it_is_remembered_until_brokers_show_it(tmp_path, owners):
    """The next slot targets would else take our value for the owner's."""
    place = Place(tmp_path, owners)
    place.window().widen()
    place.brokers.group_setting("g", SETTING)
    place.brokers.slow = SEEN_LIMIT + 10
    assert place.window().restore()
    assert "do not show it yet" in place.said[-1]
    assert place.window().widen() is None
    assert place.brokers.value == "5000", "not believed to be wide already"
    place.brokers.slow = 0.0
    assert place.window().restore()
    assert place.brokers.value == owners


def test_a_refusal_is_told(tmp_path):
    """Joins may then cost one each; what could not be put back is kept for the next."""
    place = Place(tmp_path, None)
    place.brokers.refused = True
    assert "not allowed" in str(place.window().widen())
    place.brokers.refused = False
    place.window().widen()
    place.brokers.refused = True
    assert place.window().restore()
    place.brokers.refused = False
    assert place.window().restore()
    assert place.brokers.value is None

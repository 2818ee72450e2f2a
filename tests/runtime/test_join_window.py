"""A consumer group's assignment interval around the slot targets [19], on a real broker."""

from pathlib import Path

import pytest

from fleet.act.kafka import SETTING, GroupAdmin, JoinWindow
from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.slots.sqlite import SqliteStore
from tests.support.waiting import until

pytestmark = pytest.mark.broker


@pytest.fixture
def admin(broker):
    with GroupAdmin(bootstrap=broker.bootstrap_servers, kafka_python_config={}) as admin:
        yield admin


@pytest.fixture
def window(admin, unique, tmp_path: Path):
    """Makes the window of one group anew, as another manager process would."""
    store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=SystemClock())
    return lambda: JoinWindow(f"window-{unique}", store, admin, clock=SystemClock(), say=print)


def is_set(admin, group: str, value: str | None) -> None:
    """A broker reads a setting a moment after it was taken."""
    until(lambda: admin.group_setting(group, SETTING) == value, f"{SETTING} to be {value}")


def test_widened_and_put_back(admin, unique, window):
    """The default is put back as no value at all; a second time there is nothing to do."""
    group = f"window-{unique}"
    assert window().widen() is None
    is_set(admin, group, "5000")
    assert window().restore()
    is_set(admin, group, None)
    assert not window().restore()


def test_targets_right_after_one_another_do_not_take_ours_for_the_owners(admin, unique, window):
    """What was put back is read back before it is forgotten, by the next slot targets too."""
    group = f"window-{unique}"
    for _ in range(10):
        assert window().widen() is None
        assert window().restore(), "there was something to put back"
    is_set(admin, group, None)


def test_the_bounds_are_the_brokers(admin, unique):
    """4.3.1: 0 to group.consumer.max.assignment.interval.ms."""
    for value in ("0", "15000"):
        admin.set_group_setting(f"bounds-{unique}", SETTING, value)
    for value in ("-1", "15001"):
        with pytest.raises(FleetError, match="could not set"):
            admin.set_group_setting(f"bounds-{unique}", SETTING, value)

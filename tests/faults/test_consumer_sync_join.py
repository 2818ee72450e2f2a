"""A manager killed while a KIP-848 group's assignment interval is raised for the slot targets
[19].
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleet.act.kafka import SETTING, GroupAdmin
from fleet.slots import ChangeState
from tests.support.kafka_tools import rebalances
from tests.support.manager_process import spawn_manager, watch_and_kill
from tests.support.workshop import Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]
THEIRS = "900"


@contextmanager
def killed_in_the_gate(broker, unique, tmp_path) -> Iterator[tuple[Workshop, GroupAdmin]]:
    """A fleet whose first manager died with the interval raised; at the end nothing runs."""
    shop = Workshop(tmp_path, broker.bootstrap_servers, f"targets-{unique}", protocol="consumer")
    shop.create_topic(4)
    login = {"bootstrap": broker.bootstrap_servers, "kafka_python_config": {}}
    with GroupAdmin(**login) as admin, shop.stream(rate=100), ending(shop):
        admin.set_group_setting(shop.group, SETTING, THEIRS)
        shop.until(lambda: is_theirs(admin, shop), "the setting to be read")
        manager = spawn_manager(shop, 2)
        watch_and_kill(shop, manager, lambda output: "opened slot" in output)
        assert admin.group_setting(shop.group, SETTING) == "5000", "killed too late"
        yield shop, admin


def is_theirs(admin: GroupAdmin, shop: Workshop) -> bool:
    """Whether the group's owner has what was set before."""
    return admin.group_setting(shop.group, SETTING) == THEIRS


def test_manager_killed_in_the_gate(broker, unique, tmp_path):
    """The next one completes the opening, at the same expected cost, and puts the setting back."""
    with killed_in_the_gate(broker, unique, tmp_path) as (shop, admin):
        shop.apply(2)
        assert is_theirs(admin, shop)
        shop.until(lambda: shop.all_active(2), "two active slots")
        assert 1 <= rebalances(broker.broker, shop.group) <= 2


def test_its_change_is_aborted(broker, unique, tmp_path):
    """Aborting leaves the slots open for their new owners, and puts the setting back."""
    with killed_in_the_gate(broker, unique, tmp_path) as (shop, admin):
        with shop.fleet() as fleet:
            change = fleet.abort_change(shop.group, actor="second")
            assert change.state is ChangeState.ABORTED
            assert is_theirs(admin, shop)
        shop.until(lambda: shop.all_active(2), "two active slots")
        assert is_theirs(admin, shop)


def test_its_fleet_is_taken_down(broker, unique, tmp_path):
    """Down puts the setting back, too: nobody else will."""
    with killed_in_the_gate(broker, unique, tmp_path) as (shop, admin):
        with shop.fleet() as fleet:
            fleet.down(progress=shop.say)
        assert is_theirs(admin, shop)
        assert any("is 900 again" in line for line in shop.said)

"""A manager killed while a KIP-848 group's assignment interval is raised for a gate [19]."""

import pytest

from fleet.act.join_window import SETTING
from fleet.act.kafka import GroupAdmin
from fleet.act.local import find_orphans
from fleet.slots import ChangeState
from tests.faults.test_kills import all_active, spawn_manager, watch_and_kill
from tests.support.kafka_tools import assignment_epochs
from tests.support.workshop import Workshop, until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]


def test_manager_killed_in_the_gate(broker, unique, tmp_path):
    """The next one completes the opening, at the same price, and puts the setting back."""
    bootstrap = broker.bootstrap_servers
    shop = Workshop(tmp_path, bootstrap, f"gate-{unique}", protocol="consumer")
    shop.create_topic(4)
    with GroupAdmin(bootstrap=bootstrap, kafka_python_config={}) as admin, shop.stream(rate=100):
        try:
            admin.set_group_setting(shop.group, SETTING, "900")
            manager = spawn_manager(shop, 2)
            watch_and_kill(shop, manager, lambda said: "opened slot" in said)
            assert admin.group_setting(shop.group, SETTING) == "5000", "killed too late"
            with shop.fleet() as fleet:
                change = fleet.apply(shop.group, wanted=2, actor="second", progress=shop.say)
            assert change.state is ChangeState.DONE, change.sentence
            assert admin.group_setting(shop.group, SETTING) == "900"
            until(lambda: all_active(shop, 2), 60, "two active slots")
            assert 1 <= len(set(assignment_epochs(broker.broker, shop.group))) <= 2
        finally:
            with shop.fleet() as fleet:
                fleet.down()
            assert not list(find_orphans(shop.home))

"""A running local fleet survives that the code below it is replaced: no rebalance, nothing lost.

An older release brings the fleet up; then its files are replaced by today's, as an installer
does, while supervisor and workers go on with what they have in memory. Today's commands look at
it and roll it. What it cost is read from the coordinator's log by Kafka's own tool.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.slots import Phase
from tests.support.command import process
from tests.support.kafka_tools import generations
from tests.support.needs import repository
from tests.support.older_release import commit_of, extract, name_entry_points
from tests.support.workshop import Workshop, ending

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

OLDER = ("--no-renames", "--diff-filter=D", "--", "fleet/act/steps.py")
"""Went when the slots' codec and the layout of the package became others."""
PARTS = ("fleet", "assets", "k8s", "pyproject.toml")


def replace_by_todays(code: Path) -> None:
    """In place, as an installer does."""
    shutil.rmtree(code)
    code.mkdir()
    for part in PARTS:
        source = repository() / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, code / part)
    name_entry_points(code)


@pytest.fixture
def shop(broker, unique, tmp_path) -> Iterator[Workshop]:
    """A declared group; nothing runs yet. At the end nothing of it does."""
    made = Workshop(tmp_path / "home", broker.bootstrap_servers, f"in-place-{unique}")
    made.create_topic(4)
    with ending(made):
        yield made


def test_code_is_replaced_under_a_running_fleet(shop, broker, tmp_path):
    """Status answers, the roll to today's code costs nothing, no record is lost or twice."""
    code = extract(commit_of(*OLDER, parent=True), tmp_path / "code")

    def fleet(*words: str) -> str:
        done = process(*words, "--config", str(shop.config), home=shop.home, code=code)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def active() -> dict[int, str]:
        with shop.fleet() as opened:
            slots = opened.slots(shop.group)
        return {s.number: str(s.holder) for s in slots if s.phase is Phase.ACTIVE}

    with shop.stream(rate=100):
        fleet("apply", shop.group, "--yes")
        shop.until(lambda: len(active()) == 2, "two active slots")
        recorded, holders = set(generations(broker.broker, shop.group)), active()

        replace_by_todays(code)
        assert shop.group in fleet("status")
        assert active() == holders, "the older release's workers go on"
        fleet("roll", shop.group)
        shop.until(lambda: len(active()) == 2, "two active slots of today's code")
        assert not set(active().values()) & set(holders.values())
        assert set(generations(broker.broker, shop.group)) == recorded
    assert shop.lost_and_twice() == (0, 0)

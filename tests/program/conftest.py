"""Fleets of programs, on the session's broker; at the end nothing of their homes runs."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.membership.conftest import Counting
from tests.support.workshop import Workshop, ending

CONSUMER = Path(__file__).with_name("consumer.py")


class ProgramShop(Workshop):
    """A group whose workers are a program."""

    def run_program(self, *arguments: str, program: Sequence[str] = (), **worker: Any) -> None:
        """Declare this program; by default the consumer beside, with client options as `a=b`."""
        consumer = (sys.executable, str(CONSUMER), self.bootstrap, self.group, self.topic)
        env = {"FLEET_JOURNAL": str(self.journal)}
        self._worker = {"command": [*(program or consumer), *arguments], "env": env, **worker}
        self.declare()

    def log_of(self, worker: str) -> str:
        """What a worker and its program wrote."""
        return (self.home / "workers" / f"{worker}.log").read_text()


@pytest.fixture
def shop(broker: Any, unique: str, tmp_path: Path) -> Iterator[ProgramShop]:
    """One group of six partitions, without a worker yet."""
    made = ProgramShop(tmp_path / "home", broker.bootstrap_servers, f"program-{unique}")
    with ending(made):
        made.create_topic(6)
        yield made


@pytest.fixture
def count(broker: Any, shop: ProgramShop) -> Counting:
    """Counts its rebalances by Kafka's own tool."""
    return Counting(broker, shop)

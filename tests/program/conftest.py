"""Fleets of programs, on the session's broker; at the end nothing of their homes runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.client_programs import confluent
from tests.membership.conftest import Counting
from tests.support.workshop import Workshop, ending


class ProgramShop(Workshop):
    """A group whose workers are a program."""

    def run_program(self, *more: str, program: Any = confluent, **worker: Any) -> None:
        """Declare this program with more arguments."""
        command = [*program(self.bootstrap, self.group, self.topic), *more]
        env = {"FLEET_JOURNAL": str(self.journal)}
        self._worker = {"command": command, "env": env, **worker}
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

"""A broker of these tests alone: they count every record of the coordinator's log."""

from collections.abc import Iterator

import pytest

from tests.support.brokers import RunningBroker, running_broker


@pytest.fixture(scope="session")
def history_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """It ends with the last of them (support/last_use.py)."""
    with running_broker(tmp_path_factory.mktemp("history")) as made:
        yield made


@pytest.fixture(scope="session")
def broker(history_broker: RunningBroker) -> RunningBroker:
    """In place of the one that all share."""
    return history_broker

"""Fixtures for pytest: `pytest_plugins = ["fleet.testing.plugin"]` in a test module.

Asked for by name, not an entry point of pytest's: whoever has Fleet installed for another reason
starts no slower for it. A job whose `worker.spark` is not `shared` has a fixture
`fleet_spark_place` of its own that says where Spark is (`fleet.testing.made_batch`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from fleet.model.batch_context import BatchContext
from fleet.testing.made_batch import SHARED, local_spark, make_batch

MakeBatch = Callable[..., tuple[Any, BatchContext]]


@pytest.fixture(scope="session")
def fleet_spark_place() -> str:
    """Where Spark is, as `worker.spark` says it; to be overridden."""
    return SHARED


@pytest.fixture(scope="session")
def fleet_spark(fleet_spark_place: str) -> Iterator[Any]:
    """One Spark session for all tests, as the workers have it."""
    with local_spark(fleet_spark_place) as spark:
        yield spark


@pytest.fixture
def fleet_batch(fleet_spark: Any) -> MakeBatch:
    """A function of records and fields of the context; what it gives are (df, context)."""

    def made(records: Sequence[Mapping[str, Any]] = (), **context: Any) -> tuple[Any, BatchContext]:
        batch = make_batch(records, **context)
        return batch.frame(fleet_spark), batch.context

    return made

"""Fixtures for pytest: `pytest_plugins = ["fleet.testing.plugin"]` in a test module.

They are requested by name and are no entry point of pytest's, so that other test runs with Fleet
installed start no slower. A job whose `worker.spark` is not `shared` defines a fixture
`fleet_spark_place` that says where Spark is (`fleet.testing.sample_batch`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from fleet.model.batch_context import BatchContext
from fleet.testing.sample_batch import SHARED, local_spark, make_batch

MakeBatch = Callable[..., tuple[Any, BatchContext]]


@pytest.fixture(scope="session")
def fleet_spark_place() -> str:
    """Returns where Spark is, as `worker.spark` says it; override it for another place."""
    return SHARED


@pytest.fixture(scope="session")
def fleet_spark(fleet_spark_place: str) -> Iterator[Any]:
    """Returns one Spark session for all tests, like the workers' own."""
    with local_spark(fleet_spark_place) as spark:
        yield spark


@pytest.fixture
def fleet_batch(fleet_spark: Any) -> MakeBatch:
    """Returns a function of records and fields of the context; it returns (df, context)."""

    def made(records: Sequence[Mapping[str, Any]] = (), **context: Any) -> tuple[Any, BatchContext]:
        batch = make_batch(records, **context)
        return batch.frame(fleet_spark), batch.context

    return made

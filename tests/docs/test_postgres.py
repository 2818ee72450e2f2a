"""The Postgres job of docs/how-to/sinks.md: each row once, however batches are cut."""

from collections.abc import Iterator
from typing import Any

import pytest

from fleet.testing import make_batch
from tests.docs.pages import blocks
from tests.support import postgres
from tests.support.postgres import Postgres

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

PAGE = "docs/how-to/sinks.md"


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A server of its own."""
    with postgres.running("127.0.0.1") as made:
        yield made


def test_the_job_writes_each_record_once(
    database: Postgres, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    """A repetition changes nothing but what the latest code says."""
    monkeypatch.setenv(
        "ORDERS_DATABASE",
        f"host={database.host} port={database.port} dbname={postgres.USER} "
        f"user={postgres.USER} password={database.password}",
    )
    (table, job) = [each for each in blocks() if each.page == PAGE and each.run_by == here()]
    database.ask(table.text)
    made: dict[str, Any] = {}
    exec(compile(job.text, str(job), "exec"), made)
    for first, values in ((0, ["a", "b", "c"]), (0, ["a", "b"]), (1, ["b", "C", "d"])):
        records = [{"offset": at, "value": each} for at, each in enumerate(values, first)]
        batch = make_batch(records, topic="orders")
        made["process"](batch.frame(spark), batch.context)
    asked = 'SELECT "offset", value FROM orders ORDER BY "offset"'
    assert database.ask(asked) == ["0|a", "1|b", "2|C", "3|d"]


def here() -> str:
    """As the page names this file."""
    return "tests/docs/test_postgres.py"

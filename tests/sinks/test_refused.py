"""A commit that stands although it was answered with a refusal: its files stay, its rows count."""

from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from tests.sinks.cases import SINKS, batch, range_of
from tests.sinks.frames import Frame


def refused_once(monkeypatch: pytest.MonkeyPatch, kind: Any, commit: str, refusal: Exception):
    """The library's next commit is made, and then answered so.

    A store that took the commit and said 503 makes the library put it again, where it meets itself.
    """
    real = getattr(kind, commit)

    def made(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(kind, commit, real)
        real(*args, **more)
        raise refusal

    monkeypatch.setattr(kind, commit, made)


def test_delta_rows_of_a_commit_that_met_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The repetition finds the offsets there; readers find the rows."""
    case = SINKS["delta"]({"path": str(tmp_path / "table")})
    rows, context = batch(range_of(0, 3))
    assert case.write(Frame(rows), context) == 1
    refusal = CommitFailedError("a concurrent transaction of this application was committed")
    refused_once(monkeypatch, deltalake, "write_deltalake", refusal)
    rows, context = batch(range_of(3, 6))
    assert case.write(Frame(rows), context) == 0, "it is there"
    assert case.offsets() == list(range(6))


def test_iceberg_files_of_a_commit_that_met_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What files the catalog named, we do not judge: all are there."""
    case = SINKS["iceberg"]({"path": str(tmp_path / "table")})
    rows, context = batch(range_of(0, 3))
    assert case.write(Frame(rows), context) == 1
    refusal = CommitFailedException("a concurrent update was detected")
    refused_once(monkeypatch, SqlCatalog, "commit_table", refusal)
    rows, context = batch(range_of(3, 6))
    assert case.write(Frame(rows), context) == 0, "its offsets are the table's"
    assert len(list(tmp_path.rglob("*.parquet"))) == 2

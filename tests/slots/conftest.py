"""One store in a fresh home."""

from pathlib import Path

import pytest

from fleet.act.store import SqliteStore
from fleet.clock import ManualClock


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "fleet.db", cluster="main", clock=ManualClock())

"""PySpark's session, as far as the batch thread needs it: a frame has an Arrow table's methods."""

import threading
from collections.abc import Callable
from typing import Any

from fleet.clock import SystemClock
from fleet.worker.batch.spark_link import SparkLink


class Frame:
    """An Arrow table that may be asked for one partition."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def coalesce(self, partitions: int) -> "Frame":
        """It has none."""
        assert partitions == 1
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class Session:
    """Hands tables back as frames, and remembers interrupts."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()

    def createDataFrame(self, table: Any, schema: Any) -> Any:  # noqa: N802 - PySpark's name
        return Frame(table)

    def addTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name
        """Nothing to do."""

    def removeTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name
        """Nothing to do."""

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name
        """A running operation ends with an error."""
        self.interrupted.set()

    def stop(self) -> None:
        """Nothing to do."""


class Link(SparkLink):
    """Connects to the stand-in at once."""

    def __init__(self, made: Callable[[], Session] = Session) -> None:
        super().__init__(where=lambda: "local[1]", clock=SystemClock(), app="test")
        self.connected = 0
        self._made = made

    def _open(self, where: str) -> Any:
        self.connected += 1
        self._session = self._made()
        return self._session

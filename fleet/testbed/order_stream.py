"""The producer's process, as the demo and the benchmarks steer it."""

import os
import sys
from pathlib import Path
from typing import Final, Protocol

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.system import processes
from fleet.system.home import read_state
from fleet.system.processes import ProcessId
from fleet.testbed.producer import SCHEMA, ProducerOptions

_STOP_SECONDS: Final = 40.0
_POLL_SECONDS: Final = 0.1
_END_GRACE: Final = 5.0


class ProducerFiles(Protocol):
    """Where the producer's files are."""

    @property
    def control(self) -> Path:
        """What the producer shall do."""
        ...

    @property
    def produced(self) -> Path:
        """What the producer did."""
        ...

    def log(self, name: str) -> Path:
        """Output of a process."""
        ...


class OrderStream:
    """A steady stream of numbered orders into one topic, the same to every partition."""

    def __init__(
        self,
        place: ProducerFiles,
        *,
        bootstrap: str,
        clock: Clock,
        topic: str,
        partitions: int,
    ) -> None:
        self._place = place
        self._topic = topic
        self._partitions = partitions
        self._bootstrap = bootstrap
        self._clock = clock
        self._process: ProcessId | None = None

    def start(self, rate: float) -> None:
        """Start the producer; it produces from now on."""
        self.rate(rate)
        command = (sys.executable, "-m", "fleet.testbed.producer", "--bootstrap", self._bootstrap)
        where = ("--control", str(self._place.control), "--state", str(self._place.produced))
        self._process = processes.spawn(
            (
                *(*command, *where, "--topic", self._topic, "--partitions", str(self._partitions)),
                *("--starter", str(os.getpid())),
            ),
            log=self._place.log("producer"),
            env=dict(os.environ),
        )

    def rate(self, rate: float) -> None:
        """So many records per second from the next half second on."""
        ProducerOptions(rate=rate).write(self._place.control)

    def stop(self) -> dict[TopicPartition, int]:
        """Let it flush and end; the end offset of every partition.

        Raises FleetError where not every record was acknowledged.
        """
        ProducerOptions(rate=0.0, stop=True).write(self._place.control)
        deadline = self._clock.monotonic() + _STOP_SECONDS
        while self._process is not None and processes.alive(self._process):
            if self._clock.monotonic() > deadline:
                raise FleetError(f"the producer does not end; see {self._place.log('producer')}")
            self._clock.sleep(_POLL_SECONDS)
        state = read_state(self._place.produced, schema=SCHEMA) or {}
        told = state.get("ends", {})
        ends = {TopicPartition(self._topic, int(p)): int(e) for p, e in told.items()}
        if (
            not state.get("stopped")
            or state.get("failed")
            or sum(ends.values()) != state["produced"]
        ):
            raise FleetError(
                f"the producer ended without every record acknowledged ({state or 'no state'}); "
                f"see {self._place.log('producer')}"
            )
        return ends

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            processes.end(self._process, grace=_END_GRACE)
            self._process = None

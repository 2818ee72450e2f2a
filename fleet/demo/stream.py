"""The producer's process, as the demo steers it."""

import os
import sys
from typing import Final

from fleet import processes
from fleet.clock import Clock
from fleet.demo.producer import SCHEMA, Wish
from fleet.demo.stage import PARTITIONS, TOPIC, Stage
from fleet.errors import FleetError
from fleet.home import read_state
from fleet.model import TopicPartition
from fleet.processes import ProcessId

_STOP_SECONDS: Final = 40.0
_POLL_SECONDS: Final = 0.1
_END_GRACE: Final = 5.0


class OrderStream:
    """A steady stream of numbered orders into the demo's topic."""

    def __init__(self, stage: Stage, *, bootstrap: str, clock: Clock) -> None:
        self._stage = stage
        self._bootstrap = bootstrap
        self._clock = clock
        self._process: ProcessId | None = None

    def start(self, rate: float) -> None:
        """Start the producer; it produces from now on."""
        self.rate(rate)
        command = (sys.executable, "-m", "fleet.demo.producer", "--bootstrap", self._bootstrap)
        where = ("--control", str(self._stage.control), "--state", str(self._stage.produced))
        self._process = processes.spawn(
            (*command, *where, "--topic", TOPIC, "--partitions", str(PARTITIONS)),
            log=self._stage.log("producer"),
            env=dict(os.environ),
        )

    def rate(self, rate: float) -> None:
        """So many records per second from the next half second on."""
        Wish(rate=rate).write(self._stage.control)

    def stop(self) -> dict[TopicPartition, int]:
        """Let it flush and end; the end offset of every partition.

        Raises FleetError where not every record was acknowledged.
        """
        Wish(rate=0.0, stop=True).write(self._stage.control)
        deadline = self._clock.monotonic() + _STOP_SECONDS
        while self._process is not None and processes.alive(self._process):
            if self._clock.monotonic() > deadline:
                raise FleetError(f"the producer does not end; see {self._stage.log('producer')}")
            self._clock.sleep(_POLL_SECONDS)
        state = read_state(self._stage.produced, schema=SCHEMA) or {}
        ends = {TopicPartition(TOPIC, int(p)): int(e) for p, e in state.get("ends", {}).items()}
        if (
            not state.get("stopped")
            or state.get("failed")
            or sum(ends.values()) != state["produced"]
        ):
            raise FleetError(
                f"the producer ended without every record acknowledged ({state or 'no state'}); "
                f"see {self._stage.log('producer')}"
            )
        return ends

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            processes.end(self._process, grace=_END_GRACE)
            self._process = None

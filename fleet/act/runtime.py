"""What starts and stops workers: the contract of every runtime.

A runtime knows nothing of groups' state in Kafka. It keeps named worker processes alive
(restarts with back-off are its supervisor's or the kubelet's business) and removes exactly
those it is told to. Runtimes are found through the entry-point group `fleet.runtimes`.
"""

from collections.abc import Sequence
from typing import Protocol

from fleet.slots import SlotStore, WorkerProcess


class Runtime(Protocol):
    """Starts, lists and removes workers of one cluster's fleets."""

    @property
    def store(self) -> SlotStore:
        """Where this runtime's slots live."""
        ...

    def ensure(self) -> None:
        """Make sure that the supervisor (and the shared Spark server) runs; cheap when it does."""
        ...

    def publish(self, group: str, revision: str, settings: str) -> None:
        """Keep what workers of `revision` need (resolved settings as JSON, a copy of the code)."""
        ...

    def published(self, group: str, revision: str) -> str | None:
        """The settings kept for a revision, None where it was never published."""
        ...

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """Ask for `count` more workers; their names (unique, never used again)."""
        ...

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """Ask for removal: SIGTERM, `grace` seconds, SIGKILL; not restarted. Returns at once."""
        ...

    def restart(self, name: str) -> None:
        """SIGTERM the process of a worker and start it again at once (the ordinary way)."""
        ...

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """All workers not yet gone."""
        ...

    def down(self, *, grace: float) -> None:
        """End all workers, the supervisor and the Spark server; returns when they are gone."""
        ...

    def close(self) -> None:
        """Let go of the store; workers go on."""
        ...

    def purge(self) -> None:
        """After `down`: forget slots, workers, settings and logs."""
        ...

"""Defines the interface of runtimes, which start and stop workers.

A runtime knows nothing of groups' state in Kafka. It keeps named worker processes alive and removes
exactly those that it is asked to; its supervisor or the kubelet restarts them with back-off.
Runtimes are found through the entry-point group `fleet.runtimes`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import FleetSpec, GroupSpec, RuntimeSpec
from fleet.decide.adopted import Adopted
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import ConfigError, Refused
from fleet.model import Finding, Plan
from fleet.slots import WorkerProcess
from fleet.slots.store import Store
from fleet.system.log_files import LogPart


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """Says how far a place that replaces workers by itself has come."""

    complete: bool
    """Whether only workers of the revision run, and all of them are available."""
    stalled: str | None = None
    """Why nothing has moved for longer than it may; None while it moves."""
    notes: tuple[str, ...] = ()
    """Sentences for the receipt."""


class Runtime(Protocol):
    """Starts, lists and removes workers of one cluster's fleets.

    Methods with a body suit a place where only Fleet starts, stops and counts workers.
    """

    replaces_workers: ClassVar[bool] = False
    """Whether the place replaces workers of another revision by itself once one is started."""

    @property
    def store(self) -> Store:
        """Returns the store of this runtime's slots."""
        ...

    def ensure(self) -> None:
        """Makes sure that the supervisor (and the shared Spark server) runs; cheap if it does."""
        ...

    def keep_code(self, spec: GroupSpec, revision: str) -> str:
        """Copies the entrypoint's code for one revision, before `publish`; returns its digest."""
        ...

    def publish(self, group: str, revision: str, settings: str) -> None:
        """Stores the resolved settings of a revision as JSON."""
        ...

    def published(self, group: str, revision: str) -> str | None:
        """Returns the settings of a revision; None if it was never published."""
        ...

    def recognise(self, group: str, revision: str) -> None:
        """Recognises workers that others created from this published revision."""
        del group, revision

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """Starts `count` more workers; returns their unique names, which are never used again.

        Raises NoRoom if fewer can start.
        """
        ...

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """Removes workers: SIGTERM, `grace` seconds, SIGKILL; no restart. Returns at once."""
        ...

    def read_log(self, worker: str, place: str | None = None) -> LogPart:
        """Reads a worker's log since `place`; None: the end of its log.

        The log of a removed worker may be partial. Raises Refused for an unknown worker.
        """
        ...

    def restart(self, name: str) -> None:
        """Stops a worker's process by SIGTERM and starts it again at once."""
        ...

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """Returns all workers that still exist."""
        ...

    def refusal(self, group: str) -> str | None:
        """Returns why fewer workers exist than wanted, if the place refuses more."""
        del group
        return None

    def rollout(self, group: str, revision: str) -> RolloutStatus:
        """Returns how far the place has replaced the group's workers by the revision's.

        `start` began that. Raises FleetError if the place cannot go on.
        """
        del group, revision
        return RolloutStatus(complete=True)

    def finish_removals(self, group: str, *, failed: bool = False, given_up: bool = False) -> None:
        """Finishes removals at the end of a group's change.

        failed: the change failed, and a revision that no slot runs is given up. given_up: it was
        aborted. Called before the change ends, so that a dead actor's successor calls it too.
        Raises FleetError if removed workers do not end.
        """
        del group, failed, given_up

    def vetoes(self, plan: Plan) -> Vetoes:
        """Returns this runtime's refusals and notes on a plan."""
        del plan
        return NO_CONCERNS

    def adopted(self, group: str) -> Adopted | None:
        """Returns the group's adopted Deployment; None if there is none."""
        del group
        return None

    def scale_adopted(self, group: str, count: int) -> Adopted:
        """Scales it to `count` pods; returns when removed pods are gone and new ones are ready."""
        raise Refused(f"group {group} has no Deployment here that could have {count} pods")

    def unmanage(self, group: str) -> None:
        """Gives up the group's workers, which keep running."""
        del group

    def manage(self, group: str) -> None:
        """Takes back what `unmanage` gave up."""
        del group

    def examine(self) -> Iterator[Finding]:
        """Yields the findings of `fleet doctor`."""
        ...

    def down(self, *, grace: float) -> None:
        """Stops all workers, the supervisor and the Spark server, and waits for their end."""
        ...

    def close(self) -> None:
        """Closes the store; workers go on."""
        ...

    def purge(self) -> tuple[str, ...]:
        """Removes slots, workers, settings and logs after `down`; returns what stays and why."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Sets what the operator watches, and how often it looks."""

    namespaces: tuple[str, ...]
    clusters: Path
    """Folder with a file for each cluster: fleet.yaml without fleets."""
    home: Path
    environ: Mapping[str, str]
    actor: str
    interval: float
    """Seconds between two passes over a resource at rest."""
    listen: str | None = None
    """Address of /healthz and /readyz; None: nothing listens."""


class RuntimeKind(Protocol):
    """Opens a runtime for managers and workers; an entry point of `fleet.runtimes` names it."""

    def open(
        self, spec: FleetSpec, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> Runtime:
        """Opens the runtime of a fleet.yaml for its manager."""
        ...

    def store(
        self, settings: WorkerSettings, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> Store:
        """Opens the slots of one group for one of its workers."""
        ...

    def deployments(
        self, runtime: RuntimeSpec, *, environ: Mapping[str, str], clock: Clock
    ) -> tuple[Adopted, ...]:
        """Returns the Deployments of external consumers in that place."""
        del runtime, environ, clock
        return ()

    def declared(self, resource: Mapping[str, Any], clusters: Path) -> tuple[dict[str, Any], ...]:
        """Renders what the operator makes of a resource; clusters: as of OperatorOptions."""
        del resource, clusters
        raise ConfigError("this runtime has no resources that an operator could keep")

    def operate(
        self,
        options: OperatorOptions,
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Keeps the fleets that resources of this place declare, until `stop`."""
        del options, stop, say, clock
        raise ConfigError("this runtime has no resources that an operator could keep")

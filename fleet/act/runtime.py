"""What starts and stops workers: the contract of every runtime.

A runtime knows nothing of groups' state in Kafka. It keeps named worker processes alive
(restarts with back-off are its supervisor's or the kubelet's business) and removes exactly
those it is told to. Runtimes are found through the entry-point group `fleet.runtimes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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


class Runtime(Protocol):
    """Starts, lists and removes workers of one cluster's fleets.

    What has a body is the answer of a place where nobody else starts, stops or counts workers.
    """

    @property
    def store(self) -> Store:
        """Where this runtime's slots live."""
        ...

    def ensure(self) -> None:
        """Make sure that the supervisor (and the shared Spark server) runs; cheap when it does."""
        ...

    def keep_code(self, spec: GroupSpec, revision: str) -> str:
        """Copy the entrypoint's code for one revision, before `publish`; the copy's digest."""
        ...

    def publish(self, group: str, revision: str, settings: str) -> None:
        """Keep what workers of `revision` need (resolved settings as JSON)."""
        ...

    def published(self, group: str, revision: str) -> str | None:
        """The settings kept for a revision, None where it was never published."""
        ...

    def recognise(self, group: str, revision: str) -> None:
        """Take workers for what they are that somebody else made of this published revision."""
        del group, revision

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """Ask for `count` more workers than there are; their names (unique, never used again).

        Raises NoRoom where fewer can be had.
        """
        ...

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """Ask for removal: SIGTERM, `grace` seconds, SIGKILL; not restarted. Returns at once."""
        ...

    def read_log(self, worker: str, place: str | None = None) -> LogPart:
        """What a worker has written since `place`; None: the end of its log.

        Of a worker that is gone what is left. Raises Refused where nothing is known of it.
        """
        ...

    def restart(self, name: str) -> None:
        """SIGTERM the process of a worker and start it again at once (the ordinary way)."""
        ...

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """All workers not yet gone."""
        ...

    def refusal(self, group: str) -> str | None:
        """Why fewer workers exist than are wanted, where somebody refuses more."""
        del group
        return None

    def finish_removals(self, group: str, *, failed: bool = False, given_up: bool = False) -> None:
        """No change of the group is carried out any more: what was asked for is done to its end.

        failed: the last change did not go well: what no slot has come to use is taken back.
        given_up: it was ended where it stood (abort). Called before a change ends, so that its
        actor's successor does it where the actor died. Raises FleetError where other workers
        were removed than those asked for.
        """
        del group, failed, given_up

    def held(self, group: str) -> str | None:
        """What is kept from moving by a change that ended half-way, and what would let it go."""
        del group
        return None

    def vetoes(self, plan: Plan) -> Vetoes:
        """What stands against a plan here, and what a person should know of it."""
        del plan
        return NO_CONCERNS

    def adopted(self, group: str) -> Adopted | None:
        """Other people's workers that are scaled here; None where the group has none."""
        del group
        return None

    def scale_adopted(self, group: str, count: int) -> Adopted:
        """Have `count` of them; returns when those that go are gone, or those that come ready."""
        raise Refused(f"group {group} has no Deployment here of which {count} pods could be wanted")

    def unmanage(self, group: str) -> None:
        """Gives up the ownership of what runs the group's workers; they keep running."""
        del group

    def manage(self, group: str) -> None:
        """Takes back what `unmanage` gave up."""
        del group

    def examine(self) -> Iterator[Finding]:
        """What `fleet doctor` says of it."""
        ...

    def down(self, *, grace: float) -> None:
        """End all workers, the supervisor and the Spark server; returns when they are gone."""
        ...

    def close(self) -> None:
        """Let go of the store; workers go on."""
        ...

    def purge(self) -> tuple[str, ...]:
        """After `down`: forget slots, workers, settings and logs; what stays, and why."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions:
    """What of a fleet.yaml shall be rendered."""

    text: str
    """The file as it is written."""
    parts: frozenset[str]
    """Of fleet.system.runtimes.PARTS."""
    groups: tuple[str, ...] = ()
    """Of which workers are rendered; empty: of all."""
    image: str | None = None
    """Of manager and exporter; None: the workers'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """A fleet.yaml as the objects of a cluster, in the order in which they are applied."""

    objects: tuple[dict[str, Any], ...]
    secrets: tuple[str, ...]
    """What the objects refer to and somebody else has to make; no value is ever rendered."""


class RuntimeKind(Protocol):
    """What an entry point of `fleet.runtimes` names: how a manager and a worker get at it."""

    def open(
        self, spec: FleetSpec, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> Runtime:
        """The runtime of a fleet.yaml, for whoever manages its fleets."""
        ...

    def store(
        self, settings: WorkerSettings, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> Store:
        """The slots of one group, for one of its workers."""
        ...

    def deployments(
        self, runtime: RuntimeSpec, *, environ: Mapping[str, str], clock: Clock
    ) -> tuple[Adopted, ...]:
        """Other people's Deployments of that place."""
        del runtime, environ, clock
        return ()

    def manifests(self, spec: FleetSpec, options: ManifestOptions) -> Manifests:
        """A fleet.yaml as objects. Raises ConfigError where this runtime has none."""
        del options
        raise ConfigError(
            f"the fleets of cluster {spec.cluster.name} run on this machine (runtime.kind local), "
            "so there are no manifests: write runtime: {kind: kubernetes, namespace: …, image: …}"
        )

    def try_out(
        self, spec: FleetSpec, made: Manifests, *, environ: Mapping[str, str], clock: Clock
    ) -> tuple[str, ...]:
        """Ask the cluster what it would say of them and change nothing; one sentence each.

        Raises Refused with all that it refuses, Unreachable.
        """
        del spec, made, environ, clock
        return ()

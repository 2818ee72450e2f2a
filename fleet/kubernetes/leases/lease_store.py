"""The store of a cluster's fleets in a namespace: what all stores do, and what only pods need.

Slots, slot targets and changes are `fleet.slots.store` over Leases
(`fleet.kubernetes.leases.lease_backend`). Here is what stands beside them: objects that are made
beforehand, since a worker may create nothing; which pod templates are which revision; who was asked
to go; what opens where nobody manages.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Self

from fleet.clock import Clock
from fleet.errors import Damaged, Unreachable
from fleet.kubernetes.client.api import LEASE, PATIENT, Api, Denied, Missing, Object
from fleet.kubernetes.client.object_names import COST_ANNOTATION, ObjectNames
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.lease_backend import LeaseBackend
from fleet.slots import FirstOpening
from fleet.slots.backend import SlotTargetsRecord
from fleet.slots.store import Store
from fleet.worker.pod_environment import template_of

# A manager's store waits for an API server that is away, as long as an upgrade of it takes.
#
# Problem: a change that fails because the control plane was restarted is a person's work for
# nothing; the store itself gives up after seconds, since a worker must. Choice: calls are repeated
# with a pause until the server answers, once it has answered at all; each is a compare-and-set or
# a reading, so that a repeated one finds what the first one did. Not the one that adopts a change:
# whether it was this process that did has to be looked at; nor the one that only tries whether
# anything is stored. Cost: a manager hangs for a minute and a half before it says that nobody
# answers.


_ONCE: Final = {Store.adopt.__name__, Store.beat.__name__}
_PAUSE: Final = 1.0
_ROLES: Final = 5.0
"""Seconds that a server that has just started may refuse what it allows."""


class PatientStore:
    """Wraps a Store and waits for an unreachable API server."""

    def __init__(self, inner: Store, *, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._answered = False

    @property
    def at_once(self) -> Store:
        """Returns the wrapped store, for readers that read again soon."""
        return self._inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*args: Any, **keywords: Any) -> Any:
            began = self._clock.monotonic()
            while True:
                try:
                    answer = method(*args, **keywords)
                except (Missing, Damaged):
                    raise
                except Unreachable as error:
                    grace = _ROLES if isinstance(error, Denied) else PATIENT.grace
                    late = self._clock.monotonic() - began >= grace
                    if late or not self._answered or name in _ONCE:
                        raise
                    self._clock.sleep(_PAUSE)
                else:
                    self._answered = True
                    return answer

        return call


# The least that a worker needs of the API server, as RBAC rules.
#
# It writes only Leases and ConfigMaps that its Role names; it creates and deletes nothing. RBAC
# cannot limit `list` and `watch` to a label, so it may read the other Leases of its namespace.
# A compare-and-set needs `update`, one key of many in a ConfigMap needs `patch`.


OWNER_COST: Final = "100"
STANDBY_COST: Final = "-100"
"""pod-deletion-cost of owners and standbys, which each worker writes for its own pod."""

Rule = dict[str, Any]
_LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
_MAPS = {"apiGroups": [""], "resources": ["configmaps"]}


def worker_rules(names: ObjectNames, *, slots: int, reports: int) -> list[Rule]:
    """Returns the rules of a fleet's workers; slots, reports: how many Leases there are."""
    return [
        {
            **_LEASES,
            "resourceNames": [names.answers, *names.slots(range(slots)), *names.reports(reports)],
            "verbs": ["update"],
        },
        {**_LEASES, "verbs": ["get", "list", "watch"]},
        {**_MAPS, "resourceNames": [names.stopped_partitions], "verbs": ["get", "patch"]},
        # A Role cannot name pods that do not exist yet: admission has to bound this.
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    ]


class LeaseStore(Store):
    """`fleet.slots.store.Store` in one namespace; thread-safe.

    Raises SchemaTooNew where a newer version wrote an object, Unreachable where the server does
    not answer within about five seconds, refuses, or an object that is made beforehand is missing.
    """

    unmanaged = True
    report_every = 60.0

    def __init__(self, backend: LeaseBackend, *, clock: Clock) -> None:
        super().__init__(backend, clock=clock)
        self.leases = backend

    @classmethod
    def for_manager(cls, api: Api, *, cluster: str, clock: Clock, lease: float) -> Self:
        """Opens the store of all groups. lease: seconds, for readers of the Leases."""
        backend = LeaseBackend(api.brisk(), cluster=cluster, clock=clock, lease=lease)
        return cls(backend, clock=clock)

    @classmethod
    def for_worker(
        cls, api: Api, *, cluster: str, group: str, revision: str, lease: float, clock: Clock
    ) -> Self:
        """Opens the store of one group for one of its workers.

        revision: raw (`<revision>~<pod-template-hash>`).
        """
        backend = LeaseBackend(
            api.brisk(), cluster=cluster, clock=clock, lease=lease, worker=revision
        )
        backend.follow(group)
        return cls(backend, clock=clock)

    # --- templates, pods that go, the first opening -------------------------------------------

    def templates(self, group: str) -> Mapping[str, str]:
        """Returns pod-template hash → revision of rendered templates."""
        return dict(self.leases.targets_lease(group).templates.known)

    def register_template(self, group: str, template_hash: str, revision: str) -> None:
        """Records that pods of this template run this published revision."""
        names = self.leases.names(group)

        def edit(found: Object) -> Object | None:
            targets = objects.targets_from(found, group)
            if targets.templates.known.get(template_hash) == revision:
                return None
            return objects.with_targets(
                found, objects.with_template(targets, template_hash, revision)
            )

        blank = objects.blank(LEASE, names.targets, names)
        self.leases.edit_lease(group, names.targets, edit, new=blank)

    def retire(self, group: str, workers: Collection[str], *, there: Collection[str]) -> None:
        """Stops these workers from taking slots; forgets those that are not `there`.

        A drained pod of the revision that is wanted would else be the first to take the next slot,
        and be drained again when its removal comes.
        """

        def edit(record: SlotTargetsRecord) -> SlotTargetsRecord | None:
            going = frozenset(there) & (record.going | frozenset(workers))
            return None if going == record.going else replace(record, going=going)

        self._change_record(group, edit)

    def first_opening(self, group: str) -> FirstOpening | None:
        """Returns what opens by itself; None if targets were written, or nothing is declared."""
        targets = self.leases.targets_lease(group)
        return None if targets.record.targets.version else targets.first

    def rank(self, worker: str, *, owns: bool) -> None:
        """Writes the pod-deletion-cost: where replicas go down, standbys go before owners.

        Without the right to, any pod may go, and an owner hands its slot over.
        """
        cost = OWNER_COST if owns else STANDBY_COST
        patch = {"metadata": {"annotations": {COST_ANNOTATION: cost}}}
        with contextlib.suppress(Denied):
            self.leases.api.merge("Pod", worker, patch)

    def keep_reports(self, group: str, living: Callable[[], Collection[str]]) -> int:
        """Removes the reports of workers without a pod; returns how many.

        living: asked once the reports are read.
        """
        return self.leases.reports.keep(self.leases.names(group), living)

    def attend(self, group: str, slot: int | None) -> bool:
        """Watches the own slot and what is not at rest; None: all Leases of the group."""
        return self.leases.attend(group, slot)

    def since(self, group: str, template_hash: str, now: float) -> float:
        """Returns when the first worker of a pod template started; `now` if it is this one.

        Reports of a template that no pod runs any more are removed, so it is new when it returns.
        """
        told = self.leases.reports.read(self.leases.names(group)).values()
        same = [r for r in told if template_of(r.revision) == template_hash]
        return min((r.since for r in same if r.since is not None), default=now)

"""Makes one ConsumerFleet so, pass by pass: plan, carry out, report; at its end drain.

Problem: a resource may change, vanish or be wrong at any moment, several managers may act on its
group, and its author only sees the resource. Choice: a pass does what `fleet apply` does,
under the same lease of the group; what it finds goes into the status, and each decision becomes an
Event. A change that failed waits before the next try (`fleet.decide.refusals`). The children get an
ownerReference by a patch of their own, so that every manager may apply them again. Cost: a resource
that changes during a change waits for its end.
"""

import contextlib
import math
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fleet.act.runtime import OperatorOptions
from fleet.clock import Clock
from fleet.decide.refusals import pause_refusal, wait_left
from fleet.errors import ConfigError, FleetError, Refused, Unreachable
from fleet.kubernetes.client.api import Api, Object, again_on_conflict, new_object, timestamp
from fleet.kubernetes.client.object_names import (
    ACCESS,
    CHILDREN,
    GROUP_LABEL,
    SLOT_LABEL,
    ObjectNames,
)
from fleet.kubernetes.manifests.pod_template import runtime_of
from fleet.kubernetes.operator.resource import FINALIZER, KIND, DeclaredFleet, cluster_text, spec_of
from fleet.kubernetes.operator.status import FleetView, PassOutcome, news_of, status_of
from fleet.manager.cycle import Fleet
from fleet.model import Plan, ReceiptResult
from fleet.slots import Change, ChangeState
from fleet.text import duration

_STATUS_EVERY: Final = 60.0
"""Seconds between two writes of the status if only the lag changes."""
_SOON: Final = 5.0
"""Seconds until the next pass while another manager changes the group, or after an error."""
_LONGEST_EVENT: Final = 1000
_LONGEST_NAME: Final = 200


class Reconciler:
    """Keeps one ConsumerFleet. For one thread."""

    def __init__(
        self,
        api: Api,
        options: OperatorOptions,
        name: str,
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._api = api
        self._options = options
        self._clock = clock
        self._say = say
        self.where = f"{api.namespace}/{name}"
        self._fleet: Fleet | None = None
        self._opened_from: object = None
        self._has_adopted = False
        self._written: Object | None = None
        self._written_at = -math.inf
        self._labelled: dict[str, str] | None = None
        """Slot label of each pod that has one; None: not read yet."""
        self._last_event: tuple[str, str] = ("", "")

    def close(self) -> None:
        """Closes its connections; workers go on."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()

    def run(self, declared: DeclaredFleet, *, rival: str | None) -> float | None:
        """Makes one pass and returns the seconds until the next; None once the resource is gone.

        rival: an older ConsumerFleet of the same group.
        """
        try:
            if declared.is_deleted:
                return self._delete(declared)
            self._keep_finalizer(declared)
            try:
                if rival is None:
                    outcome = self._converge(declared)
                else:
                    said = f"ConsumerFleet {rival} has this group already"
                    outcome = _stalled("Conflict", said)
                self._publish(declared, outcome)
            except FleetError as error:
                self._fail(declared, error)
        except FleetError as error:  # of the API server; the next pass tries again
            self.say(str(error))
            return _SOON
        return self._next_pass()

    def say(self, text: str) -> None:
        """Writes a line about the resource."""
        self._say(f"{self.where}: {text}")

    def _next_pass(self) -> float:
        """Returns the seconds until the next pass, by what was reported last."""
        conditions = {c["type"]: c for c in (self._written or {}).get("conditions", ())}
        moves = conditions.get("Reconciling", {}).get("status") == "True"
        return _SOON if moves else self._options.interval

    # --- a pass -----------------------------------------------------------------------------

    def _converge(self, declared: DeclaredFleet) -> PassOutcome:
        """Plans, and carries the plan out."""
        fleet, group = self._open(declared), declared.group
        if declared.is_external and declared.replicas is None:
            return self._begin_external(declared, fleet)
        left = fleet.change(group)
        if left is not None and left.state is ChangeState.RUNNING:
            alive = fleet.change_alive(group)
            if alive is not False:
                said = f"{left.actor} is changing the group"
                return PassOutcome(reason="Changing", message=said, reconciling=True)
            return self._apply(declared, fleet)
        plan = fleet.plan(group)
        if not plan.steps:
            fleet.keep_current(plan)
            self._adopt(declared, fleet)
            return PassOutcome(reason="UpToDate", message=_at_rest(declared, plan))
        if plan.refusals:
            reason = _reason_of(fleet, group)
            said = f"holds {_steps_of(plan)}: {' '.join(plan.refusals)}"
            self._event(declared, reason, said, warns=True)
            return _stalled(reason, said)
        wait = wait_left(plan, fleet.readable_changes(group), fleet.clock.now())
        if wait and left is not None:
            said = f"{left.state}: {left.sentence}; next try in {duration(wait)}"
            return _stalled(_word_of(left.state), said)
        self._event(declared, "Planned", _steps_of(plan))
        return self._apply(declared, fleet)

    def _begin_external(self, declared: DeclaredFleet, fleet: Fleet) -> PassOutcome:
        """Writes the number of slots that an autoscaler begins with."""
        opened = fleet.targets(declared.group).open
        wanted = len(opened) or max(1, fleet.group(declared.group).replicas.min)
        self._api.merge(KIND, declared.name, {"spec": {"replicas": wanted}})
        said = f"spec.replicas begins with {wanted}"
        return PassOutcome(reason="Changing", message=said, reconciling=True)

    def _apply(self, declared: DeclaredFleet, fleet: Fleet) -> PassOutcome:
        def progress(sentence: str) -> None:
            self.say(sentence)
            if sentence.startswith("step "):
                self._event(declared, "Step", sentence)
                outcome = PassOutcome(reason="Changing", message=sentence, reconciling=True)
                with contextlib.suppress(FleetError):
                    self._publish(declared, outcome)

        self._has_adopted = False
        change = fleet.apply(declared.group, actor=self._options.actor, progress=progress)
        self._adopt(declared, fleet)
        return self._told(declared, change)

    def _told(self, declared: DeclaredFleet, change: Change) -> PassOutcome:
        """Writes the Events of a change that ended."""
        for receipt in change.receipts:
            if receipt.result is ReceiptResult.DIFFERS:
                said = (
                    f"step {receipt.step + 1} of plan {change.plan.id} cost {receipt.rebalances} "
                    f"rebalances, expected {receipt.expected_cost}. {' '.join(receipt.sentences)}"
                )
                self._event(declared, "ReceiptDiffers", said, warns=True)
        reason = _word_of(change.state)
        if change.state is ChangeState.DONE:
            if change.plan.steps:
                self._event(declared, reason, f"{_steps_of(change.plan)}: {change.sentence}")
            return PassOutcome(reason="UpToDate", message=change.sentence)
        self._event(declared, reason, change.sentence, warns=True)
        return _stalled(reason, f"{change.state}: {change.sentence}")

    def _open(self, declared: DeclaredFleet) -> Fleet:
        """Opens what the resource and its cluster's file say now."""
        text = cluster_text(self._options.clusters, declared.cluster)
        key = (text, declared.spec)
        if self._fleet is None or key != self._opened_from:
            spec = spec_of(declared, text, namespace=self._api.namespace)
            self.close()
            self._fleet = Fleet(
                spec=spec,
                config=Path(f"ConsumerFleet {self._api.namespace}/{declared.name}"),
                home=self._options.home / self._api.namespace / declared.name,
                bootstrap=spec.cluster.bootstrap_servers,
                environ=self._options.environ,
                clock=self._clock,
            )
            self._opened_from = key
            self._has_adopted = False
        return self._fleet

    # --- children ---------------------------------------------------------------------------

    def _children(self, fleet: Fleet, group: str) -> Iterator[tuple[str, Object]]:
        selector = ObjectNames(fleet.spec.cluster.name, group).of_group
        made_by_others = runtime_of(fleet.group(group)).service_account
        for kind in CHILDREN if made_by_others else (*CHILDREN, *ACCESS):
            for found in self._api.find(kind, selector)[0]:
                yield kind, found

    def _adopt(self, declared: DeclaredFleet, fleet: Fleet) -> None:
        """Makes the resource the owner of its objects: at first, and after each change."""
        if self._has_adopted:
            return
        mine = {**declared.identity(), "controller": True, "blockOwnerDeletion": False}
        for kind, found in self._children(fleet, declared.group):
            self._own(kind, found, mine)
        self._has_adopted = True

    def _own(self, kind: str, found: Object, mine: Object | None) -> None:
        """Writes the ownerReference of one object; None removes it."""
        owners = found["metadata"].get("ownerReferences") or []
        others = [each for each in owners if each.get("kind") != KIND]
        wanted = [*others, *([] if mine is None else [mine])]
        if wanted != owners:
            patch = {"metadata": {"ownerReferences": wanted}}
            self._api.merge(kind, found["metadata"]["name"], patch)

    # --- the end ----------------------------------------------------------------------------

    def _keep_finalizer(self, declared: DeclaredFleet) -> None:
        finalizers = declared.meta.get("finalizers") or []
        if FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            self._api.merge(KIND, declared.name, patch, seen=declared.found)

    def _delete(self, declared: DeclaredFleet) -> float | None:
        """Drains the workers, or leaves them; then lets the resource go."""
        if FINALIZER not in (declared.meta.get("finalizers") or ()):
            return None
        try:
            outcome = PassOutcome(reason="Deleting", message="workers drain", reconciling=True)
            self._write(declared, None, outcome)
            if declared.is_orphaning:
                self._leave_workers(declared)
            else:
                self._drain(declared)
            self._let_go(declared)
        except FleetError as error:
            self._fail(declared, error)
            return _SOON
        return None

    def _leave_workers(self, declared: DeclaredFleet) -> None:
        """Gives the children up; neither Kafka nor the cluster's file has to be there."""
        for kind in (*CHILDREN, *ACCESS):
            try:
                children = self._api.find(kind, GROUP_LABEL)[0]
            except Unreachable:
                raise
            except FleetError:
                if kind in CHILDREN:
                    raise
                continue  # this login may not look at accounts, so it made none
            for found in children:
                owners = found["metadata"].get("ownerReferences") or ()
                if any(each["uid"] == declared.meta["uid"] for each in owners):
                    self._own(kind, found, None)
        self._event(declared, "Orphaned", "the workers go on without a manager")

    def _drain(self, declared: DeclaredFleet) -> None:
        fleet, group = self._open(declared), declared.group
        fleet.abort_change(group, actor=self._options.actor)
        fleet.down(progress=self.say)
        for kind, found in list(self._children(fleet, group)):
            self._api.delete(kind, found["metadata"]["name"])
        if any(pause.group == group for pause in fleet.pauses()):
            fleet.store.resume(group)
        self._event(declared, "Drained", "all workers have left the group together")

    def _let_go(self, declared: DeclaredFleet) -> None:
        def remove() -> None:
            found = self._api.get(KIND, declared.name)
            if found is not None:
                kept = [e for e in found["metadata"].get("finalizers") or () if e != FINALIZER]
                patch = {"metadata": {"finalizers": kept}}
                self._api.merge(KIND, declared.name, patch, seen=found)

        again_on_conflict(self._clock, remove)
        self.close()

    # --- telling ----------------------------------------------------------------------------

    def _fail(self, declared: DeclaredFleet, error: FleetError) -> None:
        """Writes the error that ended a pass into the status."""
        outcome = _outcome_of(error)
        self.say(outcome.message)
        if not (outcome.unknown and outcome.reason == self._last_event[0]):  # its words vary
            self._event(declared, outcome.reason, outcome.message, warns=True)
        self._write(declared, None, outcome)

    def _publish(self, declared: DeclaredFleet, outcome: PassOutcome) -> None:
        view = None
        if self._fleet is not None:
            view = self._view(self._fleet, declared.group)
            self._label_owners(view)
        self._write(declared, view, outcome)

    def _label_owners(self, view: FleetView) -> None:
        """Labels the pods that own a slot, and no others."""
        api = self._api
        if self._labelled is None:
            found = (pod["metadata"] for pod in api.find("Pod", view.selector)[0])
            self._labelled = {meta["name"]: meta["labels"][SLOT_LABEL] for meta in found}
        wanted = {name: str(number) for name, number in view.owners.items()}
        for name in self._labelled.keys() | wanted.keys():
            if self._labelled.get(name) != wanted.get(name):
                api.merge("Pod", name, {"metadata": {"labels": {SLOT_LABEL: wanted.get(name)}}})
        self._labelled = wanted

    def _view(self, fleet: Fleet, group: str) -> FleetView:
        seen = fleet.snapshot([group]).groups.get(group)
        names = ObjectNames(fleet.spec.cluster.name, group)
        return FleetView(
            targets=fleet.targets(group),
            selector=f"{names.of_group},{SLOT_LABEL}",
            slots=fleet.slots(group),
            reports=fleet.reports(group),
            workers=fleet.workers(group),
            change=fleet.change(group),
            lag=None if seen is None else seen.lag,
            storm=fleet.last_storm(group) is not None,
        )

    def _write(self, declared: DeclaredFleet, view: FleetView | None, outcome: PassOutcome) -> None:
        """Writes the status if there is news, or if the lag has not been written for a minute."""
        now, at = self._clock.now(), self._clock.monotonic()
        if self._written is not None:
            declared.status = self._written
        status = status_of(declared, view, outcome, now=now)
        before = self._written or declared.status
        same = all(before.get(key) == value for key, value in news_of(status).items())
        late = at - self._written_at >= _STATUS_EVERY
        if same and (not late or before.get("lag") == status.get("lag", before.get("lag"))):
            return
        self._api.merge(KIND, declared.name, {"status": status}, part="status")
        self._written, self._written_at = {**before, **status}, at

    def _event(
        self, declared: DeclaredFleet, reason: str, message: str, *, warns: bool = False
    ) -> None:
        """Writes an Event, once for the same sentence in a row. A lost one stops nothing."""
        if (reason, message) == self._last_event:
            return
        self._last_event = (reason, message)
        now = timestamp(self._clock.now())
        namespace = self._api.namespace
        name = f"{declared.name[:_LONGEST_NAME]}.{uuid.uuid4().hex[:16]}"
        event = new_object(
            "Event",
            {"name": name, "namespace": namespace},
            involvedObject={**declared.identity(), "namespace": namespace},
            type="Warning" if warns else "Normal",
            reason=reason,
            message=message[:_LONGEST_EVENT],
            source={"component": "fleet-operator"},
            firstTimestamp=now,
            lastTimestamp=now,
            count=1,
        )
        with contextlib.suppress(FleetError):
            self._api.create(event)


def _stalled(reason: str, message: str) -> PassOutcome:
    return PassOutcome(reason=reason, message=message, stalled=True)


def _outcome_of(error: FleetError) -> PassOutcome:
    if isinstance(error, Unreachable):
        said = str(error)
        return PassOutcome(reason="Unreachable", message=said, reconciling=True, unknown=True)
    if isinstance(error, ConfigError):
        return _stalled("InvalidSpec", str(error))
    return _stalled("Refused" if isinstance(error, Refused) else "Failed", str(error))


def _at_rest(declared: DeclaredFleet, plan: Plan) -> str:
    if not declared.is_external or declared.replicas in {None, plan.wanted}:
        return "no change needed"
    return (
        f"spec.replicas is {declared.replicas}, but fleet.replicas and the partitions allow "
        f"{plan.wanted}"
    )


def _word_of(state: ChangeState) -> str:
    """Returns `RolledBack` for `rolled back`."""
    return state.value.title().replace(" ", "")


def _steps_of(plan: Plan) -> str:
    """Describes a plan with its expected costs."""
    return "; ".join(
        f"{step.sentence} (expected rebalances: {step.expected_cost})" for step in plan.steps
    )


def _reason_of(fleet: Fleet, group: str) -> str:
    """Names what holds a plan."""
    if pause_refusal(fleet.pauses(), group):
        return "Paused"
    return "Storm" if fleet.last_storm(group) else "Refused"

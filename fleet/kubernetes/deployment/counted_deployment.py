"""One Deployment's numbers: read, written on what was read, waited for until they count.

Problem: what is written to a Deployment means nothing before its controller has seen it, and where
only one template has pods it may see it and never act (`PodCounts.stuck`): no template starts any
more, whoever asks. And who changes `replicas` has the controller scale: with a cache in which one
ReplicaSet has not heard of that, it takes the next numbers, whatever they are for, as another
scaling, and spreads them over all templates. Choice: whoever goes on waits for the controller's own
record of what it saw and for the ReplicaSet of the template, and says of a stuck one what its
controller would have said; after a change of `replicas` every ReplicaSet is written once, so that a
controller that has not heard so far writes on an old version, in vain. Cost: some requests of 50 ms
each while a manager waits, and one for each template with pods after such a change.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.object_names import ASKED_ANNOTATION, ObjectNames
from fleet.kubernetes.deployment import pod_counts
from fleet.kubernetes.deployment.pod_counts import CountedReplicaSet, PodCounts

SEEN_SECONDS: Final = 180.0
"""For a controller to see what was written, or to delete a pod: milliseconds when it runs, half a
minute and more where the API server was away."""


class CountedDeployment:
    """The Deployment of one fleet."""

    def __init__(self, api: Api, names: ObjectNames, *, clock: Clock) -> None:
        self._api = api
        self._names = names
        self._clock = clock
        self._rescaled = False
        """Whether the last write changed `replicas`."""

    def look(self) -> tuple[Object | None, PodCounts | None]:
        """The Deployment and its shape now; None, None where there is none."""
        found = self._api.get("Deployment", self._names.deployment)
        if found is None:
            return None, None
        sets, _ = self._api.find("ReplicaSet", self._names.selection())
        return found, pod_counts.pod_counts_of(found, tuple(sets))

    def seen(self) -> tuple[Object, PodCounts]:
        """The same once its controller has seen what was written, and goes on from there.

        Raises FleetError where it does not.
        """
        deadline = self._clock.monotonic() + SEEN_SECONDS
        while True:
            found, shape = self.look()
            if found is not None and shape is not None and shape.observed:
                if shape.stuck:
                    self._unstick(shape.stuck, shape.replicas)
                elif not shape.settled:
                    self.check_started(shape)
                elif not shape.moves:
                    return found, shape
            if self._clock.monotonic() > deadline:
                raise FleetError(
                    f"the controller of Deployment {self._names.deployment} has not acted "
                    f"on it for {SEEN_SECONDS:.0f} s; see whether kube-controller-manager runs"
                )
            self._clock.sleep(0.05)

    def check_started(self, shape: PodCounts) -> None:
        """FleetError where somebody has paused it: a new template would not start."""
        if shape.paused:
            raise FleetError(
                f"Deployment {self._names.deployment} is paused, so that no new template starts: "
                f"kubectl rollout resume deployment/{self._names.deployment}"
            )

    def _unstick(self, its: CountedReplicaSet, replicas: int) -> None:
        notes = {pod_counts.DESIRED_ANNOTATION: str(replicas)}
        self._api.merge("ReplicaSet", its.name, {"metadata": {"annotations": notes}})

    def write(self, found: Object, fields: Mapping[str, object]) -> None:
        """These fields, where they differ. Raises Conflict where it is not as `found` any more."""
        if pod_counts.differs(found, fields):
            self._outdate()
            self._api.merge(
                "Deployment", self._names.deployment, {"spec": dict(fields)}, seen=found
            )
            self._rescaled = fields.get("replicas") != found["spec"].get("replicas")

    def apply(self, wanted: Object) -> None:
        """A rendered Deployment."""
        self._outdate()
        self._api.apply(wanted)

    def _outdate(self) -> None:
        """After a change of `replicas`: what its controller knows of a ReplicaSet is of use to it
        only once it has heard of this, and so of all that came before.
        """
        if not self._rescaled:
            return
        self._rescaled = False
        _, shape = self.look()
        for each in shape.sets if shape else ():
            if each.replicas:
                ask_again(self._api, each.name, now=self._clock.now())

    def write_both(self, found: Object, writes: tuple[Object, Object]) -> tuple[Object, PodCounts]:
        """The first (empty: none), and once it is seen the second; as it is then."""
        ahead, fields = writes
        if ahead:
            self.write(found, ahead)
            found, _ = self.seen()
        self.write(found, fields)
        return self.seen()


def ask_again(api: Api, replica_set: str, *, now: float) -> None:
    """Have a ReplicaSet's controllers look at it: any change of it does. now: wall time."""
    at = datetime.fromtimestamp(now, tz=UTC).isoformat(timespec="milliseconds")
    api.merge("ReplicaSet", replica_set, {"metadata": {"annotations": {ASKED_ANNOTATION: at}}})

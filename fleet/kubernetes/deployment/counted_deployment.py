"""One Deployment's numbers: read, written on what was read, waited for until they count.

Problem: what is written to a Deployment means nothing before its controller has seen it, and where
only one template has pods it may see it and never act (`PodCounts.stuck`): no template starts any
more, whoever asks. Choice: whoever goes on waits for the controller's own record of what it saw and
for the ReplicaSet of the template, and says of a stuck one what its controller would have said.
Cost: some requests of 50 ms each while a manager waits.
"""

from collections.abc import Mapping
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.object_names import ObjectNames
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
            self._api.merge(
                "Deployment", self._names.deployment, {"spec": dict(fields)}, seen=found
            )

    def write_both(self, found: Object, writes: tuple[Object, Object]) -> tuple[Object, PodCounts]:
        """The first (empty: none), and once it is seen the second; as it is then."""
        ahead, fields = writes
        if ahead:
            self.write(found, ahead)
            found, _ = self.seen()
        self.write(found, fields)
        return self.seen()

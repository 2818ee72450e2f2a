"""Pods that were asked for, until they exist or the cluster has said that they will not.

Problem: whether a pod may exist is decided at its admission (quota, webhook, policy), long after a
Deployment has taken its new number; its ReplicaSet goes on trying, ever more rarely, for as long as
it wants the pod. Choice: a ReplicaSet whose condition says so, and that makes none for a few
seconds, is believed; it is made to try every second meanwhile, and is waited for as long as pods
are on their way out, whose places will be free. Cost: one small write a second, only while refused.
"""

from collections.abc import Callable, Sequence
from typing import Final

from fleet.clock import Clock
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.pod_informer import PodInformer
from fleet.kubernetes.deployment.counted_deployment import ask_again
from fleet.kubernetes.deployment.pod_counts import CountedReplicaSet, set_of
from fleet.kubernetes.deployment.pod_status import hash_of, is_gone, is_marked

_MADE_SECONDS: Final = 30.0
"""For the next pod to exist, not to run, where nobody says why it does not."""
_REFUSED_SECONDS: Final = 5.0
"""The same where it is refused: a webhook that is only being restarted is waited for."""
_LEAVING_SECONDS: Final = 180.0
"""The same while pods are on their way out: the longest grace and some more."""
_PAUSE: Final = 1.0


class PodCreation:
    """The pods that one ReplicaSet wants now."""

    def __init__(
        self,
        api: Api,
        pods: PodInformer,
        wanted: CountedReplicaSet,
        *,
        settle: Callable[[], object],
        clock: Clock,
    ) -> None:
        self._api = api
        self._mirror = pods
        self._wanted = wanted
        self._settle = settle
        self._clock = clock

    def names(self, pods: Sequence[Object]) -> list[str]:
        """Of its pods that are there."""
        its = [p for p in pods if hash_of(p) == self._wanted.hash and not is_gone(p)]
        return [p["metadata"]["name"] for p in its]

    def wait(self, pods: Callable[[], Sequence[Object]]) -> str | None:
        """Until all are there: None; else why there are no more. `pods`: the fleet's now."""
        seen: object = None
        since = refused_since = self._clock.monotonic()
        refused: str | None = None
        while True:
            if self._mirror.wait(self._all_there, seconds=_PAUSE):
                return None
            now, there = self._clock.monotonic(), pods()
            leaving = [p["metadata"]["name"] for p in there if _goes(p)]
            if (mark := (self.names(there), leaving)) != seen:
                seen, since, refused_since = mark, now, now
            told = self._refusal()
            if told is None or refused is None:
                refused_since = now
            refused = told
            if leaving:
                self._settle()
                limit = _LEAVING_SECONDS
            else:
                limit = _MADE_SECONDS
            if refused is not None:
                if not leaving and now - refused_since >= _REFUSED_SECONDS:
                    return refused
                self._try_again()
            if now - since >= limit:
                return refused or f"none more within {limit:.0f} s, and nobody says why"

    def _all_there(self, items: Sequence[Object]) -> bool:
        return len(self.names(items)) >= self._wanted.replicas

    def _refusal(self) -> str | None:
        found = self._api.get("ReplicaSet", self._wanted.name)
        return set_of(found).refused if found is not None else None

    def _try_again(self) -> None:
        """Any change makes its controller try at once; else it waits twice as long each time."""
        ask_again(self._api, self._wanted.name, now=self._clock.now())


def _goes(pod: Object) -> bool:
    """Whether its place will be free."""
    return "deletionTimestamp" in pod["metadata"] or (is_marked(pod) and not is_gone(pod))

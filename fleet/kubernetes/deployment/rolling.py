"""One fleet's Deployment while a manager acts: so many more of a revision, exactly these less.

Problem: a manager thinks in workers by name, a Deployment in numbers of one template. Choice: what
is asked for is written where it survives the manager (a mark on each pod that shall go), then done
as soon as it is exact: a ReplicaSet deletes the pods of the lowest deletion cost, but ranks pods
that are not Ready before all others, so numbers go down only while every pod that stays is Ready.
Its controller ranks what it has heard of pods, by a watch of its own, which is seconds behind where
the API server was away: the mark takes a label of the template from the pod, and the ReplicaSet's
status tells how many pods have all of them, so that it is known when the mark was heard. Which pods
went is looked at afterwards, and others than those asked for are an error. `pod_counts` says which
numbers. Cost: a removal waits for pods that are starting, and for that watch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.errors import FleetError, NoRoom
from fleet.kubernetes.client.api import Api, Conflict, Object, again_on_conflict
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import (
    ASKED_ANNOTATION,
    COST_ANNOTATION,
    DRAINED_ANNOTATION,
    MANAGED_LABEL,
    UNMANAGED_ANNOTATION,
    ObjectNames,
)
from fleet.kubernetes.deployment import pod_counts, pod_status
from fleet.kubernetes.deployment.pod_counts import (
    CountedReplicaSet,
    PodCounts,
    RegisteredTemplates,
    set_of,
)
from fleet.kubernetes.deployment.pod_status import hash_of, is_gone, is_marked
from fleet.kubernetes.manifests import deployment_objects

# One Deployment's numbers: read, written on what was read, waited for until they count.
#
# Problem: what is written to a Deployment means nothing before its controller has seen it, and
# where only one template has pods it may see it and never act (`PodCounts.stuck`): no template
# starts any more, whoever asks. And who changes `replicas` has the controller scale: with a cache
# in which one ReplicaSet has not heard of that, it takes the next numbers, whatever they are for,
# as another scaling, and spreads them over all templates. Choice: whoever goes on waits for the
# controller's own record of what it saw and for the ReplicaSet of the template, and says of a
# stuck one what its controller would have said; after a change of `replicas` every ReplicaSet is
# written once, so that a controller that has not heard so far writes on an old version, in vain.
# Cost: some requests of 50 ms each while a manager waits, and one for each template with pods
# after such a change.


SEEN_SECONDS: Final = 180.0
"""For a controller to see what was written, or to delete a pod: milliseconds when it runs, half a
minute and more where the API server was away."""


class CountedDeployment:
    """Reads and writes the Deployment of one fleet."""

    def __init__(self, api: Api, names: ObjectNames, *, clock: Clock) -> None:
        self._api = api
        self._names = names
        self._clock = clock
        self._rescaled = False
        """Whether the last write changed `replicas`."""

    def look(self) -> tuple[Object | None, PodCounts | None]:
        """Reads the Deployment and its counts; None, None if there is none."""
        found = self._api.get("Deployment", self._names.deployment)
        if found is None:
            return None, None
        sets, _ = self._api.find("ReplicaSet", self._names.selection())
        return found, pod_counts.pod_counts_of(found, tuple(sets))

    def seen(self) -> tuple[Object, PodCounts]:
        """Waits until the controller has processed all writes; returns the same.

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
                    f"the controller of Deployment {self._names.deployment} did nothing for "
                    f"{SEEN_SECONDS:.0f} s; check that kube-controller-manager runs"
                )
            self._clock.sleep(0.05)

    def check_started(self, shape: PodCounts) -> None:
        """Raises FleetError if it is paused, since a new template would not start."""
        if shape.paused:
            raise FleetError(
                f"Deployment {self._names.deployment} is paused, so that no new template starts; "
                "run "
                f"kubectl rollout resume deployment/{self._names.deployment}"
            )

    def _unstick(self, its: CountedReplicaSet, replicas: int) -> None:
        notes = {pod_counts.DESIRED_ANNOTATION: str(replicas)}
        self._api.merge("ReplicaSet", its.name, {"metadata": {"annotations": notes}})

    def write(self, found: Object, fields: Mapping[str, object]) -> None:
        """Writes fields that differ. Raises Conflict if the Deployment changed since `found`."""
        if pod_counts.differs(found, fields):
            self._outdate()
            self._api.merge(
                "Deployment", self._names.deployment, {"spec": dict(fields)}, seen=found
            )
            self._rescaled = fields.get("replicas") != found["spec"].get("replicas")

    def apply(self, wanted: Object) -> None:
        """Applies a rendered Deployment."""
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
        """Writes the first fields (empty: none), waits, then the second; returns the result."""
        ahead, fields = writes
        if ahead:
            self.write(found, ahead)
            found, _ = self.seen()
        self.write(found, fields)
        return self.seen()


def ask_again(api: Api, replica_set: str, *, now: float) -> None:
    """Changes a ReplicaSet so that its controllers process it. now: wall time."""
    at = datetime.fromtimestamp(now, tz=UTC).isoformat(timespec="milliseconds")
    api.merge("ReplicaSet", replica_set, {"metadata": {"annotations": {ASKED_ANNOTATION: at}}})


# Pods that were asked for, until they exist or the cluster has said that they will not.
#
# Problem: whether a pod may exist is decided at its admission (quota, webhook, policy), long after
# a Deployment has taken its new number; its ReplicaSet goes on trying, ever more rarely, for as
# long as it wants the pod. Choice: a ReplicaSet whose condition says so, and that makes none for a
# few seconds, is believed; it is made to try every second meanwhile, and is waited for as long as
# pods are on their way out, whose places will be free. Cost: one small write a second, only while
# refused.


_MADE_SECONDS: Final = 30.0
"""For the next pod to exist, not to run, where nobody says why it does not."""
_REFUSED_SECONDS: Final = 5.0
"""The same where it is refused: a webhook that is only being restarted is waited for."""
_LEAVING_SECONDS: Final = 180.0
"""The same while pods are on their way out: the longest grace and some more."""
_PAUSE: Final = 1.0


class PodCreation:
    """Waits for the pods that one ReplicaSet wants."""

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
        """Returns the names of its existing pods."""
        its = [p for p in pods if hash_of(p) == self._wanted.hash and not is_gone(p)]
        return [p["metadata"]["name"] for p in its]

    def wait(self, pods: Callable[[], Sequence[Object]]) -> str | None:
        """Waits for all pods; returns None, or why there are no more. `pods`: the fleet's."""
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
                return refused or f"no more within {limit:.0f} s, without a reason"

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


FIRST_TO_GO: Final = "-1000"
_HEARD_SECONDS: Final = 2.0
"""For a ReplicaSet's controller to hear of a mark while the caller waits; longer, and it looks
again later."""


class Rolling:
    """Reads and writes the Deployment of one fleet. Not for several threads."""

    def __init__(
        self,
        api: Api,
        names: ObjectNames,
        *,
        pods: PodInformer,
        templates: RegisteredTemplates,
        clock: Clock,
    ) -> None:
        self._api = api
        self._names = names
        self._mirror = pods
        self._clock = clock
        self._numbers = CountedDeployment(api, names, clock=clock)
        self.templates = templates

    # --- looking ----------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        """Returns the fleet's last known pods."""
        wanted = self._names.selector().items()
        return [p for p in self._mirror.items() if wanted <= p["metadata"]["labels"].items()]

    def look(self) -> tuple[Object | None, PodCounts | None]:
        """Reads the Deployment and its counts; None, None if there is none."""
        return self._numbers.look()

    # --- more -------------------------------------------------------------------------------

    def start(self, settings: WorkerSettings, *, count: int) -> tuple[str, ...]:
        """Starts `count` more pods of a revision; returns their names.

        Raises NoRoom with the cluster's words where it does not make them; it is not asked for
        more than it has made, then.
        """
        before = self.pods()
        asked: dict[str, int] = {}
        again_on_conflict(self._clock, lambda: self._have_template(settings, count, before, asked))
        return self._await_pods(before)

    def start_more(self, hash_: str, count: int) -> tuple[str, ...]:
        """Starts more pods of the Deployment's own template; () if it is another."""
        before = self.pods()
        wanted = len(self._living(hash_)) + count

        def once() -> bool:
            if self.look()[0] is None:
                return False
            found, shape = self._numbers.seen()
            if shape.current is None or shape.current.hash != hash_:
                return False
            self._have(found, shape, wanted)
            return True

        return self._await_pods(before) if again_on_conflict(self._clock, once) else ()

    def _have_template(
        self,
        settings: WorkerSettings,
        count: int,
        before: Sequence[Object],
        asked: dict[str, int],
    ) -> None:
        """`count` more of the settings' template, registered before anybody counts on it.

        before: the pods then. asked: so many pods of which hash; counted once, since a write
        without an answer makes some.
        """
        found, shape = self.look()
        wanted = deployment_objects.deployment(settings, replicas=count)
        if found is None or shape is None:
            self._numbers.apply(wanted)
        found, shape = self._numbers.seen()
        if not self._is_template(settings.revision, shape, found, wanted):
            self._numbers.check_started(shape)
            ahead, fields = pod_counts.ahead_of(shape, count)
            if ahead:
                self._numbers.write(found, ahead)
                self._numbers.seen()
            self._numbers.apply(pod_counts.with_fields(wanted, fields))
        found, shape = self._numbers.seen()
        assert shape.current is not None
        hash_ = shape.current.hash
        if hash_ not in asked:
            # Started by one who was killed before it said so: nobody has counted those.
            unsaid = shape.frozen and not self._registered(shape, settings.revision)
            asked[hash_] = count + (0 if unsaid else len(_living(before, hash_)))
        self.templates.register(hash_, settings.revision)
        self._have(found, shape, asked[hash_])

    def recognise(self, settings: WorkerSettings) -> None:
        """Registers the Deployment's template if these settings render it."""
        found, shape = self.look()
        if found is None or shape is None or shape.current is None or not shape.settled:
            return
        told, current = settings.revision, shape.current
        if current.revision != told or self._registered(shape, told):
            return
        wanted = deployment_objects.deployment(settings, replicas=shape.replicas)
        if self._is_template(told, shape, found, wanted):
            self.templates.register(current.hash, told)

    def _registered(self, shape: PodCounts, revision: str) -> bool:
        known = self.templates.known([each.hash for each in shape.sets])
        return shape.current is not None and known.get(shape.current.hash) == revision

    def _is_template(self, revision: str, shape: PodCounts, found: Object, wanted: Object) -> bool:
        """Whether the Deployment's template is the wanted one already, by whatever name."""
        if self._registered(shape, revision):
            return True
        same = pod_counts.with_fields(wanted, pod_counts.fields_of(found))
        tried = self._api.apply(same, trial=True)
        return bool(tried["spec"]["template"] == found["spec"]["template"])

    def _have(self, found: Object, shape: PodCounts, wanted: int) -> None:
        """So many pods of the current template, never so many more: what was asked for before
        and refused is not asked for twice. In steps: see `pod_counts.grow`.
        """
        while shape.current is not None and (more := wanted - shape.current.replicas) > 0:
            had = shape.current
            found, shape = self._numbers.write_both(found, pod_counts.grow(shape, more))
            if shape.current is None or shape.current.replicas <= had.replicas:
                raise Conflict(f"ReplicaSet {had.name} stays at {had.replicas} pods")

    def _await_pods(self, before: Sequence[Object]) -> tuple[str, ...]:
        """Names that are new, once the current template has all its pods."""
        _, shape = self._numbers.seen()
        current = shape.current
        assert current is not None
        making = PodCreation(
            self._api, self._mirror, current, settle=self.settle, clock=self._clock
        )
        refused = making.wait(self.pods)
        there = {p["metadata"]["name"] for p in before}
        made = tuple(n for n in making.names(self.pods()) if n not in there)
        if refused is None:
            return made
        created = f"{len(making.names(self.pods()))} of {current.replicas} pods of Deployment "
        created += f"{self._names.deployment} were created: {refused}"
        again_on_conflict(self._clock, lambda: self._forgo(current.hash))
        raise NoRoom(created, started=made)

    def _forgo(self, hash_: str) -> None:
        """Want no more pods of a template than there are; held beside others it may be one more."""
        found, shape = self._numbers.seen()
        its, living = shape.of(hash_), self._living(hash_)
        if its is None or not its.is_short(living):
            return
        if not shape.others:
            self._numbers.write(found, pod_counts.at_rest(len(living)))
            return
        missing = its.replicas - len(living)
        of_it = shape.current is not None and shape.current.hash == hash_
        both = (missing, 0) if of_it else (0, missing)
        self._numbers.write_both(found, pod_counts.before_shrinking(shape, *both))
        self._api.merge("ReplicaSet", its.name, {"spec": {"replicas": len(living)}})

    # --- less -------------------------------------------------------------------------------

    def mark(self, names: Collection[str]) -> None:
        """Marks pods for removal, which `settle` performs."""
        now = datetime.fromtimestamp(self._clock.now(), tz=UTC).isoformat(timespec="seconds")
        notes = {DRAINED_ANNOTATION: now, COST_ANNOTATION: FIRST_TO_GO}
        patch = {"metadata": {"annotations": notes, "labels": {MANAGED_LABEL: None}}}
        there = {p["metadata"]["name"] for p in self.pods() if not pod_status.is_leaving(p)}
        for name in sorted(there & set(names)):
            self._mirror.written(self._api.merge("Pod", name, patch))

    def settle(self) -> tuple[str, ...]:
        """Removes marked pods as far as exactly these can go; returns sentences on the others.

        Raises FleetError where other pods went than those asked for.
        """
        if not self._marked():
            return ()
        return again_on_conflict(self._clock, self._settle_once)

    def _marked(self) -> list[Object]:
        return [p for p in self.pods() if pod_status.is_marked(p) and not pod_status.is_gone(p)]

    def _settle_once(self) -> tuple[str, ...]:
        marked = self._marked()
        if not marked or self.look()[0] is None:
            return ()
        found, shape = self._numbers.seen()
        if shape.others and not shape.frozen:
            self._numbers.write(found, pod_counts.freeze(shape))
            found, shape = self._numbers.seen()
        if shape.others and self._all_marked(shape):
            self.go_back(found, shape)
            found, shape = self._numbers.seen()
        found, shape = self._heard(found, shape, marked)
        going, waiting = self._exact(shape, marked)
        if shape.others:
            going, later = pod_counts.at_once(shape, going)
            if later:
                waiting += (f"{', '.join(later)}: after pods of other templates",)
        if not going:
            return waiting
        asked = {name for names in going.values() for name in names}
        watched = self._staying_beside(asked)
        if shape.others:
            self._shrink_sets(found, shape, going)
        else:  # one template: it may keep itself, with as many as stay
            have = len(self._living(shape.current.hash)) if shape.current else 0
            self._numbers.write(found, pod_counts.at_rest(have - sum(map(len, going.values()))))
        self._check_gone(asked, watched)
        return waiting

    def _heard(
        self, found: Object, shape: PodCounts, marked: Sequence[Object]
    ) -> tuple[Object, PodCounts]:
        """The same, once the marked pods' controllers know of their pods what we do, or later."""
        deadline = self._clock.monotonic() + _HEARD_SECONDS
        while self._clock.monotonic() < deadline:
            sets = [shape.of(hash_) for hash_ in {pod_status.hash_of(pod) for pod in marked}]
            if all(its is None or its.knows(self._living(its.hash)) for its in sets):
                break
            self._clock.sleep(0.03)
            found, shape = self._numbers.seen()
        return found, shape

    def _living(self, hash_: str) -> list[Object]:
        return _living(self.pods(), hash_)

    def _all_marked(self, shape: PodCounts) -> bool:
        """Whether the current template is given up: all of its pods shall go."""
        hash_ = shape.current.hash if shape.current else ""
        of_it = self._living(hash_)
        return bool(of_it) and all(pod_status.is_marked(p) for p in of_it)

    def _exact(
        self, shape: PodCounts, marked: Sequence[Object]
    ) -> tuple[dict[str, list[str]], tuple[str, ...]]:
        """Names that may go now by their template's hash, and what holds the others up."""
        going: dict[str, list[str]] = {}
        waiting: list[str] = []
        for hash_ in sorted({pod_status.hash_of(p) for p in marked}):
            living = self._living(hash_)
            names = [p["metadata"]["name"] for p in living if pod_status.is_marked(p)]
            staying = [p for p in living if not pod_status.is_marked(p)]
            starting = sorted(p["metadata"]["name"] for p in staying if not pod_status.is_ready(p))
            its = shape.of(hash_)
            if its is None or not (its.replicas == len(living) or its.is_short(living)):
                waiting.append(f"{', '.join(names)}: its ReplicaSet is creating or stopping others")
            elif starting:
                waiting.append(f"{', '.join(names)}: {', '.join(starting)} is not ready yet")
            elif not its.knows(living):
                waiting.append(f"{', '.join(names)}: its controller has not seen it yet")
            else:
                going[hash_] = names
        return going, tuple(waiting)

    def _shrink_sets(self, found: Object, shape: PodCounts, going: Mapping[str, list[str]]) -> None:
        both = pod_counts.going_of_both(shape, going)
        _, shape = self._numbers.write_both(found, pod_counts.before_shrinking(shape, *both))
        sets, _ = self._api.find("ReplicaSet", self._names.selection())
        for hash_, names in going.items():
            its, living = shape.of(hash_), self._living(hash_)
            raw = next(
                (each for each in sets if its and each["metadata"]["name"] == its.name), None
            )
            # On what was read: a status that its controller has changed since is a conflict.
            if (
                its is None
                or raw is None
                or its.replicas != int(raw["spec"]["replicas"])
                or not pod_counts.set_of(raw).knows(living)
            ):
                raise Conflict(f"ReplicaSet {hash_} of {self._names.deployment} changed meanwhile")
            patch = {"spec": {"replicas": len(living) - len(names)}}
            self._api.merge("ReplicaSet", its.name, patch, seen=raw)

    def _staying_beside(self, asked: Collection[str]) -> dict[str, Object]:
        """These and all that nobody has asked to go: of others that were, any may go meanwhile."""
        living = {p["metadata"]["name"]: p for p in self.pods() if not pod_status.is_gone(p)}
        return {n: p for n, p in living.items() if n in asked or not pod_status.is_marked(p)}

    def _check_gone(self, asked: Collection[str], watched: Mapping[str, Object]) -> None:
        """Just those asked for went; what somebody evicted meanwhile is that one's affair."""

        def done(items: Sequence[Object]) -> bool:
            went = pod_status.gone_of(watched, items)
            return set(asked) <= went or len(went) >= len(asked)

        self._mirror.wait(done, seconds=SEEN_SECONDS)
        went = pod_status.gone_of(watched, self.pods())
        others, kept = sorted(went - set(asked)), sorted(set(asked) - went)
        if others or kept:
            raise FleetError(
                f"Fleet asked Kubernetes to remove {', '.join(sorted(asked))} of Deployment "
                f"{self._names.deployment}, but it "
                + (f"removed {', '.join(others)}" if others else "did not remove all of them")
                + (f" and kept {', '.join(kept)}" if kept else "")
            )

    # --- the end of a change ----------------------------------------------------------------

    def go_back(self, found: Object, shape: PodCounts) -> None:
        """Restores the template that most other pods run, with as many pods as there
        are of other templates: none of those comes in the place of what is given up.
        """
        if fields := pod_counts.without_current(shape):
            self._numbers.write(found, fields)
            _, shape = self._numbers.seen()
        back = max(shape.others, key=lambda each: (each.replicas, each.order))
        sets, _ = self._api.find("ReplicaSet", self._names.selection())
        old = next(each for each in sets if each["metadata"]["name"] == back.name)
        fields = pod_counts.freeze_for_others(shape)
        self._numbers.apply(
            deployment_objects.deployment_again(
                self._names, self._api.namespace, old, fields=fields
            )
        )

    def _give_up_current(self, shape: PodCounts) -> None:
        """Back to the template of most other pods; where no pod runs another, it stays as it is."""
        for each in shape.others:  # those deleted and refused since are not wanted
            self._forgo(each.hash)
        found, shape = self._numbers.seen()
        if shape.others:
            self.go_back(found, shape)

    def finish_removals(
        self, *, give_up: Callable[[str], bool] | None = None, unfreeze: bool = True
    ) -> None:
        """Unfreezes the Deployment when no other template has pods.

        give_up: an unfinished roll ends where it stands; asked of the current template's hash:
        whether it goes back, since no slot runs it.
        unfreeze: also one whose template is in use: its controller then goes on by itself.
        """
        went_back = False  # written again after a conflict: what it went back to is not given up

        def once() -> None:
            nonlocal went_back
            _, shape = self.look()
            if shape is None or not shape.frozen:
                return
            found, shape = self._numbers.seen()
            if shape.others and give_up is None:
                return
            if shape.others and give_up is not None and shape.current is not None:
                if not went_back and give_up(shape.current.hash):
                    self._give_up_current(shape)
                    went_back = True
                elif not (went_back or unfreeze):
                    return
                found, shape = self._numbers.seen()
            self._numbers.write(found, pod_counts.unfreeze(shape))
            if not shape.others:
                self._numbers.seen()  # of what its controller is to start by itself from here on

        again_on_conflict(self._clock, once)

    def frozen(self) -> str | None:
        """Describes a frozen Deployment by its templates with pods; None if it is not frozen."""
        found, shape = self.look()
        if found is None or shape is None or not shape.frozen:
            return None
        known = self.templates.known([each.hash for each in shape.sets])
        there = {
            known.get(each.hash) or each.revision or each.hash: len(self._living(each.hash))
            for each in shape.sets
            if each.replicas
        }
        pods = " and ".join(f"{count} pods of {revision}" for revision, count in there.items())
        return f"Deployment {self._names.deployment} is frozen with {pods or 'no pods'}"

    def unmanage(self, at: str) -> None:
        """Gives up the ownership of all fields, with a time stamp."""
        self._annotate(at)
        # An empty entry is how the server is told to forget every field's manager.
        self._api.merge("Deployment", self._names.deployment, {"metadata": {"managedFields": [{}]}})

    def manage(self) -> None:
        """Removes the annotation of `unmanage`."""
        self._annotate(None)

    def _annotate(self, unmanaged_since: str | None) -> None:
        metadata = {"annotations": {UNMANAGED_ANNOTATION: unmanaged_since}}
        self._api.merge("Deployment", self._names.deployment, {"metadata": metadata})

    def stop(self) -> None:
        """Removes the pods of all templates."""

        def once() -> None:
            found, _ = self.look()
            if found is not None:
                self._numbers.write(found, pod_counts.at_rest(0))

        again_on_conflict(self._clock, once)


def _living(pods: Sequence[Object], hash_: str) -> list[Object]:
    return [p for p in pods if pod_status.hash_of(p) == hash_ and not pod_status.is_gone(p)]

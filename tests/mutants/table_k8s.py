"""Faults on Kubernetes: taking slots, a Deployment's numbers, removals, waiting for the server."""

from tests.mutants.mutant import Mutant

_TAKING = ("tests/k8s_store/test_acquire_in_memory.py",)
_ROLLING = ("tests/kubernetes/test_rolling_in_memory.py",)
_SHAPES = ("tests/kubernetes/test_pod_counts.py",)
_SHELF = ("tests/k8s_store/test_retry_on_conflict.py",)
_REVISIONS = ("tests/k8s_store/test_lease_objects.py",)

MUTANTS = (
    # --- taking ---------------------------------------------------------------------------------
    Mutant(
        name="k8s-take-of-one-asked-to-go",
        file="fleet/slots/transitions.py",
        old="if worker in record.going or (pinned is not None and pinned.revision != revision):",
        new="if pinned is not None and pinned.revision != revision:",
        tests=_TAKING,
    ),
    Mutant(
        name="k8s-lease-that-is-not-there-is-a-loss",
        file="fleet/kubernetes/leases/lease_backend.py",
        old="if found is None and fresh and self._own is not None:",
        new="if found is None and fresh and self._own is not None and key.number < 0:",
        tests=_TAKING,
    ),
    Mutant(
        name="k8s-published-revision-stored-over-the-raw-one",
        file="fleet/kubernetes/leases/lease_backend.py",
        old="            slot = replace(slot, revision=before.revision)\n",
        new="            pass\n",
        tests=_TAKING,
    ),
    Mutant(
        name="k8s-conflict-taken-for-stored",
        file="fleet/kubernetes/leases/lease_backend.py",
        old="            return self.shelf.swap(wanted)\n",
        new="            try:\n                return self.shelf.swap(wanted)\n"
        "            except Exception:\n                return wanted\n",
        tests=_TAKING,
    ),
    Mutant(
        name="k8s-take-given-back-with-its-old-token",
        file="fleet/slots/transitions.py",
        old="return replace(before, holder=None, token=stored.token, phase=phase)",
        new="return replace(before, holder=None, phase=phase)",
        tests=_TAKING,
    ),
    Mutant(
        name="k8s-release-told-free-before-the-leave",
        file="fleet/slots/transitions.py",
        old="    (Phase.CLOSED, Event.RELEASE): Phase.CLOSED,",
        new="    (Phase.CLOSED, Event.RELEASE): Phase.FREE,",
        tests=_TAKING,
    ),
    # --- the shelf, and waiting -------------------------------------------------------------------
    Mutant(
        name="k8s-swap-answer-lost-is-a-conflict",
        file="fleet/kubernetes/leases/retry_on_conflict.py",
        old="if stored is not None and not same_state(stored, wanted):",
        new="if stored is not None:",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-swap-answer-lost-is-success",
        file="fleet/kubernetes/leases/retry_on_conflict.py",
        old="if stored is not None and not same_state(stored, wanted):",
        new="if stored is not None and same_state(stored, wanted) is None:",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-change-decided-on-an-old-version",
        file="fleet/slots/group_objects.py",
        old="    for _ in turns:\n        found = read(fresh)\n",
        new="    found = read(fresh)\n    for _ in turns:\n",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-replacement-repeated",
        file="fleet/kubernetes/client/calls.py",
        old="if not request.repeat:  # its caller looks what came of it: that call tells",
        new="if not request.repeat and probing:",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-compared-patch-repeated",
        file="fleet/kubernetes/client/calls.py",
        old="                repeat=not compared,\n",
        new="",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-breaker-never-closes",
        file="fleet/kubernetes/client/calls.py",
        old="            if now < self._down_until:\n",
        new="            if now < self._down_until + COOL * COOL:\n",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-refused-is-an-answer-of-the-store",
        file="fleet/kubernetes/client/calls.py",
        old="                if isinstance(refused, Conflict):\n                    self._answered()\n",
        new="                self._answered()\n",
        tests=_SHELF,
    ),
    Mutant(
        name="k8s-patience-begins-a-change-twice",
        file="fleet/kubernetes/leases/patient_store.py",
        old="if late or not self._answered or name in _ONCE:",
        new="if late or not self._answered:",
        tests=("tests/kubernetes/test_patient_store.py",),
    ),
    Mutant(
        name="k8s-patience-never-ends",
        file="fleet/kubernetes/leases/patient_store.py",
        old="late = self._clock.monotonic() >= deadline",
        new="late = self._clock.monotonic() >= deadline + 10 * LONGEST_WAIT",
        tests=("tests/kubernetes/test_patient_store.py",),
    ),
    # --- revisions ------------------------------------------------------------------------------
    Mutant(
        name="k8s-foreign-template-is-ours",
        file="fleet/kubernetes/leases/pod_revisions.py",
        old="return published if mark and self.known.get(found) == published else revision",
        new="return published if mark and found in self.known else revision",
        tests=_REVISIONS,
    ),
    Mutant(
        name="k8s-pin-means-any-template",
        file="fleet/kubernetes/leases/pod_revisions.py",
        old="chosen = mine if mine in hashes else next(iter(hashes), None)",
        new="chosen = next(iter(hashes), None)",
        tests=_REVISIONS,
    ),
    # --- shapes ---------------------------------------------------------------------------------
    Mutant(
        name="shapes-held-deployment-deletes",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old='        "minReadySeconds": NEVER,\n',
        new='        "minReadySeconds": 0,\n',
        tests=_SHAPES,
    ),
    Mutant(
        name="shapes-one-pod-too-many",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old="return ahead, held(replicas, max(1, shape.total + count - replicas))\n\n\ndef hold",
        new="return ahead, held(replicas, max(1, shape.total + count + 1 - replicas))\n\n\ndef hold",
        tests=_SHAPES,
    ),
    Mutant(
        name="shapes-wish-below-what-there-is",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old="    replicas = max(shape.replicas, shape.total)\n    ahead = _aside",
        new="    replicas = shape.replicas\n    ahead = _aside",
        tests=_SHAPES,
    ),
    Mutant(
        name="shapes-shrinking-is-replaced",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old="return held(shape.replicas, max(1, shape.total - count - shape.replicas))",
        new="return held(shape.replicas, max(1, shape.total + count - shape.replicas))",
        tests=_SHAPES,
    ),
    Mutant(
        name="shapes-let-go-in-mid-roll",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old="if current is None or shape.others:",
        new="if current is None:",
        tests=_SHAPES,
    ),
    Mutant(
        name="shapes-foreign-replicaset-counted",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old='mine = [each for each in replica_sets if _owner(each) == meta["uid"]]',
        new="mine = list(replica_sets)",
        tests=_SHAPES,
    ),
    Mutant(
        name="shapes-settled-before-it-was-seen",
        file="fleet/kubernetes/deployment/pod_counts.py",
        old='settled=seen >= meta["generation"] and newest == told and bool(sets),',
        new="settled=newest == told and bool(sets),",
        tests=(*_SHAPES, *_ROLLING),
    ),
    # --- rolling --------------------------------------------------------------------------------
    Mutant(
        name="rolling-removes-beside-a-starting-pod",
        file="fleet/kubernetes/deployment/rolling.py",
        old="            elif starting:\n",
        new="            elif starting and not staying:\n",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-does-not-wait-for-the-mark-to-be-heard",
        file="fleet/kubernetes/deployment/rolling.py",
        old="            elif not _knows(its, living):\n",
        new="            elif its.labelled > len(living):\n",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-while-its-set-moves",
        file="fleet/kubernetes/deployment/rolling.py",
        old="if its is None or not (its.replicas == len(living) or _is_short(its, living)):",
        new="if its is None:",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-heard-of-marks-alone",
        file="fleet/kubernetes/deployment/rolling.py",
        old="return (its.labelled, its.ready) == (whole, sum(map(pod_status.is_ready, living)))",
        new="return its.labelled == whole",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-others-went-unnoticed",
        file="fleet/kubernetes/deployment/rolling.py",
        old="        if others or kept:\n",
        new="        if kept and not others:\n",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-evicted-pod-is-an-error",
        file="fleet/kubernetes/deployment/pod_status.py",
        old="if name not in there or (is_gone(there[name]) and not was_evicted(there[name]))",
        new="if name not in there or is_gone(there[name])",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-marks-with-the-template-label",
        file="fleet/kubernetes/deployment/rolling.py",
        old='patch = {"metadata": {"annotations": notes, "labels": {MANAGED_LABEL: None}}}',
        new='patch = {"metadata": {"annotations": notes}}',
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-marked-without-a-cost",
        file="fleet/kubernetes/deployment/rolling.py",
        old="notes = {DRAINED_ANNOTATION: now, COST_ANNOTATION: FIRST_TO_GO}",
        new="notes = {DRAINED_ANNOTATION: now}",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-too-few-stay",
        file="fleet/kubernetes/deployment/rolling.py",
        old="self._write(found, pod_counts.at_rest(have - sum(map(len, going.values()))))",
        new="self._write(found, pod_counts.at_rest(have - len(going)))",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-shrinks-on-an-old-reading",
        file="fleet/kubernetes/deployment/rolling.py",
        old='self._api.merge("ReplicaSet", its.name, patch, seen=raw)',
        new='self._api.merge("ReplicaSet", its.name, patch)',
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-rests-in-mid-roll",
        file="fleet/kubernetes/deployment/rolling.py",
        old="            if shape.others and give_up is None:\n                return\n",
        new="",
        tests=_ROLLING,
    ),
    Mutant(
        name="rolling-goes-back-to-the-smallest",
        file="fleet/kubernetes/deployment/rolling.py",
        old="back = max(shape.others, key=lambda each: (each.replicas, each.order))",
        new="back = min(shape.others, key=lambda each: (each.replicas, each.order))",
        tests=_ROLLING,
    ),
    # --- rights -----------------------------------------------------------------------------------
    Mutant(
        name="rules-worker-may-read-every-lease",
        file="fleet/kubernetes/leases/store_roles.py",
        old='            "resourceNames": [names.gate, *names.slots(range(slots))],\n',
        new="",
        tests=("tests/kubernetes/test_store_rules.py",),
    ),
    Mutant(
        name="rules-worker-may-write-the-change",
        file="fleet/kubernetes/leases/store_roles.py",
        old='{**_LEASES, "resourceNames": [names.change], "verbs": ["get"]},',
        new='{**_LEASES, "resourceNames": [names.change], "verbs": ["get", "update"]},',
        tests=("tests/kubernetes/test_store_rules.py",),
    ),
    Mutant(
        name="pods-image-pulled-for-a-moment-is-stuck",
        file="fleet/kubernetes/deployment/pod_status.py",
        old="return begun is not None and now - _seconds(begun) >= PATIENCE",
        new="return begun is not None",
        tests=("tests/kubernetes/test_pods.py",),
    ),
    Mutant(
        name="pods-deleted-one-still-counts",
        file="fleet/kubernetes/deployment/pod_status.py",
        old='    return is_marked(pod) or "deletionTimestamp" in pod["metadata"] or ended',
        new="    return is_marked(pod) or ended",
        tests=("tests/kubernetes/test_pods.py",),
    ),
)

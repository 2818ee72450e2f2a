"""Faults on Kubernetes: taking slots, a Deployment's numbers, removals, waiting for the server."""

from tests.mutants.mutant import faults

_TAKING = ("tests/k8s_store/test_acquire_in_memory.py",)
_ROLLING = ("tests/kubernetes/test_rolling_in_memory.py",)
_BY_SEED = ("tests/kubernetes/test_rolling_by_seed.py",)
_SHAPES = ("tests/kubernetes/test_pod_counts.py",)
_SHELF = ("tests/k8s_store/test_retry_on_conflict.py",)
_REVISIONS = ("tests/k8s_store/test_lease_objects.py",)

MUTANTS = faults(
    {
        # --- taking
        ("fleet/slots/transitions.py", _TAKING): {
            "k8s-take-of-one-asked-to-go": "if [-worker in record.going or (-]pinned is not None and pinned.revision != revision[-)-]:",
            "k8s-take-given-back-with-its-old-token": "return _unheld([-replace(before, token=stored.token)-]{+before+}, phase)",
        },
        ("fleet/slots/transitions.py", ("tests/slots/test_compare_and_set.py",)): {
            "k8s-release-told-free-before-the-leave": "(Phase.CLOSED, Event.RELEASE): Phase.[-CLOSED-]{+FREE+},",
        },
        ("fleet/kubernetes/leases/lease_backend.py", _TAKING): {
            "k8s-lease-that-is-not-there-is-a-loss": "if found is None and fresh and self._own is not None{+ and key.number < 0+}:",
            "k8s-published-revision-stored-over-the-raw-one": "[-slot = replace(slot, revision=before.revision)-]{+pass+}",
            "k8s-conflict-taken-for-stored": """            [-return self.shelf.swap(wanted)-]{+try:
                return self.shelf.swap(wanted)
            except Exception:
                return wanted+}""",
        },
        # --- the shelf, and waiting
        ("fleet/kubernetes/leases/lease_backend.py", _SHELF): {
            "k8s-swap-answer-lost-is-a-conflict": "if stored is not None[- and not same_state(stored, wanted)-]:",
            "k8s-swap-answer-lost-is-success": "if stored is not None and [-not -]same_state(stored, wanted){+ is None+}:",
        },
        ("fleet/slots/store.py", _SHELF): {
            "k8s-change-decided-on-an-old-version": """    [-for _ in turns:
        found = read(fresh)-]{+found = read(fresh)
    for _ in turns:+}""",
        },
        ("fleet/kubernetes/client/calls.py", _SHELF): {
            "k8s-replacement-repeated": "if not request.repeat[-:  # its caller looks what came of it: that call tells-]{+ and probing:+}",
            "k8s-compared-patch-repeated": """[-                repeat=not compared,
-]""",
            "k8s-breaker-never-closes": "if now < self._down_until{+ + COOL * COOL+}:",
            "k8s-refused-is-an-answer-of-the-store": """                [-if isinstance(refused, Conflict):
                    -]self._answered()""",
        },
        ("fleet/kubernetes/client/informer.py", ("tests/kubernetes/test_informers.py",)): {
            "informer-late-news-win": "if known is not None and known[0] >= version[-:-]{+ + 1000:+}",
            "informer-a-list-deletes-nothing": """            for name in set(self._taken(selector)) - {f["metadata"]["name"] for f in items}:
                [-self.gone(name, version)-]{+pass+}""",
        },
        ("fleet/kubernetes/leases/lease_store.py", ("tests/kubernetes/test_sending.py",)): {
            "k8s-patience-tries-for-a-minute": "_ONCE: Final = {Store.adopt.__name__[-, Store.beat.__name__-]}",
            "k8s-patience-adopts-a-change-twice": "if late or not self._answered[- or name in _ONCE-]:",
            "k8s-patience-never-ends": "late = self._clock.monotonic() - began >= patience{+ + 10 * LONGEST_WAIT+}",
        },
        # --- revisions
        ("fleet/kubernetes/leases/lease_objects.py", _REVISIONS): {
            "k8s-foreign-template-is-ours": "return published if mark and [-self.known.get(found) == published-]{+found in self.known+} else revision",
            "k8s-pin-means-any-template": "chosen = [-mine if mine in hashes else -]next(iter(hashes), None)",
        },
        # --- shapes
        ("fleet/kubernetes/deployment/pod_counts.py", _SHAPES): {
            "shapes-held-deployment-deletes": '"minReadySeconds": [-NEVER-]{+0+},',
            "shapes-one-pod-too-many": """return ahead, held(replicas, max(1, shape.total + count {++ 1 +}- replicas))


def hold""",
            "shapes-replicas-below-what-there-is": """    replicas = [-max(shape.replicas, shape.total)-]{+shape.replicas+}
    ahead = _aside""",
            "shapes-shrinking-is-replaced": "        fields = held(replicas, left - replicas{+ + 1+})",
            "shapes-grows-while-it-shrinks": "if not current and have [->=-]{+<+} rest:\n        return True",
            "shapes-all-at-once": "return current + others <= [-(rest if have > rest else have - 1)-]{+shape.total+}",
            "shapes-more-than-there-are-at-once": "    count = [-min(count, max(shape.replicas, shape.total) - have)-]{+count+}\n",
            "shapes-let-go-in-mid-roll": "if current is None[- or shape.others-]:",
            "shapes-foreign-replicaset-counted": 'mine = [-[each for each in replica_sets if _owner(each) == meta["uid"]]-]{+list(replica_sets)+}',
        },
        ("fleet/kubernetes/deployment/pod_counts.py", (*_SHAPES, *_ROLLING)): {
            "shapes-settled-before-it-was-seen": "settled=[-seen and -]newest == told and newest in of_it,",
            "shapes-settled-with-another-template": "settled=seen and newest == told[- and newest in of_it-],",
            "rolling-heard-of-marks-alone": "return [-(self.labelled, self.ready) == (whole, sum(map(pod_status.is_ready, pods)))-]{+self.labelled == whole+}",
        },
        # --- rolling
        ("fleet/kubernetes/deployment/rolling.py", _ROLLING): {
            "rolling-removes-beside-a-starting-pod": "elif starting{+ and not staying+}:",
            "rolling-does-not-wait-for-the-mark-to-be-heard": "elif [-not its.knows(-]{+its.labelled > len(+}living):",
            "rolling-while-its-set-moves": "if its is None[- or not (its.replicas == len(living) or its.is_short(living))-]:",
            "rolling-others-went-unnoticed": "if [-others or kept-]{+kept and not others+}:",
            "rolling-marks-with-the-template-label": 'patch = {"metadata": {"annotations": notes[-, "labels": {MANAGED_LABEL: None}-]}}',
            "rolling-marked-without-a-cost": "notes = {DRAINED_ANNOTATION: now[-, COST_ANNOTATION: FIRST_TO_GO-]}",
            "rolling-too-few-stay": "self._numbers.write(found, pod_counts.at_rest(have - [-sum(map(len, going.values())-]{+len(going+})))",
            "rolling-shrinks-on-an-old-reading": 'self._api.merge("ReplicaSet", its.name, patch[-, seen=raw-])',
            "rolling-rests-in-mid-roll": """[-            if shape.others and give_up is None:
                return
-]""",
            "rolling-gives-up-what-it-went-back-to": "if [-not went_back and -]give_up(shape.current.hash):",
            "rolling-stays-held-after-a-conflict": "elif not ([-went_back or -]let_go):",
            "rolling-nothing-to-go-back-to": "[-if shape.others-]{+if shape+}:\n            self.go_back",
            "rolling-goes-back-with-as-many-as-were-new": "fields = pod_counts.[-others_held-]{+hold+}(shape)",
            "rolling-goes-back-to-the-smallest": "back = [-max-]{+min+}(shape.others, key=lambda each: (each.replicas, each.order))",
            "rolling-stuck-for-good": "if shape.stuck[-:-]{+ and shape.held is None:+}",
            "rolling-paused-is-waited-for": "if shape.paused[-:-]{+ and shape.held is None:+}",
        },
        ("fleet/kubernetes/deployment/rolling.py", _BY_SEED): {
            "rolling-writes-before-its-controller-rests": "[-elif not shape.moves-]{+else+}:",
            "rolling-counts-pods-on-their-way-out": "if pod_status.hash_of(p) == hash_[- and not pod_status.is_gone(p)-]]",
        },
        ("fleet/kubernetes/deployment/pod_status.py", _ROLLING): {
            "rolling-evicted-pod-is-an-error": "if name not in there or [-(-]is_gone(there[name])[- and not was_evicted(there[name]))-]",
        },
        # --- rights
        ("fleet/kubernetes/leases/lease_store.py", ("tests/kubernetes/test_objects.py",)): {
            "rules-worker-may-read-every-lease": """[-            "resourceNames": [names.gate, *names.slots(range(slots))],
-]""",
            "rules-worker-may-write-the-change": '{**_LEASES, "resourceNames": [names.change], "verbs": ["get"{+, "update"+}]},',
        },
        ("fleet/kubernetes/deployment/pod_status.py", ("tests/kubernetes/test_pods.py",)): {
            "pods-image-pulled-for-a-moment-is-stuck": "return begun is not None[- and now - _seconds(begun) >= PATIENCE-]",
            "pods-deleted-one-still-counts": 'return is_marked(pod) or [-"deletionTimestamp" in pod["metadata"] or -]has_ended(pod)',
        },
    },
)

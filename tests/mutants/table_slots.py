"""Faults in what slots are, and in the store that keeps them."""

from tests.mutants.mutant import Mutant

_STORE = ("tests/slots/test_compare_and_set.py", "tests/slots/test_stale_actors.py")
_EVIDENCE = ("tests/slots/test_evidence.py",)

MUTANTS = (
    Mutant(
        name="slots-on-trial-proven-by-being-held",
        file="fleet/slots.py",
        old="return bool(mine) and not any(proven(s) or s.batches > 0 for s in mine)",
        new="return bool(mine) and not any(s.holder for s in mine)",
        tests=(*_STORE, "tests/worker/test_trial.py"),
    ),
    Mutant(
        name="slots-on-trial-for-its-own-slot",
        file="fleet/slots.py",
        old="if wanted.revision in {None, revision}:",
        new="if wanted.revision is None:",
        tests=(*_STORE, "tests/worker/test_trial.py"),
    ),
    Mutant(
        name="slots-proven-in-spite-of-an-error",
        file="fleet/slots.py",
        old="return slot.holder is not None and slot.phase is Phase.ACTIVE and well",
        new="return slot.holder is not None and slot.phase is Phase.ACTIVE",
        tests=("tests/worker/test_trial.py", "tests/worker/test_first_right.py"),
    ),
    Mutant(
        name="slots-spoiled-after-a-good-batch",
        file="fleet/slots.py",
        old="return slot.error is not None and slot.batches == 0",
        new="return slot.error is not None",
        tests=("tests/worker/test_trial.py", "tests/worker/test_first_right.py"),
    ),
    # --- evidence of death ------------------------------------------------------------------
    Mutant(
        name="watch-first-look-counts-for-ever",
        file="fleet/evidence.py",
        old="if seen is None or seen.mark != mark or gap:",
        new="if seen is None or gap:",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="watch-frozen-observer-concludes",
        file="fleet/evidence.py",
        old="if seen is None or seen.mark != mark or gap:",
        new="if seen is None or seen.mark != mark:",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="watch-dead-at-half-a-lease",
        file="fleet/evidence.py",
        old="        seen.expired = monotonic - seen.since >= self.duration\n",
        new="        seen.expired = monotonic - seen.since >= self.duration / 2\n",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="watch-own-writes-do-not-matter",
        file="fleet/evidence.py",
        old="seen.since = monotonic if since is None else max(seen.since, since)",
        new="seen.since = seen.since if since is None else max(seen.since, since)",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="watch-refused-write-forgotten",
        file="fleet/evidence.py",
        old="            if write.refused:\n                self._since = None\n",
        new="            if write.refused:\n                pass\n",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="watch-an-old-write-proves",
        file="fleet/evidence.py",
        old="return self._since if now - self._through_at <= within else None",
        new="return self._since",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="watch-nobody-writes-so-nothing-is-tried",
        file="fleet/evidence.py",
        old="        if writes.due(_REST * self.lease):\n",
        new="        if writes.due(_REST * self.lease) and self.lease < 0:\n",
        tests=_EVIDENCE,
    ),
    Mutant(
        name="known-for-silence-is-knowledge",
        file="fleet/evidence.py",
        old="return -1.0 if since is None else monotonic - since",
        new="return math.inf if since is None else monotonic - since",
        tests=("tests/worker/test_looking.py",),
    ),
    # --- the store --------------------------------------------------------------------------
    Mutant(
        name="store-gate-written-over-a-newer-one",
        file="fleet/act/store.py",
        old="if self._gate(db, gate.group).version != gate.version:",
        new="if self._gate(db, gate.group).version < gate.version:",
        tests=_STORE,
    ),
    Mutant(
        name="store-take-without-the-gate",
        file="fleet/act/store.py",
        old="if seen.number not in gate.open - gate.leaving - gate.quarantined:",
        new="if seen.number not in gate.open - gate.quarantined:",
        tests=_STORE,
    ),
    Mutant(
        name="store-take-over-a-renewal",
        file="fleet/act/store.py",
        old='" AND holder IS ? AND token = ? AND counter = ?",',
        new='" AND holder IS ? AND token = ? AND counter >= ?",',
        tests=_STORE,
    ),
    Mutant(
        name="store-take-keeps-the-token",
        file="fleet/act/store.py",
        old='"UPDATE slots SET holder = ?, token = token + 1, phase = ?, clean = 0, batches = 0,"',
        new='"UPDATE slots SET holder = ?, token = token + 0, phase = ?, clean = 0, batches = 0,"',
        tests=_STORE,
    ),
    Mutant(
        name="store-take-marked-clean",
        file="fleet/act/store.py",
        old="token = token + 1, phase = ?, clean = 0, batches = 0",
        new="token = token + 1, phase = ?, batches = 0",
        tests=_STORE,
    ),
    Mutant(
        name="store-take-forgets-the-unclean-session",
        file="fleet/act/store.py",
        old="CASE WHEN clean = 0 THEN spark_session ELSE ? END",
        new="CASE WHEN clean = 2 THEN spark_session ELSE ? END",
        tests=_STORE,
    ),
    Mutant(
        name="store-renewal-by-name-alone",
        file="fleet/act/store.py",
        old='" spark_session = ?, batches = ?, error = ?"\n'
        '                " WHERE cluster = ? AND grp = ? AND number = ? AND holder = ? AND token = ?",',
        new='" spark_session = ?, batches = ?, error = ?"\n'
        '                " WHERE cluster = ? AND grp = ? AND number = ? AND holder = ? AND token >= ?",',
        tests=_STORE,
    ),
    Mutant(
        name="store-renewal-does-not-count",
        file="fleet/act/store.py",
        old='"UPDATE slots SET counter = counter + 1, phase = ?, member_id = ?,"',
        new='"UPDATE slots SET counter = counter + 0, phase = ?, member_id = ?,"',
        tests=_STORE,
    ),
    Mutant(
        name="store-release-forgets-the-member",
        file="fleet/act/store.py",
        old='"UPDATE slots SET holder = NULL, phase = ?, clean = ?"',
        new='"UPDATE slots SET holder = NULL, member_id = NULL, phase = ?, clean = ?"',
        tests=_STORE,
    ),
    Mutant(
        name="store-clear-whoever-has-it",
        file="fleet/act/store.py",
        old='" WHERE cluster = ? AND grp = ? AND number = ? AND token = ?",\n'
        "                (Phase.FREE,",
        new='" WHERE cluster = ? AND grp = ? AND number = ? AND token >= ?",\n'
        "                (Phase.FREE,",
        tests=_STORE,
    ),
    Mutant(
        name="store-two-changes-at-once",
        file="fleet/act/store.py",
        old="            if last and last[0].state is ChangeState.RUNNING:\n                return None\n",
        new="            if last and last[0].state is ChangeState.RUNNING and last[0].step == 0:\n"
        "                return None\n",
        tests=_STORE,
    ),
    Mutant(
        name="store-adopts-a-change-that-moved",
        file="fleet/act/store.py",
        old="                seen.token,\n                seen.counter,\n            ):\n"
        "                return None\n            adopted",
        new="                seen.token,\n                stored.counter,\n            ):\n"
        "                return None\n            adopted",
        tests=_STORE,
    ),
    Mutant(
        name="store-former-actor-goes-on-writing",
        file="fleet/act/store.py",
        old="if last is None or (last.actor, last.token) != (change.actor, change.token):",
        new="if last is None or last.token < change.token:",
        tests=_STORE,
    ),
    Mutant(
        name="store-former-actor-writes-the-gate",
        file="fleet/act/store.py",
        old="            if by is not None:\n                self._check_actor(db, by)\n",
        new="",
        tests=(*_STORE, *_EVIDENCE),
    ),
)

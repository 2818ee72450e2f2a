"""Faults in what slots are, and in the store that keeps them."""

from tests.mutants.mutant import faults

_STORE = ("tests/slots/test_compare_and_set.py",)
_ORDERS = ("tests/slots/test_interleavings.py",)
_EVIDENCE = ("tests/slots/test_evidence.py",)

MUTANTS = faults(
    {
        ("fleet/slots/transitions.py", (*_STORE, "tests/worker/test_canary_note.py")): {
            "slots-canary-by-being-held": "return bool(mine) and not any([-is_good_canary(s) or s.batches > 0-]{+s.holder+} for s in mine)",
            "slots-canary-for-its-own-slot": "if wanted.revision [-in {None, revision}-]{+is None+}:",
        },
        ("fleet/slots/transitions.py", ("tests/worker/test_canary_note.py",)): {
            "canary-proof-by-any-holder": "return any(slot.revision == revision and [-is_good_canary(slot)-]{+slot.holder+} for slot in slots)",
            "slots-proven-in-spite-of-an-error": "return slot.holder is not None and slot.phase is Phase.ACTIVE[- and well-]",
            "slots-spoiled-after-a-good-batch": "return slot.error is not None[- and slot.batches == 0-]",
        },
        # --- evidence of death
        ("fleet/slots/evidence.py", _EVIDENCE): {
            "watch-first-look-counts-for-ever": "if seen is None or [-seen.mark != mark or -]gap:",
            "watch-counts-from-before-it-read": "self._seen[key] = _Seen(mark, [-max(read, monotonic)-]{+min(read, monotonic)+}, monotonic)",
            "watch-frozen-observer-concludes": "if seen is None or seen.mark != mark[- or gap-]:",
            "watch-dead-at-half-a-lease": "seen.expired = monotonic - seen.since >= duration{+ / 2+}",
            "watch-only-its-own-lease": "duration = max(self.duration, [-told-]{+0.0+})",
            "watch-own-writes-do-not-matter": "seen.since = [-monotonic-]{+seen.since+} if since is None else max(seen.since, since)",
            "watch-refused-write-forgotten": """            if write.refused:
                [-self._since = None-]{+pass+}""",
            "watch-an-old-write-proves": "return self._since[- if now - self._through_at <= within else None-]",
            "watch-nobody-writes-so-nothing-is-tried": "if writes.due(_REST * self.lease){+ and self.lease < 0+}:",
        },
        ("fleet/slots/evidence.py", ("tests/worker/test_looking.py",)): {
            "known-for-silence-is-knowledge": "return [--1.0-]{+math.inf+} if since is None else monotonic - since",
        },
        # --- how slots and changes move
        ("fleet/slots/store.py", _STORE): {
            "store-gate-written-over-a-newer-one": "if record.gate.version [-!=-]{+<+} gate.version:",
        },
        ("fleet/slots/store.py", ("tests/slots/test_refused_renewals.py",)): {
            "store-refused-renewal-asks-nothing": "if [-stored is not None and transitions.renewed(stored, slot) is None-]{+stored is None+}:",
            "store-refused-renewal-is-a-loss": "if stored is not None[- and transitions.renewed(stored, slot) is None-]:",
            "store-refused-renewal-believes-the-watch": "entry = self.backend.read(key_of(slot), fresh=[-True-]{+False+})",
        },
        ("fleet/slots/transitions.py", _STORE): {
            "store-take-without-the-gate": "return number in gate.open - gate.[-leaving - gate.-]quarantined",
            "store-take-over-a-renewal": "return (stored.holder, stored.token[-, stored.counter-]) == (seen.holder, seen.token[-, seen.counter-])",
            "store-take-keeps-the-token": """        token=stored.token[- + 1-],
        phase=moved(stored, Event.TAKE),""",
            "store-take-marked-clean": """        [-clean=False,
        -]batches=0,""",
            "store-take-forgets-the-unclean-session": "spark_session=spark_session[- if stored.clean else stored.spark_session-],",
            "store-renewal-by-name-alone": "return stored.holder is not None and [-(stored.holder, stored.token) == mine-]{+stored.holder == mine[0]+}",
            "store-renewal-does-not-count": """        counter=stored.counter[- + 1-],
        phase=""",
            "store-release-forgets-the-member": "return _unheld(replace(stored, clean=clean{+, member_id=None+}), moved(stored, Event.RELEASE))",
            "store-ended-whoever-has-it": "if [-not is_held_by(stored, seen) or -]stored.holder_ended:",
            "store-ended-and-renewed": "if not is_held_by(stored, told)[- or stored.holder_ended-]:",
            "store-ended-for-ever": """        error=None,
        [-holder_ended=False,
        -]revision=revision,""",
            "store-clear-whoever-has-it": """    if stored.token [-!=-]{+<+} seen.token:
        return None""",
            "store-two-changes-at-once": "if last is not None and last.state is ChangeState.RUNNING{+ and last.step == 0+}:",
            "store-begun-by-whoever-asks": "return last[- if stored == (actor, plan.id, started_at) else None-]",
            "store-begun-again-is-refused": "return last if stored == (actor, plan.id, started_at){+ and after < 0+} else None",
            "store-adopts-a-change-that-moved": "(last.actor, last.token[-, last.counter-]) != (seen.actor, seen.token[-, seen.counter-])",
            "store-former-actor-goes-on-writing": "if last is None or [-(last.actor, last.token) != (told.actor, told.token)-]{+last.token < told.token+}:",
        },
        ("fleet/slots/store.py", (*_STORE, *_EVIDENCE)): {
            "store-former-actor-writes-the-gate": "if by is not None and by.token < [-record.token-]{+0+}:",
        },
        # --- taking, in all orders
        ("fleet/slots/store.py", _ORDERS): {
            "take-without-a-second-look-at-the-gate": "if stands[- and attempt.is_admitted(record)-]:",
            "take-refused-and-kept": """            return held
        self.[-settle(-]{+_doubts.drop(before+})
        return None""",
            "take-without-an-answer-forgotten": """            except Unreachable:
                [-self._doubts.add(attempt, before)
                -]raise
            assert""",
            "take-confirmed-without-an-answer-forgotten": """        [-self._doubts.add(attempt, before)
        -]record""",
            "take-gives-back-anothers": "return [-(stored.holder, stored.token) == (self.worker, self.seen.token + 1)-]{+stored.holder is not None+}",
            "claim-not-looked-for-again": "stands = [-claim is FREE or record.canaries.get(attempt.revision) == claim-]{+True+}",
            "claim-replaced-without-a-second-look": "return [-None if abandoned and self._is_tried(attempt) else -]mine",
            "claim-of-another-taken-for-void": "return [-claim.worker == attempt.worker or (slot is not None and slot.token >= claim.token)-]{+True+}",
            "claim-without-a-canary": "return [-self._claim(attempt)-]{+FREE+}",
        },
        ("fleet/slots/memory.py", _ORDERS): {
            "claim-over-a-newer-gate": "if {+isinstance(value, Slot) and +}(stored and stored.version) != (seen and seen.version):",
            "slot-swapped-whoever-wrote-it": "if {+not isinstance(value, Slot) and +}(stored and stored.version) != (seen and seen.version):",
        },
        ("fleet/slots/store.py", (*_STORE, *_ORDERS)): {
            "adopter-leaves-the-gate-unfenced": "None[- if r.token >= token else replace(r, token=token)-]",
        },
    },
)

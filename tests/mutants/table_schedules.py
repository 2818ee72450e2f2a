"""Faults that were real once, put back: simulated schedules of our own code find each by seed."""

from tests.mutants.mutant import faults

_SEEDS = ("tests/schedules/test_schedules.py::test_schedules_hold[0]",)
_LATER_SEEDS = ("tests/schedules/test_schedules.py::test_schedules_hold[2]",)
_CALLED_OFF = ("tests/schedules/test_schedules.py::test_what_is_called_off_is_processed_once",)
_FILE = "tests/schedules/test_schedules.py"
_FROZEN = (f"{_FILE}::test_an_owner_frozen_before_its_join_fences_nobody[none-frozen0]",)
_MANAGERS = ("tests/schedules/test_schedules.py::test_managers_come_and_go[0]",)

MUTANTS = faults(
    {
        ("fleet/slots/evidence.py", _SEEDS): {
            "seeds-store-that-is-only-read-shows-the-dead": "seen.since = [-monotonic-]{+seen.since+} if since is None else max(seen.since, since)",
            "seeds-frozen-machine-concludes": "if seen is None or seen.mark != mark[- or gap-]:",
            "seeds-taken-before-the-lease-ends": "seen.expired = monotonic - seen.since >= duration{+ / 2+}",
            "seeds-one-look-for-all": "if seen is None or [-seen.mark != mark or -]gap:",
        },
        ("fleet/slots/transitions.py", _SEEDS): {
            "seeds-renewal-by-name-alone": "return stored.holder is not None and [-(stored.holder, stored.token) == mine-]{+True+}",
        },
        ("fleet/slots/store.py", _MANAGERS): {
            "seeds-former-actor-writes-the-gate": "if by is not None and by.token < [-record.token-]{+0+}:",
        },
        ("fleet/worker/slot/slot_life.py", _SEEDS): {
            "seeds-lost-slot-goes-on-working": "        if seen.lost[-:-]{+ and not seen.gate.open:+}",
            "seeds-leaves-before-the-others-drained": "            if seen.all_drained[-:-]{+ is not None and False:+}",
        },
        ("fleet/worker/slot/slot_lease.py", _SEEDS): {
            "seeds-silent-store-is-a-loss": """as Kafka has us as a member")
            return [-None-]{+False+}""",
            "seeds-joins-again-on-a-guess": """as Kafka has us as a member")
            return [-None-]{+True+}""",
            "seeds-lost-not-noticed": """[-            self.lost = f"slot {self.slot.number} has another holder or token"
-]""",
        },
        ("fleet/worker/slot/slot_lease.py", _FROZEN): {
            "seeds-joins-unconfirmed": """{+        return True
+}        if self.lost is None and not self.fresh:""",
        },
        ("fleet/worker/member/membership.py", _CALLED_OFF): {
            "seeds-goes-on-before-its-batch-is-committed": "Drain.is_over(busy=busy{+ and self.then is not Drain.GO_ON+},",
        },
        ("fleet/worker/member/member_state.py", _SEEDS): {
            "seeds-drain-does-not-wait-for-the-batch": "return [-not busy and -]not (unsettled and in_time)",
        },
        ("fleet/worker/member/member_state.py", _LATER_SEEDS): {
            "seeds-asked-during-a-rejoin": "return before is not Drain.CLOSE{+ and before is not Drain.REJOIN+}",
        },
        ("fleet/worker/offsets/assigning.py", _SEEDS): {
            "seeds-latest-commits-nothing": "return not self.gone and self.committed != self.position{+ and self.anew+}",
        },
        ("fleet/act/steps/membership.py", _SEEDS): {
            "seeds-gate-opened-slot-by-slot": """        [-work.write_gate(lambda gate: opened(gate, missing, pins, at=work.clock.now() + OPEN_AHEAD)-]{+for number in sorted(missing):
            work.write_gate(
                lambda gate, one=number: opened(
                    gate, frozenset({one}), pins, at=work.clock.now() + OPEN_AHEAD
                )
            +})""",
        },
        ("fleet/act/steps/handover.py", _SEEDS): {
            "seeds-pins-left-behind": """[-        work.unpin(numbers)
-]""",
        },
        ("fleet/act/change.py", _SEEDS): {
            "seeds-change-of-a-living-manager-adopted": """[-        if self.alive():
            raise Refused(self._busy())
-]""",
        },
    }
)

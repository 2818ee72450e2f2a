"""Faults in how a worker takes a slot, keeps it, gives it up, and leaves with others."""

from tests.mutants.mutant import faults

_NAMED = (
    "tests/worker/test_slot_holder.py::test_the_session_of_a_batch_is_named_once_the_cure_has_ended",
    "tests/worker/test_slot_holder.py::test_a_session_made_anew_is_named_before_its_batch_runs",
)
_LEAVING = ("tests/worker/test_leave_completion.py",)
_LOOKING = ("tests/worker/test_looking.py",)
_ELIGIBLE = (
    "tests/worker/test_eligibility.py",
    "tests/worker/test_canary_note.py",
)
_ASKING = (
    "tests/worker/test_asking.py::test_an_answer_of_any_size_is_heard_without_waiting",
    "tests/worker/test_asking.py::test_a_topic_that_is_not_there_hides_no_other",
)
_HOLDING = ("tests/worker/test_slot_lease.py",)
_TAKEOVER = ("tests/worker/test_consumer_protocol.py",)
_TENURE = ("tests/worker/test_taking_over.py",)

_LEFT = ("tests/worker/test_slot_holder.py",)

MUTANTS = faults(
    {
        # --- slots: who may take what
        ("fleet/worker/slot/slot_lease.py", _ELIGIBLE): {
            "eligible-leaving-slot": "sorted(gate.open - gate.[-leaving - gate.-]quarantined)",
            "eligible-pin-ignored-after-a-lease": "return {+waited or +}pin.revision == revision",
            "eligible-ended-pin-still-counts": "if pin is not None[- and not void-]:",
            "eligible-failed-slot-again-at-once": "first = [-slot.revision != revision-]{+newest+}",
            "eligible-canary-forgotten": "return [-(-]first or waited[-) and not waits_for_canary(slots, slot, revision)-]",
            "eligible-handed-over-slot-taken-back": "and (slot.number not in handed or [-slot.number in waited-]{+newest+})",
            "eligible-roll-gives-free-slots-to-the-canary": "rolling = [-bool(gate.handover)-]{+slot.number in gate.handover+} and slot.revision is not None",
            "eligible-older-standby-outranks": "and (report.since or 0.0) >{+=+} since",
        },
        ("fleet/worker/slot/slot_lease.py", (*_LOOKING, *_HOLDING)): {
            "looker-dead-while-store-unknown": "return frozenset() if old [-or known_for(self._store, now) < 0 -]else self._dead",
        },
        ("fleet/worker/slot/process.py", _HOLDING): {
            "container-ends-what-others-hold": "if [-slot.holder == name and -]store.end_holder(slot):",
        },
        ("fleet/act/local/supervisor.py", ("tests/runtime/test_supervision.py",)): {
            "supervisor-ends-what-others-hold": "for slot in self._of(row).slots(row.group)[- if slot.holder == row.name-]]",
            "supervisor-ends-while-something-runs": "if [-not self._is_gone(row.name)-]{+False+}:",
            "supervisor-of-another-cluster": "cluster=[-row.cluster-]{+row.group+}",
        },
        ("fleet/worker/slot/slot_lease.py", _LOOKING): {
            "looker-takes-while-store-silent": "if known_for(self._store, now) < [-0-]{+-self._lease+}:",
            "looker-free-since-another-tenure": """        [-self._free_since = {}
        -]if handed:""",
        },
        ("fleet/worker/slot/slot_lease.py", _HOLDING): {
            "looker-waits-for-the-ended": "(self._expired(slot, now)[- or slot.holder_ended-])",
            "looker-stale-forever": "if seen == self._version[- and now - self._read_at < 1.0-]:",
            "holding-renews-after-abandon": """        \"""Stop renewing, change nothing.\"""[-
        self._stopped.set()-]""",
            "holding-still-ours-by-memory": "return self.lost is None if [-self._held.fresh-]{+True+} else self.renew()",
            "holding-silent-store-is-a-loss": """going on as long as Kafka has us as a member")
            return [-None-]{+False+}""",
            "holding-lost-not-noticed": """[-            self.lost = f"slot {self.slot.number} has another holder or token"
-]""",
            "holding-slow-after-silence": "self.pause = self._lease[- / 12-]",
            "holding-released-unclean-as-clean": "return self._store.release(self.slot, clean=[-clean-]{+True+})",
            "holding-dynamic-member-id-kept": "member = [-None if gone else -]self.slot.member_id",
            "holding-closed-for-a-leave-told-free": "phase = [-Phase.CLOSED if closed else -]self.slot.phase",
        },
        # --- taking over
        ("fleet/worker/slot/leave_completion.py", _TAKEOVER): {
            "takeover-evicts-a-foreign-process": "if found.member_id not in former.member_ids and {+not +}found.client_id[- not in former.workers-]:",
            "takeover-names-the-oldest-member-id": "tried = former.member_ids[[--1:-]{+:1+}]",
            "takeover-refused-leave-told-as-free": """        except FleetError as error:
            return str(error)
        return [-why-]{+None+}""",
            "takeover-nobody-answers-told-as-free": """        except FleetError[- as error:
            return str(error)-]{+:
            return None+}""",
            "takeover-same-member-asked-again": "if found.member_id [-not -]in tried:",
        },
        # --- one holder
        ("fleet/worker/slot/slot_holder.py", _TENURE): {
            "tenure-cure-skipped": "if former is not None and [-not -]self.over:",
            "tenure-cures-whoever-released-cleanly": "self.over = [-seen.clean or -]former is None or former == ours",
            "tenure-cures-its-own-session": "self.over = seen.clean or former is None[- or former == ours-]",
            "tenure-lost-slot-goes-on-working": """        if self._lease.lost is not None:
            [-self._answer(membership)-]{+pass+}
            return
        state""",
            "tenure-frees-after-a-clean-release": "if tools.protocol.exclusive[- and seen.holder is not None-]:",
            "tenure-frees-nobody": "if tools.protocol.exclusive and seen.holder is [-not -]None:",
            "tenure-silent-store-after-a-rejoin-ends-it": "with contextlib.suppress([-Unreachable-]{+KeyError+}):  # the gate asks on",
            "tenure-silent-store-is-what-it-ended-with": """        except [-FleetError-]{+KeyError+} as error:  # not what""",
            "tenure-evicts-a-static-member": "if seen.member_id is not None[- and not tools.is_static-]:",
            "tenure-gate-far-ahead-believed": "open_at=[-min(-]tools.watcher.gate.open_at,[- tools.clock.now() + _LONGEST_WAIT),-]",
        },
        ("fleet/worker/slot/slot_holder.py", _NAMED): {
            "tenure-session-not-named-after-the-cure": "[-self._renew()-]{+pass+}  # a store that is silent",
        },
        ("fleet/worker/batch/executor.py", _NAMED): {
            "tenure-session-made-anew-not-named": "if [-not self._renew()-]{+failures < 0+}:",
        },
        ("fleet/worker/slot/slot_holder.py", _LEFT): {
            "tenure-leaves-a-member-behind": "                    [-self._leave_nobody_behind()-]{+pass+}",
            "tenure-evicts-its-static-successor": "if member_id is not None[- and not self._tools.is_static-] and self._leave(",
        },
        ("fleet/worker/slot/slot_life.py", _TENURE): {
            "tenure-handover-of-a-former-holder": "if pin is not None[- and pin.token == token-]:",
            "tenure-rejoin-of-a-former-holder": "if [-gate.rejoin.get(number) == token-]{+number in gate.rejoin+}:",
            "tenure-closed-slot-held-on": "if number [-not in gate.open or number -]in gate.quarantined:",
            "tenure-fenced-for-ever": "if self._fenced_at is None or now - self._fenced_at >[- self._window-]{+= 0+}:",
            "tenure-stalled-though-it-goes": "or lost is not None[- or self.state not in _STAYS-]:",
            "tenure-stalled-in-anothers-slot": "if end.how is not End.STALLED[- or lost is not None-] or",
            "tenure-refused-for-ever": "if why is None[- and not self._again-]:",
            "tenure-fenced-without-asking-the-store": """        if [-not ours-]{+self.state is Life.LOST+}:
            return self._others(82""",
        },
        # --- asking about the group
        ("fleet/worker/asking.py", _ASKING): {
            "asking-first-part-of-an-answer-lost": "self._told [-+-]= part",
            "asking-missing-topic-hides-the-others": "if error.args[0].code() == _UNKNOWN_TOPIC[-:-]{+ * 0:+}",
        },
        ("fleet/worker/slot/membership_setup.py", ("tests/worker/test_orphans.py",)): {
            "orphans-blinded-by-what-a-former-holder-was-asked": "if gate.leaving or asked[- & tokens.items()-]:",
        },
        # --- leaving together
        ("fleet/worker/slot/leave_completion.py", _LEAVING): {
            "completer-does-not-wait-for-the-actor": "if not gate.leaving or not all_closed(gate, slots, dead)[- or not self._actor_silent(gate)-]:",
            "completer-leaves-over-a-living-holder": "{+slot.phase in {Phase.DRAINED, Phase.CLOSED, Phase.FREE} or +}slot.holder is None[- or slot.number in dead or slot.phase is Phase.CLOSED-]",
            "completer-by-instance-id-alone": '(slot.instance_id() if self._static else None, [-slot.member_id-]{+""+})',
            "completer-dynamic-members-by-instance-id": "(slot.instance_id()[- if self._static else None-], slot.member_id)",
            "completer-refused-leave-taken-for-done": """self._events.log_rarely(f"the leave of {named} was refused: {refusal}")[-
                return False-]""",
            "completer-clears-a-living-holders-slot": """            [-if slot.holder is None or slot.number in dead:  # a living one clears its own
                -]self._store.clear(slot)""",
            "completer-opens-what-left-again": "replace(gate, [-open=gate.open - gate.leaving, -]leaving=frozenset())",
            "completer-silent-store-counts-as-silent-actor": "self._watch = LeaseWatch[-.over(store, group=group, lease=lease, clock=clock-]{+(lease, None+})",
            "leaving-first-drained-closes": """    quiet = {Phase.DRAINED, Phase.CLOSED}
    return [-all-]{+any+}(""",
        },
        # --- opening without a manager, canaries
        ("fleet/worker/slot/process.py", ("tests/worker/test_gate_opener.py",)): {
            "opening-before-enough-are-warm": "if warm < [-asked.slots-]{+1+} and waited < asked.after:",
            "opening-over-a-written-gate": "if gate.[-version != 0 or gate.-]open or asked is None",
            "opening-counts-the-dead": """            report.phase == "standby"
            [-and-]{+or+} not self._watch.expired(""",
        },
        ("fleet/worker/canary_note.py", ("tests/worker/test_canary_note.py",)): {
            "canary-full-disk-ends-its-holder": "except [-OSError-]{+KeyError+} as error:",
            "canary-failure-forgotten-at-rest": "if self._running[- and self._told is None-]:",
        },
    },
)

"""Faults in the simulated coordinator: Kafka's own code shows them within 1,000 stories."""

from tests.mutants.mutant import faults

_KAFKA = ("tests/conformance/test_classic.py::test_random_stories[1-1000]",)
_ROOM = "fleet/sim/coordinator"

MUTANTS = faults(
    {
        (f"{_ROOM}/classic_requests.py", _KAFKA): {
            "sim-parked-member-expires": (
                "if member is None or [-member.has_satisfied_heartbeat-]{+False+}:"
            ),
            "sim-initial-delay-is-cut-short": (
                "or [-group.previous_state is ClassicState.EMPTY-]{+False+}"
            ),
            "sim-initial-delay-has-no-end": (
                "if not group.new_member_added[- or remaining == 0-]:"
            ),
            "sim-static-members-are-dropped": (
                "if member.awaits_join is None[- and member.group_instance_id is None-]:"
            ),
            "sim-a-new-member-stays-new": "            member.is_new = [-False-]{+member.is_new+}",
            "sim-aborted-sync-keeps-its-timer": (
                "        group.pending_sync.clear()\n"
                "[-        self.around.timers.cancel(sync_key(group.group_id))\n-]"
                "        initial = "
            ),
            "sim-sync-is-waited-for-a-session": (
                "around.schedule(sync_key(name), "
                "group.[-rebalance_timeout-]{+members.values()[0].session_timeout+}, "
            ),
            "sim-assignment-is-no-sign-of-life": (
                "if self.answer_sync(member, response)[-:-]{+ and not fine:+}"
            ),
            "sim-leader-rejoins-for-nothing": (
                "member.protocols == request.protocols[- and not (stable and leads)-]:"
            ),
            "sim-static-return-rebalances": (
                "if group.select_protocol() [-!=-]{+==+} (group.protocol or"
            ),
            "sim-old-leader-stays-leader": (
                "        if version < _SKIPS_ASSIGNMENT[-:-]{+ and False:+}  # an old leader"
            ),
            "sim-pending-leave-is-free": (
                "        if all(each.error_code for each in found)[-:-]{+ or not group.members:+}"
            ),
            "sim-full-group-lets-in-one-more": (
                "return parked or group.awaiting_join [-<-]{+<=+} most"
            ),
            "sim-heartbeat-while-preparing-is-none": (
                "if error in {ErrorCode.NONE[-, ErrorCode.REBALANCE_IN_PROGRESS-]}:"
            ),
        },
        (f"{_ROOM}/classic_group.py", _KAFKA): {
            "sim-last-of-equal-votes-wins": (
                "max([-votes-]{+reversed(votes.keys())+}, key=votes.__getitem__)"
            ),
            "sim-shortest-rebalance-timeout": ("return [-max-]{+min+}((each.rebalance_timeout"),
            "sim-pending-members-are-forgotten": (
                "self.awaiting_join[- and not self.pending_join-]"
            ),
            "sim-first-member-leads": ("        if leader.awaits_join is None[-:-]{+ and False:+}"),
        },
        ("fleet/sim/hashing.py", ("tests/sim/test_hash_order.py",)): {
            "sim-table-never-grows": (
                "            self.capacity = self._first\n"
                "        if size * 4 > self.capacity * 3[-:-]{+ and False:+}"
            ),
        },
        (f"{_ROOM}/classic_coordinator.py", _KAFKA): {
            "sim-unwritten-records-survive": "            if not kept[-:-]{+ and False:+}",
        },
    }
)

"""Faults in carrying a change out: steps, rolls, receipts, and who may do it."""

from tests.mutants.mutant import Mutant

_PERFORMING = ("tests/acting/test_performing.py",)
_ROLLING = ("tests/acting/test_rolling.py",)
_CHANGING = ("tests/acting/test_liveness.py", "tests/acting/test_changes.py")
_ADOPTING = ("tests/acting/test_adopting.py",)
_LEAVE = ("tests/acting/test_batched_leave.py",)

MUTANTS = (
    # --- opening --------------------------------------------------------------------------------
    Mutant(
        name="open-gate-slot-by-slot",
        file="fleet/act/steps/open_slots.py",
        old="        work.write_gate(lambda gate: opened(gate, missing, pins, "
        "at=work.clock.now() + OPEN_AHEAD))\n",
        new="""        for number in sorted(missing):
            work.write_gate(
                lambda gate, one=number: opened(
                    gate, frozenset({one}), pins, at=work.clock.now() + OPEN_AHEAD
                )
            )
""",
        tests=_PERFORMING,
    ),
    Mutant(
        name="open-without-warm-standbys",
        file="fleet/act/steps/open_slots.py",
        old="work.pool.await_warm(revision, count, timeout",
        new="work.pool.await_warm(revision, 0, timeout",
        tests=_PERFORMING,
    ),
    Mutant(
        name="open-at-once-instead-of-ahead",
        file="fleet/act/steps/open_slots.py",
        old="at=work.clock.now() + OPEN_AHEAD",
        new="at=work.clock.now()",
        tests=_PERFORMING,
    ),
    Mutant(
        name="open-done-when-taken",
        file="fleet/act/steps/open_slots.py",
        old="return all(n in slots and slots[n].phase is Phase.ACTIVE for n in numbers)",
        new="return all(n in slots and slots[n].holder for n in numbers)",
        tests=_PERFORMING,
    ),
    Mutant(
        name="open-window-widened-for-one",
        file="fleet/act/steps/open_slots.py",
        old="if work.window is not None and len(missing) > 1:",
        new="if work.window is not None:",
        tests=_PERFORMING,
    ),
    Mutant(
        name="open-window-left-raised",
        file="fleet/act/steps/open_slots.py",
        old="""    if work.window is not None:  # also one that a dead manager left raised
        work.window.restore()
""",
        new="",
        tests=_PERFORMING,
    ),
    Mutant(
        name="open-wave-not-pinned",
        file="fleet/act/steps/wave.py",
        old="open_together(work, fresh, step.revision, pinned=True, on_trial=is_first)",
        new="open_together(work, fresh, step.revision, on_trial=is_first)",
        tests=_ROLLING,
    ),
    # --- leaving --------------------------------------------------------------------------------
    Mutant(
        name="leave-sent-before-all-are-closed",
        file="fleet/act/steps/leave_slots.py",
        old="if not (is_dead(s) or s.phase is Phase.CLOSED or s.holder is None)\n",
        new="if not (is_dead(s) or s.phase in {Phase.DRAINING, Phase.DRAINED, Phase.CLOSED})\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-waits-for-the-dead",
        file="fleet/act/steps/leave_slots.py",
        old="if not (is_dead(s) or s.phase is Phase.CLOSED or s.holder is None)\n",
        new="if not (s.phase is Phase.CLOSED or s.holder is None)\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-by-instance-id-alone",
        file="fleet/act/steps/leave_slots.py",
        old="members = [(_instance_of(work, s), s.member_id) for s in going if s.member_id]",
        new='members = [(_instance_of(work, s), "") for s in going if s.member_id]',
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-one-request-each",
        file="fleet/act/steps/leave_slots.py",
        old='        why = work.leave(work.spec.group, members, reason=f"fleet {work.lease.change.plan.id}")\n',
        new="""        why = None
        for each in members:
            reason = f"fleet {work.lease.change.plan.id}"
            why = why or work.leave(work.spec.group, [each], reason=reason)
""",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-refused-and-gone-on",
        file="fleet/act/steps/leave_slots.py",
        old="""        if why is not None:
            raise FleetError(f"the batched leave was refused: {why}; plan again")
""",
        new="""        if why is not None:
            work.progress(why)
""",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-slots-stay-open",
        file="fleet/act/steps/leave_slots.py",
        old="replace(gate, open=gate.open - numbers, leaving=gate.leaving - numbers)",
        new="replace(gate, leaving=gate.leaving - numbers)",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-members-not-forgotten",
        file="fleet/act/steps/leave_slots.py",
        old="""    for slot in left:
        work.store.clear(slot)
""",
        new="",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-holders-stay-as-standbys",
        file="fleet/act/steps/leave_slots.py",
        old="    held = set((work.lease.recall(LeaveMemory).holders or {}).values())\n",
        new="    held: set[str] = set()\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-names-who-came-after",
        file="fleet/act/steps/leave_slots.py",
        old="if n in told and told[n][0] == slot.token",
        new="if n in told",
        tests=_PERFORMING,
    ),
    Mutant(
        name="leave-request-without-a-member-id",
        file="fleet/act/kafka.py",
        old='            if not member.member_id or member.instance_id == "":\n',
        new='            if member.instance_id == "":\n',
        tests=_LEAVE,
    ),
    Mutant(
        name="leave-superseded-counts-as-gone",
        file="fleet/act/kafka.py",
        old="            if answer in {errors.NoError, errors.UnknownMemberIdError}:\n",
        new="            if answer in {errors.NoError, errors.UnknownMemberIdError, "
        "errors.FencedInstanceIdError}:\n",
        tests=_LEAVE,
    ),
    Mutant(
        name="leave-no-answer-counts-as-gone",
        file="fleet/act/batched_leave.py",
        old='        parts += [f"{instance} was answered with {name}" for instance, name in '
        "self.failed.items()]\n",
        new="",
        tests=_LEAVE,
    ),
    # --- rolling --------------------------------------------------------------------------------
    Mutant(
        name="roll-without-a-canary",
        file="fleet/act/steps/handover.py",
        old="turn = todo[:1] if canary_due else todo[: min(width, stock)]",
        new="turn = todo[: min(width, stock)]",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-canary-not-proven",
        file="fleet/act/steps/handover.py",
        old="""            if canary:
                prove(work, numbers[:1], self._new)
""",
        new="",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-canary-error-ignored",
        file="fleet/act/steps/canary.py",
        old="""    if slot.revision == revision and slot.error:
        raise FleetError(slot.error)
""",
        new="",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-canary-one-batch-short",
        file="fleet/act/steps/canary.py",
        old="if any(slot.batches >= rollout.canary_batches for slot in slots):",
        new="if any(slot.batches >= 1 for slot in slots):",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-dead-canary-waited-for",
        file="fleet/act/steps/canary.py",
        old="if slot.revision == revision and slot.holder and work.is_dead(slot):",
        new="if slot.revision == revision and not slot.holder and work.is_dead(slot):",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-pins-left-behind",
        file="fleet/act/steps/handover.py",
        old="        work.unpin(numbers)\n",
        new="",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-takes-back-others-pins",
        file="fleet/act/steps/work.py",
        old="for n, h in gate.handover.items() if n not in set(instead_of)}",
        new="for n, h in gate.handover.items() if not instead_of}",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-removes-the-successors",
        file="fleet/act/steps/handover.py",
        old="work.remove(sorted(holders_before(before, memory)))",
        new="work.remove([s.holder for n, s in work.slots().items() if s.holder and n in before])",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-back-keeps-the-failing",
        file="fleet/act/steps/handover.py",
        old="if w.revision == self._new != old]",
        new="if w.revision == old != self._new]",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-back-without-waiting",
        file="fleet/act/steps/handover.py",
        old="work.wait(lambda: runs(work.slots()[number], old), work.pass_limit, what)",
        new="work.wait(lambda: True, work.pass_limit, what)",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-whoever-runs-it-is-done",
        file="fleet/act/steps/handover.py",
        old="""        and memory.since(slot)
        and runs(slot, revision)
""",
        new="        and runs(slot, revision)\n",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-begun-again-from-the-first",
        file="fleet/act/steps/handover.py",
        old="    if work.lease.recall(HandoverMemory).tokens is None:\n",
        new="    if True:\n",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-later-slot-rolls-everything-back",
        file="fleet/act/steps/handover.py",
        old="""            if not canary:
                raise
            self._roll_back""",
        new="            self._roll_back",
        tests=_ROLLING,
    ),
    Mutant(
        name="roll-asks-before-anybody-is-warm",
        file="fleet/act/steps/handover.py",
        old="            self._await_warm(1)\n",
        new="            self._await_warm(0)\n",
        tests=_ROLLING,
    ),
    Mutant(
        name="wave-old-ones-leave-first",
        file="fleet/act/steps/wave.py",
        old="    old, fresh = _old_and_fresh(work, step)\n",
        new="""    old, fresh = _old_and_fresh(work, step)
    leave_together(work, old)
""",
        tests=_ROLLING,
    ),
    Mutant(
        name="wave-first-not-proven",
        file="fleet/act/steps/wave.py",
        old="            prove(work, fresh, step.revision)\n",
        new="            work.progress(step.revision)\n",
        tests=_ROLLING,
    ),
    # --- performing -------------------------------------------------------------------------------
    Mutant(
        name="perform-goes-on-after-a-broken-price",
        file="fleet/act/change/performer.py",
        old="if receipt.verdict is Verdict.DIFFERS and held:",
        new="if receipt.verdict is Verdict.UNVERIFIED and held:",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-counts-from-adoption",
        file="fleet/act/steps/cost.py",
        old="    if work.lease.recall(StepStart).started_at is None:\n",
        new="    if True:\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-starts-over-when-adopted",
        file="fleet/act/change/performer.py",
        old="            index = lease.change.step\n",
        new="            index = len(lease.change.receipts) - len(lease.change.receipts)\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-counts-before-it-is-settled",
        file="fleet/act/steps/cost.py",
        old="    if step.kind is not StepKind.WARM:\n        settle(work)\n",
        new="",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-settled-at-once",
        file="fleet/act/steps/cost.py",
        old="return calm and work.clock.monotonic() - since_when >= quiet",
        new="return calm",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-preparing-is-settled",
        file="fleet/act/steps/cost.py",
        old="calm = state in {GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD}",
        new="calm = state is not GroupState.UNKNOWN",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-fails-where-a-broker-is-away",
        file="fleet/act/steps/cost.py",
        old="        except Unreachable:  # a broker that is away: look again, within the limit\n"
        "            seen, since_when = None, work.clock.monotonic()\n"
        "            return False\n",
        new="        except Unreachable:\n            raise\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-lost-change-is-ended",
        file="fleet/act/change/performer.py",
        old="            except LostLease:\n                raise\n            except RolledBack as error:\n"
        "                self.window",
        new="            except RolledBack as error:\n                self.window",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-rolled-back-told-as-failed",
        file="fleet/act/change/performer.py",
        old="return self._end(lease, ChangeState.ROLLED_BACK, self._rested(str(error)))",
        new="return self._end(lease, ChangeState.FAILED, self._rested(str(error)))",
        tests=_ROLLING,
    ),
    Mutant(
        name="perform-runtime-not-at-rest",
        file="fleet/act/change/performer.py",
        old="            self.runtime.finish_removals(self.spec.group, failed=True)\n",
        new="            self.runtime.ensure()\n",
        tests=_PERFORMING,
    ),
    Mutant(
        name="perform-loss-noticed-at-the-end",
        file="fleet/act/change/performer.py",
        old="            if self._lease is not None:\n                self._lease.check()\n",
        new="",
        tests=_PERFORMING,
        judged="Every write of the change or of the gate is refused to who lost it, so nothing is "
        "done any more; what is lost is that a wait of minutes ends at once.",
    ),
    Mutant(
        name="perform-standbys-of-a-group-without-slots",
        file="fleet/act/change/performer.py",
        old="wanted = self.spec.replicas.standby if self.store.gate(self.spec.group).open else 0",
        new="wanted = self.spec.replicas.standby",
        tests=_PERFORMING,
    ),
    # --- the crew -----------------------------------------------------------------------------------
    Mutant(
        name="crew-ended-process-is-warm",
        file="fleet/act/standby_pool.py",
        old='if r.phase == "standby" and r.slot is None and r.worker in free & running',
        new='if r.phase == "standby" and r.slot is None and r.worker in free',
        tests=("tests/acting/test_standby_pool.py",),
    ),
    Mutant(
        name="crew-starting-process-is-warm",
        file="fleet/act/standby_pool.py",
        old='if r.phase == "standby" and r.slot is None and r.worker in free & running',
        new="if r.slot is None and r.worker in free & running",
        tests=("tests/acting/test_standby_pool.py", *_PERFORMING),
    ),
    Mutant(
        name="crew-warm-standbys-go-first",
        file="fleet/act/standby_pool.py",
        old="ranked = sorted(spare, key=lambda name: (name not in warm, name))",
        new="ranked = sorted(spare, key=lambda name: (name in warm, name))",
        tests=("tests/acting/test_standby_pool.py",),
    ),
    Mutant(
        name="crew-holders-removed-as-standbys",
        file="fleet/act/standby_pool.py",
        old="if w.name not in held and (revision is None or w.revision == revision)",
        new="if revision is None or w.revision == revision",
        tests=("tests/acting/test_standby_pool.py", *_PERFORMING),
    ),
    Mutant(
        name="crew-ill-ones-waited-for",
        file="fleet/act/standby_pool.py",
        old="            if worker.revision != revision or not worker.ill:\n                continue\n",
        new="            if worker.revision != revision or not worker.stuck:\n                continue\n",
        tests=_ROLLING,
    ),
    # --- who may change a group ---------------------------------------------------------------------
    Mutant(
        name="change-of-a-living-manager-adopted",
        file="fleet/act/change/changes.py",
        old="        if self.alive():\n            raise Refused(self._busy())\n",
        new="",
        tests=_CHANGING,
    ),
    Mutant(
        name="change-that-moved-counts-as-silent",
        file="fleet/act/change/changes.py",
        old="            if mark != first:\n                return True\n",
        new="            if mark != first:\n                return False\n",
        tests=_CHANGING,
    ),
    Mutant(
        name="change-refused-plan-performed",
        file="fleet/act/change/changes.py",
        old='        if plan.refusals:\n            raise Refused(" ".join(plan.refusals))\n',
        new="",
        tests=_CHANGING,
    ),
    Mutant(
        name="change-abort-strands-the-closed",
        file="fleet/act/change/changes.py",
        old="leaving=gate.leaving & closed",
        new="leaving=frozenset()",
        tests=_CHANGING,
    ),
    Mutant(
        name="change-abort-keeps-its-pins",
        file="fleet/act/change/changes.py",
        old="handover={}, rejoin={})",
        new="rejoin={})",
        tests=_CHANGING,
    ),
    Mutant(
        name="change-lease-silence-ends-renewing",
        file="fleet/act/lease.py",
        old="                with contextlib.suppress(Unreachable):\n                    self.update()\n",
        new="                self.update()\n",
        tests=("tests/acting/test_change_lease.py",),
    ),
    Mutant(
        name="change-lease-loss-forgotten",
        file="fleet/act/lease.py",
        old="            except LostLease as error:\n                self._lost = error\n                raise\n",
        new="            except LostLease:\n                raise\n",
        tests=("tests/acting/test_change_lease.py",),
    ),
    # --- other people's Deployments -----------------------------------------------------------------
    Mutant(
        name="adopting-living-members-named",
        file="fleet/act/steps/adopting.py",
        old="gone = set(before) - set(after.addresses.values())",
        new="gone = set(before) | set(after.addresses.values())",
        tests=_ADOPTING,
    ),
    Mutant(
        name="adopting-dynamic-members-named",
        file="fleet/act/steps/adopting.py",
        old="named = [m for m in left if m.instance_id is not None]",
        new="named = list(left)",
        tests=_ADOPTING,
    ),
    Mutant(
        name="adopting-looked-at-after-the-stop",
        file="fleet/act/steps/adopting.py",
        old="        if lease.recall(ScaleMemory).addresses is None:\n",
        new="        if True:\n",
        tests=_ADOPTING,
    ),
    Mutant(
        name="adopting-joins-not-waited-for",
        file="fleet/act/steps/adopting.py",
        old="if not missing or self.clock.monotonic() > deadline:",
        new="if joined or self.clock.monotonic() > deadline:",
        tests=_ADOPTING,
    ),
    # --- the join window ----------------------------------------------------------------------------
    Mutant(
        name="window-owners-value-overwritten",
        file="fleet/act/join_window.py",
        old="if self._store.note(self._group, _NOTE) is None:",
        new="if self._store is not None:",
        tests=("tests/acting/test_window.py",),
    ),
    Mutant(
        name="window-note-gone-before-brokers-show-it",
        file="fleet/act/join_window.py",
        old="        if not gone:\n",
        new="        if not gone and value is None:\n",
        tests=("tests/acting/test_window.py",),
    ),
)

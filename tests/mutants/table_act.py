"""Faults in carrying a change out: steps, rolls, receipts, and who may do it."""

from tests.mutants.mutant import faults

_PERFORMING = ("tests/acting/test_performing.py",)
_ROLLING = ("tests/acting/test_rolling.py", "tests/acting/test_waves.py")
_CHANGING = ("tests/acting/test_liveness.py", "tests/acting/test_changes.py")
_ADOPTING = ("tests/acting/test_adopting.py",)
_LEAVE = ("tests/acting/test_batched_leave.py",)

MUTANTS = faults(
    {
        # --- opening
        ("fleet/act/steps/membership.py", _PERFORMING): {
            "open-gate-slot-by-slot": """        [-work.write_gate(lambda gate: opened(gate, missing, pins, at=work.clock.now() + OPEN_AHEAD)-]{+for number in sorted(missing):
            work.write_gate(
                lambda gate, one=number: opened(
                    gate, frozenset({one}), pins, at=work.clock.now() + OPEN_AHEAD
                )
            +})""",
            "open-assignment-held-back-until-all-are-active": """            raised = False
            [-work.window.restore()-]{+pass+}""",
            "open-without-warm-standbys": "work.pool.await_warm(revision, [-count-]{+0+}, timeout=work.spec",
            "open-at-once-instead-of-ahead": "at=work.clock.now()[- + OPEN_AHEAD-]",
            "open-done-when-taken": "return all(n in slots and slots[n].[-phase is Phase.ACTIVE-]{+holder+} for n in numbers)",
            "open-window-widened-for-one": "if work.window is not None[- and len(missing) > 1-]:",
            "open-window-left-raised": """[-    if work.window is not None:  # also one that a dead manager left raised
        work.window.restore()
-]""",
        },
        ("fleet/act/steps/wave.py", _ROLLING): {
            "open-wave-not-pinned": "open_together(work, fresh, step.revision, [-pinned=True, -]canary=is_first)",
            "wave-old-ones-leave-first": """    old, fresh = _old_and_fresh(work, step){+
    leave_together(work, old)+}""",
            "wave-first-not-proven": "committed = [-wait_for_canary(work, fresh, step.revision)-]{+True+}",
            "wave-not-proven-once-the-old-have-left": "if is_first and {+False and +}not work.lease",
            "wave-proven-before-the-group-is-settled": "wait_for_canary(work, fresh, step.revision[-, once_settled=True-])",
            "wave-comes-back-as-if-nobody-had-left": "leave_together(work, fresh[-, again=True-])",
            "wave-forgets-that-it-goes-back": "[-        work.lease.remember(WaveMemory(late=str(error)))\n-]        _come_back",
        },
        # --- leaving
        ("fleet/act/steps/leave_slots.py", _PERFORMING): {
            "leave-sent-before-all-are-closed": "if not (is_dead(s) or s.phase [-is Phase.CLOSED or s.holder is None-]{+in {Phase.DRAINING, Phase.DRAINED, Phase.CLOSED}+})",
            "leave-waits-for-the-dead": "if not ([-is_dead(s) or -]s.phase is Phase.CLOSED or s.holder is None)",
            "leave-by-instance-id-alone": 'members = [(_instance_of(work, s), [-s.member_id-]{+""+}) for s in going if s.member_id]',
            "leave-one-request-each": """        why = [-work.leave(work.spec.group, members, reason=f"fleet {work.lease.change.plan.id}"-]{+None
        for each in members:
            reason = f"fleet {work.lease.change.plan.id}"
            why = why or work.leave(work.spec.group, [each], reason=reason+})""",
            "leave-refused-and-gone-on": """        if why is not None:
            [-raise FleetError(f"the batched leave was refused: {why}; plan again"-]{+work.progress(why+})""",
            "leave-slots-stay-open": "replace(gate, [-open=gate.open - numbers, -]leaving=gate.leaving - numbers)",
            "leave-members-not-forgotten": """[-    for slot in left:
        work.store.clear(slot)
-]""",
            "leave-holders-stay-as-standbys": "held[- = set((work.lease.recall(LeaveMemory).holders or {}).values()-]{+: set[str] = set(+})",
            "leave-names-who-came-after": "if n in told[- and told[n][0] == slot.token-]",
            "perform-counts-from-adoption": "if [-work.lease.recall(StepStart).started_at is None-]{+True+}:",
            "perform-counts-before-it-is-settled": """[-    if step.kind is not StepKind.WARM:
        settle(work)
-]""",
            "perform-settled-two-heartbeats-of-kip-848-later": "else [-0-]{+8+}.0)",
            "perform-settled-since-it-began": "return min((at for at in joined if at >= begun), default=None){+ and begun+}",
            "perform-settled-at-once": "return calm[- and work.clock.monotonic() - since_when >= quiet-]",
            "perform-preparing-is-settled": "calm = state [-in {GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD}-]{+is not GroupState.UNKNOWN+}",
            "perform-fails-where-a-broker-is-away": """        except Unreachable:[-  # a broker that is away: look again, within the limit
            seen, since_when = None, work.clock.monotonic()
            return False-]{+
            raise+}""",
        },
        ("fleet/act/kafka.py", _LEAVE): {
            "leave-request-without-a-member-id": 'if [-not member.member_id or -]member.instance_id == "":',
            "leave-superseded-counts-as-gone": "if answer in {errors.NoError, errors.UnknownMemberIdError{+, errors.FencedInstanceIdError+}}:",
            "leave-no-answer-counts-as-gone": """[-        parts += [f"{instance} was answered with {name}" for instance, name in self.failed.items()]
-]""",
        },
        # --- rolling
        ("fleet/act/steps/membership.py", ("tests/acting/test_stopping_all.py",)): {
            "stop-before-it-is-warm": "[-        _warm_before(work, step)\n-]",
            "stop-slots-go-to-what-cannot-share": "[-        work.write_gate(lambda gate: asking(gate, stays))\n-]",
            "stop-old-workers-end-at-once": "if [-len(work.pool.free(step.revision)) < len(_opens(work))-]{+True+}:",
            "stop-what-was-put-back-leaves-again": "going = tuple(sorted(gate.open[- - (back - gate.leaving)-]))",
            "stop-not-proven": "[-        wait_for_canary(work, step.slots, step.revision)\n-]",
        },
        ("fleet/act/steps/handover.py", _ROLLING): {
            "roll-untaken-slot-is-waited-for": "return self._taken(numbers, canary=canary)[- or untaken()-]",
            "roll-without-a-canary": "turn = todo[:[-1] if canary_due else todo[:-] min(width, stock)]",
            "roll-canary-not-proven": """[-            if canary:
                wait_for_canary(work, numbers[:1], self._new)
-]""",
            "roll-pins-left-behind": """[-        work.unpin(numbers)
-]""",
            "roll-removes-the-successors": "work.remove([-sorted(holders_before(before, memory))-]{+[s.holder for n, s in work.slots().items() if s.holder and n in before]+})",
            "roll-back-keeps-the-failing": "if w.revision == [-self._new != old-]{+old != self._new+}]",
            "roll-back-without-waiting": "return [-runs(work.slots()[number], old)-]{+True+}",
            "roll-whoever-runs-it-is-done": """        and [-memory.since(slot)
        and -]runs(slot, revision)""",
            "roll-begun-again-from-the-first": "if [-work.lease.recall(HandoverMemory).tokens is None-]{+True+}:",
            "roll-later-slot-rolls-everything-back": """            [-if not canary:
                raise
            -]self._roll_back""",
            "roll-asks-before-anybody-is-warm": "self._await_warm([-1-]{+0+})",
        },
        ("fleet/act/steps/canary.py", _ROLLING): {
            "roll-canary-error-ignored": """            [-_fail(work, revision, slot.error)-]{+pass+}
        elif slot.phase is not Phase.ACTIVE:""",
            "roll-canary-blamed-for-what-was-before": "if not errors_of([slot]) <= [-{*others, *(work.lease.recall(StepStart).errors or ())}-]{+set()+}:",
            "roll-canary-one-batch-short": "committed = any(slot.batches >= [-rollout.canary_batches-]{+1+} for slot in slots)",
            "roll-batch-in-hand-forgotten": "committed or (baked[- and not _batch_in_hand(slots, reports)-])",
            "roll-anybodys-batch-waited-for": "report.in_hand[- and (report.slot, report.worker) in held-] for report",
            "roll-batch-limit-forgotten": "limit, poll = work.spec.[-canary_limit-]{+rollout.bake+} + 30.0, None",
            "roll-dead-canary-waited-for": "if slot.revision == revision and {+not +}slot.holder and work.is_dead(slot):",
        },
        ("fleet/act/steps/work.py", _ROLLING): {
            "roll-takes-back-others-pins": "for n, h in gate.handover.items() if [-n not in set(instead_of)-]{+not instead_of+}}",
        },
        # --- performing
        ("fleet/act/change.py", _PERFORMING): {
            "perform-goes-on-after-a-broken-price": "if receipt.verdict is Verdict.[-DIFFERS-]{+UNVERIFIED+} and held:",
            "perform-starts-over-when-adopted": "index = [-lease.change.step-]{+len(lease.change.receipts) - len(lease.change.receipts)+}",
            "perform-lost-change-is-ended": """            except [-LostLease:
                raise
            except -]RolledBack as error:
                self.window""",
            "perform-runtime-not-at-rest": "self.runtime.[-finish_removals(self.spec.group, failed=True-]{+ensure(+})",
            "perform-standbys-of-a-group-without-slots": "wanted = self.spec.replicas.standby[- if self.store.gate(self.spec.group).open else 0-]",
            "perform-loss-noticed-at-the-end": """[-            if self._lease is not None:
                self._lease.check()
-]""",
        },
        ("fleet/act/change.py", _ROLLING): {
            "perform-rolled-back-told-as-failed": "return self._end(lease, ChangeState.[-ROLLED_BACK-]{+FAILED+}, self._rested(str(error)))",
        },
        # --- the crew
        ("fleet/act/standby_pool.py", ("tests/acting/test_standby_pool.py",)): {
            "crew-ended-process-is-warm": "and r.worker in free[- & running-]",
            "crew-ended-one-holds-its-slot": "if any([-s.holder_ended-]{+False+} for s in held):",
            "crew-ended-one-with-an-open-slot-holds-none": "if not s.holder_ended[- or s.number in opened-]]",
            "crew-warm-standbys-go-first": "ranked = sorted(spare, key=lambda name: (name [-not -]in warm, name))",
        },
        ("fleet/act/standby_pool.py", ("tests/acting/test_standby_pool.py", *_PERFORMING)): {
            "crew-starting-process-is-warm": """if r.[-phase == "standby"
            and r.-]slot is None
            and r.worker in free""",
            "crew-holders-removed-as-standbys": "if [-w.name not in held and (-]revision is None or w.revision == revision[-)-]",
        },
        ("fleet/act/standby_pool.py", _ROLLING): {
            "crew-frozen-process-is-warm": """[-            and (self._heard is None or self._heard.answers(r.worker))
-]        )""",
            "crew-silent-one-counts": "missing = count - len(set(self.free(revision))[- - self.silent()-])",
            "crew-one-that-took-a-slot-not-made-up-for": "[-            self.ensure(revision, count, least=0)\n-]            return False",
            "crew-ill-ones-waited-for": """            if worker.revision != revision or not worker.[-ill-]{+stuck+}:
                continue""",
        },
        # --- who may change a group
        ("fleet/act/lease.py", ("tests/acting/test_liveness.py",)): {
            "liveness-others-begin-our-count-anew": 'store.put_note(change.group, _SEEN, {"mark": mark, "looks": [-looks-]{+{_observer(me): now}+}})',
            "liveness-dead-at-the-first-look": """    elif now - first >= max(lease, change.lease)[-:
        return False-]{+ - lease:
        return False+}""",
            "liveness-moved-long-ago-is-unknown": "if isinstance(before, list) and before[:2] == mark[:2] and before [-!=-]{+is+} mark:",
        },
        ("fleet/dagster/watch/watch_sensor.py", ("tests/orchestration/test_requests.py",)): {
            "dead-runs-by-a-store-that-refuses": "known.mark != mark[- or not provable-]:",
            "dead-runs-by-a-clock-that-was-set": "passed = [-min(max(0.0, now - known.at), LONGEST_TICK)-]{+now - known.at+}",
        },
        ("fleet/dagster/reconcile_schedule.py", ("tests/orchestration/test_unfinished.py",)): {
            "reconcile-one-unfinished-change-after-the-other": """            if said[fleet.group].unknown[-:
                unknown.append(fleet)-]{+:
                while said[fleet.group].unknown and not self._is_over():
                    self._cycle.clock.sleep(LOOK)
                    said[fleet.group] = self._one(fleet)+}""",
            "reconcile-waits-for-every-lease": "while unknown[- and not self._is_over()-]:",
            "reconcile-unknown-is-dead": "if alive is None[-:-]{+ and not change:+}",
        },
        ("fleet/act/change.py", _CHANGING): {
            "change-of-a-living-manager-adopted": """[-        if self.alive():
            raise Refused(self._busy())
-]""",
            "change-that-moved-counts-as-silent": """            if mark != first:
                return [-True-]{+False+}""",
            "change-refused-plan-performed": """[-        if plan.refusals:
            raise Refused(" ".join(plan.refusals))
-]""",
            "change-abort-strands-the-closed": "leaving=[-gate.leaving & closed-]{+frozenset()+}",
            "change-abort-keeps-its-pins": "leaving=gate.leaving & closed, [-handover={}, -]rejoin={})",
        },
        ("fleet/act/lease.py", ("tests/acting/test_changes.py",)): {
            "change-lease-silence-ends-renewing": """                [-with contextlib.suppress(Unreachable):
                    -]self.update()""",
            "change-lease-loss-forgotten": """            except LostLease[- as error:
                self._lost = error-]{+:+}
                raise""",
        },
        # --- other people's Deployments
        ("fleet/act/steps/adopting.py", _ADOPTING): {
            "adopting-living-members-named": "gone = set(before) [---]{+|+} set(after.addresses.values())",
            "adopting-dynamic-members-named": "named = [-[m for m in left if m.instance_id is not None]-]{+list(left)+}",
            "adopting-looked-at-after-the-stop": "if [-lease.recall(ScaleMemory).addresses is None-]{+True+}:",
            "adopting-joins-not-waited-for": "if [-not missing-]{+joined+} or self.clock.monotonic() > deadline:",
        },
        # --- the join window
        ("fleet/act/kafka.py", ("tests/acting/test_window.py",)): {
            "window-owners-value-overwritten": "if self._store[-.note(self._group, _NOTE) is-]{+ is not+} None:",
            "window-note-gone-before-brokers-show-it": "if not gone{+ and value is None+}:",
        },
    },
    judged={
        "perform-loss-noticed-at-the-end": "Every write of the change or of the gate is refused to who lost it, so nothing is done any more; what is lost is that a wait of minutes ends at once.",
    },
)

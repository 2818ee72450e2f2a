"""Faults in decisions: plans, prices, refusals, receipts, scaling, storms, verdicts."""

from tests.mutants.mutant import faults

_PLANS = (
    "tests/decide/test_plans.py",
    "tests/decide/test_what_runs_now.py",
    "tests/decide/test_what_runs_now.py",
)
_REFUSALS = ("tests/decide/test_refusals.py", "tests/membership/test_decisions.py")
_SCALING = ("tests/decide/test_scaling.py", "tests/membership/test_decisions.py")
_STORMS = ("tests/decide/test_storms.py",)
_RECEIPTS = ("tests/counting/test_receipts.py",)
_VERDICTS = ("tests/decide/test_lag_verdicts.py",)
_EXPECTED = ("tests/decide/test_expected_costs.py",)
_ADOPTED = ("tests/decide/test_adopted.py",)

MUTANTS = faults(
    {
        ("fleet/decide/plans.py", _PLANS): {
            "plans-new-topics-before-the-roll": "roll_first = [-topics_differ or -]not leaving",
            "plans-quarantined-number-opened": "number, closed = 0, {*taken[-, *self.world.gate.quarantined-]}",
            "plans-rejoin-beside-an-opening": "if (owed or idle) and not leaving and [-not fresh and -]held and self._needs_rejoin():",
            "plans-assignor-changed-in-place": 'if held and differing - {"topics"{+, "assignor"+}} and self.wanted > 0:',
            "plans-wave-takes-numbers-of-those-that-stay": "fresh = self._free_numbers(len(old), taken=[-held-]{+old+})",
            "plans-repair-forgotten": "return bool(blocked) and [-not -]set(unheld) <= {n for s in blocked for n in s.slots}",
            "plans-drain-of-closed-slots": "leaving = tuple([-n for n in held if n in set(slots-]{+sorted(set(slots)+}))",
        },
        ("fleet/decide/adopted.py", _PLANS): {
            "plans-id-without-what-it-saw": "repr((group, wanted, [-seen, -]does))",
        },
        ("fleet/decide/prices.py", _PLANS): {
            "prices-cooperative-gate-costs-one": """            rebalances_max=1[- if self._range else 2-],
            moved_min=least,""",
            "prices-join-of-nobody-costs-two": "return not beside and [-(-]emptied[- or self.world.is_empty())-]",
            "prices-what-leaves-is-what-runs-next": """            return [-group.type == "consumer"-]{+self._consumer+}
        return self._consumer""",
            "moves-by-number-not-by-bytes": "order = sorted(members, key=lambda name: [-name.encode(-]{+(len(name), name+}))",
            "moves-leavers-partitions-not-counted": "return surplus[- + sum(leavers)-]",
        },
        ("fleet/decide/prices.py", ("tests/decide/test_refused_members.py",)): {
            "prices-leave-of-nobody-costs-one": "            rebalances_min=[-0 if self.world.is_empty() else 1-]{+1+},",
            "prices-stop-of-nobody-costs-one": """        if [-self.world.is_empty()-]{+False+}:
            note =""",
        },
        ("fleet/decide/world.py", ("tests/decide/test_refusals.py",)): {
            "refusals-failing-member-is-joining": "for s in joining[- if s.error is None or s.member_id not in here-])",
            "refusals-who-fails-to-join-is-a-member": "if s.error is None[- or s.member_id not in here-])",
        },
        ("fleet/decide/plans.py", ("tests/decide/test_plans.py",)): {
            "staying-old-before-proven": "key=lambda n: ([-n not in first, -]n))",
            "staying-proven-though-nothing-is-old": "if n not in old}[- if old else set()-]",
            "staying-before-it-has-proven": "slot.phase is Phase.ACTIVE[- and slot.batches >= needs-] and",
            "staying-though-it-fails": "slot.batches >= needs[- and slot.error is None-]",
            "staying-though-it-drains": "if [-slot.phase is Phase.ACTIVE and -]slot.batches",
            "staying-in-a-forced-roll": "may_stay = self._worker_is_dynamic()[- and not self.force_roll-]",
            "staying-static-ones-too": "may_stay = [-self._worker_is_dynamic() and -]not self.force_roll",
        },
        ("fleet/decide/refusals.py", ("tests/decide/test_refused_members.py",)): {
            "refused-though-somebody-only-leaves": "    return [-any(step.kind in _JOINS for step in plan.steps)-]{+bool(plan.steps)+}",
            "refused-at-the-bound": "    if least <[-=-] worker.session_timeout <= longest:",
            "refused-where-nothing-is-known": 'limits.least_session or [-0.0-]{+6.0+}, limits.longest_session or [-float("inf")-]{+45.0+}',
            "refused-size-of-the-other-protocol": "    most = limits.classic_members if [-classic-]{+not classic+} else limits.consumer_members",
            "refused-size-at-the-bound": "    if most is None or members <[-=-] most:",
            "refused-size-without-strangers": "    return most[- + len(world.strangers())-]",
            "refused-size-though-they-left-before": "            held [--=-]{+|=+} set(step.slots)",
            "refused-size-of-a-wave-after-it": "len(held [-| -]{+^ +}set(step.slots)))",
        },
        ("fleet/decide/forecast/expected_costs.py", _EXPECTED): {
            "expected-from-a-balanced-group-alone": "        moved = [-max(moved, price.moved_min)-]{+moved+}",
            "expected-pause-of-those-that-do-not": "percentile([pause for pause in cost.pauses[- if pause-]], percent)",
            "expected-leave-settles-from-the-drain": "settled=run.settled[- - story.happenings[-1].lasts-])",
            "expected-rest-of-a-group-that-is-behind": "if any((each.lag_seconds or 0.0) > [-_BEHIND-]{+1e9+} for each",
            "expected-rest-of-the-idle": "min(max(usual, max_wait), [-2 * max_wait + _batch(world)-]{+1e9+})",
            "expected-rest-as-declared": "usual = [-median(found) if found else max_wait-]{+max_wait+}",
            "expected-pause-where-nobody-owned": "if not held or [-not -]owned:",
            "expected-of-a-small-part": "round(median(run.moved for run in runs)[- * of-])",
            "expected-roll-of-its-first-handovers": "later = [--(-changing // width) - -(-some // width)-]{+0+}",
            "expected-batch-of-nobody-in-particular": "    if [-not batches-]{+True+}:",
            "expected-with-members-not-ours": "if worker is None or [-world.strangers() or -]not sum(topics.values()):",
            "expected-backlog-reads-while-it-pauses": "read_for = max(0.0, cost.settled[- - unowned-])",
            "expected-backlog-begins-anew": "waiting = flow.after([-waiting-]{+flow.waiting+}, cost, members=len(held))",
            "expected-unknown-lag-is-none": "if not seen or not busy[- or any(each.lag is None for each in seen)-]:",
            "expected-roll-one-by-one-always": "together=[-min(width, rolled - first)-]{+1+},",
            "expected-second-round-throttled": "connected=[-True-]{+False+},",
            "expected-848-without-nudges": "nudge=[-FLEET_NUDGE if is_consumer else 0-]{+0+},",
            "expected-pause-is-time-without-an-owner": "max(0, unowned[- - group.rest - last-])",
            "expected-pause-without-the-last-batch": "last = [-group.batch-]{+0+} if kind",
            "expected-no-batch-in-hand": "if (left := rng.randint(0, [-group.batch-]{+0+}))",
        },
        ("fleet/decide/forecast/other_ways.py", ("tests/decide/test_other_ways.py",)): {
            "ways-beyond-the-storm-budget": "size: cost.rebalances <= [-storm.rebalances-]{+size + cost.rebalances+}",
            "ways-wider-than-a-roll-may-be": "        and (not is_roll or size [-<= rollout.max_parallel-]{+> 0+})",
            "ways-cheapest-settles-last": "[-cost.settled-]{+-cost.settled+},\n        not usual,",
            "ways-of-three-parts-only": "    if total is None or [-len(chosen) == len(parts)-]{+True+}:",
            "ways-leave-of-those-who-left": 'return played(group, "leave", change.held - done[- - size-], size)',
            "ways-each-wave-a-change": "if [-waves == 1 and -]rolled > 1:",
            "ways-backlog-gone-still-waits": "later = flow.after([-0.0-]{+flow.waiting+}, known[usual], members=members)",
        },
        ("fleet/decide/forecast/other_ways.py", ("tests/decide/test_scale_up_worth.py",)): {
            "worth-without-its-own-time": "if left is None or [-price.settled_s + -]left < alone:",
            "worth-of-the-least-declared": "or held < max(1, [-spec.replicas.min-]{+0+}):",
            "worth-of-a-fixed-number": "if [-not isinstance(spec.scaling, LagScaling) or -]held < max(",
        },
        ("fleet/decide/forecast/other_ways.py", ("tests/sim/test_recorded_groups.py",)): {
            "recorded-with-those-who-left": """            there[-.pop(span.member, None)-]{+[span.member] = span+}""",
            "recorded-first-rebalance": "last = rebalances[[--1-]{+0+}]",
            "recorded-processes-all-at-once": "_APART: Final = [-2_000-]{+0+}",
            "recorded-leave-of-those-beyond": "staying=group.members[- - fewer-],",
        },
        ("fleet/decide/forecast/other_ways.py", ("tests/decide/test_adopted_costs.py",)): {
            "adopted-with-members-elsewhere": "if len(ours) != adopted.replicas[- or len(group.members) != len(ours)-]:",
            "adopted-static-as-dynamic": "if [-found.static-]{+False+}:",
        },
        ("fleet/decide/scaling.py", (*_SCALING, *_PLANS)): {
            "capacity-range-counts-all-topics": """        return [-max(counts, default=0-]{+sum(counts+})
    return sum(counts)""",
        },
        ("fleet/decide/refusals.py", _REFUSALS): {
            "refusals-member-away-forgotten": "reasons += [[-_away(world, steps), -]_joining(world), _doubled(world)]",
            "refusals-away-in-a-leave-of-others": "away [--= set(first.slots-]{+= set(+})",
            "refusals-stale-snapshot-acted-on": "if age <= STALE_AFTER{+ * STALE_AFTER+}:",
            "refusals-unsettled-group-changed": """    GroupState.[-PREPARING,
    GroupState.-]COMPLETING,""",
            "refusals-rolled-back-tried-again": "if change is None or change.state is not ChangeState.[-ROLLED_BACK-]{+FAILED+}:",
            "refusals-storm-added-to": '"" if forced {+or kinds & _MEMBERSHIP +}else _storm(world, steps),',
            "refusals-foreign-assignor-joined": "others_only = len(world.strangers()) [-==-]{+>+} len(group.members)",
        },
        ("fleet/decide/receipts.py", _RECEIPTS): {
            "receipts-others-charged-to-us": """        elif changed[- or generation.added-]:
            last = others""",
            "receipts-less-than-the-price-is-equal": "equal = [-price.rebalances_min <= -]len(ours) <= price.rebalances_max",
            "receipts-second-round-is-nobodys": """        [-# else: it names nobody, so it belongs with the one before-]{+else:
            last = ours+}
        last.append(generation)""",
            "receipts-settled-with-what-others-did": "max(0.0, [-ours-]{+counted.generations+}[-1].ended_at - moved_at)",
            "receipts-shorter-pauses-told": "counted.unended.items() if pause [-> longest-]{+> 0+}}",
            "receipts-unended-pauses-hidden": "if pause > [-longest-]{+longest + 60+}}",
            "receipts-unreadable-is-equal": "verdict = Verdict.[-UNVERIFIED-]{+EQUAL+}",
        },
        ("fleet/decide/scaling.py", _SCALING): {
            "scaling-quarantined-lag-counts": "seen = [-[p for p in group.partitions if p.tp not in quarantined]-]{+list(group.partitions)+} if group is not None else []",
            "scaling-shrinks-on-half-a-figure": 'return _Ask(raw=raw, why=f"{why}, {hidden} partitions unknown"[-, may_shrink=False-])',
            "scaling-shrinks-to-the-last-ask": 'return _stepped(spec, current, [-kept[0][1]-]{+target+}), memory, "from"',
            "scaling-shrinks-at-the-first-look": "if [-looks < 2 or -]left > 0:",
            "scaling-agreement-survives-another-size": "memory = memory if memory.current [-== current-]{+is not None+} else ScalingMemory(current=current)",
        },
        ("fleet/decide/storms/assessment.py", _STORMS): {
            "storms-own-changes-are-charged": "if left[index] > [-0-]{+1+} and each.covers(rebalance):",
            "storms-own-change-excuses-everything": """[-                left[index] -= 1
-]""",
            "storms-one-before-the-budget": "return last - first >{+=+} budget.rebalances // share or churn",
            "storms-over-as-soon-as-under-the-budget": "return not self._above(at, share=[-2-]{+1+})",
        },
        ("fleet/manager/keeping_up.py", _VERDICTS): {
            "verdicts-stop-before-the-rebalance-ended": "silent = [-np.minimum(-]_since(commits.at, now)[-, calm)-]",
            "verdicts-marker-is-lag": "(lag.records <[-=-] patience.allowed, LagVerdict.OK),",
            "verdicts-beyond-the-end-of-nothing": "(lag.case == _CASE[LagCase.BEYOND_END])[- & (lag.end > lag.start)-]",
            "verdicts-beyond-the-end-at-once": "(_beyond(lag) & ~moving[- & (silent >= enough)-], LagVerdict.STOP),",
        },
        ("fleet/decide/adopted.py", _ADOPTED): {
            "adopted-static-members-not-named": "return tuple(m for m in members_of(group, adopted) if m.instance_id is [-not -]None)",
            "adopted-members-anywhere-are-its-own": "return tuple(m for m in found if [-address_of(m) in -]addresses)",
            "adopted-pod-by-prefix-of-its-name": 'each == pod or each.startswith([-f"{pod}-"-]{+pod+})',
        },
        ("fleet/decide/world.py", (*_PLANS, *_REFUSALS)): {
            "world-quarantined-slot-is-open": "return tuple(sorted(self.gate.open[- - self.gate.quarantined-]))",
            "world-number-of-another-group": "return int(tail) if dash and [-head == self.spec.group and -]is_number else None",
        },
        ("fleet/decide/world.py", _REFUSALS): {
            "world-ended-holder-is-there": "ended[- = {p.name for p in self.processes if not p.running}-]{+: set[str] = set()+}",
        },
    },
)

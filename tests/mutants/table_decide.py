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
_ADOPTED = ("tests/decide/test_adopted.py",)

MUTANTS = faults(
    {
        ("fleet/decide/plans.py", _PLANS): {
            "plans-new-topics-before-the-roll": "roll_first = [-topics_differ or -]not leaving",
            "plans-quarantined-number-opened": "number, closed = 0, {*taken[-, *self.world.gate.quarantined-]}",
            "plans-rejoin-beside-an-opening": "if owed and not leaving and [-not fresh and -]held and self._needs_rejoin():",
            "plans-assignor-changed-in-place": 'if held and differing - {"topics"{+, "assignor"+}} and self.wanted > 0:',
            "plans-wave-takes-numbers-of-those-that-stay": "fresh = self._free_numbers(len(old), taken=[-held-]{+old+})",
            "plans-repair-forgotten": "return bool(blocked) and [-not -]set(unheld) <= {n for s in blocked for n in s.slots}",
            "plans-drain-of-closed-slots": "leaving = tuple([-n for n in held if n in set(slots-]{+sorted(set(slots)+}))",
        },
        ("fleet/decide/plan_ids.py", _PLANS): {
            "plans-id-without-what-it-saw": "repr((group, wanted, [-seen, -]does))",
        },
        ("fleet/decide/prices.py", _PLANS): {
            "prices-cooperative-gate-costs-one": """            rebalances_max=1[- if self._range else 2-],
            moved_min=least,""",
            "prices-join-of-nobody-costs-two": "from_empty = [-(-]self.emptied and not strangers[-) or (self.world.is_empty() and not beside)-]",
            "prices-what-leaves-is-what-runs-next": """            return [-group.type == "consumer"-]{+self._consumer+}
        return self._consumer""",
        },
        ("fleet/decide/moves.py", _PLANS): {
            "moves-by-number-not-by-bytes": "order = sorted(members, key=lambda name: [-name.encode(-]{+(len(name), name+}))",
            "moves-leavers-partitions-not-counted": "return surplus[- + sum(leavers)-]",
        },
        ("fleet/decide/capacity.py", (*_SCALING, *_PLANS)): {
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
        ("fleet/decide/verdicts.py", _VERDICTS): {
            "verdicts-stop-before-the-rebalance-ended": "silent = [-min(-]seen.since_commit if seen.since_commit is not None else 0.0[-, calm)-]",
            "verdicts-marker-is-lag": "if seen.lag <[-=-] patience.allowed:",
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

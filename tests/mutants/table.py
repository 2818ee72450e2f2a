"""The planted faults: by rule of docs/contributing/rules.md (`02-…`), or by topic.

name: (module of `fleet` and what holds the node, tests that have to fail, node, what replaces it).
Nodes and replacements are written as `ast.unparse` tells them, so the formatting, comments and
place of the code do not matter; a node stands once in its function.
"""

from tests.mutants.planting import Fault

WITHOUT = {
    "20": "a joiner's death costs at most one rebalance more: no code of Fleet decides it",
    "33": "the tests count with Kafka's own tool; what Fleet reads is planted under 26 and 27",
}
"""Rules without a fault, with why."""

# fmt: off
_FAULTS: dict[str, tuple[str, str, str, str]] = {
    "01-revoke-serves-no-command": (
        "worker.member.membership:Membership._finish", "worker/test_owning.py",
        "self._serve(_STILL)", "pass"),
    "02-token-of-an-earlier-assignment-holds": (
        "worker.member.assigning:Partitions.owned_since", "worker/test_owning.py",
        "tp in owned and owned[tp].token == token", "tp in owned"),
    "02-commit-under-another-member-id": (
        "worker.member.assigning:Partitions.commitable", "worker/test_owning.py",
        "member_now != member_then", "member_now is None"),
    "02-commit-without-a-look-at-the-token": (
        "worker.member.assigning:Partitions.commitable", "worker/test_owning.py",
        "self.owned_since(tokens)", "set(tokens)"),
    "03-dead-workers-session-goes-on": (
        "worker.slot.slot_owner:SlotOwner.take", "worker/test_slot_owner.py",
        "not self._cured", "self._cured"),
    "03-unclean-session-forgotten-by-a-take": (
        "slots.transitions:take_slot", "slots/test_compare_and_set.py",
        "spark_session if stored.clean else stored.spark_session", "spark_session"),
    "04-range-begins-without-its-plan-committed": (
        "worker.member.pipeline:Pipeline.step", "worker/test_pipeline.py",
        "self._plan()", "True"),
    "04-planned-range-not-repeated-exactly": (
        "worker.batch.batches:InlineReading._cut", "worker/test_batches.py",
        "part.position if part.replay_to is None else part.replay_to", "part.position"),
    "05-batch-hangs-for-ever": (
        "worker.batch.executor:BatchRunner._attempts", "worker/test_failures.py",
        "timeouts > 1", "timeouts > 2"),
    "06-drain-does-not-wait-for-the-batch": (
        "worker.member.membership:is_drained", "worker/test_owning.py",
        "not busy and (not (uncommitted and in_time))", "not (uncommitted and in_time)"),
    "06-revoke-does-not-wait-for-the-batch": (
        "worker.member.membership:Membership._finish", "worker/test_owning.py",
        "pipeline.touches(tps) or pipeline.uncommitted & tps", "pipeline.uncommitted & tps"),
    "07-end-behind-an-open-transaction": (
        "worker.batch.ranges:PartitionEnds.__init__", "worker/test_owning.py",
        "'read_committed'", "'read_uncommitted'"),
    "07-start-that-is-gone-is-passed-over": ("kafka_source.tasks:_lost", "ranges/test_edges.py",
        "left.start > after or (left.start < first and (not told))", "left.start > after"),
    "08-back-to-inline-without-a-seek": (
        "worker.batch.adaptive_reader:AdaptiveReader._consider_inline", "ranges/test_switch.py",
        "consumer.seek(KafkaPartition(tp.topic, tp.partition, part.start))", "pass"),
    "09-quarantined-partition-tried-again": (
        "worker.member.losses:StoppedPartitionsView._end_reason", "worker/test_poison.py",
        "None if mark.revision == self._revision else 'this revision tries it'",
        "'this revision tries it'"),
    "09-refused-dead-letter-passed-over": (
        "worker.batch.poison_search:DeadLetters._refused", "worker/test_poison.py",
        "not refused", "True"),
    "10-member-that-cannot-work-stays-idle": (
        "worker.member.protocols:fatal_of", "worker/test_consumer_protocol.py",
        "error.fatal() or error.code() in {_WRAPPED, *FATAL}", "error.fatal()"),
    "11-reference-resolved-before-it-travels": (
        "kafka_source.login:_where", "ranges/test_cutting.py",
        "{kind: str(name)}", "{'value': open(name).read() if kind == 'file' else name}"),
    "12-silent-store-is-a-loss": (
        "worker.slot.slot_lease:SlotLease._confirm", "worker/test_slot_lease.py",
        "return None", "return False"),
    "13-dead-at-half-a-lease": ("slots.evidence:LeaseWatch.is_expired", "slots/test_evidence.py",
        "seen.expired = monotonic - seen.since >= duration",
        "seen.expired = monotonic - seen.since >= duration / 2"),
    "13-ended-while-something-of-it-runs": (
        "act.local.supervisor:EndedOwners.tell", "runtime/test_supervision.py",
        "not self._is_gone(row.name)", "False"),
    "14-session-of-any-length": ("config.spec:ClassicWorker", "spec/test_load.py",
        "Field(ge=6.0, le=1800.0)", "Field(ge=6.0)"),
    "15-fenced-for-ever": ("worker.slot.slot_life:SlotLife._refused", "worker/test_slot_owner.py",
        "now - before > self._window", "now - before >= 0"),
    "16-leave-by-instance-id-alone": (
        "act.steps.leave_slots:_send_leave", "acting/test_performing.py",
        "(_instance_of(work, s), s.member_id)", "(_instance_of(work, s), '')"),
    "16-superseded-member-counts-as-gone": (
        "act.kafka:GroupAdmin.leave", "acting/test_batched_leave.py",
        "{errors.NoError, errors.UnknownMemberIdError}",
        "{errors.NoError, errors.UnknownMemberIdError, errors.FencedInstanceIdError}"),
    "17-refused-leave-told-as-free": (
        "worker.slot.leave_completion:Failover.free", "worker/test_consumer_protocol.py",
        "return why", "return None"),
    "17-new_owner-frees-nobody": (
        "worker.slot.slot_owner:SlotOwner.take", "worker/test_slot_owner.py",
        "context.worker.protocol == 'consumer' and seen.owner is not None",
        "context.worker.protocol == 'consumer' and seen.owner is None"),
    "18-external-process-evicted": (
        "worker.slot.leave_completion:Failover.free", "worker/test_consumer_protocol.py",
        "found.client_id not in former.workers", "not found.client_id"),
    "18-living-members-of-others-named": (
        "act.steps.adopting:Adopting.perform", "acting/test_adopting.py",
        "set(before) - set(after.addresses.values())",
        "set(before) | set(after.addresses.values())"),
    "19-slots-open-at-once-instead-of-ahead": (
        "act.steps.membership:open_together", "acting/test_performing.py",
        "work.clock.now() + OPEN_AHEAD", "work.clock.now()"),
    "21-leave-sent-before-all-are-closed": (
        "act.steps.leave_slots:are_drained", "acting/test_performing.py",
        "s.phase is Phase.CLOSED", "s.phase in {Phase.DRAINING, Phase.DRAINED, Phase.CLOSED}"),
    "21-first-drained-closes": (
        "worker.slot.leave_completion:all_drained", "worker/test_slot_lease.py",
        "all", "any"),
    "21-worker-does-not-wait-for-the-actor": (
        "worker.slot.leave_completion:LeaveCompleter.step", "worker/test_slot_lease.py",
        "not self._actor_silent(targets)", "False"),
    "22-second-slot-without-a-canary": (
        "worker.slot.slot_lease:candidates.admits", "worker/test_eligibility.py",
        "first and (not waits_for_canary(slots, slot, revision))", "first"),
    "22-targets-opens-before-enough-are-warm": (
        "worker.slot.process:first_targets", "worker/test_eligibility.py",
        "warm < asked.slots", "warm < 1"),
    "23-all-stop-before-anybody-is-warm": (
        "act.steps.membership:stop_all", "acting/test_stopping_all.py",
        "_warm_before(work, step)", "pass"),
    "23-assignor-changed-in-place": ("decide.plans:_Planning.steps", "decide/test_plans.py",
        "{'topics'}", "{'topics', 'assignor'}"),
    "24-frozen-standby-is-warm": ("act.standby_pool:StandbyPool.warm", "acting/test_rolling.py",
        "self._heard.answers(r.worker)", "True"),
    "24-untaken-slot-waited-for": (
        "act.steps.handover:_Roll._taken_or_not", "acting/test_rolling.py",
        "self._taken(numbers, canary=canary) or untaken()", "self._taken(numbers, canary=canary)"),
    "25-settled-at-once": (
        "act.steps.receipts:settled_from_here.settled", "acting/test_performing.py",
        "cooldown and work.clock.monotonic() - since_when >= quiet", "cooldown"),
    "26-others-rebalances-charged-to-us": ("decide.receipts:_split", "counting/test_receipts.py",
        "changed or generation.added", "changed"),
    "26-unreadable-topic-is-equal": ("decide.receipts:make_receipt", "counting/test_receipts.py",
        "ReceiptResult.UNVERIFIED", "ReceiptResult.EQUAL"),
    "26-round-that-never-completed-not-counted": (
        "log.replay.classic:ClassicReplay._rebalance", "counting/test_played_groups.py history/test_reasons.py",
        "record.generation - group.number - 1", "0"),
    "27-pause-ends-with-a-record-read-again": (
        "log.replay.counting:_Pauses.commit", "counting/test_count.py",
        "not advances", "False"),
    "28-partitions-of-leavers-not-counted": (
        "decide.plans:count_least_moved", "decide/test_plans.py decide/test_what_runs_now.py",
        "surplus + sum(leavers)", "surplus"),
    "29-adopted-change-counts-from-its-adoption": (
        "act.steps.receipts:begin", "acting/test_performing.py",
        "work.lease.recall(StepStart).started_at is None", "True"),
    "30-quarantined-lag-asks-for-workers": (
        "decide.scaling:_asked_by_lag", "decide/test_scaling.py membership/test_decisions.py",
        "[p for p in group.partitions if p.tp not in quarantined]", "list(group.partitions)"),
    "31-any-process-of-that-pid": ("system.processes:alive", "processes/test_processes.py",
        "identify(process.pid) == process", "identify(process.pid) is not None"),
    "32-broker-away-voids-a-commit": (
        "worker.member.protocols:", "worker/test_consumer_protocol.py",
        "-195", "22"),
    "34-repetition-by-another-call-not-counted": (
        "demo.coverage:coverage", "demo/test_coverage.py",
        "count - (times[which] == 0)", "count - 1"),
    "34-lost-record-not-counted": ("demo.coverage:coverage", "demo/test_coverage.py",
        "wanted & (times == 0)", "wanted & (times < 0)"),
    "35-plan-id-without-what-it-saw": ("decide.adopted:plan_id", "decide/test_plans.py",
        "(group, wanted, seen, does)", "(group, wanted, does)"),
    "36-run-ended-by-a-store-that-takes-no-write": (
        "dagster.dead_runs:update_run", "orchestration/test_requests.py",
        "not provable", "False"),
    "36-run-of-another-machine-called-dead": (
        "dagster.dead_runs:_pid_here", "orchestration/test_requests.py",
        "machine != this_machine()", "False"),
    "36-run-that-ended-well-called-dead": (
        "dagster.dead_runs:end_ended_runs", "orchestration/test_requests.py",
        "again.status is run.status", "True"),
    "36-run-that-stores-events-called-dead": (
        "dagster.dead_runs:_event_mark", "orchestration/test_requests.py",
        "newest.storage_id", "0"),
    "36-killed-run-is-a-failed-attempt": (
        "dagster.reconcile_schedule:failures_of", "orchestration/test_requests.py",
        "count - min(1, killed)", "count"),
    "37-unchanged-group-told-each-tick": (
        "dagster.watch_sensor:due_groups", "orchestration/test_sensor_cursor.py",
        "known.hard != event.hard", "True"),
    "38-who-only-reads-has-evidence": (
        "slots.evidence:LeaseWatch.is_expired", "slots/test_evidence.py",
        "monotonic if since is None else max(seen.since, since)",
        "seen.since if since is None else max(seen.since, since)"),
    "38-refused-write-forgotten": ("slots.evidence:WriteLog._ended", "slots/test_evidence.py",
        "self._since = None", "pass"),
    "39-frozen-observer-has-evidence": (
        "slots.evidence:LeaseWatch.is_expired", "slots/test_evidence.py",
        "seen is None or seen.mark != mark or gap", "seen is None or seen.mark != mark"),
    "40-full-disk-ends-a-owner": (
        "worker.slot.reporting:Canary._failures_told", "worker/test_eligibility.py",
        "OSError", "KeyError"),
    "41-resubscribe-without-an-end": ("worker.member.membership:Resubscriber._over", "worker/test_nudging.py",
        "'limit'", "None"),
    "42-batch-of-a-former-token-moves-a-new-beginning": (
        "worker.member.pipeline:Pipeline._rewind_onto_ranges", "worker/test_pipeline.py",
        "self.owned.owned_since(hand.tokens) & again", "self.owned.all.keys() & again"),
    "42-chosen-position-not-committed": (
        "worker.member.assigning:Start.is_chosen", "worker/test_positions.py",
        "not self.gone and self.committed != self.position", "False"),
    "43-poison-without-a-witness": (
        "worker.batch.poison_search:PoisonSearch.search", "worker/test_poison.py",
        "failed and (not self._witness)", "False"),
    "44-first-part-of-the-childs-answer-lost": (
        "worker.group_query:GroupQuery.done", "worker/test_asking.py::test_an_answer_of_any_size_is_heard_without_waiting",
        "self._told += part", "self._told = part"),
    "45-aborted-commits-count": (
        "log.readers.log_view:PendingCommits.end", "observe/test_open_transactions.py::test_what_counts_when_a_transaction_ends",
        "tuple(found.values()) if committed else ()", "tuple(found.values())"),
    "46-damaged-batch-is-read": (
        "kafka_source.record_batches:_places", "ranges/test_record_batches.py",
        "google_crc32c.value(data[place + _ATTRIBUTES_AT:end]) != wanted", "False"),
    "47-unfinished-file-read": (
        "worker.batch.columnar:ColumnarBatch.frame", "ranges/test_columnar.py",
        "self._gathering.whole", "self._gathering.path"),
    "48-group-full-for-its-own-members": (
        "sim.coordinator.consumer_coordinator:heartbeat", "conformance/test_consumer_groups.py::test_stories",
        "asked.member_id not in group.members", "True"),
    "48-takes-what-another-member-owns": (
        "sim.coordinator.consumer_coordinator:Reconciliation._towards_target", "conformance/test_consumer_groups.py::test_stories",
        "self.epoch_of(topic, each) == -1", "self.epoch_of(topic, each) >= -1"),
    "48-pending-members-not-waited-for": (
        "sim.coordinator.classic_group:ClassicGroup.has_all_joined", "conformance/test_classic.py::test_random_stories[1-1000]",
        "not self.pending_join", "True"),
    "48-client-is-given-what-another-owns": ("sim.assignors:", "sim/test_client_assignors.py",
        "owner.get(p, member_id) == member_id", "True"),
    "49-a-roll-goes-on-by-itself-after-it-stalled": (
        "act.steps.handover:_Roll.all_slots", "acting/test_rolling.py",
        "memory.stalled is not None", "False"),
    "49-a-complete-rollout-needs-no-slots": (
        "act.steps.handover:_Roll._await_rollout", "acting/test_rolling.py",
        "status.complete and (not todo)", "status.complete"),
    "49-standbys-are-ready-while-slots-stay": (
        "slots.transitions:describe_missing_canary", "worker/test_eligibility.py",
        "pin.token == STAYS and n in usable", "False"),
    "49-standbys-cost-as-much-as-owners": (
        "kubernetes.leases.lease_store:LeaseStore.rank", "k8s_store/test_in_memory.py",
        "OWNER_COST if owns else STANDBY_COST", "OWNER_COST"),
    "50-topic-made-again-is-the-same": (
        "worker.batch.adaptive_reader:AdaptiveReader.add_partition", "ranges/test_switch.py",
        "known and self._first_ids.setdefault(tp.topic, topic_id) != topic_id", "False"),
    "51-asks-for-offsets-while-it-closes": (
        "worker.member.membership:Membership._on_assign", "worker/test_owning.py",
        "self._done", "self._done and (not partitions)"),
    "52-drains-with-records-in-its-hands": (
        "worker.member.membership:Membership._begin_drain", "worker/test_owning.py",
        "then is not Life.REJOINING", "False"),
    "53-store-not-asked-what-was-committed": (
        "worker.member.assigning:Assigner.starts", "worker/test_positions.py",
        "self._ask_committed_topics()", "frozenset()"),
    "55-silent-worker-is-not-missed": (
        "system.child_guard:main", "program/test_guard.py",
        "max(deadline, at + limit)", "max(deadline, at + 3600.0)"),
    "55-dead-worker-is-not-missed": (
        "system.child_guard:main", "program/test_guard.py",
        "not read", "read == b'?'"),
    "55-program-outlives-its-guard": (
        "system.child_guard:_start", "program/test_guard.py",
        "ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)", "pass"),
    "54-joins-though-the-store-is-silent": (
        "worker.slot.slot_lease:SlotLease.may_join", "worker/test_slot_lease.py",
        "self.is_fresh or None", "True"),
    "store-take-over-a-renewal": ("slots.transitions:is_unchanged", "slots/test_compare_and_set.py",
        "(stored.owner, stored.token, stored.counter) == (seen.owner, seen.token, seen.counter)",
        "(stored.owner, stored.token) == (seen.owner, seen.token)"),
    "store-take-keeps-the-token": ("slots.transitions:take_slot", "slots/test_compare_and_set.py",
        "stored.token + 1", "stored.token"),
    "store-former-actor-writes-the-targets": (
        "slots.store:Store.write_targets.edit", "slots/test_compare_and_set.py slots/test_evidence.py",
        "by.token < record.token", "by.token < 0"),
    "store-take-without-a-second-look-at-the-targets": (
        "slots.store:Store._confirm_take", "slots/test_interleavings.py",
        "stands and attempt.is_admitted(record)", "stands"),
    "change-of-a-living-manager-adopted": (
        "act.change:GroupChanges._adopt", "acting/test_liveness.py acting/test_changes.py",
        "self.is_actor_alive()", "False"),
    "change-goes-on-after-a-broken-expected_cost": (
        "act.change:Performer._all_steps", "acting/test_performing.py",
        "receipt.result is ReceiptResult.DIFFERS", "receipt.result is ReceiptResult.UNVERIFIED"),
    "roll-back-keeps-the-failing-code": (
        "act.steps.handover:_Roll._roll_back", "acting/test_rolling.py",
        "w.revision == self._new != old", "w.revision == old != self._new"),
    "plan-on-a-stale-snapshot": (
        "decide.refusals:_stale", "decide/test_refusals.py membership/test_decisions.py",
        "age <= STALE_AFTER", "age <= STALE_AFTER * STALE_AFTER"),
    "storm-of-our-own-changes": ("decide.storms:count_against_budget", "decide/test_storms.py",
        "left[index] -= 1", "pass"),
    "lag-of-a-portion-without-its-last-row": (
        "lag.lag_columns:portions", "lag/test_measure.py exporter/test_columns.py",
        "first + _PORTION", "first + _PORTION - 1"),
    "lag-verdict-beyond-the-end-at-once": (
        "manager.lag_assessment:_codes", "decide/test_lag_status.py",
        "_beyond(lag) & ~moving & (silent >= enough)", "_beyond(lag) & ~moving"),
    "batch-begins-after-a-receipt-that-differs": (
        "commands.change.batches:BatchedChanges._in_batches", "cli/test_batches.py",
        "any((each.trouble() and each.refused is None for each in found))", "False"),
    "batch-rolls-twice-what-an-earlier-run-rolled": (
        "commands.change.batches:RollStart.has_rolled", "acting/test_batches.py",
        "change.started_at >= self.at", "change.started_at < self.at"),
    "k8s-answer-lost-is-a-conflict": (
        "kubernetes.leases.lease_backend:LeaseBackend.store", "k8s_store/test_in_memory.py",
        "not same_state(stored, wanted)", "True"),
    "seeds-renewal-by-name-alone": (
        "slots.transitions:is_owned_by", "schedules/test_schedules.py::test_schedules_hold[0]",
        "(stored.owner, stored.token) == mine", "True"),
    "seeds-lost-slot-goes-on-working": (
        "worker.slot.slot_life:SlotLife.decide", "schedules/test_schedules.py::test_schedules_hold[0]",
        "seen.lost", "seen.lost and (not seen.targets.open)"),
}
# fmt: on
FAULTS = tuple(Fault(name, *written) for name, written in _FAULTS.items())

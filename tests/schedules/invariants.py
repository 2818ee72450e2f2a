"""What must hold after every event of a schedule (docs/contributing/protocol.md 5.2, rules of
slots).

I1 one owner, I3 commits never go back, I4 a commit is its owner's, I5 only what was processed is
committed, I6 nothing twice without an unclean loss, I7 a batch begins where the last commit is, I9
generations grow, I10 a coordinator that moves loses no commit and costs no generation, S1 nobody
alive is called dead, S2 who lost its slot stops, S3 a change has one actor, S4 a former actor
writes no slot targets, S5 nobody ends without a cause, S6 a change opens its slots in one write. At
the end: I2 every partition has an owner, I8 no more generations than were planned and faults
explain, I11 everything works again. I12 (one seed, one trace) and I13 (the log says what the
coordinator knows) are tests of their own.

Not to be told here: what Kafka accepts of a commit that is not the owner's [2] beyond I4, and
duplicates inside Spark, which is not simulated.
"""

from fleet.sim.coordinator.requests import OffsetCommitRequest
from fleet.slots import Change, ChangeState, Slot, SlotTargets
from fleet.slots.backend import SlotTargetsRecord
from tests.schedules.simulated_broker import GROUP, SimulatedBroker, partitions_of
from tests.schedules.simulated_member import SimulatedMember
from tests.schedules.simulated_time import Process, Simulation
from tests.schedules.simulated_topic import SimulatedTopic, Work

NEWS = 4.0
"""Seconds in which an owner that has lost its slot must have stopped: two silent requests."""


class Invariants:
    """Looks on; the first thing that does not hold ends the schedule."""

    def __init__(
        self,
        world: Simulation,
        broker: SimulatedBroker,
        topic: SimulatedTopic,
        *,
        lease: float,
        session: float,
    ) -> None:
        self.world, self.broker, self.topic = world, broker, topic
        self.lease, self.session = lease, session
        self.changes: list[Change] = []
        self._written_at: dict[int, float] = {}
        self._actor = (0, 0.0)
        """The latest token of a change, and since when."""
        self._openings: set[tuple[str, int]] = set()
        self.goes_back = False
        """Whether slots may be opened twice by a change: a rolling batch that fails goes back."""
        self.moved_at = -1e9
        """When the coordinator last moved."""

    # --- who is well --------------------------------------------------------------------------

    def hurt(self, *processes: Process, until: float = 0.0) -> None:
        """Something is wrong with these processes, and with no others, up to that moment."""
        for each in processes:
            each.hurt_at = max(each.hurt_at, self.world.now, until)

    def well_for(self, process: Process) -> float:
        """Seconds."""
        return self.world.now - process.hurt_at if process.alive else -1.0

    # --- slots ----------------------------------------------------------------------------------

    def slot_written(self, number: int) -> None:
        """By its owner, or by whoever takes it."""
        self._written_at[number] = self.world.now

    def taken(self, before: Slot, after: Slot, owner: Process | None) -> None:
        """S1: from an owner that lives and could renew, nobody takes a slot."""
        if before.owner is None or before.owner_ended or owner is None:
            return
        stood = self.world.now - self._written_at.get(before.number, 0.0)
        if stood < self.lease:
            self.world.violated(
                f"S1: {after.owner} took slot {after.number} of {before.owner}, which wrote it "
                f"{stood:.1f} s before"
            )
        if not owner.alive:
            return
        well = self.well_for(owner)
        if well > self.lease:
            self.world.violated(
                f"S1: {after.owner} took slot {after.number} of {before.owner}, which lives and "
                f"was well for {min(well, self.world.now):.1f} s"
            )

    def targets_written(
        self,
        before: SlotTargetsRecord | None,
        after: SlotTargetsRecord,
        process: Process,
        token: int | None,
    ) -> None:
        """S4: whoever adopts a change has been at the slot targets; its former actor writes it no
        more.

        S6: what one change opens, it opens in one write [19].
        """
        if before is None or token is None or before.targets == after.targets:
            return
        if after.targets.open - before.targets.open:
            opening = (process.name, token)
            if opening in self._openings and not self.goes_back:
                self.world.violated(f"S6: {process.name} opens slots one by one")
            self._openings.add(opening)
        latest, since = self._actor
        if before.token > token or (latest > token and self.world.now - since > NEWS):
            after_token = max(latest, before.token)
            self.world.violated(
                f"S4: {process.name} (token {token}) wrote targets after token {after_token}"
            )

    def changes_hands(self, token: int) -> None:
        """The change has another actor from now on."""
        self._actor = token, self.world.now

    def adopted(self, former: Process, by: Process) -> None:
        """S3: a change is adopted from the dead, or from who could not renew."""
        well = self.well_for(former)
        if former.alive and well > self.lease:
            self.world.violated(f"S3: {by.name} adopted the change of {former.name}, which lives")

    def change_ended(self, change: Change) -> None:
        """For what comes at the end."""
        self.changes.append(change)

    # --- work -----------------------------------------------------------------------------------

    def process_ended(self, process: Process, code: int, sentence: str) -> None:
        """S5: an end with an error has a cause of its own."""
        known = "could not be given up" in sentence  # a store that is away in that very moment
        if code and not known and self.well_for(process) > self.session + self.lease:
            self.world.violated(f"S5: {process.name} ended without a cause: {sentence}")

    def batch_begins(
        self, process: Process, member: SimulatedMember, work: Work, lost_at: float | None
    ) -> None:
        """I1, I6, I7, S2 at the entrypoint's call."""
        topic, partition, now = self.topic, work.partition, self.world.now
        if lost_at is not None and now - max(lost_at, process.stopped_until) > NEWS:
            self.world.violated(f"S2: {process.name} works on, {now - lost_at:.1f} s after it lost")
        committed, last = topic.committed.get(partition), topic.last(partition)
        if committed is None:
            self.world.violated(
                f"I7: {process.name} reads partition {partition} from {work.start}, which nobody "
                "committed"
            )
            return
        well = self.well_for(process) > self.session + 3.0
        if well and work.start != committed and now - self.moved_at > self.session:
            self.world.violated(
                f"I7: {process.name} reads partition {partition} from {work.start}, {committed} is "
                "committed"
            )
        if well and last is not None and work.start < last.end:
            self._twice(work, last)
        if well and now - self.moved_at > self.session:
            owner = self.broker.owner(partition)
            if owner not in {None, member.member_id}:
                me = f"{process.name} ({member.member_id})"
                self.world.violated(f"I1: {me} processes partition {partition} of {owner}")
        topic.begun(work)

    def _twice(self, work: Work, last: Work) -> None:
        self.topic.twice += last.end - work.start
        reader, before = work.process.name, last.process
        who = f"I6: {reader} reads partition {work.partition} from {work.start} again"
        if last.committed:
            self.world.violated(f"{who}: {before.name} has committed {last.end}")
        elif last.void is None and before.alive and self.well_for(before) > self.session:
            self.world.violated(f"{who}: {before.name} had it in hand up to {last.end}")

    def committed(self, request: OffsetCommitRequest, process: Process) -> None:
        """I3, I4, I5 at a commit that the coordinator accepts."""
        group = self.broker.group
        member = None if group is None else group.members.get(request.member_id)
        owned = () if member is None else partitions_of(member.assignment)
        for each in request.topics[0].partitions:
            partition, offset = each.partition_index, each.committed_offset
            before = self.topic.committed.get(partition)
            what = f"{process.name} committed {offset} of partition {partition}"
            if before is not None and offset < before:
                self.world.violated(f"I3: {what} after {before}")
            if partition not in owned:
                self.world.violated(f"I4: {what}, which it does not own")
            if before is None or offset <= before:
                pass
            elif not self.topic.is_done(partition, before, offset):
                self.world.violated(f"I5: {what} after {before}, which nobody has processed")
            self.topic.committed[partition] = offset

    # --- at the end -------------------------------------------------------------------------------

    def budget(self, planned: int, allowed: int) -> None:
        """I8: generations."""
        rounds = self.broker.rounds
        if len(rounds) > planned + allowed:
            told = ", ".join(f"{r.generation} at {r.at:.1f} s" for r in rounds)
            self.world.violated(
                f"I8: {len(rounds)} generations where {planned} were planned and faults explain "
                f"{allowed}: {told}"
            )

    def as_planned(self) -> None:
        """Without a fault, every change is done and its receipts are equal."""
        for change in self.changes:
            verdicts = [
                f"{r.result} ({r.rebalances} for {r.expected_cost})" for r in change.receipts
            ]
            if change.sentence != "done, as planned":
                self.world.violated(
                    f"I8: change {change.plan.id} {change.state}: {change.sentence} {verdicts}"
                )

    def at_rest(self, owners: dict[int, Slot], opened: frozenset[int], living: set[str]) -> None:
        """I2, I11: once nothing is wrong any more, every slot has a living owner that works."""
        topic, now = self.topic, self.world.now
        for number in sorted(opened):
            slot = owners.get(number)
            if slot is None or slot.owner not in living or slot.phase.value != "active":
                self.world.violated(f"I11: slot {number} is open, and stands so: {slot}")
                return
        if not opened:
            return
        for partition in range(topic.partitions):
            if self.broker.owner(partition) is None:
                self.world.violated(f"I2: partition {partition} has no owner")
            waits = topic.end(partition, now) - topic.committed.get(partition, 0)
            if waits > 60:
                self.world.violated(f"I11: {waits} records wait in partition {partition}")

    def ended(self, running: Change | None, targets: SlotTargets) -> None:
        """I11: no change is left behind, nor what it asked."""
        if running is not None and running.state is ChangeState.RUNNING:
            self.world.violated(f"I11: change {running.plan.id} of {GROUP} is still running")
        if targets.handover or targets.leaving or targets.rejoin or targets.quarantined:
            self.world.violated(f"I11: the slot targets still asks, and nobody acts: {targets}")

"""Records the history without read access to the offsets topic: differences of two polls.

Problem: managed Kafka seldom allows a client to read `__consumer_offsets`. Choice: compare the
AdminClient's view of all groups at every interval. Other members, or the same ones with other
partitions, are one rebalance, marked as polled. Cost: no describe returns generations (-1). Several
rebalances between two polls count as one, and one that changes nothing does not count. Starts are
unknown, and causes are as ambiguous as the difference.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from fleet.history.lag_rows import polled_rows
from fleet.history.memory import JobMemory, Kept
from fleet.history.pipeline import BatchSummary
from fleet.history.retention import tidy
from fleet.history.tables import Writer, row_of
from fleet.lag.snapshot import Snapshot
from fleet.model import GroupSnapshot, GroupState, Member, TopicPartition
from fleet.model.rebalances import Cause, Confidence, MembershipSpan, Rebalance, TimeSource

_SETTLED = frozenset({GroupState.STABLE, GroupState.EMPTY})
_Seen = dict[str, tuple[str, list[list[Any]]]]
"""Identity → member id, its partitions."""


class Poller:
    """Brings the tables up to date by looking. `wanted` says which groups."""

    def __init__(
        self, writer: Writer, *, look: Callable[[], Snapshot], wanted: Callable[[str], bool]
    ) -> None:
        self._writer = writer
        self._look = look
        self._wanted = wanted
        self._memory = JobMemory.read(writer)

    def catch_up(self, *, stopped: Callable[[], bool] = lambda: False) -> BatchSummary:
        """Polls once and writes the differences."""
        writer = self._writer
        began = writer.clock.monotonic()
        seen = self._look().only(self._wanted)
        made = compare_snapshots(self._memory, seen)
        rebalances = [row_of(each) for each in made if isinstance(each, Rebalance)]
        members = [row_of(each) for each in made if not isinstance(each, Rebalance)]
        files = [
            *writer.write("rebalances", rebalances),
            *writer.write("memberships", members),
            *writer.write("lag", list(polled_rows(self._memory, seen))),
        ]
        writer.commit("polled", self._memory, files=files)
        done = BatchSummary(batches=1, groups={row["group_id"] for row in rebalances}, polled=True)
        for file in files:
            done.rows[file.table] += file.rows
        done.causes.update(row["cause"] for row in rebalances)
        if not stopped():
            done.compacted = tidy(writer, self._memory, there=seen.groups.keys())
        done.seconds = writer.clock.monotonic() - began
        return done


def compare_snapshots(memory: JobMemory, snapshot: Snapshot) -> list[Rebalance | MembershipSpan]:
    """What changed since the look that the memory holds, which then holds this one.

    A group that is just rebalancing is left for the next look.
    """
    found: list[Rebalance | MembershipSpan] = []
    for name, group in sorted(snapshot.groups.items()):
        if not group.exists or group.state not in _SETTLED:
            continue
        kept = memory.groups.get(name)
        # What a replay remembers (the topic could be read before) is no look.
        before: _Seen | None = json.loads(kept.state).get("polled") if kept else None
        now = _seen(group)
        if before == now:
            continue
        if before is not None:
            found += _difference(snapshot, group, before, now)
        state = json.dumps({"polled": now}, separators=(",", ":"))
        memory.keep(name, Kept(-1, -1, int(snapshot.at * 1000), state))
    return found


def _seen(group: GroupSnapshot) -> _Seen:
    found: _Seen = {}
    for member in sorted(group.members, key=lambda m: m.member_id):
        owned = [[tp.topic, tp.partition] for tp in sorted(member.partitions)]
        found[_identity(member)] = (member.member_id, owned)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # as it is read back


def _identity(member: Member) -> str:
    return member.instance_id or member.member_id


def _difference(
    snapshot: Snapshot, group: GroupSnapshot, before: _Seen, now: _Seen
) -> list[Rebalance | MembershipSpan]:
    joined = tuple(sorted(now.keys() - before.keys()))
    left = tuple(sorted(before.keys() - now.keys()))
    replaced = tuple(sorted(m for m in now.keys() & before.keys() if now[m][0] != before[m][0]))
    owners, last = _owners(now), _owners(before)
    moved = tuple(sorted(tp for tp in owners.keys() & last.keys() if owners[tp] != last[tp]))
    rows: list[Rebalance | MembershipSpan] = [*_memberships(snapshot, group, before, now)]
    if not joined and not left and owners == last:
        return rows  # a static member came back under its name: no rebalance
    causes = [*([Cause.JOIN] if joined else []), *([Cause.REMOVAL] if left else [])]
    cause, *also = causes or [Cause.UNKNOWN]
    rows.append(
        Rebalance(
            cluster=snapshot.cluster,
            group=group.group,
            protocol=group.type,
            number=-1,
            before=None,
            incarnation=0,
            started_at=None,
            start_source=TimeSource.NOT,
            ended_at=snapshot.at,
            end_source=TimeSource.POLLED,
            cause=cause,
            confidence=Confidence.AMBIGUOUS if left or not causes else Confidence.LIKELY,
            also=tuple(also),
            joined=joined,
            left=left,
            replaced=replaced,
            members=len(now),
            moved=moved,
            assignor=group.assignor,
            log_partition=-1,
            log_offset=-1,
        )
    )
    return rows


def _owners(seen: _Seen) -> dict[TopicPartition, str]:
    return {TopicPartition(t, p): who for who, (_, owned) in seen.items() for t, p in owned}


def _memberships(
    snapshot: Snapshot, group: GroupSnapshot, before: _Seen, now: _Seen
) -> list[MembershipSpan]:
    members: Mapping[str, Member] = {_identity(m): m for m in group.members}
    found = []
    for who in sorted(before.keys() | now.keys()):
        old, new = before.get(who), now.get(who)
        if old == new:
            continue
        if new is None:
            event = "left"
        elif old is None:
            event = "joined"
        else:
            event = "owns" if old[0] == new[0] else "replaced"
        member = members.get(who)
        member_id = (new or old or ("", []))[0]
        owned = () if new is None else new[1]
        found.append(
            MembershipSpan(
                cluster=snapshot.cluster,
                group=group.group,
                at=snapshot.at,
                number=-1,
                event=event,
                member=who,
                member_id=member_id,
                instance_id=None if member is None else member.instance_id,
                client_id="" if member is None else member.client_id,
                host="" if member is None else member.host,
                owned=tuple(TopicPartition(t, p) for t, p in owned),
                log_partition=-1,
                log_offset=-1,
            )
        )
    return found

"""Invariants of a group's life, checked from Kafka's records, the workers' events and the journal.

Each check gives sentences that say what is broken; none of them reads a line of Fleet's code.
The numbers are those of docs/contributing/protocol.md 5.2: I1 one owner, I2 everything assigned, I3
commits never go back, I4 commits by owners, I5 no loss, I6 bounded repetition, I7 no skipping, I8
rebalances within the budget, I9 generations grow; I10 and I11 are in the lane that drives the
group.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults import consumer_invariants as consumer
from tests.support.kafka_tools import Record


@dataclass(frozen=True, slots=True)
class Trouble:
    """From `since` to `until` (wall time) this worker, or all of them (None), was not itself."""

    worker: str | None
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a group at a moment when nothing moves."""

    topic: str
    records: Sequence[Record]
    events: Sequence[dict[str, Any]]
    journal: Sequence[dict[str, Any]]
    held: dict[int, tuple[int, int]]
    """Number → (partition, offset) of every record, by an outside reader of the topic."""
    ends: dict[int, int]
    troubles: Sequence[Trouble]
    """Kills, stops, outages."""
    protocol: str = "classic"
    """Or consumer: KIP-848."""

    @property
    def is_consumer(self) -> bool:
        """Whether members and assignments are in KIP-848's records."""
        return self.protocol == "consumer"


@dataclass(frozen=True, slots=True)
class _Owned:
    worker: str
    since: float
    until: float


def broken(seen: Evidence) -> list[str]:
    """All that is broken, in sentences."""
    checks = (one_owner, all_assigned, never_back, by_owners, none_lost, none_skipped, grows)
    return [f"{sentence}" for check in checks for sentence in check(seen)]


def rebalances(seen: Evidence) -> int:
    """Completed generations, or under KIP-848 computed assignments, all that were recorded."""
    if seen.is_consumer:
        return consumer.assignments(seen.records)
    numbers = {r.value["generation"] for r in seen.records if r.type == 2 and r.value}
    return len(numbers - {0})


def assignments(record: Record) -> dict[str, set[tuple[str, int]]]:
    """Instance id (a dynamic member's own id) → its partitions, of a classic group's record.

    The client id would be the worker's name, but a static replacement keeps its predecessor's.
    """
    members = record.value["members"] or ()
    return {m["groupInstanceId"] or m["memberId"]: _assignment(m["assignment"]) for m in members}


def _assignment(decoded: Any) -> set[tuple[str, int]]:
    """The partitions in an assignment as DumpLogSegments decodes it, however deep."""
    if isinstance(decoded, list):
        return {tp for each in decoded for tp in _assignment(each)}
    if not isinstance(decoded, dict):
        return set()
    if "topic" in decoded and "partitions" in decoded:
        return {(decoded["topic"], p) for p in decoded["partitions"]}
    return {tp for each in decoded.values() for tp in _assignment(each)}


def rounds(seen: Evidence) -> list[Record]:
    """The classic group's records with members, in order."""
    return [r for r in seen.records if r.type == 2 and r.value and r.value["members"]]


def one_owner(seen: Evidence) -> list[str]:
    """I1, by the coordinator's records and by what the workers lived."""
    found = consumer.shared_partitions(seen.records) if seen.is_consumer else []
    for record in rounds(seen):
        owners = Counter(tp for each in assignments(record).values() for tp in each)
        found += [
            f"I1: generation {record.value['generation']} gives {tp} to {count} members"
            for tp, count in owners.items()
            if count > 1
        ]
    for partition, owned in _intervals(seen).items():
        for first, second in itertools.pairwise(owned):
            overlap = second.since < first.until and first.worker != second.worker
            if overlap and not _troubled(seen, first):
                found.append(
                    f"I1: {first.worker} still had partition {partition} when "
                    f"{second.worker} got it, and nothing had happened to it"
                )
    return found


def _troubled(seen: Evidence, owned: _Owned) -> bool:
    return any(
        t.worker in {None, owned.worker} and t.since < owned.until and t.until > owned.since
        for t in seen.troubles
    )


def _intervals(seen: Evidence) -> dict[str, list[_Owned]]:
    """Partition → who had it from when to when, by the workers' own events."""
    begun: dict[tuple[str, str], float] = {}
    owned: dict[str, list[_Owned]] = defaultdict(list)

    def end(worker: str, partition: str, at: float) -> None:
        since = begun.pop((worker, partition), None)
        if since is not None:
            owned[partition].append(_Owned(worker, since, at))

    for event in seen.events:
        worker, kind = event["worker"], event["event"]
        if kind == "assigned":
            for partition in event["partitions"]:
                begun.setdefault((worker, partition), event["at"])
        elif kind in {"revoked", "lost"}:
            for partition in event["partitions"]:
                end(worker, partition, event["at"])
        elif kind in {"closed", "exit"}:
            for name, partition in list(begun):
                if name == worker:
                    end(worker, partition, event["at"])
    for worker, partition in list(begun):
        killed = [t.since for t in seen.troubles if t.worker == worker and t.until == float("inf")]
        end(worker, partition, min(killed, default=float("inf")))
    return {tp: sorted(each, key=lambda o: o.since) for tp, each in owned.items()}


def all_assigned(seen: Evidence) -> list[str]:
    """I2: at rest every partition has an owner."""
    if seen.is_consumer:
        left = consumer.unowned(seen.records, list(seen.ends))
        return [f"I2: at rest nobody has {left} of {seen.topic}"] if left else []
    last = rounds(seen)[-1]
    owned = {tp for each in assignments(last).values() for tp in each}
    missing = {(seen.topic, p) for p in seen.ends} - owned
    return [f"I2: at rest nobody has {sorted(missing)}"] if missing else []


def commits(seen: Evidence) -> dict[int, list[int]]:
    """Partition → its committed offsets in the order of the log."""
    found: dict[int, list[int]] = defaultdict(list)
    for record in seen.records:
        if record.type in {0, 1} and record.value is not None:
            found[int(record.key["partition"])].append(int(record.value["offset"]))
    return found


def never_back(seen: Evidence) -> list[str]:
    """I3: no committed offset ever goes back."""
    return [
        f"I3: a commit of partition {partition} went back from {before} to {after}"
        for partition, each in commits(seen).items()
        for before, after in itertools.pairwise(each)
        if after < before
    ]


def by_owners(seen: Evidence) -> list[str]:
    """I4: who commits owns, and has processed what it commits."""
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for record in rounds(seen):
        for instance, tps in assignments(record).items():
            for _, partition in tps:
                owners[int(record.value["generation"]), partition].add(instance.rpartition("-")[2])
    done: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for line in seen.journal:
        done[line["worker"]] |= {(p, end) for _, p, _, end, _ in line["ranges"]}
    found = consumer.strange_commits(seen.records, seen.events) if seen.is_consumer else []
    slot_of: dict[str, str] = {}
    for event in seen.events:
        if event["event"] == "slot":
            slot_of[event["worker"]] = str(event["slot"])
        if event["event"] != "committed":
            continue
        worker, generation = event["worker"], event["generation"]
        for name, end in event["offsets"].items():
            partition = int(name.rpartition("-")[2])
            if (partition, end) not in done[worker]:
                found.append(f"I4: {worker} committed {name} at {end}, which it never processed")
            # A cooperative round may have moved the generation on between commit and event.
            near = owners[generation, partition] | owners[generation - 1, partition]
            if seen.is_consumer or generation is None or generation <= 0:
                continue
            if slot_of[worker] not in near:
                found.append(f"I4: {worker} committed {name} in generation {generation}, not its")
    return found


def times(journal: Sequence[dict[str, Any]]) -> Counter[int]:
    """A record's number → in how many rows the entrypoint got it."""
    return Counter(number for line in journal for number in line["rows"])


def none_lost(seen: Evidence) -> list[str]:
    """I5: every record that the topic holds was in a call's rows, and is committed at rest."""
    called = times(seen.journal)
    found = []
    lost: dict[int, list[int]] = defaultdict(list)
    for number, (partition, at) in seen.held.items():
        if number not in called:
            lost[partition].append(at)
    for partition, places in sorted(lost.items()):
        found.append(
            f"I5: partition {partition}: {len(places)} never processed, from {min(places)}"
        )
    strange = sorted(called.keys() - seen.held.keys())
    if strange:
        found.append(f"I5: rows with numbers that no record has: {strange[:5]}")
    last = {p: each[-1] for p, each in commits(seen).items()}
    behind = {p: (last.get(p, 0), end) for p, end in seen.ends.items() if last.get(p, 0) != end}
    return found + ([f"I5: committed and end differ at rest: {behind}"] if behind else [])


def none_skipped(seen: Evidence) -> list[str]:
    """I7: reading begins at the position that was assigned and never jumps ahead."""
    found = []
    next_of: dict[tuple[str, str], int] = {}
    story = [(e["at"], 0, e) for e in seen.events if e["event"] == "assigned"]
    story += [(line["at"], 1, line) for line in seen.journal]
    for _, _, committed in sorted(story, key=lambda each: each[:2]):
        if "partitions" in committed:
            next_of.update(
                {(committed["worker"], tp): at for tp, at in committed["partitions"].items()}
            )
            continue
        for topic, partition, start, end, _ in committed["ranges"]:
            key = (committed["worker"], f"{topic}-{partition}")
            if start > next_of.get(key, 0):
                found.append(f"I7: {key[0]} jumped from {next_of.get(key)} to {start} in {key[1]}")
            next_of[key] = end
    return found


def grows(seen: Evidence) -> list[str]:
    """I9: generations only grow."""
    if seen.is_consumer:
        return consumer.shrinking(seen.records)
    numbers = [int(r.value["generation"]) for r in seen.records if r.type == 2 and r.value]
    return [
        f"I9: generation {after} after {before}"
        for before, after in itertools.pairwise(numbers)
        if after < before
    ]

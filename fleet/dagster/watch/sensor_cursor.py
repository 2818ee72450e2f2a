"""What the sensor remembers, and which groups get an event: pure.

Problem: 300 groups observed every 15 s are 1.7 million events a day, and storing 600 of them
takes 10-18 s [37]; nor does Dagster ever delete one, and a group's with its checks take 10 kB.
Choice: an event only where a group changed (state, members, verdict: at once; the size of its lag:
at most every hour), a heartbeat once a day, and no more than 50 groups' worth a tick, oldest first.
The cursor, which Dagster keeps in the row of every tick, has 14 packed bytes a group: 19 kB for
1,000. Cost: in a storm of changes an event may be some ticks late, an observation that still holds
is up to a day old, and nobody reads a cursor by eye.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct

from fleet.model import GroupSnapshot

VERSION = 3
EVENTS_A_TICK = 50
HEARTBEAT = 86_400.0
"""Seconds after which a group is observed though nothing changed."""
BAND_EVERY = 3600.0
"""Seconds between two events of a group whose lag only grew or shrank tenfold."""
_GROUP = Struct(">4s4sbI?")
"""Digest of the group id, then what was told: hard, band, at, over."""


def digest(*parts: object) -> str:
    """Eight hex digits of what was seen; enough to tell a group's looks apart."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def lag_band(lag: int | None) -> int:
    """0 below 1,000 records, then one band per power of ten; -1 where lag cannot be said."""
    return -1 if lag is None else max(0, len(str(lag)) - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One group in one tick."""

    group: str
    hard: str
    """Digest of state, members with their partitions, whether lag is known, and verdict."""
    band: int
    """The size of its lag, see `lag_band`."""
    over: bool = False
    """More rebalances than its budget allows."""

    @classmethod
    def of(cls, seen: GroupSnapshot, *judged: object) -> "GroupSummary":
        """What a look at a group comes down to, beside the verdicts that were drawn from it."""
        members = sorted(
            (m.member_id, m.instance_id or "", sorted(m.partitions)) for m in seen.members
        )
        return cls(
            group=seen.group,
            hard=digest(seen.exists, seen.state.value, members, seen.lag is None, judged),
            band=lag_band(seen.lag),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """What was last told of a group, and when."""

    hard: str
    band: int
    at: int
    """Seconds since the epoch."""
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """How long a STARTED run has looked the same: `mark` for `still` seconds, in `ticks` ticks."""

    mark: str
    still: float
    ticks: int
    at: float
    """Wall time of the last tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorMemory:
    """The sensor's cursor."""

    groups: Mapping[str, Emitted] = field(default_factory=dict)
    """digest of the group id → what was told."""
    runs: Mapping[str, StartedRun] = field(default_factory=dict)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "SensorMemory":
        """Read a cursor; one of another version (or none) is an empty memory: all is told anew."""
        try:
            stored = json.loads(cursor or "{}")
        except ValueError:
            return cls()
        if not isinstance(stored, dict) or stored.get("v") != VERSION:
            return cls()
        return cls(
            groups={
                k.hex(): Emitted(hard=hard.hex(), band=band, at=at, over=over)
                for k, hard, band, at, over in _GROUP.iter_unpack(b64decode(stored["g"]))
            },
            runs={
                k: StartedRun(mark=mark, still=still, ticks=ticks, at=at)
                for k, (mark, still, ticks, at) in stored["r"].items()
            },
        )

    def as_cursor(self) -> str:
        """The text that Dagster keeps."""
        groups = b"".join(
            _GROUP.pack(bytes.fromhex(k), bytes.fromhex(e.hard), e.band, e.at, e.over)
            for k, e in self.groups.items()
        )
        stored = {
            "v": VERSION,
            "g": b64encode(groups).decode(),
            "r": {
                k: [r.mark, round(r.still, 1), r.ticks, round(r.at, 1)]
                for k, r in self.runs.items()
            },
        }
        return json.dumps(stored, separators=(",", ":"))

    def known(self, group: str) -> Emitted | None:
        """What was last told of the group."""
        return self.groups.get(digest(group))

    def told(
        self, looks: Iterable[GroupSummary], *, now: float, alive: Collection[str]
    ) -> "SensorMemory":
        """Remember these looks as told, and forget groups that are gone."""
        kept = {digest(group) for group in alive}
        groups = {k: v for k, v in self.groups.items() if k in kept}
        for look in looks:
            groups[digest(look.group)] = Emitted(
                hard=look.hard, band=look.band, at=int(now), over=look.over
            )
        return SensorMemory(groups=groups, runs=self.runs)


def due(
    looks: Iterable[GroupSummary], memory: SensorMemory, *, now: float, limit: int = EVENTS_A_TICK
) -> tuple[GroupSummary, ...]:
    """Whom to tell of in this tick: real changes first, then the longest untold."""
    ranked: list[tuple[int, int, GroupSummary]] = []
    for look in looks:
        known = memory.known(look.group)
        if known is None or (known.hard, known.over) != (look.hard, look.over):
            ranked.append((0, known.at if known else 0, look))
        elif not 0 <= now - known.at < (HEARTBEAT if known.band == look.band else BAND_EVERY):
            ranked.append((1, known.at, look))
    ranked.sort(key=lambda entry: entry[:2])
    return tuple(look for _, _, look in ranked[:limit])

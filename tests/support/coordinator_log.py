"""What the coordinator itself logged about a group's rounds: the judge of causes and times.

Only tests read it [33]. The lines are Kafka 4.3's, of `org.apache.kafka.coordinator.group` at
INFO (docs/contributing/protocol.md 3.5).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] [A-Z]+ (.*) \(org\.apache\.kafka\.")
_PREPARING = re.compile(r"Preparing to rebalance group (\S+) in state .*? \(reason: (.*)\)\.$")
_COMPLETED = re.compile(
    r"(?:Assignment received from leader .* for group (\S+) for generation (\d+)\."
    r"|Group (\S+) with generation (\d+) is now empty)"
)
_BUMPED = re.compile(r"\[GroupId (\S+)\] Bumped group epoch to (\d+)")
_COMPUTED = re.compile(r"\[GroupId (\S+)\] Computed a new target assignment for epoch (\d+)")
_GONE = re.compile(r"has failed, removing it|removed dynamic members")
_SAME_WRITE_S = 0.5
_REJOINED = frozenset(
    {
        "leader rejoin",
        "subscription change",
        "partition count",
        "second cooperative round",
        "assignor change",
        "coordinator move",
    }
)
_BEGUN = frozenset({"created", "join", "group recreated"})
CAUSES: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = (
    (re.compile(r"Adding new member|joins the consumer group using"), _BEGUN),
    (re.compile(r"LeaveGroup` request for \([^,]*\) members"), frozenset({"leave"})),
    (re.compile(r"LeaveGroup` request for \(.*,.*\) members"), frozenset({"batched leave"})),
    (
        re.compile(r"on heartbeat expiration|session expired|failed to transition|has failed"),
        frozenset({"expiry"}),
    ),
    (re.compile(r"removed dynamic members"), frozenset({"expiry", "removal"})),
    (re.compile(r"re-joining group during|Updating metadata for member"), _REJOINED),
    (re.compile(r"selected ?[pP]rotocol will change"), frozenset({"assignor change"})),
    (re.compile(r"Downgrade group|Converted the"), frozenset({"migration"})),
    (re.compile(r"^nothing said$"), frozenset({"subscription change", "partition count"})),
    (re.compile(r"left the consumer group|has left group through"), frozenset({"leave"})),
)
"""What the coordinator says → the causes that this may be."""


@dataclass(slots=True)
class Round:
    """One completed generation, or one assignment epoch."""

    number: int
    started_at: float
    ended_at: float
    """When the assignment was there."""
    reasons: list[str] = field(default_factory=list)
    """In order; the first one set it off."""

    def causes(self) -> list[frozenset[str]]:
        """What each reason may be."""
        return [_causes(reason) for reason in self.reasons]


def _causes(reason: str) -> frozenset[str]:
    for pattern, causes in CAUSES:
        if pattern.search(reason):
            return causes
    raise AssertionError(f"the coordinator gave a reason that is not known here: {reason}")


def rounds(logs: Iterable[Path], group: str) -> list[Round]:
    """Every round of a group that was completed, in order."""
    found: list[Round] = []
    reasons: list[str] = []
    recent: list[tuple[float, str]] = []
    started: float | None = None
    for at, text in _lines(logs, group):
        preparing, bumped = _PREPARING.search(text), _BUMPED.search(text)
        computed = _COMPUTED.search(text) or _COMPLETED.search(text)
        if preparing:
            reasons.append(preparing[2])
            started = started or at
        elif bumped:
            reasons += _of_epoch([each for when, each in recent if at - when <= _SAME_WRITE_S])
            started = at  # a rebalance begins with the epoch that it is for
            recent = []
        elif computed:
            number = next(each for each in computed.groups()[1:] if each and each.isdigit())
            found.append(Round(int(number), at if started is None else started, at, reasons))
            reasons, started = [], None
        elif started is not None and _GONE.search(text):
            reasons.append(text)
        else:
            recent.append((at, text))
    return found


def _of_epoch(lines: list[str]) -> list[str]:
    """The lines that came with one group epoch, as its reason."""
    for each in lines:
        if "Converted the classic" in each:
            return [each]
    left = [each for each in lines if "has left group through" in each]
    if left:
        names = ",".join(str(number) for number, _ in enumerate(left))
        return [f"explicit `LeaveGroup` request for ({names}) members."]
    causes = [each for each in lines if any(pattern.search(each) for pattern, _ in CAUSES)]
    return causes[-1:] or ["nothing said"]


def _lines(logs: Iterable[Path], group: str) -> Iterator[tuple[float, str]]:
    own = re.compile(rf"(?<![\w-]){re.escape(group)}(?![\w-])")
    merged = sorted(
        (match[1], number, match[2])
        for path in logs
        for number, line in enumerate(path.read_text(errors="replace").splitlines())
        if own.search(line) and (match := _LINE.match(line))
    )
    for when, _, text in merged:
        at = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").astimezone()  # the broker is here
        yield at.timestamp(), text

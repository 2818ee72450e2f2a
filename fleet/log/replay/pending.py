"""A KIP-848 rebalance whose end is not known yet, and its form beside the history's tables.

Problem: an assignment is computed at once and its members follow one by one, over minutes, while
the reader may stop. Choice: what is known so far as a value, with those who are waited for.
Cost: its JSON form is written out by hand, since it outlives a release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet.log.replay.group_state import ReplayedGroup, kept_under
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, Confidence, Known, Rebalance

_KEPT: Final = (
    *("protocol", "number", "before", "incarnation", "started_at", "start_known", "ended_at"),
    *("end_known", "cause", "confidence", "also", "joined", "left", "replaced", "members"),
    *("assignor", "log_partition", "log_offset"),
)


@dataclass(slots=True)
class Open:
    """A rebalance whose end is not known yet."""

    rebalance: Rebalance
    waiting: set[str]
    moved: set[TopicPartition] = field(default_factory=set)

    def ended(self, at: float, known: Known = Known.RECORD) -> Rebalance:
        """As a value, ended then."""
        return replace(
            self.rebalance, ended_at=at, end_known=known, moved=tuple(sorted(self.moved))
        )

    def as_json(self) -> dict[str, Any]:
        """For JSON: all but what is not kept (`Rebalance.resubscribed`, `added`)."""
        r = self.rebalance
        return {
            "protocol": r.protocol,
            "number": r.number,
            "before": r.before,
            "incarnation": r.incarnation,
            "started_at": r.started_at,
            "start_known": r.start_known,
            "ended_at": r.ended_at,
            "end_known": r.end_known,
            "cause": r.cause,
            "confidence": r.confidence,
            "also": list(r.also),
            "joined": list(r.joined),
            "left": list(r.left),
            "replaced": list(r.replaced),
            "members": r.members,
            "assignor": r.assignor,
            "log_partition": r.log_partition,
            "log_offset": r.log_offset,
            "waiting": sorted(self.waiting),
            "moved": [[tp.topic, tp.partition] for tp in sorted(self.moved)],
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], group: ReplayedGroup) -> "Open":
        """What `as_json` gave."""
        values = kept_under(_KEPT, kept)
        rebalance = Rebalance(
            cluster=group.cluster,
            group=group.group,
            **{
                **values,
                "start_known": Known(values["start_known"]),
                "end_known": Known(values["end_known"]),
                "cause": Cause(values["cause"]),
                "confidence": Confidence(values["confidence"]),
                "also": tuple(Cause(each) for each in values["also"]),
                **{name: tuple(values[name]) for name in ("joined", "left", "replaced")},
            },
        )
        moved = {TopicPartition(topic, number) for topic, number in kept["moved"]}
        return cls(rebalance, set(kept["waiting"]), moved)

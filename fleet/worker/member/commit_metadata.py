"""The metadata of a commit: the next planned range, and whose offsets these are.

Problem: a new owner should repeat exactly the batch in hand [4]. Choice: a commit's metadata is a
small JSON string with the next planned end and the topic's id, because a topic recreated under its
name is another one. The cluster's id is included, because tools copy offsets with their metadata to
other clusters, where every topic has another id. Cost: up to some hundred bytes in each commit;
metadata of other programs is ignored.
"""

import json
import struct
from dataclasses import dataclass

_HEAD = b"CGMDv2:"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """Offsets [start, end) of one partition that are begun together, as its commit says."""

    start: int
    end: int
    tries: int = 0
    """How often it was begun before without an end."""
    until: int | None = None
    """How far its partition is run in pieces; None: it is run as a whole."""
    revision: str = ""
    """The revision that made these tries."""

    @property
    def reach(self) -> int:
        """Returns how far a new owner repeats its partition, in the same pieces or as a whole."""
        return self.end if self.until is None else max(self.end, self.until)

    @property
    def afresh(self) -> "PlannedRange":
        """Returns the range as never begun: it is repeated as a whole."""
        return PlannedRange(start=self.start, end=self.reach)


def encode_plan(
    planned_end: int | None,
    revision: str,
    topic_id: str | None = None,
    *,
    cluster: str | None = None,
    parts: int | None = None,
    tries: int = 1,
    until: int | None = None,
) -> str:
    """Returns commit metadata; planned_end None = no batch is planned for the partition.

    topic_id, cluster = whose offsets these are; None = not known. parts = how many partitions the
    topic had when the group began it at its end; None = it began elsewhere, or long ago. tries =
    how often the range will have been begun with this plan. until = how far its partition is run in
    pieces.
    """
    plan: dict[str, object] = {"v": 1}
    if planned_end is not None:
        plan["next"] = planned_end
        if tries != 1:
            plan["tries"] = tries
        if until is not None:
            plan["until"] = until
    plan["rev"] = revision
    if topic_id is not None:
        plan["topic"] = topic_id
    if cluster is not None:
        plan["cluster"] = cluster
    if parts is not None:
        plan["parts"] = parts
    return json.dumps(plan, separators=(",", ":"))


def decode_plan(metadata: str | None, start: int) -> PlannedRange | None:
    """Returns what is planned to begin at `start`; None if nothing is, or for other programs'
    metadata.
    """
    plan = _plan(metadata)
    planned, tries = _number(plan.get("next")), _number(plan.get("tries"))
    if planned is None:
        return None
    return PlannedRange(
        start=start,
        end=planned,
        tries=1 if tries is None else tries,
        until=_number(plan.get("until")),
        revision=str(plan.get("rev", "")),
    )


def decode_topic(metadata: str | None) -> str | None:
    """Returns the id of the topic that the offset belongs to; None if it is missing."""
    return _name(_plan(metadata).get("topic"))


def decode_cluster(metadata: str | None) -> str | None:
    """Returns the id of the cluster that the offset belongs to; None if it is missing."""
    return _name(_plan(metadata).get("cluster"))


def decode_parts(metadata: str | None) -> int | None:
    """Returns how many partitions the topic had when the group began at its end, or None."""
    return _number(_plan(metadata).get("parts"))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _plan(metadata: str | None) -> dict[str, object]:
    if not metadata:
        return {}
    try:
        plan = json.loads(metadata)
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) and plan.get("v") == 1 else {}


def parse_group_metadata(raw: bytes | None) -> tuple[int, str, str] | None:
    """Returns (generation, member id, group) of `consumer_group_metadata()`, or None.

    Format (librdkafka 2.16): `CGMDv2:`, int32 generation, group NUL member NUL instance NUL. The
    four bytes are in the machine's own order on librdkafka's side; only equality matters.
    """
    if not raw or not raw.startswith(_HEAD) or len(raw) < len(_HEAD) + 4:
        return None
    (generation,) = struct.unpack_from("=i", raw, len(_HEAD))
    parts = raw[len(_HEAD) + 4 :].split(b"\0")
    if len(parts) < 2:
        return None
    return generation, parts[1].decode("utf-8", "replace"), parts[0].decode("utf-8", "replace")

"""Revisions of pods: what the manager published, and what a Deployment made of it.

Problem: `kubectl set image` and `rollout restart` make other workers out of the same settings,
and nobody has told the manager. Choice: a pod's raw revision is `<revision>~<pod-template-hash>`;
the gate's Lease says which hashes are exactly what the manager rendered, so that the manager
reads plain revisions there and sees any other as the unknown one that it is [22]. Cost: a pod of
a template that is not registered yet may not take a slot that is pinned to its revision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fleet.slots import Gate, Handover, Slot, WorkerReport

MARK: Final = "~"


def raw_revision(revision: str, template_hash: str) -> str:
    """What a pod of that template calls itself."""
    return f"{revision}{MARK}{template_hash}"


def template_hash(revision: str) -> str | None:
    """The pod-template hash in a raw revision; None for a plain one."""
    _, mark, found = revision.rpartition(MARK)
    return found if mark else None


@dataclass(frozen=True, slots=True)
class PublishedTemplates:
    """pod-template hash → revision, of everything that the manager rendered."""

    known: Mapping[str, str] = field(default_factory=dict)

    def plain(self, revision: str) -> str:
        """For the manager: a registered template's revision, anything else as it is."""
        published, mark, found = revision.rpartition(MARK)
        return published if mark and self.known.get(found) == published else revision

    def raw(self, revision: str, *, own: str) -> str:
        """For a worker whose raw revision is `own`: that one where it is what is meant, else any
        pod's that is; the revision itself where no template of it is registered.
        """
        if MARK in revision:
            return revision
        hashes = sorted(found for found, known in self.known.items() if known == revision)
        mine = template_hash(own)
        chosen = mine if mine in hashes else next(iter(hashes), None)
        return revision if chosen is None else raw_revision(revision, chosen)

    def gate_for_worker(self, gate: Gate, *, own: str) -> Gate:
        """Pins as raw revisions."""
        return replace(
            gate,
            handover={
                number: Handover(token=pin.token, revision=self.raw(pin.revision, own=own))
                for number, pin in gate.handover.items()
            },
        )

    def gate_as_stored(self, gate: Gate) -> Gate:
        """Pins as the manager wrote them."""
        return replace(
            gate,
            handover={
                number: Handover(token=pin.token, revision=self.plain(pin.revision))
                for number, pin in gate.handover.items()
            },
        )

    def slot_for_manager(self, slot: Slot) -> Slot:
        """With the plain revision."""
        return slot if slot.revision is None else replace(slot, revision=self.plain(slot.revision))

    def report_for_manager(self, report: WorkerReport) -> WorkerReport:
        """With the plain revision."""
        return replace(report, revision=self.plain(report.revision))

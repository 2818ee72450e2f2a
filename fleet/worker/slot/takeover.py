"""Frees an instance id for whoever takes its slot under KIP-848 [16, 17].

Problem: the coordinator refuses a newcomer (111, fatal) until the session of a holder that did
not close has ended (45-60 s), and evicting by instance id alone could hit a live successor.
Choice: the taker sends the LeaveGroup itself and names member id and instance id together. Where
the member id that the slot keeps is not the member's any more (its holder died before it could
write a new one), the coordinator is asked who has the instance id: it is evicted only if its
client id names a worker that the slot's lease has shown dead, or an earlier life of our own; else
it is somebody else's and is left alone. Cost: two requests, once per unclean end (0.3 s).
"""

from collections.abc import Callable
from dataclasses import dataclass

from fleet.errors import FleetError
from fleet.kafka_source.login import References
from fleet.model import Member
from fleet.worker.asking import Question
from fleet.worker.events import Events
from fleet.worker.slot.leave_completion import Leave


class ForeignHolder(FleetError):
    """A process that is no worker of this slot has its instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """Who had the slot before: what is known of members that may be evicted for it."""

    instance_id: str
    member_ids: tuple[str, ...]
    workers: frozenset[str]
    """Names of workers that are dead: our own earlier lives, and the holder whose lease expired."""


HolderOf = Callable[[str], Member | None]
"""The member that has an instance id now."""


class Takeover:
    """Sends the leave that lets a newcomer in."""

    def __init__(self, *, group: str, leave: Leave, holder_of: HolderOf, events: Events) -> None:
        self._group = group
        self._leave = leave
        self._holder_of = holder_of
        self._events = events

    def free(self, former: Former) -> str | None:
        """Why the instance id is not free now; None where it is.

        Raises ForeignHolder where somebody else's process has it.
        """
        why: str | None = None
        tried = former.member_ids[-1:]  # the last one written: nearly always the one
        try:
            if tried:
                why = self._leave(self._group, [(former.instance_id, tried[0])])
                if why is None:
                    self._told(former.instance_id, tried[0])
                    return None
            found = self._holder_of(former.instance_id)
            if found is None:
                return None
            if found.member_id not in former.member_ids and found.client_id not in former.workers:
                raise ForeignHolder(
                    f"the instance id {former.instance_id} is used by the process "
                    f"{found.client_id} at {found.host}, which is no worker of this slot; end it, "
                    "then open the slot"
                )
            if found.member_id not in tried:
                why = self._leave(self._group, [(former.instance_id, found.member_id)])
                if why is None:
                    self._told(former.instance_id, found.member_id)
        except ForeignHolder:
            raise
        except FleetError as error:
            return str(error)
        return why

    def _told(self, instance_id: str, member_id: str) -> None:
        self._events.log(f"the former member of {instance_id} left: the id is free")
        self._events.emit("freed", instance=instance_id, member=member_id)


def holder_of(login: References, group: str) -> HolderOf:
    """Asks the coordinator who has an instance id; FleetError where it does not answer."""

    def ask(instance_id: str) -> Member | None:
        members = Question(login, group=group).answer().members
        return next((each for each in members if each.instance_id == instance_id), None)

    return ask

"""What the coordinator says of one member, seen from outside.

Problem: a program that Fleet did not write reports nothing. Choice: a thread asks the coordinator
of its group for members and commits, and the leaders for the ends of its partitions. From that come
the member id, whether it has joined, and whether it commits. Cost: three requests at each look,
every third of the lease; a program that commits no offsets to Kafka seems to stand still.
"""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet.errors import FleetError
from fleet.model import GroupState, TopicPartition
from fleet.observe.admin import Observer
from fleet.worker.events import WorkerContext

_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """The member with one instance id, and what its partitions have committed."""

    at: float
    """Monotonic time at which it was asked for."""
    stable: bool
    member_id: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @property
    def waiting(self) -> int:
        """Returns the records after the last commits; of a partition without any: 0."""
        return sum(max(0, self.ends.get(tp, 0) - offset) for tp, offset in self.committed.items())


class MemberWatch:
    """Looks again and again, from `follow` to `rest`."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._observer: Observer | None = None
        self._instance_id: str | None = None
        self._wake = threading.Event()
        self._ended = False
        self.every = 1.0
        """Seconds between two looks."""
        self.latest: MemberView | None = None
        """None: no answer since `follow`."""
        self._thread = threading.Thread(target=self._run, name="group", daemon=True)

    def follow(self, instance_id: str) -> None:
        """Looks at this member from now on, at once for the first time."""
        self.latest, self._instance_id = None, instance_id
        if not self._thread.is_alive():
            self._thread.start()
        self._wake.set()

    def look_soon(self) -> None:
        """Makes the next look begin now."""
        self._wake.set()

    def rest(self) -> None:
        """Looks no more until the next `follow`."""
        self._instance_id = None

    def end(self) -> None:
        """Ends the thread."""
        self._ended = True
        self._wake.set()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(None if self._instance_id is None else self.every)
            self._wake.clear()
            instance_id = self._instance_id
            if instance_id is None:
                continue
            try:
                seen = self._look(instance_id)
            except (FleetError, OSError) as error:
                self._context.events.log_rarely(str(error), key="group")
                self._close()  # the next one reads the login's files again
                continue
            if instance_id == self._instance_id:
                self.latest = seen
        self._close()

    def _look(self, instance_id: str) -> MemberView:
        context, at = self._context, self._context.clock.monotonic()
        if self._observer is None:
            self._observer = Observer(
                cluster=context.settings.cluster.name,
                config=context.client,
                clock=context.clock,
                timeout=_TIMEOUT,
            )
        group, committed = self._observer.progress(context.group)
        mine = next((m for m in group.members if m.instance_id == instance_id), None)
        tps = frozenset() if mine is None else mine.partitions
        known = {tp: offset for tp, offset in committed.items() if tp in tps and offset >= 0}
        return MemberView(
            at=at,
            stable=group.state is GroupState.STABLE,
            member_id=None if mine is None else mine.member_id,
            partitions=tps,
            committed=known,
            ends=self._observer.ends(known) if known else {},
        )

    def _close(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            with contextlib.suppress(FleetError, OSError):
                observer.close()

"""What a worker has in its hands when it takes slot 0: all of it real but Spark and Kafka."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.clock import Clock
from fleet.model import Member
from fleet.slots import Gate, Slot
from fleet.slots.sqlite import SqliteStore
from fleet.worker.batch.executor import RETRY_PAUSES
from fleet.worker.batch.spark_link import SparkLink
from fleet.worker.slot.leave_completion import LeaveCompleter, Takeover
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_holder import SlotHolder
from fleet.worker.slot.slot_lease import SlotWatcher
from tests.support.batch_parts import runner_of, worker_context
from tests.support.declared import group_spec, settings_of

GROUP = "g"
CLASSIC = {"protocol": "classic", "session_timeout": 180}
CONSUMER = {"protocol": "consumer"}


class Parts:
    """Of worker `w`, revision `r`. The gate has slot 0 open; nobody holds it."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        link: SparkLink,
        worker: Mapping[str, Any] = CLASSIC,
        bootstrap: str = "127.0.0.1:1",
        lease: float = 10.0,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.link = link
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=clock)
        self.store.write_gate(Gate(group=GROUP, open=frozenset({0})))
        self.left: list[tuple[str | None, str]] = []
        self.refusal: str | None = None
        self.member: Member | None = None
        """Who has the instance id, as the coordinator tells."""
        self.holder: SlotHolder | None = None
        """Whose slot the batch thread renews."""
        runtime = {"kind": "local", "lease": lease}
        group = group_spec(GROUP, worker=worker, topics=["t"], runtime=runtime)
        settings = settings_of(group, revision="r", bootstrap=bootstrap)
        self.context = worker_context(settings, clock=clock)
        self.stop, self.events = self.context.stop, self.context.events
        self.runner = runner_of(
            link,
            context=self.context,
            slot=None,
            pauses=RETRY_PAUSES,
            renew=lambda: self.holder is None or self.holder.renew(),
        )
        self.watcher = SlotWatcher(self.store, group=GROUP, lease=lease, clock=clock)
        self.reporter = Reporter(self.context)

    def tenure(self, seen: Slot) -> SlotHolder:
        """Of a slot that is not taken yet."""
        return SlotHolder(
            self.context,
            seen,
            watcher=self.watcher,
            completer=LeaveCompleter(
                self.store, group=GROUP, static=True, lease=self.context.lease, leave=self.leave,
                clock=self.clock, events=self.events,
            ),
            takeover=Takeover(self.context, leave=self.leave, holder_of=lambda _: self.member),
            runner=self.runner,
            reporter=self.reporter,
        )  # fmt: skip

    def taken(self, seen: Slot) -> SlotHolder:
        """What took it."""
        holder = self.tenure(seen)
        assert holder.take()
        return holder

    def leave(self, group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        """What a taker sends."""
        self.left += members
        return self.refusal

    def slot(self) -> Slot:
        return self.store.slots(GROUP)[0]

"""What a holder works with, and a standby before it: the parts of one worker's process."""

import threading
from dataclasses import dataclass

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.errors import Unreachable
from fleet.slots.store import Store
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.canary_note import CanaryNote
from fleet.worker.events import Events
from fleet.worker.member.protocols import MemberProtocol
from fleet.worker.slot.leave_completion import Leave, LeaveCompleter
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotWatcher
from fleet.worker.slot.takeover import Takeover


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderTools:
    """Made once per process."""

    settings: WorkerSettings
    name: str
    store: Store
    watcher: SlotWatcher
    completer: LeaveCompleter
    leave: Leave
    takeover: Takeover
    protocol: MemberProtocol
    runner: BatchRunner
    reporter: Reporter
    canary: CanaryNote
    stop: threading.Event
    clock: Clock
    events: Events
    columnar: Columnar | None = None

    @property
    def is_static(self) -> bool:
        """Whether our members have instance ids (KIP-345)."""
        worker = self.settings.group.worker
        return worker is not None and worker.membership == "static"

    def see(self) -> bool:
        """Look at the store, and end a leave that nobody else ends; True where it was read.

        A silent store is waited for.
        """
        watcher = self.watcher
        try:
            read = watcher.look()
            if watcher.gate.leaving and self.completer.step(
                watcher.gate, watcher.slots, watcher.dead()
            ):
                watcher.forget()
        except Unreachable as error:
            self.events.log_rarely(str(error))
            return False
        return read

"""The lease of a history in an object store: one writer at a time, where no kernel holds a lock.

Problem: a store has no locks that end with their holder, and a writer is silent for long while it
lives: nothing is new in the cluster, or one batch takes its time. Choice: a small file with the
writer's id and the time, written anew with every commit and by a thread of its own every third of
the lease; whoever finds it older than the lease may take it. A writer that finds another's id, or
whose thread has ended, commits nothing any more [40]. Cost: two requests every 100 s; after
kill -9 the next writer waits for up to five minutes; a store only lets us look before we write:
what two writers that look in the same moment do is told by the manifest's number.
"""

import contextlib
import json
import threading
import uuid
from typing import Final

from fleet.clock import Clock
from fleet.errors import LostLease, Refused, Unreachable
from fleet.history.tables.table_folder import TableFolder
from fleet.system.closing import Closing

SECONDS: Final = 300.0
"""How long a writer may be silent."""
BEAT: Final = SECONDS / 3
_NAME: Final = "writer.json"


class StoreLease(Closing):
    """Takes the place and keeps it until closed. Raises Refused where somebody else has it."""

    def __init__(self, place: TableFolder, *, clock: Clock, beat: float = BEAT) -> None:
        """beat: seconds between two renewals by the thread."""
        self._place = place
        self._clock = clock
        self._beat = beat
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.lost: LostLease | None = None
        """Why nothing may be committed any more."""
        if self._holder() is not None:
            raise Refused(busy(place, "its lease has not run out"))
        self.renew()
        self._thread = threading.Thread(target=self._keep, name="history-lease", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Hold it for SECONDS from now on. Raises LostLease where somebody else took it."""
        with self._lock:
            if self.lost is None and self._holder() not in (None, self._id):
                self.lost = LostLease(
                    busy(self._place, "it took the lease while this one was silent")
                )
            if self.lost is not None:
                raise self.lost
            lease = {"writer": self._id, "at": self._clock.now()}
            self._place.put(_NAME, json.dumps(lease).encode())

    def close(self) -> None:
        """Let the next writer in."""
        self._closed.set()
        self._thread.join(timeout=10.0)
        with self._lock, contextlib.suppress(Unreachable):  # else it runs out by itself
            if self._holder() == self._id:
                self._place.delete([_NAME])

    def _holder(self) -> str | None:
        """Whose it is; None where it is free or has run out."""
        data = self._place.read(_NAME)
        if data is None:
            return None
        try:
            lease = json.loads(data)
            fresh = self._clock.now() - float(lease["at"]) < SECONDS
            return str(lease["writer"]) if fresh else None
        except (ValueError, KeyError, TypeError):
            return None

    def _keep(self) -> None:
        """The thread: what makes it end before it is closed ends the writing too [40]."""
        try:
            while not self._closed.wait(self._beat):
                with contextlib.suppress(Unreachable):  # the next commit says so
                    self.renew()
        except LostLease:
            return
        except BaseException as error:  # noqa: BLE001 - nobody catches it here: `renew` raises it
            self.lost = LostLease(
                f"the lease of {self._place} is kept no more ({type(error).__name__}: {error}); "
                "start `fleet history` again"
            )


def busy(place: TableFolder, who: str) -> str:
    """Why a second writer is refused; who: the first one."""
    return (
        f"another `fleet history run` or `tail` writes {place} ({who}): one at a time; it reads "
        "everything that is new anyway"
    )

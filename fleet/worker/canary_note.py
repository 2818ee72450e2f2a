"""Whether a worker's revision may be called well, beyond one life of its process.

Problem: a container whose entrypoint fails on every batch ends, starts again and is a warm standby
once more; taken for ready, it lets a rollout go on that replaces every good worker by such a one.
So does a warm pod beside the first of its revision, where the rollout is quicker than the verdict.
Choice: a pod notes in its home that it holds a slot and has not committed anything yet; the note
goes with the first batch (or with nothing to read and no error). A process that finds the note of
the one before it is a standby that is not ready, and says so in its report; standbys of the same
revision are not ready either while a living one says so. All of them go on taking slots, and the
first proof by any of them ends it. Nor is a standby ready while a slot is there on which its
unproven revision shows itself, or will: held by it, free, or drained for whoever comes. Cost: a pod
killed in the second between its take and its first commit is not ready until its revision has shown
itself again; at a first start standbys are ready once, and again when the first batch is committed.
A home that cannot be written ends nobody: what the process itself has seen holds for its life.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.slots import Slot
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.slots.transitions import doubt
from fleet.system.home import read_state, write_state

SCHEMA = 1
_NOTE = "canary.json"
_UNTOLD = "the process before this one ended before its first batch was committed"


class CanaryNote:
    """One pod's note; without a home (elsewhere than in a pod) nothing is noted.

    say: told where the note cannot be written.
    """

    def __init__(self, home: Path | None, *, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._file = None if home is None else home / _NOTE
        self._running = False
        self._told = self._left()

    @property
    def running(self) -> bool:
        """Whether a holder waits for its proof."""
        return self._running

    @property
    def error(self) -> str | None:
        """Why this pod's last holder failed before its first batch, also of an earlier life."""
        return self._told

    def start(self) -> None:
        """A slot is taken."""
        if self._file is not None:
            self._running = True
            self._write(self._told)

    def fail(self, sentence: str) -> None:
        """The holder fails; nothing where it was a good canary."""
        if self._running:
            self._told = sentence
            self._write(sentence)

    def prove(self) -> None:
        """The revision works."""
        self._running, self._told = False, None
        if self._file is not None:
            with self._weather():
                self._file.unlink(missing_ok=True)

    def end(self) -> None:
        """The holder is over without a verdict: what was known before holds."""
        if self._running and self._told is None:
            self.prove()
        self._running = False

    def _left(self) -> str | None:
        found = None if self._file is None else read_state(self._file, schema=SCHEMA)
        return None if found is None else str(found.get("error") or _UNTOLD)

    def _write(self, sentence: str | None) -> None:
        assert self._file is not None
        with self._weather():
            write_state(self._file, {"error": sentence}, schema=SCHEMA)

    @contextlib.contextmanager
    def _weather(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._say(f"the note {self._file} cannot be written: {error}")


class RevisionDoubts:
    """What a standby hears of its revision from the reports of living workers."""

    def __init__(self, store: Store, *, group: str, lease: float, clock: Clock) -> None:
        self._store = store
        self._group = group
        self._every = lease / 6
        self._clock = clock
        self._watch = LeaseWatch(lease, None)
        self._looked_at: float | None = None
        self._found: str | None = None

    def look(self, slots: Sequence[Slot], *, worker: str, revision: str) -> str | None:
        """Asks the store every sixth of the lease; a silent one changes nothing."""
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < self._every:
            return self._found
        self._looked_at = now
        with contextlib.suppress(Unreachable):
            living = [
                report
                for report in self._store.reports(self._group)
                if not self._watch.expired(report.worker, report.counter, now)
            ]
            self._found = doubt(living, slots, worker=worker, revision=revision)
        return self._found

"""Follows all groups of a cluster live: one reader of the whole `__consumer_offsets`.

Problem: asking the coordinators about 1,000 groups takes a second and says nothing of
rebalances; the log that they write says all of it, but a group's state is spread over it.
Choice: record batches of every partition of the topic are fetched as bytes, on a thread of its
own, in no group and without a commit. It reads from the log's start (or from a time on) to its
very end, and goes on; what the records come to is the view's business (fleet.log.readers.log_view).
Commits inside a transaction wait for its end, and nothing waits with them
(fleet.log.readers.log_view). Whether it is current is known, not assumed: every `beat`, and
whenever somebody waits, the ends of all partitions are asked for in one request, and `age` counts
from the last such moment that the reading has reached. Where the log ends before what was read, it
was cut (an unclean leader) or recreated: that partition is read anew, and until then the view is
not current.

Cost: the first reading takes as long as the log is (some million commits a second); what is
written is seen after up to a `beat`, at once by who waits for it; each beat costs a request or two
and, for what few records came, as much for a partition as a hundred times as many would.
Bounds: rebalances are kept for `keep` seconds and at most `most` a group; groups are forgotten
with their last record.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fleet.clock import Clock
from fleet.kafka_source.batch_fetcher import OUT_OF_RANGE, BatchFetcher, FetchedPart
from fleet.kafka_source.bounds import EARLIEST, LATEST, Where
from fleet.kafka_source.broker_settings import SessionQueries, list_groups, list_rebalancing_groups
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.failures import ABSENT, DENIED, NO_ANSWER, code_named
from fleet.kafka_source.record_batches import Cut, DamagedBatch, before, cut
from fleet.log.readers.log_view import KEEP, MOST, LogView, all_groups
from fleet.log.records import TOPIC, Unreadable
from fleet.model.rebalances import CoordinatorMove
from fleet.model.sessions import SessionAtRemoval
from fleet.system.closing import Closing

if TYPE_CHECKING:
    from fleet.log.readers.log_view import LogView


# Two things are not in the offsets topic. The session timeouts of KIP-848 groups are configuration:
# they are polled before a changed one can expire. The start of a classic round is not recorded: a
# poll every second asks which groups are unsettled. The poller does not ask coordinators.

_log = logging.getLogger("fleet")
_EVERY: Final = 1.0
_SESSIONS: Final = 5
"""Polls between two requests for session timeouts."""
_BROKERS: Final = 30
"""Polls between two requests for brokers and all groups."""
_TIMEOUT: Final = 2.0


class BrokerPoller(Closing):
    """Polls brokers for group state and session timeouts, which `__consumer_offsets` lacks."""

    def __init__(self, config: Mapping[str, Any], *, clock: Clock, view: "LogView") -> None:
        self._view, self._clock = view, clock
        self._sessions = SessionQueries(config, clock=clock)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts polling on a separate thread."""
        self._thread = threading.Thread(target=self._run, name="broker-poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops polling."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
        self._sessions.close()

    def session(self, group: str, protocol: str, at: float) -> SessionAtRemoval | None:
        """Returns a group's session timeout at the time of a member's removal."""
        return self._sessions.of(group, protocol, at, live=True)

    def _run(self) -> None:
        looks, due, reported = 0, self._clock.monotonic(), ""
        while not self._ending.wait(max(0.0, due - self._clock.monotonic())):
            due = max(due + _EVERY, self._clock.monotonic())
            try:
                self._look(anew=looks % _BROKERS == 0)
                looks += 1
                if looks % _SESSIONS == 0:
                    self._sessions.ask(self._view.configured())
            except NoAnswer:
                looks = 0  # brokers may be others now
            except Exception as error:  # noqa: BLE001 - the poller goes on and logs it
                looks, failed = 0, f"{type(error).__name__}: {error}"
                if failed != reported:
                    _log.warning("polling for starts of rebalances and sessions failed: %s", failed)
                reported = failed

    def _look(self, *, anew: bool) -> None:
        if anew:
            with self._sessions.open_connections() as connections:
                listing = list_groups(connections, _TIMEOUT)
            self._view.listed(listing.groups)
        with self._sessions.open_connections() as connections:
            asked = self._clock.now()
            found = list_rebalancing_groups(connections, _TIMEOUT)
            answered = self._clock.now()
        self._view.unsettled(found.groups, asked=asked, answered=answered, whole=found.whole)


# When a broker dies, all groups that it coordinated are affected, but no record shows it. A higher
# leader epoch of the offsets topic shows that a coordinator moved or restarted, also on the same
# broker. Older epochs from a broker that lags behind are ignored.


class CoordinatorPoller(Closing):
    """Polls for moves of coordinators; not safe for several threads."""

    def __init__(self, config: Mapping[str, Any], *, clock: Clock, timeout: float = 5.0) -> None:
        self._net = Connections(config, client_id="fleet-coordinators")
        self._clock = clock
        self._timeout = timeout
        self._known: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        """Closes the connections; the next poll opens new ones."""
        self._net.close()

    def poll(self) -> CoordinatorMove | None:
        """Returns what moved since the last poll; None if nothing did or no broker answers."""
        try:
            seen = self._leaders()
        except NoAnswer:
            return None
        moved = {
            partition: (self._known[partition][0], leader)
            for partition, (leader, epoch) in seen.items()
            if partition in self._known and epoch > self._known[partition][1]
        }
        self._known |= {n: now for n, now in seen.items() if n in moved or n not in self._known}
        if not moved:
            return None
        return CoordinatorMove(
            at=self._clock.now(),
            partitions=len(moved),
            of=len(self._known),
            lost=tuple(sorted({before for before, _ in moved.values()})),
            gained=tuple(sorted({after for _, after in moved.values()})),
        )

    def _leaders(self) -> dict[int, tuple[int, int]]:
        """Reads partition → (leader, leader epoch) of partitions that have a leader."""
        (topic,) = self._net.metadata([TOPIC], self._timeout).topics
        return {
            part.partition_index: (part.leader_id, part.leader_epoch)
            for part in topic.partitions
            if part.leader_id >= 0 and part.leader_epoch >= 0
        }


_POLL: Final = 0.1
_SOON: Final = 0.02
"""Seconds until the next fetch where the log's end is known to be further, and nothing came."""
_BEAT: Final = 1.0
_BULK: Final = 1 << 17
"""Bytes of an answer behind which there is more to come: the next is asked for at once."""
_MOST_AT_ONCE: Final = 1 << 20
"""Bytes of an answer: some 10,000 commits, and ten times as much in memory meanwhile."""
_AGAIN: Final = 5.0
"""Seconds before a topic that is absent or denied is tried again."""
_PRUNE_EVERY: Final = 60.0
_ASKING: Final = 2.0


class Tail(LogView, Closing):
    """A live view of all groups. Methods are safe for several threads.

    `config` is librdkafka's, with bootstrap.servers and security; `groups` chooses by group id;
    `since` is the wall time to read from (None: the log's start). Nothing is raised by the reading
    itself: see `problem` and `age`. `beat`: seconds between two readings that nobody waits for.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        cluster: str,
        clock: Clock,
        groups: Callable[[str], bool] = all_groups,
        since: float | None = None,
        keep: float = KEEP,
        most: int = MOST,
        beat: float = _BEAT,
    ) -> None:
        super().__init__(cluster=cluster, clock=clock, groups=groups, keep=keep, most=most)
        self._config = dict(config)
        self._address = str(config.get("bootstrap.servers", "?"))
        self._since, self._beat = since, beat
        self._news = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._broker_poller = BrokerPoller(config, clock=clock, view=self)
        self.session = self._broker_poller.session
        # Under the lock from here.
        self._next: dict[int, int] = {}
        self._goal: tuple[float, int, dict[int, int]] | None = None
        """When it was asked for, for which waiter, and the ends to reach."""
        self._current_at: float | None = None
        self._asked = 0
        self._answered = 0
        self._problem: str | None = None
        self._denied = False
        self._refused = False
        """The same of this try: `denied` ends only when something was read."""
        self._absent = False

    def start(self) -> "Tail":
        """Begin to read, on a thread of its own; returns at once."""
        if self._thread is None:
            self._kept.counting_from = self._clock.now()
            self._thread = threading.Thread(target=self._run, name="offsets-tail", daemon=True)
            self._thread.start()
            self._broker_poller.start()
        return self

    def close(self) -> None:
        """Stop reading; the view stays as it was."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
        self._broker_poller.close()
        with self._news:
            self._news.notify_all()

    def catch_up(self, timeout: float) -> bool:
        """Wait until all that was written before this call is read; False: not in `timeout` s.

        Raises Unreadable where the topic may not be read.
        """
        with self._news:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            done = self._news.wait_for(
                lambda: self._answered >= mine or self._denied or self._ending.is_set(), timeout
            )
            if self._denied:
                raise Unreadable(self._problem or f"{TOPIC} may not be read")
            return done and self._answered >= mine

    # --- the view ---------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why nothing is read just now, in a sentence; None where all is well."""
        with self._lock:
            return self._problem

    @property
    def denied(self) -> bool:
        """The topic may not be read with this login, or is hidden from it."""
        with self._lock:
            return self._denied

    @property
    def absent(self) -> bool:
        """The topic is not there: no group has ever been, or it is hidden."""
        with self._lock:
            return self._absent

    def age(self) -> float | None:
        """Seconds since the view last held all that was written; None before the first time."""
        with self._lock:
            at = self._current_at
        return None if at is None else max(0.0, self._clock.monotonic() - at)

    def is_current(self, *, within: float = 5.0) -> bool:
        """Tells whether the view holds all that was written `within` seconds ago.

        Waits as long for it. A topic that may not be read is never current.
        """
        age = self.age()
        if age is not None and age <= within:
            return True
        with contextlib.suppress(Unreadable):
            return self.catch_up(within)
        return False

    # --- the thread: every request is made here -------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            with BatchFetcher(
                self._config, client_id="fleet-tail", committed=False, wait=0.0, most=_MOST_AT_ONCE
            ) as fetcher:
                try:
                    numbers = self._partitions(fetcher)
                    if numbers and self._begin(fetcher, numbers):
                        self._follow(fetcher, numbers)
                except Exception as error:  # noqa: BLE001 - what reads goes on, and says why not
                    self._failed(None, f"{type(error).__name__}: {error}")
            self._ending.wait(_AGAIN)

    def _partitions(self, fetcher: BatchFetcher) -> list[int]:
        """The topic's; [] where there is no topic to read."""
        found = fetcher.partitions(TOPIC, _ASKING)
        if isinstance(found, str):
            self._failed(None, found)
        elif isinstance(found, int):
            if found == ABSENT:
                self._is_absent()
            else:
                self._failed(found, code_named(found))
        else:
            with self._lock:
                self._absent = self._refused = False
            return found
        return []

    def _begin(self, fetcher: BatchFetcher, numbers: Sequence[int]) -> bool:
        """Where reading begins in partitions that are new here."""
        starts = self._starting(fetcher, [each for each in numbers if each not in self._next])
        if starts is None:
            return False
        with self._lock:
            self._next |= starts
        return True

    def _starting(self, fetcher: BatchFetcher, numbers: Sequence[int]) -> dict[int, int] | None:
        """Where each is read from; None: not known of all."""
        wanted = EARLIEST if self._since is None else int(self._since * 1000)
        starts = self._listed(fetcher, numbers, wanted)
        late = [number for number, offset in (starts or {}).items() if offset < 0]
        ends = self._listed(fetcher, late, LATEST) if late else {}
        return None if starts is None or ends is None else starts | ends

    def _listed(
        self, fetcher: BatchFetcher, numbers: Sequence[int], at: int
    ) -> dict[int, int] | None:
        """An offset of each partition, all in one request to each leader; None: not of all."""
        wanted: dict[Where, int] = {(TOPIC, number): at for number in numbers}
        found = fetcher.list_offsets(wanted, _ASKING)
        failed = next((each.error for each in found.values() if each.error), 0)
        if failed or len(found) < len(wanted):
            is_answered = failed not in {0, NO_ANSWER}
            why = code_named(failed) if is_answered else fetcher.problem
            self._failed(failed, why or "its leaders do not answer")
            return None
        return {number: each.offset for (_, number), each in found.items()}

    def _follow(self, fetcher: BatchFetcher, numbers: Sequence[int]) -> None:
        beat = pruned = self._clock.monotonic()
        beat -= self._beat
        while not self._ending.is_set() and not self._refused:
            now = self._clock.monotonic()
            if self._wake.is_set() or now - beat >= self._beat:
                self._wake.clear()
                self._look(fetcher, numbers)
                now = beat = self._clock.monotonic()  # a look may take longer than the beat
                self._arrive()  # nothing was written since: who waits, waits for no fetch
            size = self._fetch(fetcher, numbers)
            self._arrive()
            if now - pruned >= _PRUNE_EVERY:
                pruned = now
                self._prune()
            if self._goal is not None:
                if not size:
                    self._wake.wait(_SOON)
            elif size < _BULK:
                self._wake.wait(self._beat - min(self._beat, now - beat))

    def _fetch(self, fetcher: BatchFetcher, numbers: Sequence[int]) -> int:
        """Take what is there; how many bytes came."""
        answers = fetcher.fetch({(TOPIC, number): self._next[number] for number in numbers}, _POLL)
        for each in answers:
            self._take(fetcher, each)
        return sum(len(each.data) for each in answers)

    def _look(self, fetcher: BatchFetcher, numbers: Sequence[int]) -> None:
        """Where the log ends now: what the reading has to reach to be current.

        What it is on its way to already stays, or a busy log would run ahead of it for ever; but
        of a log that was cut no more than there is.
        """
        asked, at = self._asked, self._clock.monotonic()
        ends = self._listed(fetcher, numbers, LATEST)
        if ends is not None:
            with self._lock:
                self._problem = None
                if self._goal is not None and self._goal[1] == asked:
                    at, _, known = self._goal
                    ends = {each: min(end, known.get(each, end)) for each, end in ends.items()}
                self._goal = (at, asked, ends)

    def _arrive(self) -> None:
        with self._news:
            if self._goal is None:
                return
            at, asked, ends = self._goal
            if all(end <= self._next.get(number, 0) for number, end in ends.items()):
                self._current_at, self._goal = at, None
                self._answered, self._denied = asked, False
                self._news.notify_all()

    def _take(self, fetcher: BatchFetcher, each: FetchedPart) -> None:
        number = each.where[1]
        if each.error == OUT_OF_RANGE:
            self._anew(fetcher, number)
        elif each.error:
            self._failed(each.error, code_named(each.error))
        elif each.data:
            found = cut(each.data)
            damaged = found.damaged if found.next is None else None
            try:
                self._pass(number, found)
            except DamagedBatch as error:
                damaged = error
                self._pass(number, before(found, error.offset))
            if damaged is not None:
                self._skip(number, damaged)

    def _pass(self, number: int, found: Cut) -> None:
        """Take the batches, all or none, and go on behind them."""
        with self._lock:
            self._batches(number, found)
            if found.next is not None:
                self._next[number] = found.next

    def _anew(self, fetcher: BatchFetcher, number: int) -> None:
        """The log no longer has the position: deleted from the front, or cut, or recreated."""
        starts = self._starting(fetcher, [number])
        if starts is None:
            return
        with self._lock:
            if starts[number] > self._next[number]:
                self._pending.forget(number)  # the rest goes on
            else:
                self._forget(number, len(self._next))
                self._current_at = self._goal = None
                self._wake.set()  # who waits, waits for the end of this log
            self._next |= starts

    def _skip(self, number: int, damaged: DamagedBatch) -> None:
        """Go on behind a batch that cannot be read, if it is known where that is."""
        self._failed(None, f"partition {number}: {damaged}")
        with self._lock:
            self._undecodable(-1, -1)
            if damaged.after is not None:
                self._next[number] = damaged.after

    # --- failures -----------------------------------------------------------------------------

    def _failed(self, code: int | None, why: str) -> None:
        with self._news:
            refused = code in DENIED
            self._problem = self._sentence(why, refused=refused)
            if refused:
                self._refused = self._denied = True
                self._news.notify_all()

    def _is_absent(self) -> None:
        """No such topic: nobody ever committed, so that an empty view is current."""
        with self._news:
            self._absent, self._problem = True, None
            self._current_at = self._clock.monotonic()
            self._answered = self._asked
            self._news.notify_all()

    def _sentence(self, why: str, *, refused: bool) -> str:
        if refused:
            return (
                f"{TOPIC} at {self._address} may not be read ({why}); grant Read and "
                "Describe on it to get members, generations and rebalances"
            )
        return f"{TOPIC} at {self._address} cannot be read: {why}"

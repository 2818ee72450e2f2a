"""A member that is a program of its own: its start, its end, and what shows of it meanwhile.

Problem: `SlotOwner` asks its member to join, to drain, to wait for others or to stop at once, and a
program that Fleet did not write knows only its start and SIGTERM. Choice: it joins by being
started, and drains by being ended; a static member that ends stays in its group until its session
expires [14]. So a batched leave ends the programs at once, and the manager removes their members
[21]. What the group shows of the member (`MemberView`) becomes its state. Cost: an owner that
drains is closed already, and one that has to go on after all starts again.
"""

import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Final

from fleet.config.topic_patterns import matches
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.slots import Phase, Slot
from fleet.text import duration
from fleet.worker.events import WorkerContext, list_names
from fleet.worker.member.member_state import End, MembershipEnd, MemberState
from fleet.worker.program.launcher import Launcher
from fleet.worker.program.member_view import MemberView, MemberWatch
from fleet.worker.slot.slot_life import Life

_TURN: Final = 0.05
_FIRST_LOOK: Final = 2.0
"""Seconds that a start waits for the coordinator to name the former member."""
_JOINING, _FIRST_BATCHES = 0.3, 1.0
"""Seconds between two looks at the group."""
_SHOWN: Final = 10
"""Looks with a commit, from which on they are rarer."""
_TO_JOIN: Final = 2 / 3
"""Part of the session timeout after which a program that is no member counts as failing: the one
before it can still come back without a rebalance."""
STALL_TIMEOUT: Final = 60.0
"""Seconds without a commit while records wait, after which the program counts as failing."""
Evict = Callable[[tuple[str | None, str]], str | None]
"""Removes a member by instance id and member id; returns why not."""


class ProgramMembership:
    """One member of one group, from its start to its end. Arguments as `Membership` has them."""

    def __init__(
        self,
        context: WorkerContext,
        slot: Slot,
        *,
        open_at: float,
        launcher: Launcher,
        watch: MemberWatch,
        may_join: Callable[[], bool | None],
        evict: Evict,
    ) -> None:
        self.state = MemberState(moved_at=context.clock.monotonic(), reading="program")
        self.ended: MembershipEnd | None = None
        self._context = context
        self._clock = context.clock
        self._events = context.events
        self._instance_id = slot.instance_id()
        self._opens_in = open_at - context.clock.now()
        """Seconds from `start` until it may join [19]."""
        self._launcher = launcher
        self._watch = watch
        self._may_join = may_join
        self._evict = evict
        self._former = {slot.member_id} - {None}
        """Member ids of earlier runs: the coordinator names the last of them until the next."""
        self._wanted = Life.SERVING
        self._drain_by: float | None = None
        """Monotonic time at which a run that was asked to end is killed."""
        self._begun = False
        self._committed: dict[TopicPartition, int] = {}
        self._moved_at = 0.0
        """Monotonic time of the last commit, or since when records wait."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="member", daemon=True)

    # --- asked by other threads ------------------------------------------------------------

    def start(self) -> None:
        """Joins when `open_at` has come."""
        self._watch.follow(self._instance_id)
        self._asked_at = self._clock.monotonic()
        self._thread.start()

    def become(self, life: Life) -> None:
        """Ends the program for every life but SERVING, which starts it again."""
        if self._wanted not in {Life.CLOSING, Life.LOST} or life is Life.LOST:
            self._wanted = life
        self.state.asked_to_drain = self._wanted in {Life.HOLDING, Life.CLOSING}
        self._wake.set()

    def lift(self, tps: frozenset[TopicPartition]) -> None:
        """Does nothing: Fleet stops no partition of a program."""

    def expect_change(self, why: str, at: float) -> None:
        """Does nothing: the program learns of a change by its heartbeats."""

    def take_back_tries(self) -> None:
        """Does nothing: Fleet counts no attempts of a program."""

    def join(self, timeout: float) -> bool:
        """Waits for the end; returns whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        how, sentence = End.CLOSED, "closed"
        try:
            while self._turn():
                self.state.moved_at = self._clock.monotonic()
                self._wake.wait(_TURN)
                self._wake.clear()
        except _Replaced as error:
            how, sentence = End.FENCED, str(error)
        except FleetError as error:
            how, sentence = End.FATAL, str(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must end the worker, not idle it
            how, sentence = End.FATAL, f"{type(error).__name__}: {error}"
        finally:
            self._watch.rest()
            if self._begun or self._wanted is Life.LOST:
                self._launcher.stop()
            self.state.partitions = frozenset()
            self._events.emit("closed", how=str(how))
        self.ended = MembershipEnd(how=how, sentence=sentence, clean=not self.state.unclean)

    def _turn(self) -> bool:
        """Does what is wanted; False: nothing of it is left to do."""
        if self._wanted is Life.LOST:
            return False
        if self._begun:
            self._end_if_asked()
            code = self._launcher.collect()
            if code is not None:
                self._on_end(code)
            elif self._drain_by is None and (view := self._watch.latest) is not None:
                self._see(view)
            return True
        match self._wanted:
            case Life.CLOSING:
                return False
            case Life.HOLDING:
                self.state.phase = Phase.DRAINED
                return True
            case Life.REJOINING:
                self._leave("a forced rebalance was asked for")
                self._wanted = Life.SERVING
        return self._begin()

    def _begin(self) -> bool:
        """Starts the program if its time has come and the slot is surely ours [54]."""
        if self._clock.monotonic() < self._asked_at + self._opens_in:
            return True
        view = self._watch.latest
        if view is None and self._clock.monotonic() - self._asked_at < _FIRST_LOOK:
            return True
        ours = self._may_join()
        if ours is not True:
            return ours is None
        if view is not None and view.member_id is not None:
            self._former.add(view.member_id)
        state = self.state
        state.phase, state.assigned, state.joined_at = Phase.JOINING, False, None
        state.unclean = False
        self._committed, self._drain_by = {}, None
        self._watch.every = _JOINING
        self._launcher.give(self._instance_id)
        self._begun, self._moved_at = True, self._clock.monotonic()
        self._events.log(f"started {self._name} as {self._instance_id}")
        return True

    @property
    def _name(self) -> str:
        return self._context.worker.command[0]

    def _end_if_asked(self) -> None:
        now = self._clock.monotonic()
        if self._drain_by is None:
            if self._wanted is not Life.SERVING:
                self.state.phase = Phase.DRAINING
                self._drain_by = now + self._context.settings.group.rollout.drain_timeout
                self._launcher.signal(signal.SIGTERM)
        elif now >= self._drain_by and not self.state.unclean:
            self.state.unclean = True
            self._events.log(f"{self._name} did not end within rollout.drain_timeout: killing it")
            self._launcher.signal(signal.SIGKILL)

    def _on_end(self, code: int) -> None:
        lived = self._clock.monotonic() - self._launcher.began
        how = f"{self._name} ended with {exit_named(code)} after {duration(lived)}"
        self._begun, self.state.partitions = False, frozenset()
        asked = self._drain_by is not None
        if self._context.worker.protocol == "consumer" and (not asked or self.state.unclean):
            self._leave("it did not close its consumer")  # else the next one is refused [17]
        if self.state.member_id is not None:
            self._former.add(self.state.member_id)
        if not asked:
            raise FleetError(f"{how}: {self._launcher.last_line() or 'its log says why'}")
        self._events.log(how)

    def _leave(self, why: str) -> None:
        """Removes its own member from the group."""
        if self.state.member_id is not None:
            refused = self._evict((self._instance_id, self.state.member_id))
            result = "has left" if refused is None else f"stays for its session ({refused})"
            self._events.log(f"its member {self.state.member_id} {result}: {why}")

    # --- what the group shows ----------------------------------------------------------------

    def _see(self, view: MemberView) -> None:
        state = self.state
        if view.at < self._launcher.began or view.member_id in {None, *self._former}:
            patience = _TO_JOIN * self._context.session_timeout
            if state.joined_at is not None and view.member_id is None:
                self._fail("the coordinator has removed its member: it sends no heartbeats")
            elif state.joined_at is None and view.at - self._launcher.began >= patience:
                self._fail(
                    f"{self._name} has not joined the group {patience:g} s after its start; if it "
                    "starts more slowly, raise worker.session_timeout, here and in the program"
                )
            return
        if view.member_id != state.member_id or state.joined_at is None:
            if state.joined_at is not None and self._may_join() is not True:
                raise _Replaced(f"another member has the instance id {self._instance_id}")
            state.member_id, state.joined_at = view.member_id, self._clock.now()
            self._events.emit("subscribed", member=view.member_id)
        if not view.stable:
            return
        if view.partitions != state.partitions or not state.assigned:
            state.partitions, state.assigned = view.partitions, True
            named = list_names(sorted(view.partitions)) or "no partition"
            self._events.log(f"its member owns {named}")
            told = {str(tp): view.committed.get(tp, -1) for tp in sorted(view.partitions)}
            self._events.emit("assigned", partitions=told)
        self._judge(view)
        worked = state.batches > 0 or not view.waiting
        if state.phase is Phase.JOINING and worked and not state.failed:
            state.phase = Phase.ACTIVE
            self._events.emit("phase", phase="active")
        slow = self._context.lease / 3
        first = _JOINING if state.phase is Phase.JOINING else _FIRST_BATCHES
        self._watch.every = slow if state.batches >= _SHOWN else min(slow, first)

    def _judge(self, view: MemberView) -> None:
        """Counts commits since the last look, and says what is wrong."""
        state, now = self.state, self._clock.monotonic()
        before, self._committed = self._committed, dict(view.committed)
        moved = sum(max(0, at - before.get(tp, at)) for tp, at in view.committed.items())
        state.in_hand = view.waiting > 0
        if moved:
            state.batches += 1
            state.records += moved
            state.last_commit_at = self._clock.now()
        if moved or not view.waiting:
            self._moved_at = now
        topics = self._context.settings.group.topics
        read = {tp.topic for tp in view.partitions}
        stray = {topic for topic in read if not any(matches(each, topic) for each in topics)}
        limit = self._context.worker.batch_timeout or STALL_TIMEOUT
        if stray:
            self._fail(
                f"the program reads {', '.join(sorted(stray))}, but fleet.yaml names the topics "
                f"{', '.join(topics)}; write the same topics in both"
            )
        elif now - self._moved_at >= limit:
            self._fail(
                f"{view.waiting:,} records wait, and the program has committed none for "
                f"{limit:g} s (worker.batch_timeout)"
            )
        else:
            state.error, state.failed = None, False

    def _fail(self, sentence: str) -> None:
        if self.state.error != sentence:
            self._events.log_rarely(sentence, key="program")
        self.state.error, self.state.failed = sentence, True


class _Replaced(FleetError):
    """Another member has the instance id, and the store does not say whose the slot is."""


def exit_named(code: int) -> str:
    """Names an exit code, with its signal."""
    with contextlib.suppress(ValueError):
        if code > 128:
            return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"

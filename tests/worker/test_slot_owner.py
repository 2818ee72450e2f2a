"""What an owner does when it takes a slot, is asked for something, loses it, or is fenced.

Kafka is librdkafka's own mock cluster, Spark's session a stand-in.
"""

import gc
import os
import queue
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Slot
from fleet.worker.batch.executor import BatchDone
from fleet.worker.batch.spark_link import SparkLink
from fleet.worker.member.member_state import End, MembershipEnd
from fleet.worker.member.membership import Membership
from fleet.worker.slot.reporting import Canary, Reporter
from fleet.worker.slot.slot_life import Life
from fleet.worker.slot.slot_owner import SlotOwner
from tests.support.batch_parts import SYSTEM, connected
from tests.support.seen_groups import member_seen
from tests.support.spark_stand_in import Link
from tests.worker.rig import CLASSIC, CONSUMER, GROUP, Parts
from tests.worker.test_failures import batch, unavailable

pytestmark = pytest.mark.timeout(60)


class CuringLink(Link):
    """Ends other sessions when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_end = threading.Event()

    def _open(self, where: str) -> Any:
        """A server names each session."""
        made = super()._open(where)
        self.session_id = "ours" if self.connected == 1 else f"ours, {self.connected}"
        return made

    def end_session(self, external_session: str) -> str | None:
        self.asked.append(external_session)
        assert self.may_end.wait(120)
        return None


class Shop(Parts):
    """A worker's parts, by the real clock; cures as long as the test lets it."""

    link: CuringLink

    def __init__(
        self, folder: Path, bootstrap: str, *, lease: float = 2.0, membership: str = "static"
    ) -> None:
        super().__init__(
            folder,
            clock=SYSTEM,
            link=CuringLink(),
            worker={"protocol": "classic", "membership": membership},
            bootstrap=bootstrap,
            lease=lease,
        )
        connected(self.link)
        self.named: list[str | None] = []
        """Which session the slot names while a batch runs, by batch and attempt."""
        self.fails = 0
        """How many attempts Spark is to fail."""
        job = replace(self.runner._entrypoint, function=self._process)
        self.runner._entrypoint = job

    def _process(self, *_: Any) -> None:
        self.named.append(self.slot().spark_session)
        if len(self.named) <= self.fails:
            raise unavailable()

    def close(self) -> None:
        self.link.may_end.set()
        self.stop.set()
        self.runner.stop()
        self.reporter.close()


@pytest.fixture
def shop(tmp_path: Path, mock_broker: str) -> Iterator[Shop]:
    made = Shop(tmp_path, mock_broker)
    yield made
    made.close()


@pytest.fixture
def slow_shop(tmp_path: Path) -> Iterator[Shop]:
    """Whose lease is hardly ever renewed by itself; there is no Kafka."""
    made = Shop(tmp_path, "127.0.0.1:1", lease=170.0)
    yield made
    made.close()


def dead_owner(shop: Shop) -> Slot:
    """A slot whose owner ended with a Spark session that runs on."""
    free = Slot(group=GROUP, number=0)
    held = shop.store.take(free, worker="w1", revision="r", spark_session="theirs")
    assert held is not None
    return held


def test_the_cure_holds_up_batches_but_not_the_join(shop: Shop):
    """Interrupted and released before a batch of ours runs [3]; the slot targets waits for
    nobody [19].
    """
    owner = shop.taken(dead_owner(shop))  # returns while the cure goes on
    done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    shop.runner.submit(batch(0), done.put)
    ended: list[Any] = []
    member = threading.Thread(target=lambda: ended.append(owner.serve()))
    member.start()
    while shop.slot().member_id is None and shop.slot().counter < 3:
        SYSTEM.sleep(0.02)
    assert shop.link.asked == ["theirs"]
    assert done.empty()
    assert shop.slot().spark_session == "theirs", "whoever takes it now has to end it as well"
    shop.link.may_end.set()
    assert done.get(timeout=10).fatal is None
    while shop.slot().spark_session != "ours":
        SYSTEM.sleep(0.02)
    shop.stop.set()
    member.join(15)
    assert ended == [None]
    assert shop.slot().clean


def test_a_session_made_anew_is_named_before_its_batch_runs(slow_shop: Shop):
    """Also once the cure has ended. Fault: whoever takes the slot next ends the former one's
    session again, or none at all, and reads while ours writes [3].
    """
    shop = slow_shop
    shop.fails = 1
    shop.owner = shop.taken(dead_owner(shop))
    shop.link.may_end.set()
    done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
    shop.runner.submit(batch(0), done.put)
    assert done.get(timeout=10).fatal is None
    assert shop.named == ["ours", "ours, 2"]


def test_a_slot_given_up_before_the_cure_ended_is_not_clean(shop: Shop):
    """Its next new owner does it again."""
    owner = shop.taken(dead_owner(shop))
    shop.stop.set()
    assert owner.serve() is None
    assert (shop.slot().owner, shop.slot().clean) == (None, False)
    assert shop.slot().spark_session == "theirs"


def test_what_a_member_has_committed_is_told_to_the_store(slow_shop: Shop):
    """Once: the group is not new any more, however long Kafka keeps its offsets [53]."""
    owner = slow_shop.taken(Slot(group=GROUP, number=0))
    serving = threading.Thread(target=owner.serve)
    serving.start()
    while (member := owner._membership) is None:
        SYSTEM.sleep(0.02)
    member.state.committed = frozenset({"t"})
    while slow_shop.store.committed_topics(GROUP) != {"t"}:
        SYSTEM.sleep(0.02)
    while owner._committed != {"t"}:
        SYSTEM.sleep(0.02)
    slow_shop.stop.set()
    serving.join(15)
    assert not serving.is_alive()


@pytest.mark.parametrize("membership", ["static", "dynamic"])
def test_a_slot_that_is_somebody_elses_is_left_at_once(
    membership: str, tmp_path: Path, mock_broker: str
):
    """Nobody asks us to go: the store shows another owner, so nothing of ours goes on [12]."""
    shop = Shop(tmp_path, mock_broker, membership=membership)
    owner = shop.taken(Slot(group=GROUP, number=0))
    ended: list[Any] = []
    member = threading.Thread(target=lambda: ended.append(owner.serve()), daemon=True)
    member.start()
    while shop.slot().counter < 2:
        SYSTEM.sleep(0.02)
    owner._membership.state.member_id = "ours"  # as if it had joined
    taken = None
    while taken is None:
        taken = shop.store.take(shop.slot(), worker="w3", revision="r", spark_session=None)
    member.join(10)
    assert ended == [(1, "slot 0 has another owner or token: stopped, batch void")]
    assert shop.slot() == replace(taken, counter=shop.slot().counter)
    assert shop.left == ([(None, "ours")] if membership == "dynamic" else [])
    shop.close()


def test_a_tenure_leaves_nothing_open(shop: Shop):
    """250 handovers in one process: clients, their threads and pipes, the store's connections."""
    figures: list[int] = []
    threads: list[int] = []
    gc.disable()
    try:
        for number in range(6):
            seen = shop.slot() if number else Slot(group=GROUP, number=0)
            owner = shop.taken(seen)
            end = threading.Timer(0.15, shop.stop.set)
            end.start()
            assert owner.serve() is None
            end.join()
            shop.stop.clear()
            figures.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
            threads.append(sum(1 for _ in Path("/proc/self/task").iterdir()))
    finally:
        gc.enable()
    for each in (figures, threads):  # one left by each tenure would be four more at the end
        assert each[-1] - each[1] < 4, each


FENCED = MembershipEnd(how=End.FENCED, sentence="82", clean=True)
REFUSED = MembershipEnd(how=End.UNRELEASED, sentence="111", clean=True)


class FarLink(SparkLink):
    """Spark is elsewhere: what is asked to end there is kept."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(where=lambda: None, clock=clock, app="test")
        self.cured: list[str] = []
        self.session_id = "ours"

    def end_session(self, session_id: str) -> str | None:
        """As a server that answers."""
        self.cured.append(session_id)
        return None


class Scene(Parts):
    """Slot 0 of a group, left by `dead` as a test says; worker `w` looks at it."""

    clock: ManualClock
    link: FarLink

    def __init__(self, folder: Path, worker: Mapping[str, Any]) -> None:
        clock = ManualClock()
        super().__init__(folder, clock=clock, link=FarLink(clock), worker=worker)
        self.tenures: list[SlotOwner] = []

    def held(self, **fields: Any) -> Slot:
        """By `dead`, with these fields."""
        taken = self.store.take(self.slot(), worker="dead", revision="r", spark_session="theirs")
        stored = self.store.renew(replace(taken, **{"spark_session": "theirs", **fields}))
        assert stored is not None
        return stored

    def take(self) -> SlotOwner:
        """Take the slot as it is."""
        owner = self.taken(self.slot())
        self.tenures.append(owner)
        self.runner._call_later(lambda: None).result(120)  # behind what is to be cured
        return owner

    def ask(self, **targets: Any) -> None:
        """Somebody writes the slot targets."""
        assert self.store.write_targets(replace(self.store.targets("g"), **targets)) is not None
        self.watcher.forget()
        self.watcher.refresh()

    def lose(self) -> None:
        """Somebody else takes the slot; its owner may write it in between."""
        takes = (
            self.store.take(self.slot(), worker="x", revision="r", spark_session=None)
            for _ in range(50)
        )
        assert any(takes)

    def close(self) -> None:
        for owner in self.tenures:
            owner._lease.abandon()
        self.runner.stop()


@pytest.fixture(scope="module")
def listening() -> Iterator[list[Reporter]]:
    """Ended all at once: each takes half a second to listen no more."""
    made: list[Reporter] = []
    yield made
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(Reporter.close, made))


@pytest.fixture
def new(tmp_path: Path, listening: list[Reporter]) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def scene(worker: Mapping[str, Any] = CLASSIC) -> Scene:
        made.append(Scene(tmp_path, worker))
        listening.append(made[-1].reporter)
        return made[-1]

    yield scene
    for each in made:
        each.close()


# --- taking ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "clean", "cured"),
    [
        pytest.param("theirs", None, ["theirs"], id="died"),  # Spark outlives its client [3]
        pytest.param("theirs", True, [], id="released it cleanly"),  # it may serve another slot
        pytest.param("ours", False, [], id="was ourselves"),
    ],
)
def test_who_is_cured_first(new, session, clean, cured):
    """What a former owner's Spark still runs would write beside us."""
    scene = new()
    held = scene.held(spark_session=session)
    if clean is not None:
        assert scene.store.release(held, clean=clean)
    scene.take()
    assert scene.link.cured == cured


def test_a_slot_that_somebody_took_is_left(new):
    """Nothing is cured, nobody is evicted."""
    scene = new(CONSUMER)
    seen = scene.held(member_id="m")
    scene.lose()
    assert not scene.tenure(seen).take()
    assert (scene.link.cured, scene.left) == ([], [])


@pytest.mark.parametrize(
    ("worker", "released", "leave"),
    [
        pytest.param(CLASSIC, False, [], id="classic"),  # replaced: a leave were a rebalance
        pytest.param({**CLASSIC, "membership": "dynamic"}, False, [(None, "m")], id="dynamic"),
        pytest.param(CONSUMER, False, [("g-0", "m")], id="KIP-848"),
        pytest.param(CONSUMER, True, [], id="KIP-848, released"),  # closed before, clean or not
    ],
)
def test_whether_a_dead_member_leaves_before_the_join(new, worker, released, leave):
    """By its member id where it has no successor by name [18], by both under KIP-848 [17]."""
    scene = new(worker)
    held = scene.held(member_id="m")
    if released:
        assert scene.store.release(held, clean=False)
    scene.take()
    assert scene.left == leave


# --- being asked ------------------------------------------------------------------------------


def test_what_is_asked_of_the_owner(new):
    """The most urgent first; of a token that is another owner's, nothing."""
    scene = new()
    owner = scene.take()
    token = owner._lease.slot.token
    scene.watcher.refresh()
    assert asked(scene, owner) is None
    scene.ask(rejoin={0: token - 1}, handover={0: Handover(token=token - 1, revision="r2")})
    assert asked(scene, owner) is None, "asked of the owner before us"
    scene.ask(rejoin={0: token})
    assert asked(scene, owner) == ("rejoin", token)
    scene.ask(handover={0: Handover(token=token, revision="r2")})
    assert asked(scene, owner) == ("handover", token)
    scene.ask(quarantined=frozenset({0}))
    assert asked(scene, owner) == ("slot closed", None)
    scene.ask(quarantined=frozenset(), open=frozenset())
    assert asked(scene, owner) == ("slot closed", None)
    scene.ask(open=frozenset({0}), leaving=frozenset({0}))
    assert asked(scene, owner) == ("leave", None)
    scene.stop.set()
    assert asked(scene, owner) == ("end", None)


def test_an_owner_follows_others_for_a_leave_and_as_a_canary(new, monkeypatch):
    """Else only its own slot; as a standby all of them [21, 22]."""
    scene = new()
    followed: list[int | None] = []

    def attend(group: str, slot: int | None) -> bool:
        followed.append(slot)
        return slot is not None

    monkeypatch.setattr(scene.store, "attend", attend)
    owner = scene.take()
    membership = unstarted(scene, owner)
    for change in ({}, {"leaving": frozenset({1})}, {"leaving": frozenset()}):
        scene.ask(open=frozenset({0, 1}), **change)
        scene.watcher.forget()
        owner._tick(membership)
    assert followed == [0, None, 0]
    for running in (True, False):
        scene.reporter.canary.running = running
        scene.watcher.forget()
        owner._tick(membership)
    assert followed == [0, None, 0, None, 0]
    closed = MembershipEnd(how=End.CLOSED, sentence="closed", clean=True)
    monkeypatch.setattr(owner, "_one_membership", lambda: closed)
    owner.serve()
    assert followed[5:] == [None]


def asked(scene: Scene, owner: SlotOwner) -> tuple[str, int | None] | None:
    """As its next tick would see it."""
    return owner._life.read_ask(scene.watcher.targets, ending=scene.stop.is_set())


def unstarted(scene: Scene, owner: SlotOwner) -> Membership:
    """A membership that has not begun: what is asked of it stands in its queue."""
    made = Membership(
        scene.context,
        owner._lease.slot,
        open_at=0.0,
        runner=scene.runner,
        marks=owner._stops,
        may_join=lambda: True,
        ours=lambda: owner._lease.lost is None,
    )
    owner._membership = made
    return made


def silenced(scene: Scene) -> sqlite3.Connection:
    """Somebody else holds the store's lock until this is rolled back."""
    lock = sqlite3.connect(scene.folder / "fleet.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    return lock


def test_who_lost_its_slot_stops_at_once(new):
    """Its batch is void, and it is not asked for anything more [12]."""
    scene = new()
    owner = scene.take()
    membership = unstarted(scene, owner)
    owner._tick(membership)
    membership._commands.serve(0.0)
    assert not membership._done
    scene.lose()
    assert not owner._lease.renew()
    owner._tick(membership)
    membership._commands.serve(0.0)
    assert membership._done
    told = owner._after(MembershipEnd(how=End.CLOSED, sentence="closed", clean=True))
    assert told.exit == ("slot 0 has another owner or token: stopped, batch void")
    assert scene.slot().owner == "x"


@pytest.mark.parametrize("then", [Life.CLOSING, Life.HOLDING])
def test_what_is_asked_during_a_rejoin_is_not_forgotten(new, then):
    """A member that drains in order to rejoin is told to end, or to leave: nobody asks it twice."""
    scene = new()
    membership = unstarted(scene, scene.take())
    membership.become(Life.REJOINING)
    membership.become(then)
    membership._commands.serve(0.0)
    assert membership._draining.then is then


def test_a_silent_store_after_a_rejoin_is_waited_for(new, monkeypatch):
    """Its owner is a member, and nobody else can take its slot either [12]."""
    monkeypatch.setattr("fleet.slots.sqlite._BUSY_SECONDS", 0.05)
    scene = new()
    owner = scene.take()
    membership = unstarted(scene, owner)
    membership.state.joined_at = 1.0
    scene.ask(rejoin={0: owner._lease.slot.token})
    owner._tick(membership)
    membership.state.joined_at = 2.0
    lock = silenced(scene)
    owner._tick(membership)
    lock.execute("ROLLBACK")
    assert scene.store.targets("g").rejoin
    owner._tick(membership)
    assert scene.store.targets("g").rejoin == {}


def test_a_targets_far_ahead_is_not_waited_for(new, monkeypatch):
    """Its writer's clock is wrong."""
    scene = new()
    owner = scene.take()
    asked = []

    def over(*_: Any, open_at: float, **__: Any) -> Membership:
        asked.append(open_at)
        raise FleetError("seen")

    monkeypatch.setattr("fleet.worker.slot.slot_owner.Membership", over)
    for ahead in (2.0, 3600.0):
        scene.ask(open_at=scene.clock.now() + ahead)
        with pytest.raises(FleetError, match="seen"):
            owner._one_membership()
    assert [at - scene.clock.now() for at in asked] == [2.0, 30.0]


# --- its end ----------------------------------------------------------------------------------


def test_what_ended_a_worker_is_told_though_the_store_is_silent(new, monkeypatch):
    """Its slot is left to the lease; the sentence is not the store's."""
    monkeypatch.setattr("fleet.slots.sqlite._BUSY_SECONDS", 0.05)
    scene = new()
    owner = scene.take()
    lock = silenced(scene)
    told = owner._after(
        MembershipEnd(how=End.FATAL, sentence="no assignor in common (23)", clean=True)
    )
    lock.execute("ROLLBACK")
    assert told.exit == ("no assignor in common (23)")
    assert scene.slot().owner == "w"


def test_whoever_hangs_ends_also_on_a_full_disk(new, monkeypatch):
    """Fault: the note of its revision's canary raises, and it stays, alive and idle [10]."""
    scene = new()
    scene.reporter.canary = Canary(scene.context, home=scene.folder / "home")
    owner = scene.take()
    shutil.rmtree(scene.folder / "home")
    (scene.folder / "home").write_text("no folder")
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    owner._end_hard("the batch hangs")
    assert codes == [1]
    assert (scene.slot().owner, scene.slot().error) == (None, None)


def test_fenced_once_it_joins_again(new):
    """It may be librdkafka fencing itself; twice within the session timeout it is another [15]."""
    scene = new()
    owner = scene.take()
    assert owner._after(FENCED).again
    scene.clock.sleep(181.0)
    assert owner._after(FENCED).again, "a session timeout later it is the first again"
    scene.clock.sleep(179.0)
    ended = owner._after(FENCED)
    assert "another process uses the instance id g-0" in str(ended.exit)
    assert scene.store.targets("g").quarantined == {0}
    assert scene.slot().owner is None


def test_fenced_by_its_successor_it_stops(new):
    """The store is asked: it names who has the slot."""
    scene = new()
    owner = scene.take()
    scene.lose()
    assert owner._after(FENCED).exit == "slot 0 has another owner (82): stopped, batch void"
    assert (scene.slot().owner, scene.store.targets("g").quarantined) == ("x", frozenset())


@pytest.mark.parametrize("after", [FENCED, REFUSED], ids=["82", "111"])
def test_refused_while_the_store_is_silent_it_waits_for_it(new, monkeypatch, after):
    """Its slot may be another's by now: whoever joins on a guess throws its successor out [15]."""
    scene = new(CONSUMER if after is REFUSED else CLASSIC)
    owner = scene.take()
    asked = []

    def silent(slot: Slot) -> Slot | None:
        asked.append(slot)
        raise Unreachable("nobody answers")

    def wait(timeout: float) -> bool:
        if len(asked) == 3:
            monkeypatch.undo()
            scene.lose()
        return False

    monkeypatch.setattr(scene.store, "renew", silent)
    monkeypatch.setattr(scene.stop, "wait", wait)
    ended = owner._after(after)
    assert "slot 0 has another owner" in str(ended.exit)
    assert len(asked) == 3
    assert (scene.slot().owner, scene.left) == ("x", [])


def test_asked_to_end_while_the_store_is_silent_it_claims_nothing(new, monkeypatch):
    """It does not know whose the slot is."""
    scene = new()
    owner = scene.take()
    scene.stop.set()

    def silent(slot: Slot) -> Slot | None:
        raise Unreachable("nobody answers")

    monkeypatch.setattr(scene.store, "renew", silent)
    ended = owner._after(FENCED)
    assert ended.exit == "asked to end while the store does not say who owns slot 0 (82)"


def test_refused_once_it_frees_the_id_and_joins_again(new):
    """Refused again it ends, and the next new owner frees as well [10]."""
    scene = new(CONSUMER)
    scene.held(member_id="m")
    owner = scene.take()
    scene.left.clear()
    assert owner._after(REFUSED).again
    assert scene.left == [("g-0", "m")]
    scene.clock.sleep(30.0)
    ended = owner._after(REFUSED)
    assert "refuses g-0 (111)" in str(ended.exit)
    assert (scene.slot().owner, scene.slot().clean) == (None, False)


def test_a_foreign_owner_closes_the_slot(new):
    """It is told by name, and not evicted."""
    scene = new(CONSUMER)
    scene.held(member_id="m")
    owner = scene.take()
    scene.refusal = "82"
    scene.member = member_seen("m9", instance_id="g-0", client_id="somebody", host="/10.0.0.9")
    ended = owner._after(REFUSED)
    assert "the process somebody at /10.0.0.9" in str(ended.exit)
    assert scene.store.targets("g").quarantined == {0}


STALLED = MembershipEnd(how=End.STALLED, sentence="nothing of t-0 is fetched", clean=True)


@pytest.mark.parametrize("asked", [False, True], ids=["nothing", "a handover"])
def test_a_member_that_a_new_consumer_helps_keeps_its_slot(new, monkeypatch, asked):
    """It joins once more, unless it is to go anyway."""
    scene = new()
    owner = scene.take()
    ends = [STALLED, MembershipEnd(how=End.CLOSED, sentence="closed", clean=True)]
    slots = []

    def one() -> MembershipEnd:
        slots.append(scene.slot().owner)
        owner._life.begins()
        if asked:
            token = owner._lease.slot.token
            scene.ask(handover={0: Handover(token=token, revision="r2")})
            owner._tick(unstarted(scene, owner))
        return ends.pop(0)

    monkeypatch.setattr(owner, "_one_membership", one)
    assert owner.serve() is None
    assert slots == ["w"] * (1 if asked else 2)
    assert scene.slot().owner is None

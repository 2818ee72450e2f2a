"""Stories of KIP-848 groups: seeded events for the model and for Kafka's own coordinator.

Problem: events drawn blindly never reach the states in which a coordinator is wrong: a member
that does not acknowledge, a static one replaced in the middle of a revocation. Choice: the story
is told while the model plays it: members are acted by what they were answered, each with habits of
its own (obedient, never acknowledging, losing answers, leaving for a while). Cost: a story belongs
to its model; what was told is kept as plain events, which both sides are then asked.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupHeartbeatRequest,
    LeaveGroupRequest,
    MemberIdentity,
    TopicPartitions,
)

TOPICS = ("a", "ab", "orders", "payments", "b-1")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """One event: what is asked, at once or after `wait` ms; `message` None lets time go on."""

    op: str
    message: Any = None
    client: Client | None = None


@dataclass(frozen=True)
class Setting:
    """What a story begins with; `config` has Kafka's names."""

    config: Mapping[str, object]
    topics: Mapping[str, tuple[str, int]]


@dataclass
class Actor:
    """A member as it knows itself: `owned` by topic id, `given` what it was told last."""

    group: str
    id: str
    instance: str | None = None
    epoch: int = 0
    last_epoch: int = 0
    assignor: str | None = None
    timeout: int = 60_000
    owned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    given: dict[str, tuple[int, ...]] = field(default_factory=dict)
    acknowledges: float = 0.9
    client: Client = field(default_factory=Client)


def setting(dice: random.Random) -> Setting:
    """Topics and configuration; most of it ordinary, some of it narrow."""
    names = dice.sample(TOPICS, dice.randint(1, len(TOPICS)))
    count = dice.choice((2, 3, 4, 6, 20))
    config: dict[str, object] = {"group.consumer.assignors": "uniform"}
    if dice.random() < 0.75:
        config["group.consumer.assignment.interval.ms"] = dice.choice((0, 0, 3_000, 5_000))
    if dice.random() < 0.3:
        config["group.consumer.max.size"] = dice.randint(2, 4)
    topics = {name: (topic_id(dice), dice.randint(1, count)) for name in names}
    return Setting(config, topics)


def topic_id(dice: random.Random) -> str:
    """A topic's id as Kafka prints it."""
    return "".join(dice.choice(_LETTERS) for _ in range(21)) + dice.choice("AQgw")


class Story:
    """Events of one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.setting = setting(self.dice)
        self.topics = dict(self.setting.topics)
        self.groups = ("g", "h") if self.dice.random() < 0.15 else ("g",)
        self.actors: list[Actor] = []
        self.gone: list[Actor] = []
        self.events: list[Told] = []
        names = self.dice.sample(TOPICS, self.dice.randint(0, 3))
        self.subscribed = tuple(names) if self.dice.random() < 0.3 else tuple(sorted(self.topics))
        self.static = self.dice.choice((0.0, 0.3, 0.8))
        self.sticks = self.dice.choice((0.05, 0.3, 0.6))

    def tell(self, length: int, ask: Callable[[Told], Answer | None]) -> list[Told]:
        """That many events, or a few more; `ask` plays one and returns the answer to it."""
        self._ask = ask
        for _ in range(self.dice.randint(1, 3)):
            self._join()
        while len(self.events) < length:
            kinds, weights = zip(*_KINDS, strict=True)
            getattr(self, self.dice.choices(kinds, weights)[0])()
        return self.events

    def ask(self, op: str, message: Any = None, client: Client | None = None) -> Answer | None:
        """Tells one event."""
        event = Told(op, message, client)
        self.events.append(event)
        return self._ask(event)

    # Members.

    def _join(self) -> None:
        if len(self.actors) >= 6:
            self._beat()
            return
        dice = self.dice
        actor = Actor(dice.choice(self.groups), self._new_id())
        if dice.random() < self.static:
            actor.instance = f"i{dice.randint(1, 3)}"
        actor.assignor = dice.choice((None, "uniform"))
        actor.timeout = dice.choice((5_000, 20_000, 60_000, 300_000))
        actor.acknowledges = 0.0 if dice.random() < self.sticks else 0.9
        if dice.random() < 0.3:
            actor.client = Client(dice.choice(("c1", "c2")), dice.choice(("10.0.0.1", "10.0.0.2")))
        self._join_as(actor)

    def _join_as(self, actor: Actor) -> None:
        actor.epoch, actor.owned, actor.given = 0, {}, {}
        answer = self._full(actor)
        if not answer.get("errorCode"):
            self.actors = [each for each in self.actors if each.id != actor.id]
            self.actors.append(actor)

    def _new_id(self) -> str:
        return "".join(self.dice.choice(_LETTERS) for _ in range(self.dice.choice((1, 3, 22))))

    def _full(self, actor: Actor, **changed: Any) -> Answer:
        return self._send(
            actor,
            rebalance_timeout_ms=actor.timeout,
            subscribed_topic_names=self.subscribed,
            server_assignor=actor.assignor,
            topic_partitions=_listed(actor.owned),
            **changed,
        )

    def _send(self, actor: Actor, **fields: Any) -> Answer:
        fields.setdefault("member_epoch", actor.epoch)
        fields.setdefault("instance_id", actor.instance)
        asked = ConsumerGroupHeartbeatRequest(actor.group, actor.id, **fields)
        answer = self.ask("ConsumerGroupHeartbeat", asked, actor.client)
        assert answer is not None
        self._learn(actor, asked, answer)
        return answer

    def _learn(self, actor: Actor, asked: ConsumerGroupHeartbeatRequest, answer: Answer) -> None:
        error = answer.get("errorCode", 0)
        if error in (25, 110, 82, 69):
            actor.epoch, actor.owned, actor.given = 0, {}, {}
        if error or asked.member_epoch < 0 or self.dice.random() < 0.08:
            return  # refused, gone, or the answer is lost
        if actor.epoch != answer["memberEpoch"]:
            actor.last_epoch = actor.epoch
        actor.epoch = answer["memberEpoch"]
        if answer.get("assignment") is not None:
            parts = answer["assignment"]["topicPartitions"]
            actor.given = {each["topicId"]: tuple(each["partitions"]) for each in parts}
        if self.dice.random() < actor.acknowledges:
            actor.owned = dict(actor.given)

    def _someone(self) -> Actor | None:
        return self.dice.choice(self.actors) if self.actors else None

    def _beat(self) -> None:
        """A heartbeat as it should be: all, a part, or nothing said."""
        actor = self._someone()
        if actor is None:
            self._join()
        elif actor.epoch == 0 or self.dice.random() < 0.15:
            self._full(actor)
        elif self.dice.random() < 0.75:
            self._send(actor, topic_partitions=_listed(actor.owned))
        else:
            self._send(actor)

    def _round(self) -> None:
        """All beat, one after the other."""
        for actor in self.dice.sample(self.actors, len(self.actors)):
            if actor.epoch == 0:
                self._full(actor)
            else:
                self._send(actor, topic_partitions=_listed(actor.owned))

    def _change(self) -> None:
        """A member that tells something else of itself."""
        actor = self._someone()
        if actor is None:
            return
        what = self.dice.random()
        if what < 0.3:
            actor.assignor = "uniform"
        elif what < 0.8:
            actor.timeout = self.dice.choice((4_000, 30_000))
        else:
            actor.client = Client("c3", "10.0.0.3")
        if actor.epoch == 0 or self.dice.random() < 0.5:
            self._full(actor, rack_id=self.dice.choice((None, "rack1")))
        else:
            self._send(
                actor,
                subscribed_topic_names=self.subscribed,
                topic_partitions=self.dice.choice((None, _listed(actor.owned))),
            )

    def _wrong(self) -> None:
        """An epoch, a member or an instance that the coordinator does not know so."""
        actor = self._someone()
        if actor is None:
            return
        dice = self.dice
        what = dice.random()
        if what < 0.5:
            epoch = max(1, dice.choice((actor.last_epoch, actor.epoch + dice.choice((-1, 1)))))
            more = {topic: (*those, 99) for topic, those in actor.given.items()}
            claims: tuple[Mapping[str, tuple[int, ...]], ...]
            claims = (actor.owned, actor.given, more, {topic_id(dice): (0,)})
            owned = dice.choice((None, (), *map(_listed, claims)))
            kept = actor.epoch, actor.owned, actor.given
            self._send(actor, member_epoch=epoch, topic_partitions=owned)
            actor.epoch, actor.owned, actor.given = kept
        elif what < 0.7:
            stranger = Actor(actor.group, self._new_id(), dice.choice((None, "i1", "i9")))
            stranger.epoch = dice.choice((1, 5, -1))
            self._send(stranger, member_epoch=stranger.epoch)
        elif what < 0.85 and actor.instance is not None:
            twin = Actor(actor.group, self._new_id(), actor.instance)
            self._full(twin, member_epoch=dice.choice((0, 3)) if not twin.owned else 3)
        else:
            self._join_as(actor)

    def _leave(self) -> None:
        actor = self._someone()
        if actor is None:
            return
        away = actor.instance is not None and self.dice.random() < 0.7
        self._send(actor, member_epoch=-2 if away else -1)
        self.actors.remove(actor)
        self.gone = [*self.gone[-3:], actor]

    def _return(self) -> None:
        """Somebody who went comes back, a static one under another id."""
        if not self.gone:
            self._beat()
            return
        actor = self.gone.pop(self.dice.randrange(len(self.gone)))
        if self.dice.random() < 0.8:
            actor.id = self._new_id()
        self._join_as(actor)

    def _restart(self) -> None:
        """A static member goes and its heir is there at once, in the middle of everything."""
        static = [actor for actor in self.actors if actor.instance is not None]
        if not static:
            self._beat()
            return
        actor = self.dice.choice(static)
        if self.dice.random() < 0.85:
            self._send(actor, member_epoch=-2)
        self.actors.remove(actor)
        self.dice.choice((self._round, self._topics, self._beat, self._wait_long, int, int))()
        actor.id = self._new_id()
        self._join_as(actor)

    # Administrators, topics, time.

    def _take_out(self) -> None:
        group = self.dice.choice(self.groups)
        leavers = []
        for actor in self.dice.sample(self.actors, min(len(self.actors), self.dice.randint(1, 3))):
            by_instance = actor.instance is not None and self.dice.random() < 0.6
            member = actor.id if not by_instance or self.dice.random() < 0.3 else ""
            leavers.append(MemberIdentity(member, actor.instance if by_instance else None))
        leavers.append(MemberIdentity("nobody")) if self.dice.random() < 0.2 else None
        if leavers:
            self.ask("LeaveGroup", LeaveGroupRequest(group, tuple(leavers)))

    def _topics(self) -> None:
        dice = self.dice
        name = dice.choice(TOPICS)
        old = self.topics.get(name)
        if old is None:
            self.topics[name] = (topic_id(dice), dice.randint(1, 5))
        elif dice.random() < 0.5:
            self.topics[name] = (old[0], old[1] + dice.randint(1, 3))
        elif dice.random() < 0.5:
            self.topics[name] = (topic_id(dice), dice.randint(1, 5))
        else:
            del self.topics[name]
        self.ask("topics", dict(self.topics))

    def _fail_over(self) -> None:
        self.ask("failover")

    def _wait(self) -> None:
        self.ask("advance", self.dice.choice((0, 1, 200, 1_000, 1_000, 3_000, 5_000, 10_000)))

    def _wait_long(self) -> None:
        long = (5_000, 20_000, 30_000, 44_999, 45_000, 60_000)
        self.ask("advance", self.dice.choice(long) if self.dice.random() < 0.9 else 600_000)


_KINDS = (
    ("_beat", 30.0),
    ("_round", 5.0),
    ("_join", 8.0),
    ("_change", 6.0),
    ("_wrong", 5.0),
    ("_leave", 4.0),
    ("_return", 5.0),
    ("_restart", 4.0),
    ("_take_out", 2.0),
    ("_topics", 4.0),
    ("_fail_over", 1.5),
    ("_wait", 10.0),
    ("_wait_long", 2.5),
)


def _listed(owned: Mapping[str, tuple[int, ...]]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic, partitions) for topic, partitions in owned.items())

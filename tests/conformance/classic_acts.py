"""What classic members do, in words that still hold when something before has been left out.

Problem: a story that is to be shortened must not name a member id or a generation, which change
with everything that happens before. Choice: an act names a client by number and says "its own id",
"the next generation"; the player knows each client's id and generation from the model's answers,
and makes of every act the request that Kafka's coordinator gets. Cost: both coordinators are asked
what the model's answers lead to, so nothing after a first difference says anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fleet.sim.coordinator.classic_coordinator import (
    AnyRequest,
    ClassicCoordinator,
    CoordinatorStep,
)
from fleet.sim.coordinator.classic_group import ClassicGroup, CoordinatorConfig
from fleet.sim.coordinator.requests import (
    Client,
    ErrorCode,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from tests.conformance.kafka_group_manager import (
    NO_CLEANUP,
    Event,
    Scenario,
    advance,
    append,
    failover,
    member_uuids,
    request,
)

GROUP = "g"
START = 1_000


def subscription(*topics: str) -> bytes:
    """What a consumer tells its assignor, version 1."""
    names = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff\0\0\0\0"


PROTOCOLS: tuple[tuple[JoinGroupProtocol, ...], ...] = (
    (JoinGroupProtocol("range", subscription("t")),),
    (JoinGroupProtocol("range", subscription("t", "u")),),
    (JoinGroupProtocol("range", subscription("t")), JoinGroupProtocol("roundrobin", b"")),
    (JoinGroupProtocol("roundrobin", b""), JoinGroupProtocol("range", subscription("t"))),
    (
        JoinGroupProtocol("cooperative-sticky", subscription("u")),
        JoinGroupProtocol("range", b"\0"),
        JoinGroupProtocol("roundrobin", subscription()),
    ),
    (JoinGroupProtocol("roundrobin", b"\0\1\0\0\0\2\0\1t"),),
    (),
)
"""What members may say of themselves; blobs that are cut short among them."""


class Act(NamedTuple):
    """One thing that happens; `how` has what its kind takes (see `Player`)."""

    kind: str
    who: int = 0
    how: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.how.items())
        return f"act({self.kind!r}, {self.who}{more})"


def act(kind: str, who: int = 0, **how: Any) -> Act:
    """As a story is written."""
    return Act(kind, who, how)


class Story(NamedTuple):
    """A scenario in acts."""

    seed: int
    acts: tuple[Act, ...]
    config: CoordinatorConfig = CoordinatorConfig()

    def __str__(self) -> str:
        acts = "".join(f"    {each!r},\n" for each in self.acts)
        changed = {
            name: value
            for name, value in self.config._asdict().items()
            if value != CoordinatorConfig._field_defaults[name]
        }
        fields = ", ".join(f"{name}={value}" for name, value in changed.items())
        return f"Story({self.seed}, (\n{acts}), CoordinatorConfig({fields}))"


@dataclass
class Member:
    """What a client knows."""

    number: int
    instance: str | None
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    told_of: tuple[str, ...] = ()
    protocol: str | None = None
    protocols: int = 0
    asked: list[int] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """Three processes' names for all."""
        return Client(f"c{self.number % 3}", f"10.0.0.{self.number + 1}")


class Turn(NamedTuple):
    """An act that was played: what Kafka's coordinator is told, and what the model made of it."""

    act: Act
    event: Event
    step: CoordinatorStep
    picture: dict[str, Any]
    timers: dict[str, int]
    at: int


class Player:
    """Plays acts to a model, one after the other."""

    def __init__(self, seed: int, config: CoordinatorConfig, *, clients: int = 16) -> None:
        self.config = config
        self.model = ClassicCoordinator(member_uuids(seed), config=config, now=START)
        self.members = [
            Member(number, f"i{number}" if number % 2 else None) for number in range(clients)
        ]
        self._asked: dict[int, Member] = {}
        self._count = 0

    @property
    def group(self) -> ClassicGroup | None:
        """The group as it is."""
        return self.model.groups.get(GROUP)

    def play(self, each: Act) -> Turn:
        """One act."""
        number, self._count = self._count, self._count + 1
        event, step = self._play(number, each)
        for ticket, response in step.answers.items():
            if isinstance(response, JoinGroupResponse):
                self._joined(self._asked[ticket], response)
        return Turn(
            each, event, step, picture(self.model), self.model.around.timers.deadlines(),
            self.model.now,
        )  # fmt: skip

    def _play(self, number: int, each: Act) -> tuple[Event, CoordinatorStep]:
        how, error = each.how, each.how.get("append", "")
        match each.kind:
            case "advance":
                stretch = how["ms"]
                if how.get("next"):
                    due = self.model.around.timers.next_deadline or self.model.now
                    stretch = max(0, due - self.model.now + how["ms"])
                event = {**advance(stretch), **({"append": error} if error else {})}
                return event, self.model.advance(stretch, append=_code(error))
            case "appended":
                return append(error), self.model.appended(_code(error))
            case "failover":
                kept = how.get("kept", False)
                return failover(kept=kept), self.model.failover(kept=kept)
        member = self.members[each.who]
        message = self._message(each, member)
        self._asked[number] = member
        hold = bool(how.get("hold"))
        event = request(message, client=member.client, append="later" if hold else error or "ok")
        step = self.model.request(number, message, member.client, append=_code(error), hold=hold)
        return event, step

    def _message(self, each: Act, member: Member) -> AnyRequest:
        how = each.how
        generation = member.generation + how.get("generation", 0)
        known, instance = self._identity(member, how.get("identity", "own"))
        match each.kind:
            case "join":
                member.protocols = how.get("protocols", 0)
                return JoinGroupRequest(
                    GROUP, known, instance, PROTOCOLS[member.protocols],
                    how.get("type", "consumer"), how.get("session", 10_000),
                    how.get("rebalance", 30_000), how.get("version", 9),
                )  # fmt: skip
            case "sync":
                given = [
                    SyncGroupAssignment(name, f"{generation}/{n}".encode())
                    for n, name in enumerate(member.told_of)
                ]
                some = tuple(given[how.get("skip", 0) :])
                return SyncGroupRequest(
                    GROUP, generation, known, instance, how.get("type", "consumer"),
                    how.get("protocol", member.protocol), some,
                )  # fmt: skip
            case "heartbeat":
                return HeartbeatRequest(GROUP, generation, known, instance)
            case "leave":
                leaving = [
                    MemberIdentity(*self._identity(self.members[who], identity))
                    for who, identity in how["members"]
                ]
                return LeaveGroupRequest(GROUP, tuple(leaving))
            case "commit":
                text = "m" * how.get("metadata", 0)
                offset = OffsetCommitPartition(0, how.get("offset", 7), -1, text)
                topics = (OffsetCommitTopic(how.get("topic", "t"), (offset,)),)
                return OffsetCommitRequest(GROUP, generation, known, instance, topics)
        raise ValueError(f"no act is called {each.kind}")

    def _identity(self, member: Member, words: str) -> tuple[str, str | None]:
        """own; new (no id yet); plain (without the instance id); wrong; another's; nobody."""
        match words:
            case "own":
                return member.member_id, member.instance
            case "new":
                return "", member.instance
            case "plain":
                return member.member_id, None
            case "wrong":
                return "nobody-at-all", member.instance
            case "nobody":
                return "", None
        other = self.members[int(words)]
        return other.member_id, member.instance

    def _joined(self, member: Member, response: JoinGroupResponse) -> None:
        if response.error_code in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            member.member_id = response.member_id
        elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id = ""
        if response.error_code == ErrorCode.NONE:
            member.generation = response.generation_id
            member.leads = response.leader == response.member_id
            member.told_of = tuple(each.member_id for each in response.members)
            member.protocol = response.protocol_name


def _code(name: str) -> ErrorCode:
    return ErrorCode[name] if name else ErrorCode.NONE


def played(story: Story) -> list[Turn]:
    """All its turns."""
    player = Player(story.seed, story.config)
    return [player.play(each) for each in story.acts]


def scenario(story: Story, turns: Iterable[Turn]) -> Scenario:
    """The same for Kafka's coordinator."""
    config = story.config
    return Scenario(
        seed=story.seed,
        start=START,
        events=tuple(turn.event for turn in turns),
        config={
            "group.initial.rebalance.delay.ms": config.initial_rebalance_delay,
            "group.max.size": config.max_size,
            **NO_CLEANUP,
        },
    )


def picture(model: ClassicCoordinator) -> dict[str, Any]:
    """What GroupPicture.java shows of every group."""
    return {name: _group(group) for name, group in model.groups.items()}


def _group(group: ClassicGroup) -> dict[str, Any]:
    return {
        "type": "classic",
        "state": group.state.value,
        "previous_state": group.previous_state.value,
        "since": group.since,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "new_member_added": group.new_member_added,
        "awaiting_join": group.awaiting_join,
        "pending_join": sorted(group.pending_join),
        "pending_sync": sorted(group.pending_sync),
        "members": [
            {
                "id": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "rebalance_timeout": member.rebalance_timeout,
                "session_timeout": member.session_timeout,
                "protocols": [[each.name, each.metadata.hex()] for each in member.protocols],
                "assignment": member.assignment.hex(),
                "awaits_join": member.awaits_join is not None,
                "awaits_sync": member.awaits_sync is not None,
                "new": member.is_new,
            }
            for member in group.members.values()
        ],
    }

"""A classic group whose members a test moves one request at a time: in the model, and for real.

Problem: whether the model's coordinator fails over as Kafka's does shows only where both are in the
same phase of a round when it happens, and clients go through phases as they please. Choice: members
that send what a story says and nothing else, to the model or to three brokers of which the
coordinator is killed; each request has a connection of its own member's, since a waiting JoinGroup
holds up what is behind it. Cost: time is not compared, only what is answered.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from fleet.broker import Broker
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.log.records import TOPIC, partition_for
from fleet.sim.coordinator import requests as model
from tests.sim.classic_cluster import JOIN, Cluster
from tests.support.waiting import until

MOVED = 16
"""NOT_COORDINATOR; a coordinator that was killed says the same by its silence."""
LOST = {14, 15, MOVED}
"""It loads, is not there, or is another one."""
_WRITTEN: Final = 0.05
"""Seconds in which what is sent is on its way: requests go in the order of the story."""
_FETCHES_OVER: Final = 2.0
"""Seconds after which no fetch of a broker that stands still waits at its leader any more (0.5 s:
replica.fetch.wait.max.ms): its answer would be read when the broker goes on."""
SESSION_MS, REBALANCE_MS = JOIN.session_timeout_ms, JOIN.rebalance_timeout_ms


class Heard(NamedTuple):
    """What a member was answered."""

    code: int
    generation: int = -1
    """Of an answer to JoinGroup."""
    share: str = ""
    """Of an answer to SyncGroup."""


class GroupSide(Protocol):
    """Members are called by number, m0 first; generations are counted from the first full one."""

    def form(self, members: int, *, static: bool) -> None:
        """So many members in one generation, which is 0 from here on; m0 leads."""

    def join(self, member: int) -> Any:
        """A JoinGroup, of a new member too; what it is known by."""

    def sync(self, member: int, generation: int, *, leads: bool = False) -> Any:
        """A SyncGroup; the leader gives each member its own name."""

    def heard(self, asked: Any) -> Heard:
        """What was answered, once it is."""

    def beat(self, member: int, generation: int = 0) -> int:
        """The code that a heartbeat hears."""

    def pass_time(self, seconds: float, *, beating: Collection[int]) -> None:
        """So much time, in which only these send heartbeats."""

    def move(self) -> None:
        """The coordinator dies, and another one takes over."""

    def move_in_writing(self, leader: int, generation: int, *, kept: bool) -> None:
        """The same, after the leader's SyncGroup and before anybody has an answer.

        kept: the new generation was durable.
        """

    def state(self) -> str:
        """As the coordinator describes it."""

    def members(self) -> list[int]:
        """Who is in the group."""


class ModelGroup:
    """In the model."""

    def __init__(self) -> None:
        self._of = Cluster()
        self._ids: list[str] = []
        self._instances: list[str | None] = []
        self._static = False
        self._first = 0

    def form(self, members: int, *, static: bool) -> None:
        """See GroupSide."""
        self._ids = self._of.stable(members, static=static)
        known = self._of.group.members
        self._instances = [known[each].group_instance_id for each in self._ids]
        self._static = static
        self._first = self._of.group.generation

    def join(self, member: int) -> int:
        """See GroupSide."""
        if member < len(self._ids):
            known, instance = self._ids[member], self._instances[member]
        else:
            known, instance = "", f"i{member}" if self._static else None
        return self._of.ask(JOIN._replace(member_id=known, group_instance_id=instance))

    def sync(self, member: int, generation: int, *, leads: bool = False, hold: bool = False) -> int:
        """See GroupSide."""
        shares = [model.SyncGroupAssignment(n, n.encode()) for n in self._ids if leads]
        asked = model.SyncGroupRequest(
            "g", self._first + generation, self._ids[member], assignments=tuple(shares)
        )
        return self._of.ask(asked, hold=hold)

    def heard(self, asked: int) -> Heard:
        """See GroupSide."""
        told = self._of.answers[asked]
        if isinstance(told, model.JoinGroupResponse):
            known = told.generation_id - self._first if told.generation_id >= 0 else -1
            return Heard(told.error_code, generation=known)
        who = told.assignment.decode()
        return Heard(told.error_code, share=f"m{self._ids.index(who)}" if who else "")

    def beat(self, member: int, generation: int = 0) -> int:
        """See GroupSide."""
        return self._of.beat(self._ids[member], generation_id=self._first + generation)

    def pass_time(self, seconds: float, *, beating: Collection[int]) -> None:
        """See GroupSide."""
        for _ in range(round(seconds)):
            for member in beating:
                self.beat(member)
            self._of.wait(1_000)

    def move(self) -> None:
        """See GroupSide."""
        self._of.move()

    def move_in_writing(self, leader: int, generation: int, *, kept: bool) -> None:
        """See GroupSide."""
        self.sync(leader, generation, leads=True, hold=True)
        self._of.move(kept=kept)

    def state(self) -> str:
        """See GroupSide."""
        return self._of.group.state.value

    def members(self) -> list[int]:
        """See GroupSide."""
        return sorted(self._ids.index(each) for each in self._of.group.members)


class Asked(NamedTuple):
    """A request that was sent."""

    member: int
    future: Any


class RealGroup:
    """On brokers; `close` it."""

    def __init__(self, brokers: Broker, group: str) -> None:
        self._brokers, self._group = brokers, group
        self._address = brokers.status().bootstrap_servers
        self._find = FindCoordinatorRequest(
            key_type=0, coordinator_keys=[group], min_version=4, max_version=4
        )
        self._asking = self._connected()
        self._nets: list[Connections] = []
        self._ids: list[str] = []
        self._first = 0
        self._static = False

    def close(self) -> None:
        """Let go of all connections; the group's sessions run out."""
        for each in (self._asking, *self._nets):
            each.close()

    def form(self, members: int, *, static: bool) -> None:
        """See GroupSide."""
        self._static = static
        self._described()  # its coordinator is there
        for newest in range(members):
            asked = [self.join(member) for member in (newest, *range(newest))]
            told = [self._answer(each) for each in asked]
            assert [each.error_code for each in told] == [0] * len(told), told
            self._ids = [each.member_id for each in (*told[1:], told[0])]
            assert told[0].leader == self._ids[0], "somebody else leads"
        self._first = told[0].generation_id
        shares = [self.sync(m, 0, leads=m == 0) for m in range(members)]
        heard = [self.heard(each) for each in shares]
        assert heard == [Heard(0, share=f"m{m}") for m in range(members)], heard

    def join(self, member: int) -> Asked:
        """See GroupSide."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        asked = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._ids[member] if member < len(self._ids) else "",
            group_instance_id=f"i{member}" if self._static else None,
            protocol_type="consumer",
            protocols=[protocol],
            # From 4 on a dynamic member is given its id first; static ones there are from 5 on.
            max_version=9 if self._static else 3,
        )
        return self._send(member, asked, REBALANCE_MS / 1000)

    def sync(self, member: int, generation: int, *, leads: bool = False) -> Asked:
        """See GroupSide."""
        share = SyncGroupRequest.SyncGroupRequestAssignment
        asked = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._first + generation,
            member_id=self._ids[member],
            group_instance_id=f"i{member}" if self._static else None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                share(member_id=name, assignment=f"m{number}".encode())
                for number, name in enumerate(self._ids)
                if leads
            ],
            max_version=5 if self._static else 2,
        )
        return self._send(member, asked, REBALANCE_MS / 1000)

    def heard(self, asked: Asked) -> Heard:
        """See GroupSide."""
        told = self._answer(asked)
        if isinstance(told, NoAnswer):
            return Heard(MOVED)
        if hasattr(told, "assignment"):
            return Heard(told.error_code, share=bytes(told.assignment).decode())
        known = told.generation_id
        return Heard(told.error_code, generation=known - self._first if known >= 0 else -1)

    def beat(self, member: int, generation: int = 0) -> int:
        """See GroupSide."""
        asked = HeartbeatRequest(
            group_id=self._group,
            generation_id=self._first + generation,
            member_id=self._ids[member],
            group_instance_id=f"i{member}" if self._static else None,
            max_version=4 if self._static else 2,
        )
        return int(self._told(member, asked).error_code)

    def pass_time(self, seconds: float, *, beating: Collection[int]) -> None:
        """See GroupSide."""
        for _ in range(round(seconds)):
            for member in beating:
                self.beat(member)
            time.sleep(1.0)

    def move(self) -> None:
        """See GroupSide."""
        self._brokers.kill(self._coordinator())

    def move_in_writing(self, leader: int, generation: int, *, kept: bool) -> None:
        """See GroupSide."""
        first, others = self._coordinator(), self._logs()
        mine = others.pop(first)
        before = mine.stat().st_size
        with contextlib.nullcontext() if kept else self._stopped(others):
            self.sync(leader, generation, leads=True)
            until(lambda: mine.stat().st_size > before, "the generation to be written")
            if kept:
                whole = mine.stat().st_size
                until(lambda: {log.stat().st_size for log in others.values()} == {whole}, "copies")
            else:
                assert {log.stat().st_size for log in others.values()} == {before}
            self._brokers.kill(first)

    def state(self) -> str:
        """See GroupSide."""
        return str(self._described().group_state)

    def members(self) -> list[int]:
        """See GroupSide."""
        return sorted(self._ids.index(each.member_id) for each in self._described().members)

    # --- requests ---------------------------------------------------------------------------

    def _connected(self) -> Connections:
        net = Connections({"bootstrap.servers": self._address}, client_id="story")
        net.connect(30)
        return net

    def _send(self, member: int, request: Any, seconds: float) -> Asked:
        while member >= len(self._nets):
            self._nets.append(self._connected())
        broker, net = self._coordinator(), self._nets[member]
        net.ask({broker: self._find}, 5.0)  # connected
        asked = Asked(member, net.send(broker, request, timeout=seconds))
        net.pause(_WRITTEN)
        return asked

    def _answer(self, asked: Asked) -> Any:
        net, sent = self._nets[asked.member], asked.future
        net.wait([sent], REBALANCE_MS / 1000)
        assert sent.is_done, "no answer within a rebalance timeout"
        return NoAnswer(str(sent.exception)) if sent.exception is not None else sent.value

    def _told(self, member: int, request: Any) -> Any:
        """The answer of whoever coordinates the group, once somebody does."""

        def told() -> Any:
            heard = self._answer(self._send(member, request, 5.0))
            lost = isinstance(heard, NoAnswer) or heard.error_code in LOST
            return None if lost else heard

        return until(told, "a coordinator")

    def _coordinator(self) -> int:
        """A broker that answers as the group's coordinator."""

        def found() -> int:
            (told,) = self._asking.ask_any(self._find, 30).coordinators
            running = {node.id for node in self._brokers.status().nodes if node.pid is not None}
            return told.node_id if not told.error_code and told.node_id in running else 0

        return until(found, "a coordinator")

    def _described(self) -> Any:
        asked = DescribeGroupsRequest(groups=[self._group], max_version=5)

        def told() -> Any:
            broker = self._coordinator()
            answer = self._asking.ask({broker: asked}, 5.0)[broker]
            if isinstance(answer, NoAnswer) or answer.groups[0].error_code in LOST:
                return None
            return answer.groups[0]

        return until(told, "the group's description")

    # --- brokers ----------------------------------------------------------------------------

    def _logs(self) -> dict[int, Path]:
        """Each node's log of the group's partition."""
        nodes = self._brokers.status().nodes
        number = partition_for(self._group, self._partitions())
        name = "0" * 20 + ".log"
        return {node.id: node.data / f"{TOPIC}-{number}" / name for node in nodes}

    def _partitions(self) -> int:
        (topic,) = self._asking.metadata({TOPIC}, 30).topics
        return len(topic.partitions)

    @contextlib.contextmanager
    def _stopped(self, nodes: Collection[int]) -> Iterator[None]:
        """These stand still."""
        found = [n.pid for n in self._brokers.status().nodes if n.id in nodes and n.pid]
        assert len(found) == len(nodes)
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(_FETCHES_OVER)
        try:
            yield
        finally:
            for pid in found:
                os.kill(pid, signal.SIGCONT)

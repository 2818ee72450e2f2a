"""Every write to the cluster's administration: leaves, topics, a group's settings.

Problem: k static members leave in one rebalance only if one LeaveGroup request names them all,
and librdkafka sends none for static members, let alone a batch. Choice: kafka-python's admin
client, whose request carries member id and instance id together [16], so that a stale request
is answered with 82 and evicts nobody; what answers 25 is gone already. A fresh connection per
attempt, since a coordinator that moved is cached by the old one. Cost: a second Kafka client
(0.2 s, 15 MB), so this module is imported where it is used.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, MemberToRemove

from fleet.clock import Clock, SystemClock
from fleet.errors import FleetError, Unreachable
from fleet.slots import Slot, SlotTargets
from fleet.slots.store import Store
from fleet.system.closing import Closing
from fleet.text import plural

Members = Sequence[tuple[str | None, str]]
"""(instance id, member id) of each: a static one by both, so that no successor is meant [16]; of a
dynamic one the member id alone, which is never anybody else's."""
Result = TypeVar("Result")

LONGEST_WAIT: Final = 10.0
"""Seconds over all attempts of one request."""
_ONE_REQUEST_MS: Final = 5000
_RETRY_SECONDS: Final = 0.2

# What passes by itself: the coordinator moves or loads (14, 15, 16), a broken connection.
_PASSING: Final = (errors.RetriableError, OSError)
# What only another ACL mends.
_DENIED: Final = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
)


class GroupAdmin(Closing):
    """Admin writes to one cluster; a context manager. Connects at the first request.

    `kafka_python_config` are options of kafka-python (fleet.security.kafka_python_config).
    Methods raise Unreachable where no broker answers within 10 s, FleetError where the cluster
    refuses, with its reason.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        kafka_python_config: Mapping[str, Any],
        clock: Clock | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._config = dict(kafka_python_config)
        self._clock = clock or SystemClock()
        self._client: KafkaAdminClient | None = None

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(errors.KafkaError, OSError):  # it is given up anyway
                client.close()

    def leave(self, group: str, members: Members, *, reason: str) -> str | None:
        """Let these members leave with ONE request: one rebalance (KIP-345, KIP-800, [16]).

        None: all are gone, by it (0) or before (25), so that a retry is harmless; else why not.
        """
        if not members:
            return None
        for instance_id, member_id in members:
            if not member_id or instance_id == "":
                raise FleetError(
                    f"a leave from group {group} must name member id and instance id together "
                    f"(got {member_id!r}, {instance_id!r}): else it could evict a live successor"
                )
        asked = [
            MemberToRemove(member_id=member_id, group_instance_id=instance_id, reason=reason)
            for instance_id, member_id in members
        ]
        answers = self._ask(
            f"leave group {group}",
            lambda client: client.remove_group_members(group, asked),
            needs=f"Read on group {group}",
        )
        told = []
        for instance_id, member_id in members:
            name, answer = instance_id or member_id, answers.get(member_id)
            if answer in {errors.NoError, errors.UnknownMemberIdError}:
                continue
            if answer is errors.FencedInstanceIdError:
                told.append(f"{name} now belongs to another process (82), which was left alone")
            else:
                why = "no answer" if answer is None else _name(answer)
                told.append(f"{name} was answered with {why}")
        return "; ".join(told) or None

    def leave_all(self, group: str, members: Members, *, reason: str) -> str | None:
        """`leave`; that nobody answered is why not, too."""
        try:
            return self.leave(group, members, reason=reason)
        except FleetError as error:
            return str(error)

    def create_topic(self, name: str, partitions: int, replication: int) -> bool:
        """Create a topic and wait until it has leaders; False where it exists already."""
        wanted = {name: {"num_partitions": partitions, "replication_factor": replication}}
        try:
            self._ask(
                f"create topic {name}",
                lambda client: client.create_topics(wanted, timeout_ms=_ONE_REQUEST_MS),
                needs=f"Create on topic {name}",
            )
        except _Refusal as refusal:
            if not isinstance(refusal.__cause__, errors.TopicAlreadyExistsError):
                raise
            return False
        self._ask(
            f"see topic {name}",
            lambda client: client.wait_for_topics([name], timeout_ms=_ONE_REQUEST_MS),
            needs=f"Describe on topic {name}",
        )
        return True

    def group_setting(self, group: str, name: str) -> str | None:
        """A KIP-848 group's own setting, such as `consumer.assignment.interval.ms`; None: unset."""
        found = self._ask(
            f"read settings of group {group}",
            lambda client: client.describe_configs(
                [ConfigResource(ConfigResourceType.GROUP, group)]
            ),
            needs=f"DescribeConfigs on group {group}",
        )
        entry = found.get("group", {}).get(group, {}).get(name)
        return None if entry is None else str(entry["value"])

    def set_group_setting(self, group: str, name: str, value: str | None) -> None:
        """Set a KIP-848 group's own setting (broker 3.7+); None takes it back [19]."""
        resource = ConfigResource(ConfigResourceType.GROUP, group, {name: value})

        def send(client: KafkaAdminClient) -> str:
            change = client.reset_configs if value is None else client.alter_configs
            try:
                return str(change([resource])["group"][group])  # "OK", or the error in words
            except ValueError as error:  # it reads the settings there are first, and finds none
                raise errors.GroupAuthorizationFailedError(str(error)) from error

        needs = f"AlterConfigs on group {group}"
        answer = self._ask(f"set {name} of group {group}", send, needs=needs)
        if answer != "OK":
            raise FleetError(
                f"{name} of group {group} was not set to {value or 'the default'}: {answer}; this "
                "principal needs ALTER_CONFIGS on the group, and the value must be in the "
                "broker's bounds"
            )

    def _ask(
        self, what: str, request: Callable[[KafkaAdminClient], Result], *, needs: str
    ) -> Result:
        """Send until the cluster answers something that does not pass by itself, at most 10 s."""
        deadline = self._clock.monotonic() + LONGEST_WAIT
        while True:
            try:
                return request(self._connected(deadline - self._clock.monotonic()))
            except _PASSING as error:
                self.close()
                if self._clock.monotonic() + _RETRY_SECONDS >= deadline:
                    raise Unreachable(
                        f"could not {what}: {self._bootstrap} did not answer within "
                        f"{LONGEST_WAIT:g} s ({_name(type(error))}); check that the brokers run "
                        "and can be reached from here, and cluster.security"
                    ) from error
                self._clock.sleep(_RETRY_SECONDS)
            except _DENIED as error:
                raise _Refusal(
                    f"could not {what}: {self._bootstrap} does not allow it to this login "
                    f"({_name(type(error))}); allow {needs}"
                ) from error
            except errors.KafkaError as error:
                raise _Refusal(
                    f"could not {what}: {self._bootstrap} answered {_name(type(error))}"
                    f"{_said(error)}"
                ) from error

    def _connected(self, seconds: float) -> KafkaAdminClient:
        """The client; one that is new waits no longer than `seconds` for anything."""
        if self._client is not None:
            return self._client
        grace = min(_ONE_REQUEST_MS / 1000, max(0.5, seconds))
        config = {
            "bootstrap_servers": self._bootstrap.split(","),
            "client_id": "fleet-admin",
            "request_timeout_ms": int(grace * 1000),
            "bootstrap_timeout_ms": int(grace * 1000),
            **self._config,
        }
        _knock(config["bootstrap_servers"], timeout=grace)
        made: list[Any] = []

        def connection(**options: Any) -> Any:
            made.append(KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**options))
            return made[-1]

        try:
            self._client = KafkaAdminClient(**config, kafka_client=connection)
        except BaseException:
            for each in made:  # its thread and sockets outlive a constructor that raises
                each.close()
            raise
        return self._client


def _knock(servers: Sequence[str], *, timeout: float) -> None:
    """Raise OSError where no broker accepts a connection; kafka-python leaks sockets over that."""
    for server in servers:
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()
        except OSError:
            continue
        return
    raise ConnectionRefusedError("no broker accepts a connection")


class _Refusal(FleetError):
    """The cluster's own refusal, chained."""


def _name(kind: Any) -> str:
    """`UNKNOWN_MEMBER_ID (25)` for an error class of kafka-python."""
    number = getattr(kind, "errno", None)
    name = str(getattr(kind, "message", None) or kind.__name__)
    return name if number is None else f"{name} ({number})"


def _said(error: BaseException) -> str:
    text = " ".join(str(part) for part in error.args).strip()
    return f": {text}" if text else ""


# The end of a fleet: static members would stay until their session ends, so all of them leave in
# one request and the slot targets are written empty; where the coordinator is away it stays as it
# is.


def leave_for_good(
    store: Store,
    admin: GroupAdmin,
    group: str,
    *,
    is_static: Callable[[Slot], bool],
    say: Callable[[str], None],
) -> bool:
    """Leave with all members and close all slots of a group that runs no worker any more.

    A dynamic member left when it closed; of one that was killed the member id is still kept.
    """
    slots = store.slots(group)
    members = [
        (s.instance_id() if is_static(s) else None, s.member_id) for s in slots if s.member_id
    ]
    refusal = admin.leave_all(group, members, reason="fleet down")
    if refusal is not None:
        say(f"the members of {group} stay until their session ends: {refusal}")
        return False
    store.change_targets(group, _shut)
    for slot in slots:
        store.clear(slot)
    if members:
        say(f"{plural(len(members), 'member')} of {group} left in one request")
    return True


def _shut(targets: SlotTargets) -> SlotTargets | None:
    """Nothing open, nothing asked."""
    shut = replace(targets, open=frozenset(), leaving=frozenset(), handover={}, rejoin={})
    return shut if targets.open else None


# Every join raises a KIP-848 group's epoch, and is assigned by itself where it comes later than
# `consumer.assignment.interval.ms` (1 s as shipped, KIP-1263) after the last one: it is 5 s while
# slots open together [19]. What stood there before is noted in the store first, so that whoever
# acts next puts it back; the note goes only when brokers read ours no more, so that our 5 s are
# never taken for the owner's. Cost: nobody else's change of it in that minute is kept.


SETTING: Final = "consumer.assignment.interval.ms"
WIDE_MS: Final = 5000
"""Broker 4.3.1 allows 0 to 15000 (group.consumer.max.assignment.interval.ms)."""
SEEN_LIMIT: Final = 5.0
"""Seconds that brokers may take to read a setting that was put back."""
_LOOK: Final = 0.05
_NOTE: Final = "join-window"


class JoinWindow:
    """One group's assignment interval, widened and put back."""

    def __init__(
        self,
        group: str,
        store: Store,
        settings: "GroupAdmin",
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._group = group
        self._store = store
        self._settings = settings
        self._clock = clock
        self._say = say

    def widen(self) -> str | None:
        """Widen it; None, or why it stays as it is (the joins may then cost one each)."""
        try:
            if self._store.manager_state(self._group, _NOTE) is None:
                before = self._settings.group_setting(self._group, SETTING)
                if before is not None and int(before) >= WIDE_MS:
                    return None  # its owner wants it at least as wide
                self._store.put_manager_state(self._group, _NOTE, {"before": before})
            self._settings.set_group_setting(self._group, SETTING, str(WIDE_MS))
        except FleetError as error:
            return f"{SETTING} was not raised, so joins may be assigned one by one: {error}"
        return None

    def restore(self) -> bool:
        """Put back what stood before the last `widen`, whoever did it; whether it was due.

        Where the cluster does not take it, that is said and the note stays for the next actor.
        """
        note = self._store.manager_state(self._group, _NOTE)
        if note is None:
            return False
        value = None if note["before"] is None else str(note["before"])
        try:
            self._settings.set_group_setting(self._group, SETTING, value)
            gone = self._await_gone()
        except FleetError as error:
            self._say(f"  {SETTING} of {self._group} could not be put back yet: {error}")
            return True
        if not gone:
            self._say(f"  {SETTING} of {self._group} is put back, but brokers do not show it yet")
            return True
        self._store.put_manager_state(self._group, _NOTE, None)
        self._say(f"  {SETTING} of {self._group} is {value or 'the default'} again")
        return True

    def _await_gone(self) -> bool:
        """Whether our value is read no more, within `SEEN_LIMIT`."""
        deadline = self._clock.monotonic() + SEEN_LIMIT
        while self._settings.group_setting(self._group, SETTING) == str(WIDE_MS):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_LOOK)
        return True

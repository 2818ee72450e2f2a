"""Sends all administrative writes to the cluster: leaves, topics, a group's settings.

Problem: k static members leave in one rebalance only if one LeaveGroup request names them all, and
librdkafka sends none for static members. Choice: kafka-python's admin client, whose request has
member id and instance id together [16]. The broker answers a stale request with 82 and removes no
member; 25 means that the member has left already. Each attempt opens a new connection, since an old
one caches a coordinator that moved. Cost: a second Kafka client (0.2 s, 15 MB), so that this module
is imported on use.
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
"""(instance id, member id) of each: both for a static member, so that the request never removes its
successor [16]; a dynamic member has only its unique member id."""
Result = TypeVar("Result")

LONGEST_WAIT: Final = 10.0
"""Seconds over all attempts of one request."""
_ONE_REQUEST_MS: Final = 5000
_RETRY_SECONDS: Final = 0.2

# Transient errors: the coordinator moves or loads (14, 15, 16), a broken connection.
_TRANSIENT: Final = (errors.RetriableError, OSError)
# Errors that need another ACL.
_DENIED: Final = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
)


class GroupAdmin(Closing):
    """Writes to one cluster's administration; connects at the first request.

    `kafka_python_config` are options of kafka-python (fleet.security.kafka_python_config). Methods
    raise Unreachable if no broker answers within 10 s, FleetError with the reason of a refusal.
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
        """Closes the connection; the next request opens another one."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(errors.KafkaError, OSError):  # it is closed anyway
                client.close()

    def leave(self, group: str, members: Members, *, reason: str) -> str | None:
        """Removes these members by one request, in one rebalance (KIP-345, KIP-800, [16]).

        Returns None if all have left, by it (0) or before (25), so that a retry is harmless; else
        the reason.
        """
        if not members:
            return None
        for instance_id, member_id in members:
            if not member_id or instance_id == "":
                raise FleetError(
                    f"a leave from group {group} must name member id and instance id together (got "
                    f"{member_id!r}, {instance_id!r}), else it could remove a live successor"
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
        reasons = []
        for instance_id, member_id in members:
            name, answer = instance_id or member_id, answers.get(member_id)
            if answer in {errors.NoError, errors.UnknownMemberIdError}:
                continue
            if answer is errors.FencedInstanceIdError:
                reasons.append(f"{name} now belongs to another process (82), which stays a member")
            else:
                why = "no answer" if answer is None else _name(answer)
                reasons.append(f"the coordinator answered {name} with {why}")
        return "; ".join(reasons) or None

    def leave_all(self, group: str, members: Members, *, reason: str) -> str | None:
        """Does the same as `leave`, but returns errors as the reason."""
        try:
            return self.leave(group, members, reason=reason)
        except FleetError as error:
            return str(error)

    def create_topic(self, name: str, partitions: int, replication: int) -> bool:
        """Creates a topic and waits for its leaders; False if it exists already."""
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
        """Returns a config of a KIP-848 group (`consumer.assignment.interval.ms`); None: unset."""
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
        """Sets a KIP-848 group's config (broker 3.7+); None removes it [19]."""
        resource = ConfigResource(ConfigResourceType.GROUP, group, {name: value})

        def send(client: KafkaAdminClient) -> str:
            change = client.reset_configs if value is None else client.alter_configs
            try:
                return str(change([resource])["group"][group])  # "OK", or an error message
            except ValueError as error:  # it reads the settings first and finds none
                raise errors.GroupAuthorizationFailedError(str(error)) from error

        needs = f"AlterConfigs on group {group}"
        answer = self._ask(f"set {name} of group {group}", send, needs=needs)
        if answer != "OK":
            raise FleetError(
                f"could not set {name} of group {group} to {value or 'the default'}: {answer}; "
                "allow "
                f"AlterConfigs on group {group}, and check the broker's bounds of the value"
            )

    def _ask(
        self, what: str, request: Callable[[KafkaAdminClient], Result], *, needs: str
    ) -> Result:
        """Sends a request until the answer is not a transient error, for at most 10 s."""
        deadline = self._clock.monotonic() + LONGEST_WAIT
        while True:
            try:
                return request(self._connected(deadline - self._clock.monotonic()))
            except _TRANSIENT as error:
                self.close()
                if self._clock.monotonic() + _RETRY_SECONDS >= deadline:
                    raise Unreachable(
                        f"could not {what}: {self._bootstrap} did not answer within "
                        f"{LONGEST_WAIT:g} s ({_name(type(error))}); check that the brokers run "
                        "and "
                        "are reachable from here, and check cluster.security"
                    ) from error
                self._clock.sleep(_RETRY_SECONDS)
            except _DENIED as error:
                raise _Refusal(
                    f"could not {what}: {self._bootstrap} does not allow it for this login "
                    f"({_name(type(error))}); allow {needs}"
                ) from error
            except errors.KafkaError as error:
                raise _Refusal(
                    f"could not {what}: {self._bootstrap} answered {_name(type(error))}"
                    f"{_details(error)}"
                ) from error

    def _connected(self, seconds: float) -> KafkaAdminClient:
        """Returns the client; a new one waits at most `seconds` for any answer."""
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
        _check_reachable(config["bootstrap_servers"], timeout=grace)
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


def _check_reachable(servers: Sequence[str], *, timeout: float) -> None:
    """Raises OSError if no broker accepts a connection; kafka-python would leak sockets."""
    for server in servers:
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()
        except OSError:
            continue
        return
    raise ConnectionRefusedError("no broker accepts a connection")


class _Refusal(FleetError):
    """Reports a refusal of the cluster, chained to its error."""


def _name(kind: Any) -> str:
    """Names an error class of kafka-python, such as `UNKNOWN_MEMBER_ID (25)`."""
    number = getattr(kind, "errno", None)
    name = str(getattr(kind, "message", None) or kind.__name__)
    return name if number is None else f"{name} ({number})"


def _details(error: BaseException) -> str:
    text = " ".join(str(part) for part in error.args).strip()
    return f": {text}" if text else ""


# The end of a fleet: static members would stay until their session ends, so one request removes
# all, and the slot targets are emptied. If the coordinator is unreachable, nothing changes.


def leave_for_good(
    store: Store,
    admin: GroupAdmin,
    group: str,
    *,
    is_static: Callable[[Slot], bool],
    say: Callable[[str], None],
) -> bool:
    """Removes all members and closes all slots of a group without running workers.

    A dynamic member leaves when it closes; the slot of a killed one still has its member id.
    """
    slots = store.slots(group)
    members = [
        (s.instance_id() if is_static(s) else None, s.member_id) for s in slots if s.member_id
    ]
    refusal = admin.leave_all(group, members, reason="fleet down")
    if refusal is not None:
        say(f"the members of {group} stay until their session ends: {refusal}")
        return False
    store.change_targets(group, _empty)
    for slot in slots:
        store.clear(slot)
    if members:
        say(f"{plural(len(members), 'member')} of {group} left in one request")
    return True


def _empty(targets: SlotTargets) -> SlotTargets | None:
    """Returns targets without open slots and requests; None if no slot is open."""
    emptied = replace(targets.without_requests(), open=frozenset(), leaving=frozenset())
    return emptied if targets.open else None


# Every join raises a KIP-848 group's epoch, and gets its own assignment if it comes later than
# `consumer.assignment.interval.ms` (default 1 s, KIP-1263) after the last one. Fleet sets 5 s while
# slots open together [19]. The store keeps the earlier value first, so that the next actor can
# restore it. The note goes only when brokers no longer show Fleet's value, so that it is never
# taken for the owner's. Cost: another change of the setting in that minute is lost.


SETTING: Final = "consumer.assignment.interval.ms"
WIDE_MS: Final = 5000
"""Broker 4.3.1 allows 0 to 15000 (group.consumer.max.assignment.interval.ms)."""
SEEN_LIMIT: Final = 5.0
"""Seconds for brokers to show a restored setting."""
_POLL: Final = 0.05
_NOTE: Final = "join-window"


class JoinWindow:
    """Widens and restores one group's assignment interval."""

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
        """Widens it; returns None, or why it failed (each join may then cost one rebalance)."""
        try:
            if self._store.manager_state(self._group, _NOTE) is None:
                before = self._settings.group_setting(self._group, SETTING)
                if before is not None and int(before) >= WIDE_MS:
                    return None  # its owner has set at least as much
                self._store.put_manager_state(self._group, _NOTE, {"before": before})
            self._settings.set_group_setting(self._group, SETTING, str(WIDE_MS))
        except FleetError as error:
            return f"could not raise {SETTING}, so that each join may cost one rebalance: {error}"
        return None

    def restore(self) -> bool:
        """Restores the value before the last `widen` of any actor; tells whether it was due.

        If the cluster refuses it, the note stays for the next actor.
        """
        note = self._store.manager_state(self._group, _NOTE)
        if note is None:
            return False
        value = None if note["before"] is None else str(note["before"])
        try:
            self._settings.set_group_setting(self._group, SETTING, value)
            restored = self._await_restored()
        except FleetError as error:
            self._say(f"  could not restore {SETTING} of {self._group} yet: {error}")
            return True
        if not restored:
            self._say(f"  restored {SETTING} of {self._group}, but brokers do not show it yet")
            return True
        self._store.put_manager_state(self._group, _NOTE, None)
        self._say(f"  {SETTING} of {self._group} is {value or 'the default'} again")
        return True

    def _await_restored(self) -> bool:
        """Waits up to `SEEN_LIMIT` until brokers no longer show the widened value."""
        deadline = self._clock.monotonic() + SEEN_LIMIT
        while self._settings.group_setting(self._group, SETTING) == str(WIDE_MS):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_POLL)
        return True

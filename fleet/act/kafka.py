"""Every write to the cluster's administration: leaves, topics, a group's settings.

Problem: k static members leave in one rebalance only if one LeaveGroup request names them all,
and librdkafka sends none for static members, let alone a batch. Choice: kafka-python's admin
client, whose request carries member id and instance id together [16], so that a stale request
is answered with 82 and evicts nobody; what answers 25 is gone already. A fresh connection per
attempt, since a coordinator that moved is cached by the old one. Cost: a second Kafka client,
imported only here (0.2 s, 15 MB): what only names members imports
fleet.act.batched_leave.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, MemberToRemove

from fleet.act.batched_leave import LeaveResult, LeavingMember
from fleet.clock import Clock, SystemClock
from fleet.errors import FleetError, Unreachable
from fleet.system.closing import Closing

__all__ = ["GroupAdmin", "LeaveResult", "LeavingMember"]

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

    def leave(self, group: str, members: Sequence[LeavingMember], *, reason: str) -> LeaveResult:
        """Let these members leave with ONE request: one rebalance (KIP-345, KIP-800, [16]).

        Dynamic members are named by member id alone. A retry is harmless: who left with the
        first attempt is answered with 25.
        """
        if not members:
            return LeaveResult(gone=(), failed={})
        for member in members:
            if not member.member_id or member.instance_id == "":
                raise FleetError(
                    f"a leave from group {group} must name member id and instance id together "
                    f"(got {member.member_id!r}, {member.instance_id!r}): else it could evict a "
                    "live successor"
                )
        asked = [
            MemberToRemove(
                member_id=member.member_id, group_instance_id=member.instance_id, reason=reason
            )
            for member in members
        ]
        answers = self._ask(
            f"leave group {group}",
            lambda client: client.remove_group_members(group, asked),
            needs=f"Read on group {group}",
        )
        gone, superseded, failed = [], [], {}
        for member in members:
            answer = answers.get(member.member_id)
            if answer in {errors.NoError, errors.UnknownMemberIdError}:
                gone.append(member.name)
            elif answer is errors.FencedInstanceIdError:
                superseded.append(member.name)
            else:
                failed[member.name] = "no answer" if answer is None else _name(answer)
        return LeaveResult(gone=tuple(gone), superseded=tuple(superseded), failed=failed)

    def leave_all(
        self, group: str, members: Sequence[tuple[str | None, str]], *, reason: str
    ) -> str | None:
        """`leave` for members as (instance id or None, member id): None = all gone, else why not,
        be it that nobody answered.
        """
        leaving = [LeavingMember(instance_id=i, member_id=m) for i, m in members]
        try:
            return self.leave(group, leaving, reason=reason).refusal
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
        patience = min(_ONE_REQUEST_MS / 1000, max(0.5, seconds))
        config = {
            "bootstrap_servers": self._bootstrap.split(","),
            "client_id": "fleet-admin",
            "request_timeout_ms": int(patience * 1000),
            "bootstrap_timeout_ms": int(patience * 1000),
            **self._config,
        }
        _knock(config["bootstrap_servers"], timeout=patience)
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

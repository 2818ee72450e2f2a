"""What a login may do to groups and topics, asked of the cluster itself (KIP-430).

Problem: a broker hides what a login may not describe, so that "not allowed" looks like "does not
exist". Choice: asked by name, it says which it is, and for what may be described also which
operations are allowed; one request for the groups, one for the topics. Nothing is tried out.
Cost: about a topic that does not exist nothing can be learned.
"""

from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

Asked = tuple[str, str]
"""("group", name) or ("topic", name)."""

_DENIED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
)


def allowed_operations(
    admin: AdminClient, *, groups: Collection[str], topics: Collection[str], timeout: float
) -> dict[Asked, frozenset[str]]:
    """Allowed operations ("Read", "AlterConfigs") of each; what could not be learned is left out.

    Empty where not even Describe is allowed.
    """
    futures: dict[Asked, Future[Any]] = {}
    if groups:
        for name, told in admin.describe_consumer_groups(
            sorted(groups), include_authorized_operations=True, request_timeout=timeout
        ).items():
            futures["group", name] = told
    if topics:
        for name, told in admin.describe_topics(
            TopicCollection(sorted(topics)),
            include_authorized_operations=True,
            request_timeout=timeout,
        ).items():
            futures["topic", name] = told
    found = {asked: _operations(future, timeout) for asked, future in futures.items()}
    return {asked: operations for asked, operations in found.items() if operations is not None}


def _operations(future: "Future[Any]", timeout: float) -> frozenset[str] | None:
    try:
        error = future.exception(timeout)
    except FutureTimeout:
        return None
    if isinstance(error, KafkaException) and error.args[0].code() in _DENIED:
        return frozenset()
    if error is not None:
        return None
    told = future.result().authorized_operations
    return None if told is None else frozenset(_kafka_name(each.name) for each in told)


def _kafka_name(name: str) -> str:
    """`ALTER_CONFIGS` as Kafka's tools write it: AlterConfigs."""
    return name.title().replace("_", "")

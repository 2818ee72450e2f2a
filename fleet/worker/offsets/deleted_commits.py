"""What a group committed before the coordinator deleted it, from the coordinator's own log.

Problem: Kafka deletes the offsets of a group without members after `offsets.retention.minutes`, and
answers as for a group that never was; with `start_from: latest` all that came meanwhile would be
skipped. Choice: `__consumer_offsets` keeps a deleted commit until it is compacted, and the
tombstone a day longer; it is read for a group that begins at an end. Only committed records count:
an open transaction makes the position an earlier one, never a later one. Cost: one reading of the
group's partition of that topic (some 300,000 records a second) where a partition has no commit, and
Read on that topic; what has been compacted away, or may not be read, is not known.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.kafka_source.failures import ABSENT
from fleet.log.readers.group_log import GroupLog
from fleet.log.readers.offsets_topic import TOPIC
from fleet.log.records import OffsetCommit, Record, Tombstone
from fleet.model import TopicPartition
from fleet.worker.offsets.commit_metadata import parse_group_metadata

_TIMEOUT: Final = 5.0
_MOST_SECONDS: Final = 30.0
"""Of one reading; the group's other members do not wait for it."""


class DeletedCommits:
    """Reads one group's. `config` is how brokers are reached; None: at the addresses that they
    tell, without a login. `say` takes a sentence about what is not known.
    """

    def __init__(
        self,
        admin: Any,
        config: Mapping[str, Any] | None,
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._admin = admin
        self._config = config
        self._clock = clock
        self._say = say

    def of(
        self, consumer: Any, tps: Collection[TopicPartition], ids: Mapping[str, str]
    ) -> Mapping[TopicPartition, KafkaPartition | None]:
        """The last of each partition; None: there was one, and its offset here is not known.

        ids: of the topics as they are now.
        """
        known = parse_group_metadata(consumer.consumer_group_metadata()) if tps else None
        found: dict[TopicPartition, KafkaPartition | None] = {}
        for record in self._read(known[2]) if known is not None else ():
            if isinstance(record, Tombstone):
                if record.tp is not None and record.tp in tps:
                    found.setdefault(record.tp, None)
            elif isinstance(record, OffsetCommit) and record.tp in tps:
                tp, topic_id = record.tp, record.topic_id
                here = topic_id is None or _as_told(topic_id) == ids.get(tp.topic)
                text = record.metadata.partition("\0")[0]  # confluent-kafka writes C strings
                commit = KafkaPartition(tp.topic, tp.partition, record.committed, metadata=text)
                found[tp] = commit if here else None
        return found

    def _read(self, group: str) -> Sequence[Record]:
        try:
            there = self._admin.list_topics(TOPIC, timeout=_TIMEOUT)
            error = there.topics[TOPIC].error
            if error is not None and error.code() == ABSENT:  # no group ever committed here
                return ()
            if error is not None:
                raise KafkaException(error)
            addresses = [f"{each.host}:{each.port}" for each in there.brokers.values()]
            config = self._config or {"bootstrap.servers": ",".join(addresses)}
            with GroupLog(config, clock=self._clock, isolation="read_committed") as log:
                log.end_within(_MOST_SECONDS)
                return log.last_commits(group)
        except (FleetError, KafkaException) as error:
            self._say(
                f"it is not known whether group {group} committed before, so what has no commit "
                f"begins at its end (worker.start_from: latest): {error}"
            )
            return ()


def _as_told(topic_id: str) -> str:
    """32 hex digits as a topic's description has them."""
    return urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")

"""Which owned partitions librdkafka fetches: it keeps a pause over a rebalance, so all is told."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import TopicPartition as KafkaPartition

from fleet.model import TopicPartition


class Fetching:
    """What was told to one consumer; used on its thread."""

    def __init__(self) -> None:
        self._paused: frozenset[TopicPartition] = frozenset()

    def hold(
        self,
        consumer: Any,
        held: frozenset[TopicPartition],
        *,
        owned: frozenset[TopicPartition],
        anew: frozenset[TopicPartition] = frozenset(),
    ) -> bool:
        """Fetch what is owned and not held; True where that is nothing.

        anew: partitions of which it is not known whether they are paused.
        """
        wanted = held & owned
        paused = self._paused & owned
        for tps, act in (
            (wanted - (paused - anew), consumer.pause),
            ((paused | anew) - wanted, consumer.resume),
        ):
            if tps:
                act([KafkaPartition(tp.topic, tp.partition) for tp in sorted(tps)])
        self._paused = wanted
        return bool(owned) and wanted == owned

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Not ours any more."""
        self._paused -= frozenset(tps)

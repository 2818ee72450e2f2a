"""The shortest story that still differs: events are taken out as long as it does."""

from collections.abc import Sequence

from tests.conformance.consumer_sides import difference, played, scenario
from tests.conformance.consumer_stories import Setting, Told
from tests.conformance.kafka_group_manager import KafkaGroupManager


def first_difference(
    kafka: KafkaGroupManager, setting: Setting, events: Sequence[Told]
) -> str | None:
    """Plays events on both sides."""
    (theirs,) = kafka.play([scenario(setting, events)])
    return difference(events, played(setting, events), theirs)


def shrunk(kafka: KafkaGroupManager, setting: Setting, events: Sequence[Told]) -> list[Told]:
    """Without any run of events that is not needed for a difference; long runs are tried first."""
    kept = list(events)
    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if fewer and first_difference(kafka, setting, fewer) is not None:
                kept = fewer
            else:
                at += size
        size //= 2
    return kept

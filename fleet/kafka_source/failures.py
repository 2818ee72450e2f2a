"""What a task may find wrong with a range, told so that the driver's side knows it again.

Problem: between task and caller an exception becomes the text of another one. Choice: each
failure has a condition in brackets, as Spark's own errors have, and is recognised by it. None is a
fault of the user's code: a batch that meets one is read again [7].
"""

import re
from typing import Any, Final

TRUNCATED: Final = "FLEET_RANGE_TRUNCATED"
UNREAD: Final = "FLEET_RANGE_UNREAD"
DAMAGED: Final = "FLEET_RANGE_DAMAGED"
ABSENT: Final = 3
"""Kafka's code for a topic that is not there, or hidden: UNKNOWN_TOPIC_OR_PARTITION."""
DENIED: Final = frozenset({29, 30, 31})
"""Kafka's codes for what this login may not do: with the topic, the group, the cluster."""
NO_ANSWER: Final = -(1 << 16)
"""Stands for a code where a broker did not answer. Kafka's are 16 bits (-1: an unknown error)."""
_TOLD: Final = re.compile(rf"\[({TRUNCATED}|{UNREAD}|{DAMAGED})\] ([^\n]*)")
_DAMAGE: Final = re.compile(r"(\S+)-(\d+): offsets (\d+) to (\d+|\?) cannot be read: (.*)")


class RangeTruncated(RuntimeError):
    """Records of the range are gone, or the log ends before it."""

    def __init__(self, topic: str, partition: int, wanted: int, first: int, after: int) -> None:
        super().__init__(
            f"[{TRUNCATED}] {topic}-{partition}: offset {wanted} was wanted, "
            f"the log holds {first} to {after - 1}"
        )


class RangeUnread(RuntimeError):
    """Nothing arrived for as long as read_timeout, or the brokers refuse."""

    def __init__(self, sentence: str, condition: str = UNREAD) -> None:
        super().__init__(f"[{condition}] {sentence}")


class RangeRefused(RangeUnread):
    """This login may not read the topic."""


class RangeDamaged(RangeUnread):
    """A record batch of the range cannot be read, whoever asks; `after`: where the next begins."""

    def __init__(
        self, topic: str, partition: int, offset: int, after: int | None, why: object
    ) -> None:
        upto = "?" if after is None else after - 1
        sentence = f"{topic}-{partition}: offsets {offset} to {upto} cannot be read: {why}"
        super().__init__(sentence, DAMAGED)


def damage_in(sentence: str) -> tuple[str, int, int, int | None, str] | None:
    """What RangeDamaged was made of, by its sentence; None: it is none of that."""
    match = _DAMAGE.match(sentence)
    if match is None:
        return None
    topic, partition, offset, upto, why = match.groups()
    after = None if upto == "?" else int(upto) + 1
    return topic, int(partition), int(offset), after, why.strip()


def code_named(code: int) -> str:
    """Kafka's error by its code, as its protocol guide names it: `NOT_COORDINATOR (16)`."""
    if code == NO_ANSWER:
        return "no answer in time"
    from kafka.errors import for_code  # noqa: PLC0415 - loads kafka-python

    kind: Any = for_code(code)
    return f"{getattr(kind, 'message', None) or kind.__name__} ({code})"


def text_of(error: BaseException) -> str:
    """str(error); where that raises (the class may be anybody's), that it does."""
    try:
        return str(error)
    except Exception as why:  # noqa: BLE001 - telling never fails
        return f"its text cannot be made ({type(why).__name__})"


def told_by(error: BaseException | None) -> tuple[str, str] | None:
    """(condition, sentence) of a range's failure inside what Spark made of it; None: another."""
    seen = 0
    while error is not None and seen < 10:
        match = _TOLD.search(text_of(error))
        if match is not None:
            return match[1], match[2].strip()
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None

"""Failures of an offset range, written so that the driver can recognize them.

Problem: between task and caller an exception becomes the text of another one. Choice: each failure
has a condition in brackets, as Spark's own errors have, and is recognized by it. None is an error
of the user's code: the batch is read again [7]. Cost: callers search the text of every error.
"""

import re
from typing import Any, Final

TRUNCATED: Final = "FLEET_RANGE_TRUNCATED"
UNREAD: Final = "FLEET_RANGE_UNREAD"
DAMAGED: Final = "FLEET_RANGE_DAMAGED"
ABSENT: Final = 3
"""Kafka's code for a topic that does not exist or is hidden: UNKNOWN_TOPIC_OR_PARTITION."""
DENIED: Final = frozenset({29, 30, 31})
"""Kafka's codes for missing rights on the topic, the group, the cluster."""
NO_ANSWER: Final = -(1 << 16)
"""Stands for a code if a broker did not answer. Kafka's have 16 bits (-1: an unknown error)."""
_FAILURE_TEXT: Final = re.compile(rf"\[({TRUNCATED}|{UNREAD}|{DAMAGED})\] ([^\n]*)")
_DAMAGE: Final = re.compile(r"(\S+)-(\d+): offsets (\d+) to (\d+|\?) cannot be read: (.*)")


class RangeTruncated(RuntimeError):
    """Records of the range were deleted, or the log ends before it."""

    def __init__(self, topic: str, partition: int, wanted: int, first: int, after: int) -> None:
        super().__init__(
            f"[{TRUNCATED}] {topic}-{partition}: offset {wanted} was wanted, "
            f"the log holds {first} to {after - 1}"
        )


class RangeUnread(RuntimeError):
    """Nothing arrived for read_timeout, or the brokers refuse."""

    def __init__(self, sentence: str, condition: str = UNREAD) -> None:
        super().__init__(f"[{condition}] {sentence}")


class RangeRefused(RangeUnread):
    """This login may not read the topic."""


class RangeDamaged(RangeUnread):
    """A record batch of the range cannot be read; `after`: the offset of the next one."""

    def __init__(
        self, topic: str, partition: int, offset: int, after: int | None, why: object
    ) -> None:
        upto = "?" if after is None else after - 1
        sentence = f"{topic}-{partition}: offsets {offset} to {upto} cannot be read: {why}"
        super().__init__(sentence, DAMAGED)


def damage_in(sentence: str) -> tuple[str, int, int, int | None, str] | None:
    """Returns the parts of a RangeDamaged from its sentence; None for any other sentence."""
    match = _DAMAGE.match(sentence)
    if match is None:
        return None
    topic, partition, offset, upto, why = match.groups()
    after = None if upto == "?" else int(upto) + 1
    return topic, int(partition), int(offset), after, why.strip()


def code_named(code: int) -> str:
    """Returns Kafka's error as its protocol guide names it: `NOT_COORDINATOR (16)`."""
    if code == NO_ANSWER:
        return "no answer in time"
    from kafka.errors import for_code  # noqa: PLC0415 - loads kafka-python

    kind: Any = for_code(code)
    return f"{getattr(kind, 'message', None) or kind.__name__} ({code})"


def text_of(error: BaseException) -> str:
    """Returns str(error), or that str() itself raised."""
    try:
        return str(error)
    except Exception as why:  # noqa: BLE001 - telling never fails
        return f"no text: {type(why).__name__} in its __str__"


def failure_in(error: BaseException | None) -> tuple[str, str] | None:
    """Returns (condition, sentence) of a range's failure inside Spark's error, or None."""
    seen = 0
    while error is not None and seen < 10:
        match = _FAILURE_TEXT.search(text_of(error))
        if match is not None:
            return match[1], match[2].strip()
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None

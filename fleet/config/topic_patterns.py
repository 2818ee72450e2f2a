r"""Checks names and regular expressions of topics, so that every engine reads them alike.

Problem: three engines read one pattern. A plan uses Python's `re`, classic members use POSIX
expressions in librdkafka, which search in the name, and KIP-848 brokers match the whole name by
RE2/J. `\d` is a digit to two of them and a `d` to the third. Choice: a pattern may hold only parts
that mean the same to all three, and must have an end, so that search and match find the same
topics. Cost: `^orders` is refused; the message says to write `^orders.*`.
"""

import re
from typing import Any, Final

from fleet.model import INTERNAL_TOPICS

_CLASS: Final = r"\[\^?-?(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9._])+-?\]"
_PIECE: Final = re.compile(
    rf"(?:(?:[A-Za-z0-9_.-]|\\\.|{_CLASS})(?:[*+?]|\{{\d{{1,3}}(?:,\d{{0,3}})?\}})?|\)[*+?]?|[(|])"
    r"(?![*+?{])"
)
_MOST: Final = 249
"""Most characters of a topic's name, and so the largest count in braces."""
_REWRITINGS: Final = tuple(
    (re.compile(written), instead)
    for written, instead in (
        (r"(?:\[[^\]]+\]|\\.|[^\\])(?:[*+?]|\{[0-9,]+\})[*+?{]", "keep one of *, + and ?"),
        (r"\\d", "write [0-9]"),
        (r"\\D", "write [^0-9]"),
        (r"\\w", "write [A-Za-z0-9_]"),
        (r"\\W", "write [.-]"),
        (r"\\S", "write a dot"),
        (r"\\s", "remove it, since topic names have no white space"),
        (r"\\[Zz]", "write $ at the end"),
        (r"\\[bBAG]", "remove it, since a pattern matches the whole name"),
        (r"\\[1-9]|\(\?P=\w+\)", "write what it repeats"),
        (r"\\[-_]", "remove the backslash"),
        (r"\(\?[aiLmsux-]+[:)]", "write letters of both cases, such as [aA]"),
        (r"\(\?<?[=!]", "name the topics, or write several patterns"),
        (r"\(\?(?:P?<\w+>|[:>])?", "write ( alone"),
        (r"\[\^?\[:[a-z]+:\]\]?", "write characters, such as [0-9] or [A-Za-z]"),
        (r"\[[^\]]*\]?", "write letters, digits, '.', _ and ranges in brackets, and - last"),
        (r"\)\{[0-9,]+\}", "write the parentheses as often as you need them"),
        (r"[^\\]\{,\d+\}", "write the smaller count too, such as {0,3}"),
        (r"[^\\]\{", "write counts up to 249 in braces, such as {1,3}"),
        (r"[(|]?[*+?{]", "write what it repeats before it"),
        (r"\^|\$", "write a pattern for each choice, with ^ first and $ last"),
        (r"\\.?", "write only '.' after a backslash"),
    )
)


def is_pattern(topic: str) -> bool:
    """Tells whether a topic entry is a regular expression: librdkafka requires a leading `^`."""
    return topic.startswith("^")


def matches(entry: str, topic: str) -> bool:
    """Tells whether an entry subscribes to the topic of this name."""
    return re.fullmatch(entry, topic) is not None if is_pattern(entry) else entry == topic


def topic_entry(value: Any) -> Any:
    """Returns a valid topic name, or a pattern that every engine reads alike."""
    if not isinstance(value, str):
        return value
    if is_pattern(value):
        _check_pattern(value)
        return value
    if value in {".", ".."} or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value):
        raise ValueError(
            "is not a topic name (up to 249 letters, digits, '.', '_' and '-'); "
            "a regular expression starts with ^"
        )
    return value


def _check_pattern(value: str) -> None:
    end = len(value) - value.endswith("$")
    place, opened, before = 1, 0, "("
    while place < end:
        piece = _PIECE.match(value, place, end)
        if piece is None or max(map(int, re.findall(r"\d+(?=[,}])", piece[0])), default=0) > _MOST:
            raise ValueError(_unknown_part(value, place))
        found, place = piece[0], piece.end()
        if found == "|" and not opened:
            raise ValueError(
                f"has | outside parentheses, so that ^ and $ apply to one side only: write "
                f"^({value[1:end].replace('^', '').replace('$', '')})$"
            )
        if before in {"(", "|"} and found[0] in "|)":
            raise ValueError("has an empty choice between parentheses: write (a|b)? for (a|b|)")
        opened += (found == "(") - (found[0] == ")")
        before = found
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if end == len(value) and before != ".*":
        raise ValueError(
            f"has no end: write {value}.* for all topics with that beginning, or {value}$ for the "
            "whole name"
        )
    for topic in sorted(INTERNAL_TOPICS):
        if matches(value, topic):
            raise ValueError(
                f"matches Kafka's internal topic {topic}: write "
                "^[^_].* for topics that do not begin with _"
            )


def _unknown_part(value: str, place: int) -> str:
    for written, instead in _REWRITINGS:
        found = written.match(value, place)
        if found is not None:
            return (
                f"has {found[0]}, which Python, librdkafka and the broker read differently: "
                f"{instead}"
            )
    return (
        f"has {value[place]!r}, which topic names do not allow: use letters, digits, '.', _ and -"
    )

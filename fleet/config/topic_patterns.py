r"""Names and regular expressions of topics that every reader understands alike.

Problem: three engines read one pattern: Python's `re` in a plan, POSIX regular expressions in
librdkafka (classic members, found anywhere in the name), RE2/J in a KIP-848 broker (the whole
name). `\d` is a digit to two of them and a `d` to the third. Choice: a pattern is accepted only
if it is made of pieces that mean the same to all three, and if its end is written, so that a
search and a match of the whole name find the same topics. Cost: `^orders` is refused; the
message says to write `^orders.*`.
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
"""Characters of a topic's name, and so the largest count in braces."""
_REWRITINGS: Final = tuple(
    (re.compile(written), instead)
    for written, instead in (
        (r"(?:\[[^\]]+\]|\\.|[^\\])(?:[*+?]|\{[0-9,]+\})[*+?{]", "keep one of *, + and ?"),
        (r"\\d", "write [0-9]"),
        (r"\\D", "write [^0-9]"),
        (r"\\w", "write [A-Za-z0-9_]"),
        (r"\\W", "write [.-]"),
        (r"\\S", "write a dot"),
        (r"\\s", "leave it out, no topic's name has white space"),
        (r"\\[Zz]", "write $ at the end"),
        (r"\\[bBAG]", "leave it out, a pattern matches the whole name"),
        (r"\\[1-9]|\(\?P=\w+\)", "write what it repeats"),
        (r"\\[-_]", "leave the backslash out"),
        (r"\(\?[aiLmsux-]+[:)]", "write letters of both cases, such as [aA]"),
        (r"\(\?<?[=!]", "name the topics, or write several patterns"),
        (r"\(\?(?:P?<\w+>|[:>])?", "write ( alone"),
        (r"\[\^?\[:[a-z]+:\]\]?", "write characters, such as [0-9] or [A-Za-z]"),
        (r"\[[^\]]*\]?", "write letters, digits, '.', _ and ranges in brackets, and - last"),
        (r"\)\{[0-9,]+\}", "write the group as often as it is wanted"),
        (r"[^\\]\{,\d+\}", "write the smaller count too, such as {0,3}"),
        (r"[^\\]\{", "write counts up to 249 in braces, such as {1,3}"),
        (r"[(|]?[*+?{]", "write before it what is repeated"),
        (r"\^|\$", "write a pattern for each choice, with ^ first and $ last"),
        (r"\\.?", "write only '.' behind a backslash"),
    )
)


def is_pattern(topic: str) -> bool:
    """Whether a topic entry is a regular expression: it starts with `^`, as librdkafka wants it."""
    return topic.startswith("^")


def matches(entry: str, topic: str) -> bool:
    """Whether members that subscribe to this entry get the topic of this name."""
    return re.fullmatch(entry, topic) is not None if is_pattern(entry) else entry == topic


def topic_entry(value: Any) -> Any:
    """A topic's name as Kafka allows it, or a pattern that every reader understands alike."""
    if not isinstance(value, str):
        return value
    if is_pattern(value):
        _check_pattern(value)
        return value
    if value in {".", ".."} or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value):
        raise ValueError(
            "is no topic name (letters, digits, '.', '_' and '-', up to 249); "
            "a regular expression starts with ^"
        )
    return value


def _check_pattern(value: str) -> None:
    end = len(value) - value.endswith("$")
    place, opened, before = 1, 0, "("
    while place < end:
        piece = _PIECE.match(value, place, end)
        if piece is None or max(map(int, re.findall(r"\d+(?=[,}])", piece[0])), default=0) > _MOST:
            raise ValueError(_told(value, place))
        found, place = piece[0], piece.end()
        if found == "|" and not opened:
            raise ValueError(
                f"has | outside of parentheses, where ^ and $ belong to one side only: write "
                f"^({value[1:end].replace('^', '').replace('$', '')})$"
            )
        if before in {"(", "|"} and found[0] in "|)":
            raise ValueError("has an empty choice between parentheses: write (a|b)? for (a|b|)")
        opened += (found == "(") - (found[0] == ")")
        before = found
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if end == len(value) and before != ".*":
        raise ValueError(
            f"does not say how a name ends: write {value}.* for every topic that begins so, or "
            f"{value}$ for the whole name"
        )
    for topic in sorted(INTERNAL_TOPICS):
        if matches(value, topic):
            raise ValueError(
                f"matches Kafka's own topic {topic}, which members would read too: write "
                "^[^_].* for the topics that do not begin with _"
            )


def _told(value: str, place: int) -> str:
    for written, instead in _REWRITINGS:
        found = written.match(value, place)
        if found is not None:
            return (
                f"has {found[0]}, which the plan, librdkafka and the broker do not read alike: "
                f"{instead}"
            )
    return f"has {value[place]!r}, which is in no topic's name: write letters, digits, '.', _ and -"

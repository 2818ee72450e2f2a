"""Patterns of topics: what is accepted means the same to plan, librdkafka and broker."""

import ctypes
import random
import string
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.topic_patterns import matches, topic_entry
from fleet.decide.scaling import subscribed_topics
from tests.conftest import RunningBroker
from tests.decide.worlds import spec

ATOMS = [*"abdsw1-_A", ".", r"\.", "[a-d]", "[^a-d]", "[0-9]", "[A-Z_-]", "[^-a.]", "[-.1]"]
TIMES = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"]


def sampled(seed: object, before: str = "") -> str:
    """A pattern of the accepted grammar, the same for the same seed."""
    chosen = random.Random(seed)

    def sequence(depth: int = 2) -> str:
        parts = [chosen.choice(ATOMS) + chosen.choice(TIMES) for _ in range(chosen.randint(1, 3))]
        if depth and chosen.random() < 0.5:
            choices = "|".join(sequence(depth - 1) for _ in range(chosen.randint(1, 3)))
            parts.append(f"({choices}){chosen.choice(['', '?', '*', '+'])}")
        chosen.shuffle(parts)
        return "".join(parts)

    return f"^{before}{sequence()}{chosen.choice(['$', '.*', '.*$'])}"


NAMES = st.text(alphabet="abdsw1.-_A", min_size=1, max_size=6).filter(lambda name: name not in "..")


def posix_finds(pattern: str, topic: str) -> bool:
    """What librdkafka's regexes answer: the C library's, extended, found anywhere."""
    libc = ctypes.CDLL(None)
    made = ctypes.create_string_buffer(256)  # a regex_t is 64 bytes
    assert libc.regcomp(made, pattern.encode(), 1 | 8) == 0, pattern  # REG_EXTENDED | REG_NOSUB
    try:
        return libc.regexec(made, topic.encode(), 0, None, 0) == 0
    finally:
        libc.regfree(made)


@given(st.integers(), st.lists(NAMES, min_size=1, max_size=20))
def test_accepted_patterns_mean_the_same_to_the_c_library(seed: int, names: list[str]):
    """Random ones of the accepted grammar over random names."""
    pattern = topic_entry(sampled(seed, before="p"))
    for name in [f"p{name}" for name in names]:
        assert matches(pattern, name) == posix_finds(pattern, name), (pattern, name)


@given(st.text(alphabet=r"abds1.-_\()[]|?*+{},^$:!<=2P", max_size=9), st.lists(NAMES, max_size=9))
def test_whatever_is_accepted_means_the_same(text: str, names: list[str]):
    """Random text: refused, or read alike."""
    try:
        topic_entry(f"^{text}$")
    except ValueError:
        return
    for name in names:
        assert matches(f"^{text}$", name) == posix_finds(f"^{text}$", name), (text, name)


REFUSED = {
    r"^orders-\d+$": r"has \\d, .* read differently: write \[0-9\]",
    r"^orders-\D$": r"write \[\^0-9\]",
    r"^orders-\w+$": r"write \[A-Za-z0-9_\]",
    r"^a\W$": r"write \[\.-\]",
    r"^orders-\S{2}$": "write a dot",
    r"^orders\s$": "topic names have no white space",
    r"^orders-\b1\b": "remove it, since a pattern matches the whole name",
    r"^a\Z": r"write \$ at the end",
    r"^(a)\1$": "write what it repeats",
    r"^a\-b$": "remove the backslash",
    r"^\x41$": r"write only '\.' after a backslash",
    r"^orders-[^\d]+$": "ranges in brackets",
    "^orders-[[:digit:]]+$": r"has \[\[:digit:\]\].* such as \[0-9\]",
    "^[a&&b]$": "ranges in brackets",
    "^[.-_]$": "ranges in brackets",
    "^(?:eu|us)$": r"has \(\?:, .* write \( alone",
    "^(?P<x>a)$": r"write \( alone",
    "^(?!internal)orders.*": "name the topics, or write several patterns",
    "^ORDERS-1(?i)$": "letters of both cases",
    "^(?i:a)$": "letters of both cases",
    "^orders-[0-9]+?$": r"has \[0-9\]\+\?, .* keep one of",
    "^a++$": "keep one of",
    "^a{1}{2}$": "keep one of",
    "^*a$": "write what it repeats before it",
    "^a(+b)$": "write what it repeats before it",
    "^a{,3}$": r"such as \{0,3\}",
    "^a{250}$": "counts up to 249",
    "^(ab){2}$": "parentheses as often as you need",
    "^orders-1$|internal-orders": "a pattern for each choice",
    "^a|b$": r"write \^\(a\|b\)\$",
    "^^a$": "a pattern for each choice",
    "^(a|)b$": r"write \(a\|b\)\? for",
    "^()a$": r"write \(a\|b\)\? for",
    "^orders": r"write \^orders\.\* for all .* or \^orders\$ for the whole",
    r"^a\.*": "has no end",
    "^(a|b.*)": "has no end",
    "^.*": r"matches Kafka's internal topic __consumer_offsets.* \^\[\^_\]\.\*",
    "^a b$": "has ' ', which topic names do not allow",
    "^é$": "has 'é', which topic names do not allow",
    "^a(": "is not a regular expression: missing",
    "^a)$": "is not a regular expression: unbalanced",
    "^[z-a]$": "is not a regular expression: bad character range",
    "^a{3,1}$": "is not a regular expression: min repeat",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_readers_differ_in_is_refused_with_its_rewriting(pattern: str):
    """At load, before anything runs."""
    with pytest.raises(ValueError, match=REFUSED[pattern]):
        topic_entry(pattern)


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_get_what_the_plan_counts(protocol: str, broker: RunningBroker, unique: str):
    """One member subscribes to 24 patterns, each of topics that begin with a name of its own."""
    seeded = random.Random(f"patterns {protocol}")
    topics, patterns = {}, [f"named-{unique}"]
    for number in range(24):
        place = f"p{number:02d}{unique}"
        patterns.append(topic_entry(sampled(f"{protocol} {number}", before=place)))
        for name in {"".join(seeded.choices("abd1-_A", k=seeded.randint(1, 4))) for _ in range(7)}:
            topics[f"{place}{name}"] = 1
    topics[patterns[0]] = 1
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        future.result(60)
    counted = set(subscribed_topics(topics, spec(topics=patterns, worker={"protocol": protocol})))
    assert 10 < len(counted) < len(topics) - 10, "a sample that tells something"
    member = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"patterns-{unique}",
            "group.protocol": protocol,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    try:
        member.subscribe(patterns)
        end, since, got = time.monotonic() + 60, time.monotonic(), set()
        while time.monotonic() < end and not (got == counted and time.monotonic() > since + 3):
            member.poll(0.2)
            now = {tp.topic for tp in member.assignment()}
            got, since = now, since if now == got else time.monotonic()
    finally:
        member.close()
    assert got == counted


def test_names_are_names():
    """Letters that no pattern is made of stay refused."""
    assert topic_entry(string.ascii_letters) == string.ascii_letters
    with pytest.raises(ValueError, match="is not a topic name"):
        topic_entry("a b")

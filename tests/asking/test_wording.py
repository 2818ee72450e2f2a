"""A rebalance in words: nothing that is not known reads like zero."""

import io

import pytest
from rich.console import Console

from fleet.commands.answers import table
from fleet.model.rebalances import Cause, Confidence, TimeSource
from fleet.report.wording import (
    cause_text,
    duration_text,
    members_text,
    sentence,
    short_member_name,
    shorten_for_table,
)
from tests.asking.worlds import rebalance

UUID = "0f3a9c12-7d1e-4a53-9b1a-2f6f0c9d8e7b"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        pytest.param({"took": 2.34}, "2.3 s", id="by-record"),
        pytest.param({"took": 2.34, "how": TimeSource.COMMITS}, "≥ 2.3 s", id="by-commits"),
        pytest.param({"took": 2.34, "how": TimeSource.SEEN}, "≥ 2.3 s", id="by-a-first-look"),
        pytest.param({"took": 2.34, "how": TimeSource.STATES}, "~2.3 s", id="by-looks"),
        pytest.param({"took": 2.34, "end_source": TimeSource.NOT}, "≥ 2.3 s", id="no-end"),
        pytest.param({"took": 2.34, "how": TimeSource.POLLED}, "~2.3 s", id="by-polling"),
        pytest.param(
            {"took": 2.34, "end_source": TimeSource.POLLED}, "~2.3 s", id="end-by-polling"
        ),
        pytest.param({}, "-", id="not-known"),
    ],
)
def test_a_duration_tells_how_it_is_known(changed, text):
    """By its sign."""
    assert duration_text(rebalance(3, 10, **changed)) == text


def test_a_cause_tells_its_confidence_unless_certain():
    """And what else changed, once."""
    assert cause_text(rebalance(3, 10)) == "join"
    doubtful = rebalance(
        3, 10, cause=Cause.REMOVAL, confidence=Confidence.AMBIGUOUS,
        also=(Cause.REMOVAL, Cause.JOIN),
    )  # fmt: skip
    assert cause_text(doubtful) == "removal, join (ambiguous)"


def test_who_names_a_few_and_counts_the_rest():
    """`+1 more` is never said: the name is as short."""
    seen = rebalance(
        3, 10, joined=tuple(f"o-{n}" for n in range(5)), left=("o-7", "o-8", "o-9"),
        replaced=("o-6",),
    )  # fmt: skip
    assert members_text(seen) == "+o-0 +o-1 +3 more -o-7 -o-8 -o-9 ~o-6"


@pytest.mark.parametrize("width", [80, 120])
def test_a_name_of_249_characters_leaves_a_table_as_it_is(width):
    """Both ends of the name are told, and no number is broken into two."""
    numbers = ("MEM", "LAG", "BEHIND", "REB/H")
    rows = table(
        "GROUP", "STATE", *numbers, "LAST CAUSE", "MODE", "SLOTS", "LAST CHANGE", right=numbers
    )
    name = "g" * 240 + "-orders-1"
    rows.add_row(shorten_for_table(name), "Stable", "12", "1,234,567", "12 min", "3.2",
                 "second cooperative round 3 min", "managed", "12/12", "done 3 min")  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=width).print(rows)
    text = out.getvalue()
    assert all(each in text for each in ("1,234,567", "12 min", "BEHIND", "-1"))
    assert len(text.splitlines()) <= 12, text
    assert shorten_for_table("g" * 48) == "g" * 48
    assert shorten_for_table(name).startswith("ggg")
    assert shorten_for_table(name).endswith("-orders-1")


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("orders-3", "orders-3"),
        (f"rdkafka-{UUID}", "rdkafka-0f3a…"),
        ("a-very-long-instance-id-of-a-pod-17", "a-very-lon…a-pod-17"),
        ("5YhsFE1MSymO0KYXmCOpow", "5YhsFE1MSymO0KYXmCOpow"),
    ],
)
def test_names_are_short_and_told_apart(member, text):
    """The random end keeps its beginning, a long name both ends."""
    found = short_member_name(member)
    assert found == text or (len(found) <= 24 and found[:10] == member[:10])


def test_a_sentence_holds_all_of_it():
    """For hover titles."""
    seen = rebalance(12, 0, took=2.0, joined=("o-1",), moved=1, aborted=2)
    assert sentence(seen) == (
        "generation 12, 2026-11-18 11:06:40: join; +o-1; 1 partition moved; took 2 s; "
        "2 rounds aborted"
    )
    other = rebalance(4, 0, protocol="consumer")
    assert sentence(other).startswith("epoch 4, ")
    assert "start unknown" in sentence(other)

"""Rebalances of real members, asked for by the commands.

One scripted group for all: created by two, joined by a third, which leaves again; a static
member is replaced. Counted against Kafka's own DumpLogSegments [33].
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer

from fleet.clock import SystemClock
from fleet.history.tables import TablePlace, Writer, row_of
from fleet.manager.cycle import Fleet
from fleet.manager.past import read_past
from fleet.model.rebalances import Cause
from tests.support import kafka_tools
from tests.support.command import answer, said
from tests.support.topics import create_topic
from tests.support.waiting import until

PARTITIONS = 6


class Story:
    """The group's members, polled in turn by one thread."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.members: dict[str, Consumer] = {}

    def join(self, name: str, *, static: bool) -> None:
        """A member, not yet polled."""
        known = {"group.instance.id": name} if static else {"client.id": name}
        self.members[name] = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0,
                "partition.assignment.strategy": "cooperative-sticky",
                "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500,
                "heartbeat.interval.ms": 500, **known,
            }
        )  # fmt: skip
        self.members[name].subscribe([self.topic])

    def settle(self, *owned: int) -> None:
        """Poll until the members own so many, in any order."""

        def shares() -> list[int]:
            for consumer in self.members.values():
                consumer.poll(0.05)
            return sorted(len(c.assignment()) for c in self.members.values())

        until(lambda: shares() == sorted(owned), f"shares of {owned}", every=0.0)

    def leave(self, name: str) -> None:
        """Close: a dynamic member leaves, a static one is only away."""
        self.members.pop(name).close()


@pytest.fixture(scope="module")
def folder(broker, tmp_path_factory) -> Iterator[Path]:
    """A folder with fleet.yaml, on whose cluster the story has been lived."""
    where = tmp_path_factory.mktemp("asking")
    group = f"asked-{where.name.replace('_', '-')}"
    config = {"bootstrap.servers": broker.bootstrap_servers}
    create_topic(config, f"{group}-topic", PARTITIONS, records=10)
    (where / "fleet.yaml").write_text(
        yaml.safe_dump(
            {
                "cluster": {"name": "asked", "bootstrap_servers": broker.bootstrap_servers},
                "fleets": [
                    {
                        "group": group,
                        "topics": [f"{group}-topic"],
                        "storm": {"rebalances": 2, "window": "5m"},
                    }
                ],
            }
        )
    )
    story = Story(broker.bootstrap_servers, group, f"{group}-topic")
    for name in (f"{group}-0", f"{group}-1"):
        story.join(name, static=True)
    story.settle(3, 3)
    story.join("guest", static=False)
    story.settle(2, 2, 2)
    story.leave("guest")
    story.settle(3, 3)
    story.leave(f"{group}-0")
    story.join(f"{group}-0", static=True)
    story.settle(3, 3)
    (where / "group").write_text(group)
    try:
        yield where
    finally:
        for name in list(story.members):
            story.leave(name)


@pytest.fixture
def group(folder, monkeypatch) -> str:
    """The story's group; commands run in its folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FLEET_HOME", str(folder / "home"))
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    return (folder / "group").read_text()


def test_rebalances_are_those_that_kafkas_own_tool_shows(broker, group, capsys):
    """Numbers and order by DumpLogSegments; causes and members as the story goes."""
    found = answer(capsys, "rebalances", group)
    numbers = [r["number"] for r in found["rebalances"]]
    recorded = [n for n in kafka_tools.generations(broker.broker, group) if n]
    assert numbers == list(dict.fromkeys(recorded))
    assert len(recorded) > len(numbers), "the replaced member's record is no rebalance"
    causes = [Cause(r["cause"]) for r in found["rebalances"]]
    assert causes[0] is Cause.CREATED
    assert Cause.JOIN in causes
    joined = next(r for r in found["rebalances"] if r["cause"] == "join")
    assert joined["joined"][0].startswith("guest-")
    left = [r for r in found["rebalances"] if r["left"]]
    assert [name.startswith("guest-") for r in left for name in r["left"]] == [True]
    assert found["source"]["kind"] == "log"
    assert found["groups"][0]["rebalances"] == len(numbers)


def test_the_table_and_its_choices(group, capsys):
    """Cause, last, since; the source in the last line."""
    out, _ = said(capsys, "rebalances", group)
    assert "created" in out
    assert "from the retained records of __consumer_offsets" in out.splitlines()[-1]
    only = answer(capsys, "rebalances", "--group", group, "--cause", "join", "--since", "1h")
    assert {r["cause"] for r in only["rebalances"]} == {"join"}
    last = answer(capsys, "rebalances", group, "--last", "1")["rebalances"]
    assert len(last) == 1
    before = answer(capsys, "rebalances", group, "--until", "2020-01-01")
    assert before["rebalances"] == []
    every = answer(capsys, "rebalances")
    assert group in {group_row["group"] for group_row in every["groups"]}


def test_the_picture_of_the_story(group, capsys, tmp_path):
    """A lane for every member, the guest's too, and the replacement marked."""
    html = tmp_path / "t.html"
    _, err = said(capsys, "rebalances", group, "--html-file", str(html))
    assert f"wrote {html}" in err
    text = html.read_text().replace("http://www.w3.org/2000/svg", "")
    for label in (f"{group}-0", f"{group}-1", "guest-"):
        assert label[:10] in text
    assert f"{group}-0 replaced" in text
    assert "storm, " in text
    assert not re.search(r"https?:|src=|href=", text)
    assert sorted(tmp_path.iterdir()) == [html], "no part is left behind"


def test_wrong_questions_are_refused_with_what_to_do(group, capsys, tmp_path):
    """Exit 2 for wrong usage, 1 for what cannot be done."""
    picture = str(tmp_path / "x.html")
    assert "name it" in said(capsys, "rebalances", "--html-file", picture, code=2)[1]
    assert "is no time" in said(capsys, "rebalances", group, "--since", "soon", code=2)[1]
    said(capsys, "rebalances", group, "--since", "1h", "--until", "2h", code=2)
    assert "nobody" in said(capsys, "rebalances", "nobody", code=1)[1]
    empty = ("rebalances", group, "--until", "2020-01-01", "--html-file", picture)
    assert "no rebalance to draw" in said(capsys, *empty, code=1)[1]
    unwritable = ("rebalances", group, "--html-file", str(tmp_path / "none" / "x.html"))
    assert "cannot write" in said(capsys, *unwritable, code=1)[1]


def test_tables_are_asked_where_they_are_kept(group, capsys, tmp_path, monkeypatch):
    """The same answer as the log's, with its source; `--live` reads the log all the same."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path))
    with Fleet.open(Path("fleet.yaml")) as fleet:
        keep(read_past(fleet, group=group, live=True, grace=20).rows, group, tmp_path / "history")
    tables, log = answer(capsys, "rebalances", group), answer(capsys, "rebalances", group, "--live")
    assert tables["source"]["kind"] == "tables"
    assert log["source"]["kind"] == "log"
    assert tables["rebalances"] == log["rebalances"]
    said(capsys, "rebalances", group, "--html-file", str(tmp_path / "t.html"))
    assert f"{group}-0 replaced" in (tmp_path / "t.html").read_text()
    assert "from the history tables in" in said(capsys, "rebalances", group)[0].splitlines()[-1]
    assert answer(capsys, "status")["rebalances_from"]["kind"] == "tables"


def keep(rows, group, where):
    """Write rows of one group as the history's tables."""
    writer = Writer(TablePlace(where), cluster="asked", clock=SystemClock(), retention=1e6)
    rebalances = [row_of(r) for r in rows.rebalances()]
    members = [row_of(m) for m in rows.memberships(group=group)]
    files = (
        *writer.write("rebalances", rebalances),
        *writer.write("memberships", members),
    )
    writer.commit("batch", files=files)


def test_status_shows_rebalances_and_their_last_cause(group, capsys):
    """In the hour, by the log."""
    found = answer(capsys, "status")
    assert found["rebalances_from"]["kind"] == "log"
    (mine,) = [g for g in found["groups"] if g["group"] == group]
    many = len(answer(capsys, "rebalances", group)["rebalances"])
    assert mine["rebalances_per_hour"] == many
    assert mine["last_rebalance"]["cause"] in set(Cause)
    assert "REB/H" in said(capsys, "status")[0]

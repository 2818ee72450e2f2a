"""Every command with just the ACLs of its mode, and refused one step beyond, in a sentence."""

import json

import pytest
from confluent_kafka.admin import AdminClient

from fleet import cli
from fleet.act.kafka import GroupAdmin
from fleet.clock import SystemClock
from fleet.config.acls import OFFSETS, grants
from fleet.config.spec import ClusterSpec, Security
from fleet.errors import FleetError
from fleet.kafka_source.broker_settings import SessionQueries
from fleet.security import client_config, kafka_python_config
from tests.support.waiting import until

pytestmark = pytest.mark.broker


class Shell:
    """Commands of one principal."""

    def __init__(self, desk, capsys) -> None:
        self.desk, self.capsys = desk, capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr); a failure is one sentence, never a traceback."""
        self.capsys.readouterr()
        code = cli.run(list(arguments))
        out, err = self.capsys.readouterr()
        assert "Traceback" not in out + err
        assert "defect" not in err
        return code, out, err

    def json(self, *arguments: str):
        """What a command prints with -o json."""
        code, out, err = self.run(*arguments, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    def findings(self, check: str) -> list[dict]:
        """What doctor says of one thing."""
        return [each for each in self.json("doctor")["checks"] if each["check"] == check]

    def as_part(self, part: str, unique: str, **keys) -> str:
        """Log in with exactly the ACLs of that part; the user's name."""
        name = f"{part}-{unique}"
        self.desk.declare(part, self.desk.guarded.user(name, self.grants(part)), **keys)
        return name

    def grants(self, part: str):
        """Those of this desk's group."""
        return grants(part, groups=[self.desk.group], topics=[self.desk.topic])

    def lag(self) -> int | None:
        """As status has it."""
        (group,) = self.json("status", self.desk.group)["groups"]
        return group["lag"]


@pytest.fixture
def shell(desk, capsys) -> Shell:
    """Commands at the desk."""
    return Shell(desk, capsys)


def test_observe_sees_and_changes_nothing(shell, unique):
    """Describe on group and topic is enough to look; a whole day's commands leave no trace."""
    shell.as_part("observe", unique)
    until(lambda: shell.lag() == 7, "ACLs to be there")
    before = shell.desk.guarded.dump()
    group = shell.desk.group
    (seen,) = shell.json("status")["groups"]
    assert (seen["group"], seen["state"], seen["lag"]) == (group, "Empty", 7)
    assert shell.findings("acls")[0]["level"] == "OK"
    assert shell.findings("offsets log")[0]["level"] == "WARN"
    shell.json("plan", group)
    changing = (
        ("apply", group), ("scale", group, "3"), ("roll", group), ("drain", group, "0"),
        ("apply", group, "--dry-run"), ("roll", group, "--dry-run"),
        ("pause", group, "--reason", "test"), ("resume", group), ("up",), ("status", group),
        ("plan",), ("doctor",), ("down",),
    )  # fmt: skip
    refused = {arguments for arguments in changing if shell.run(*arguments)[0] == 3}
    assert {("apply", group), ("scale", group, "3"), ("up",)} - refused == {("up",)}
    assert shell.desk.guarded.dump() == before


def test_without_the_records_counting_is_unverified(shell, unique):
    """The offsets topic withheld: everything works, and what is not known is said so."""
    user = shell.as_part("observe", unique)
    until(lambda: shell.lag() == 7, "ACLs to be there")
    (told,) = shell.json("status", shell.desk.group)["groups"]
    assert told["rebalances"] is None
    code, out, _ = shell.run("status", shell.desk.group)
    assert code == 0
    assert "unreadable" in out
    (finding,) = shell.findings("offsets log")
    assert "unverified" in finding["found"]

    shell.desk.guarded.allow(user, shell.grants("history"))
    until(lambda: _count(shell) == 0, "the records to be readable")
    assert shell.findings("offsets log")[0]["level"] == "OK"


def _count(shell: Shell) -> int | None:
    (told,) = shell.json("status", shell.desk.group)["groups"]
    return told["rebalances"]["count"] if told["rebalances"] else None


@pytest.mark.parametrize("missing", ["group", "topic"])
def test_what_is_hidden_is_not_called_missing(shell, unique, missing):
    """One Describe less: the group or topic is named with its ACL, and nothing is planned."""
    user = shell.as_part("plan", unique)
    until(lambda: _count(shell) == 0, "ACLs to be there")
    assert shell.run("plan")[0] == 0
    (taken,) = [g for g in shell.grants("observe") if g.resource == missing]
    shell.desk.guarded.deny(user, taken)
    sentence = f"allow Describe on {missing} {taken.name}"
    until(lambda: shell.run("plan")[0] != 0, "the ACL to be gone")
    assert sentence in shell.run("plan")[2]
    out = shell.run("status")
    assert out[0] == 0
    assert sentence in out[1] + out[2]
    assert any(sentence in each["found"] for each in shell.findings("groups"))


def test_acting_needs_more_and_says_what_before_it_acts(shell, unique):
    """In mode act with the ACLs of plan: refused by name, nothing started, nothing changed."""
    user = shell.as_part("plan", unique)
    guarded, group, topic = shell.desk.guarded, shell.desk.group, shell.desk.topic
    login = guarded.login(user)
    shell.desk.declare("act", login)
    until(lambda: _count(shell) == 0, "ACLs to be there")
    before = guarded.dump()
    for arguments in (("apply", group), ("up",)):
        code, _, err = shell.run(*arguments)
        assert code == 3
        assert f"Read on group {group}" in err
        assert f"Read on topic {topic}" in err
    assert {f["found"].split(":")[0] for f in shell.findings("acls")} == {
        f"this login lacks Read on group {group}",
        f"this login lacks Read on topic {topic}",
    }
    assert guarded.dump() == before
    managed = shell.json("status", group)["groups"][0]["managed"]
    assert managed["workers"]["wanted"] == 0
    assert shell.run("down")[0] == 0  # `up` made sure that the supervisor runs


def test_a_topic_is_created_only_where_allowed(shell, unique, guarded):
    """`create:` needs Create on that topic; without it the sentence names it."""
    shell.desk.topic = f"born-{unique}"
    user = shell.as_part("plan", unique, create={"partitions": 2})
    shell.desk.declare("act", guarded.login(user), create={"partitions": 2})
    code, _, err = shell.run("up")
    assert code == 1
    assert f"allow Create on topic born-{unique}" in err


def test_admin_writes_are_refused_in_words(desk, guarded, unique):
    """kafka-python logs in by SCRAM over TLS; what it may not do names the ACL, one by one."""
    asked = grants("act", groups=[desk.group], topics=[desk.topic])
    security = guarded.user(f"leaver-{unique}", [g for g in asked if g.operation == "Describe"])
    nobody = [("i", "m")]
    setting = "consumer.assignment.interval.ms"
    with _admin(guarded, security) as admin:
        with pytest.raises(FleetError, match=f"allow Read on group {desk.group}"):
            admin.leave(desk.group, nobody, reason="test")
        with pytest.raises(FleetError, match=f"allow AlterConfigs on group {desk.group}"):
            admin.set_group_setting(desk.group, setting, "5000")
        with pytest.raises(FleetError, match="allow Create on topic nowhere"):
            admin.create_topic("nowhere", 1, 1)
        guarded.allow(f"leaver-{unique}", asked)
        until(lambda: _allowed(admin, desk.group, setting), "ACLs to be there")
        assert admin.leave(desk.group, nobody, reason="test") is None
        until(lambda: admin.group_setting(desk.group, setting) == "5000", "it to be read")
        admin.set_group_setting(desk.group, setting, None)


def test_sessions_are_told_to_who_may_ask(guarded, unique):
    """Without DescribeConfigs on the group nothing is known: a removal, not a leave."""
    group, clock, user = f"sessions-{unique}", SystemClock(), f"asks-{unique}"
    asked = grants("history", groups=[group], topics=[])
    security = guarded.user(user, [g for g in asked if g.operation != "DescribeConfigs"])
    config = client_config(ClusterSpec(security=security), guarded.bootstrap, {})
    until(lambda: AdminClient({**config, "log_level": 0}).list_topics(timeout=5), "the login")

    def told() -> object:
        with SessionQueries(config, clock=clock) as sessions:
            return sessions.of(group, "consumer", clock.now())

    assert told() is None
    guarded.allow(user, asked)
    until(told, "the session")


def _allowed(admin: GroupAdmin, group: str, setting: str) -> bool:
    try:
        admin.set_group_setting(group, setting, "5000")
    except FleetError:
        return False
    return True


def _admin(guarded, security: Security) -> GroupAdmin:
    cluster = ClusterSpec(security=security)
    return GroupAdmin(
        bootstrap=guarded.bootstrap,
        kafka_python_config=kafka_python_config(cluster, guarded.bootstrap, {}),
    )


def test_the_table_is_the_least(shell, unique, guarded):
    """No grant of `plan` is there for nothing: with any one less, something is missing.

    This group is a classic one: what only `protocol: consumer` needs has a test of its own.
    """
    user = shell.as_part("plan", unique)
    until(lambda: _count(shell) == 0, "ACLs to be there")
    for grant in (each for each in shell.grants("plan") if each.acl.only is None):
        guarded.deny(user, grant)
        if grant.name == OFFSETS:
            until(lambda: _count(shell) is None, "the count to be gone")
        else:
            until(lambda g=grant: str(g) in " ".join(shell.run("status")[1:]), str(grant))
        guarded.allow(user, [grant])
        until(lambda: _count(shell) == 0 and shell.lag() == 7, "the ACL to be back")

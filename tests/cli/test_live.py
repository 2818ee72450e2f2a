"""The commands against a real broker: init, status, plan, doctor, pauses, dry runs, refusals.

No worker is started here; what changes a running fleet is in tests/promises and tests/faults.
"""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet import cli
from fleet.clock import SystemClock
from fleet.manager.cycle import Fleet
from fleet.model import StepKind
from fleet.system.processes import home_processes
from tests.support.command import answer, process, said
from tests.support.commits import commit
from tests.support.json_server import JsonHandler, serving
from tests.support.plans import plan_of, step_of

PARTITIONS = 4
WAITING = 7


@pytest.fixture
def cluster(broker, unique, tmp_path, monkeypatch):
    """A folder with a fleet.yaml: a group of ours, and one of others with WAITING records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    theirs, topic = f"theirs-{unique}", f"orders-{unique}"
    client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    admin = AdminClient(client)  # kept: without it the answer is never delivered
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=60)
    made[topic].result(120)
    producer = Producer(client)
    for _ in range(10):
        producer.produce(topic, b"x", partition=0)
    producer.flush(120)
    consumer = Consumer({**client, "group.id": theirs})
    commit(consumer, [TopicPartition(topic, 0, 10 - WAITING)])
    consumer.close()
    (tmp_path / "live_job.py").write_text("def process(df, context):\n    df.count()\n")
    shop = Live(tmp_path, broker.bootstrap_servers, f"ours-{unique}", theirs, topic)
    shop.declare("act")
    return shop


class Live:
    """One fleet.yaml on a real cluster."""

    def __init__(self, folder: Path, bootstrap: str, ours: str, theirs: str, topic: str) -> None:
        self.folder, self.bootstrap = folder, bootstrap
        self.ours, self.theirs, self.topic = ours, theirs, topic

    def declare(self, mode: str, **fields: object) -> None:
        """Write fleet.yaml with our group in that mode, and so declared."""
        worker = {
            "entrypoint": "live_job:process",
            "python_path": [str(self.folder)],
            "heartbeat_interval": "1s",
        }
        group = {
            "group": self.ours,
            "mode": mode,
            "topics": [self.topic],
            "worker": worker,
            "replicas": {"min": 1, "max": 4, "standby": 0},
            "scaling": {"policy": "fixed", "workers": 2},
            "rollout": {"warm_timeout": "5m"},
            "runtime": {"kind": "local", "lease": "2s"},
            **fields,
        }
        spec = {
            "cluster": {"name": "live", "bootstrap_servers": self.bootstrap},
            "fleets": [group],
        }
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(spec))

    def leave_a_change_unfinished(self) -> None:
        """What a manager leaves that was killed right after it began."""
        plan = plan_of(step_of(StepKind.WARM, ()), id="left", cluster="live", group=self.ours)
        with Fleet.open(Path("fleet.yaml"), clock=SystemClock()) as fleet:
            assert fleet.store.begin_change(plan, actor="killed@there:1", started_at=1.0)


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: away
contexts: [{name: away, context: {cluster: away, user: me}}]
clusters: [{name: away, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {token: t}}]
"""


def test_status_goes_on_while_the_api_server_is_away(cluster, capsys, monkeypatch):
    """Kafka's side is shown, of all groups and of one; that there is another side is said."""
    (cluster.folder / "kubeconfig").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
    runtime = {"kind": "kubernetes", "namespace": "n", "image": "image:1"}
    cluster.declare("act", runtime=runtime)
    found = answer(capsys, "status")
    groups = {each["group"]: each for each in found["groups"]}
    assert groups[cluster.theirs]["lag"] == WAITING
    assert groups[cluster.ours]["managed"] is None
    assert (found["pauses"], groups[cluster.ours]["paused"]) == (None, None)
    (problem,) = [p for p in found["problems"] if "cannot show" in p]
    assert problem.startswith("cannot show slots, changes and pauses: Kubernetes API server")
    for name in (cluster.ours, cluster.theirs):
        out, _ = said(capsys, "status", name)
        assert "cannot show slots, changes and pauses" in " ".join(out.split())
    assert "has a group nobodys" in said(capsys, "status", "nobodys", code=1)[1]
    _, why = said(capsys, "plan", cluster.ours, code=1)
    assert "does not answer" in why, "what would be done is not guessed"


def test_a_file_that_cannot_be_written_is_read(cluster, capsys):
    """Locked, as by a process that hangs: what is stored is shown."""
    said(capsys, "pause", cluster.ours, "--reason", "freeze")
    other = sqlite3.connect(cluster.folder / "home" / "fleet.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        found = answer(capsys, "status", cluster.ours)
    finally:
        other.close()
    assert [each["reason"] for each in found["pauses"]] == ["freeze"]
    (ours,) = found["groups"]
    assert ours["managed"]["mode"] == "act"


def test_status_shows_ours_and_theirs(cluster, capsys):
    """Declared groups and every other one of the cluster, with lag; the first not yet there."""
    groups = {g["group"]: g for g in answer(capsys, "status")["groups"]}
    assert groups[cluster.theirs]["lag"] == WAITING
    assert groups[cluster.theirs]["state"] == "Empty"
    assert groups[cluster.theirs]["managed"] is None
    assert groups[cluster.ours]["exists"] is False
    assert groups[cluster.ours]["managed"]["mode"] == "act"
    out, _ = said(capsys, "status")
    assert cluster.ours in out
    assert cluster.theirs in out


def test_status_of_a_group_shows_partitions(cluster, capsys):
    """Detail for the group named, and for no other."""
    (group,) = answer(capsys, "status", cluster.theirs)["groups"]
    assert group["partitions"][0]["committed"] == 10 - WAITING
    assert group["partitions"][0]["case"] == "ok"
    assert group["rebalances"] == {"count": 0, "window_seconds": 600.0}


def test_status_of_an_unknown_group_fails(cluster, capsys):
    """A name that nobody knows is a mistake."""
    _, err = said(capsys, "status", "nobody", code=1)
    assert "neither cluster live nor fleet.yaml has a group nobody" in err


def test_plan_states_steps_and_expected_cost(cluster, capsys):
    """A plan for the declared group; nothing is changed by it."""
    (plan,) = answer(capsys, "plan")["plans"]
    assert plan["group"] == cluster.ours
    assert plan["wanted"] == 2
    assert "open" in [step["kind"] for step in plan["steps"]]
    explained, _ = said(capsys, "plan", cluster.ours, "--explain")
    assert "UTC: fixed at 2: 2 slots" in explained
    assert "waiting records: " in explained
    out, _ = said(capsys, "plan", cluster.ours)
    assert "REBALANCES" in out


def test_a_plan_obeys_the_number_of_another_program(cluster, capsys, monkeypatch):
    """Asked with the login that the file names, which appears nowhere; without a number it says."""
    monkeypatch.setenv("SIZER", "hunter2")

    class Sizer(JsonHandler):
        def get(self) -> None:
            known = self.headers["Authorization"] == "Bearer hunter2"
            self.say(200 if known else 401, {"orders": {"wanted": "3"}})

    with serving(Sizer) as url:
        scaling = {"policy": "external", "url": url, "value_location": "orders.wanted"}
        cluster.declare("act", scaling={**scaling, "authorization_env": "SIZER"})
        out, _ = said(capsys, "plan", "-o", "json")
        assert "hunter2" not in out
        (plan,) = json.loads(out)["plans"]
        assert plan["wanted"] == 3
        assert plan["notes"][0] == f"{url[7:]} asks for 3: 3 slots"
        cluster.declare("act", scaling=scaling)
        with Fleet.open(Path("fleet.yaml")) as fleet:
            fleet.store.change_targets(cluster.ours, lambda t: replace(t, open=frozenset({0, 1})))
        (plan,) = answer(capsys, "plan")["plans"]
    assert plan["wanted"] == 2
    assert plan["notes"][0] == (
        f"no number from {url[7:]} (it answers 401; set scaling.authorization_env or "
        "authorization_file): 2 slots"
    )


def test_a_missing_topic_is_created_before_anything_else(cluster, capsys):
    """By `fleet apply` as by `fleet up`: a manager in a pod only applies. Here it cannot be."""
    made = f"{cluster.topic}-made"
    cluster.declare("act", topics=[made], create={"partitions": 3, "replication": 2})
    out, _ = said(capsys, "plan", cluster.ours)
    assert f"Fleet creates {made} with 3 partitions" in " ".join(out.split())
    _, err = said(capsys, "apply", cluster.ours, "--yes", code=1)
    assert f"create topic {made}" in err
    assert "replication" in err.lower()
    with Fleet.open(Path("fleet.yaml"), clock=SystemClock()) as fleet:
        assert fleet.workers(cluster.ours) == ()
        assert fleet.store.change(cluster.ours) is None
    cluster.declare("act", topics=[made], create={"partitions": 3})
    with Fleet.open(Path("fleet.yaml"), clock=SystemClock()) as fleet:
        fleet.create_topics(cluster.ours)
        fleet.create_topics(cluster.ours)
        assert fleet.snapshot([]).topics[made] == 3


@pytest.mark.parametrize(
    "command",
    [["scale", "{}", "3"], ["roll", "{}"], ["apply", "{}"], ["apply", "--all"]],
    ids=["scale", "roll", "apply", "apply all"],
)
def test_dry_run_changes_nothing(cluster, capsys, command):
    """--dry-run prints the plan; no slot is opened and no change begun."""
    found = answer(capsys, *(part.format(cluster.ours) for part in command), "--dry-run")
    result = found["results"][0] if "results" in found else found
    assert result["plan"]["group"] == cluster.ours
    assert result["change"] is None
    with Fleet.open(Path("fleet.yaml")) as fleet:
        assert fleet.targets(cluster.ours).version == 0
        assert fleet.changes(cluster.ours) == ()
        assert fleet.workers() == ()


def test_drain_of_a_slot_that_is_not_open_does_nothing(cluster, capsys):
    """The plan is empty and says why."""
    found = answer(capsys, "drain", cluster.ours, "5", "--dry-run")
    assert found["plan"]["steps"] == []
    assert "slot 5: not open" in " ".join(found["plan"]["notes"])


@pytest.mark.parametrize("mode", ["observe", "plan"])
@pytest.mark.parametrize("command", [["scale", "{}", "3"], ["apply", "{}"]], ids=["scale", "apply"])
def test_other_modes_are_refused_with_the_key(cluster, capsys, mode, command):
    """Exit 3 and a sentence that names what to write in fleet.yaml."""
    cluster.declare(mode)
    _, err = said(capsys, *(part.format(cluster.ours) for part in command), code=3)
    assert "mode: act" in err
    with Fleet.open(Path("fleet.yaml")) as fleet:
        assert fleet.changes(cluster.ours) == ()


def test_a_pause_holds_changes_until_it_is_lifted(cluster, capsys):
    """Pause → refused with the reason; resume → not any more; a second resume says so."""
    said(capsys, "pause", cluster.ours, "--reason", "incident 4711")
    _, err = said(capsys, "scale", cluster.ours, "1", code=3)
    assert "incident 4711" in err
    (group,) = answer(capsys, "status", cluster.ours)["groups"]
    assert group["paused"] is True
    out, _ = said(capsys, "resume", cluster.ours)
    assert "is lifted" in out
    assert answer(capsys, "scale", cluster.ours, "1", "--dry-run")["refused"] is None
    out, _ = said(capsys, "resume", cluster.ours)
    assert "there was no pause" in out


def test_an_unmanaged_group_is_left_alone_until_it_is_managed(cluster, capsys):
    """Nothing acts on it, in words that say so; a pause neither replaces nor lifts that."""
    out, _ = said(capsys, "unmanage", cluster.ours, "--dry-run")
    assert out == f"would stop managing group {cluster.ours}; its workers keep running\n"
    out, _ = said(capsys, "unmanage", cluster.ours)
    assert f"group {cluster.ours} is unmanaged; 0 workers keep running" in out
    assert "unmanaged" in said(capsys, "status")[0]
    for command in (
        ("scale", cluster.ours, "1"),
        ("resume", cluster.ours),
        ("pause", cluster.ours, "--reason", "incident"),
    ):
        _, err = said(capsys, *command, code=3)
        assert f"`fleet manage {cluster.ours}` to take it back" in err
    out, _ = said(capsys, "manage", cluster.ours)
    assert out == f"group {cluster.ours} is managed again\n"
    assert "is managed already" in said(capsys, "manage", cluster.ours)[0]
    assert answer(capsys, "scale", cluster.ours, "1", "--dry-run")["refused"] is None


def test_a_pause_of_all_outlives_a_groups_own(cluster, capsys):
    """The two are lifted apart, and what still holds is named."""
    said(capsys, "pause", "--all", "--reason", "freeze")
    said(capsys, "pause", cluster.ours, "--reason", "incident")
    out, _ = said(capsys, "resume", cluster.ours)
    assert "still paused with all groups: freeze" in out
    said(capsys, "resume", "--all")
    assert answer(capsys, "status")["pauses"] == []


def test_a_slot_shut_by_a_foreign_owner_is_shown_and_opened(cluster, capsys):
    """Status and doctor name it; `slot reopen` lets workers take it again [15]."""
    with Fleet.open(Path("fleet.yaml")) as fleet:
        targets = fleet.targets(cluster.ours)
        assert fleet.store.write_targets(replace(targets, quarantined=targets.quarantined | {7}))
    told = f"fleet slot reopen {cluster.ours} 7"
    out, _ = said(capsys, "status")
    assert "external owner" in out
    assert told in " ".join(out.split())
    capsys.readouterr()
    cli.run(["doctor"])
    assert told in " ".join(capsys.readouterr().out.split())
    out, _ = said(capsys, "slot", "reopen", cluster.ours, "7")
    assert out == f"slot 7 of group {cluster.ours} is open again\n"
    out, _ = said(capsys, "slot", "reopen", cluster.ours, "7")
    assert "is not quarantined" in out


def test_an_undeclared_group_is_wrong_usage(cluster, capsys):
    """Exit 2 with what is declared."""
    for command in (["pause", "nobody", "--reason", "x"], ["roll", "nobody"], ["plan", "nobody"]):
        _, err = said(capsys, *command, code=2)
        assert cluster.ours in err


def test_doctor_finds_this_cluster_well(cluster, capsys):
    """No FAIL on a machine that runs the tests; every line has a level and a sentence."""
    found = answer(capsys, "doctor")
    assert found["ok"] is True
    levels = {check["check"]: check["level"] for check in found["checks"]}
    assert levels["broker"] == levels["offsets log"] == levels["config"] == "OK"
    assert levels["batched leave"] == "OK"
    assert all(check["remedy"] for check in found["checks"] if check["level"] != "OK")


def test_doctor_names_what_nobody_answers_for(cluster, capsys):
    """A cluster that does not answer is one FAIL, within bounded time."""
    path = cluster.folder / "fleet.yaml"
    path.write_text(path.read_text().replace(cluster.bootstrap, "127.0.0.1:1"))
    found = answer(capsys, "doctor", code=1)
    failed = [check for check in found["checks"] if check["level"] == "FAIL"]
    assert [check["check"] for check in failed] == ["broker"]
    assert "127.0.0.1:1" in failed[0]["found"]


def test_init_writes_what_it_finds_and_overwrites_nothing(cluster, capsys, monkeypatch, tmp_path):
    """All groups observed only; the file loads; --force keeps the old file's cluster."""
    _, err = said(capsys, "init", "--bootstrap", cluster.bootstrap, code=2)
    assert "--force" in err
    arguments = (
        "init",
        "--bootstrap",
        cluster.bootstrap,
        "--cluster",
        "east",
        "--output-file",
        "n.yaml",
    )
    out, _ = said(capsys, *arguments)
    assert "fleet status" in out
    written = yaml.safe_load(Path("n.yaml").read_text())
    assert written["cluster"]["name"] == "east"
    modes = {fleet["group"]: fleet["mode"] for fleet in written["fleets"]}
    assert modes[cluster.theirs] == "observe"
    assert set(modes.values()) == {"observe"}
    said(capsys, "-c", "n.yaml", "status")
    said(capsys, "init", "--output-file", "n.yaml", "--force")
    assert yaml.safe_load(Path("n.yaml").read_text())["cluster"]["name"] == "east"


def test_an_unfinished_change_is_found_and_given_up(cluster, capsys):
    """The doctor names it, `--abort` ends it, and a second `--abort` finds none."""
    cluster.leave_a_change_unfinished()
    found = answer(capsys, "doctor")
    assert "killed@there:1 left a change" in json.dumps(found)
    (group,) = answer(capsys, "status", cluster.ours)["groups"]
    assert group["managed"]["last_change"]["state"] == "running"
    (result,) = answer(capsys, "apply", cluster.ours, "--abort", "--dry-run")["results"]
    assert (result["plan"]["id"], result["change"]) == ("left", None)
    (result,) = answer(capsys, "apply", cluster.ours, "--abort")["results"]
    assert result["change"]["state"] == "aborted"
    out, _ = said(capsys, "apply", cluster.ours, "--abort")
    assert "no unfinished change" in out


def test_a_process_of_its_own_answers_the_same(cluster):
    """`python -m fleet`: stdout is the JSON alone, nothing is on stderr."""
    done = process("status", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cluster"] == "live"


@pytest.mark.spark
@pytest.mark.slow
def test_a_fleet_comes_up_grows_and_goes(cluster, capsys, tmp_path):
    """Up, scale and down with real workers: receipts equal their expected cost, nothing runs
    after it.
    """
    try:
        out, _ = said(capsys, "up")
        assert "equal" in out
        found = answer(capsys, "scale", cluster.ours, "3")
        assert found["change"]["state"] == "done"
        assert [r["result"] for r in found["change"]["receipts"]] == ["equal"]
        (group,) = answer(capsys, "status", cluster.ours)["groups"]
        assert (group["members"], group["managed"]["slots"]["active"]) == (3, 3)
        levels = {c["check"]: c["level"] for c in answer(capsys, "doctor")["checks"]}
        assert {levels[c] for c in ("workers", "supervisor", "spark", "slots", "changes")} == {"OK"}
        before = len(_changes(cluster))
        out, _ = said(capsys, "scale", cluster.ours, "3")
        assert "nothing to do" in out
        assert len(_changes(cluster)) == before, "an empty plan is no change"
    finally:
        said(capsys, "down", "--purge", "--yes")
    assert not list(home_processes(tmp_path / "home"))
    assert answer(capsys, "status", cluster.ours)["groups"][0]["members"] == 0


def _changes(cluster):
    with Fleet.open(Path("fleet.yaml")) as fleet:
        return fleet.changes(cluster.ours)

"""fleet.yaml: what loads, what is refused, and that a refusal names line, key and remedy."""

from pathlib import Path

import pytest

from fleet.config import load as load_module
from fleet.config.load import MAX_PROBLEMS, load
from fleet.config.spec import ClassicWorker, ConsumerWorker, FleetSpec, LagScaling
from fleet.errors import ConfigError

FLEET = "fleets:\n  - group: orders\n    topics: [orders]\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, **environ: str) -> FleetSpec:
    """Load this text as fleet.yaml of the current folder."""
    Path("fleet.yaml").write_text(text, encoding="utf-8")
    return load(Path("fleet.yaml"), environ)


def refusal(text: str, **environ: str) -> list[str]:
    """The lines of the error that this text gives."""
    with pytest.raises(ConfigError) as caught:
        read(text, **environ)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def fleet(*lines: str) -> str:
    """A file with one fleet; its own keys begin in line 4."""
    return FLEET + "".join(f"    {line}\n" for line in lines)


WORKER = 'worker: {entrypoint: "app.job:process"'


def test_the_example_of_this_repository_loads() -> None:
    """fleet.example.yaml at the top is valid, embedded and acting."""
    spec = load(Path(__file__).parents[2] / "fleet.example.yaml", {})
    group = spec.fleets[0]
    assert (spec.mode_of(group), spec.cluster.bootstrap_servers) == ("act", "embedded")
    assert isinstance(group.worker, ClassicWorker)
    assert (group.worker.batch.max_wait, group.worker.session_timeout) == (0.2, 180.0)
    assert group.create is not None
    assert group.create.partitions == 12


GOLDEN = [
    pytest.param(
        fleet('worker: {command: [app], spark: "local[2]", membership: dynamic}'),
        "fleet.yaml:4: fleets[0].worker: a worker with command takes no membership: dynamic, "
        "spark: remove it",
        id="a-job's-key-for-a-program",
    ),
    pytest.param(
        fleet('worker: {command: [app, "--id={instance_id}"], warm: true}'),
        "fleet.yaml:4: fleets[0].worker: command has --id={instance_id}, but a warm program "
        "starts before its slot is known: let it read FLEET_INSTANCE_FILE, or remove warm",
        id="warm-with-an-id",
    ),
    pytest.param(
        fleet(WORKER + ", assignor: rangee}"),
        "fleet.yaml:4: fleets[0].worker.assignor: 'rangee' is not allowed; nearest: range "
        "(allowed: range, cooperative-sticky)",
        id="bad-value",
    ),
    pytest.param(
        fleet("replicas: {minn: 1}"),
        "fleet.yaml:4: fleets[0].replicas.minn: unknown key; nearest: min "
        "(allowed: min, max, standby)",
        id="unknown-key",
    ),
    pytest.param(
        "clustre: {}\n" + FLEET,
        "fleet.yaml:1: clustre: unknown key; nearest: cluster "
        "(allowed: cluster, mode, max_groups_in_change, storm, history, exporter, ui, alerts, "
        "dagster, defaults, fleets)",
        id="unknown-top-key",
    ),
    pytest.param(
        fleet("replicas:", "  min: 5", "  max: 2"),
        "fleet.yaml:4: fleets[0].replicas: min 5 is greater than max 2",
        id="min-above-max",
    ),
    pytest.param(
        FLEET + "  - group: orders\n    topics: [orders]\n",
        "fleet.yaml:4: fleets[1].group: 'orders' is already declared in line 2; remove one",
        id="duplicate-group",
    ),
    pytest.param(
        fleet("topics: [returns]"),
        "fleet.yaml:4: fleets[0].topics: is a duplicate of the key in line 3; remove one",
        id="duplicate-key",
    ),
    pytest.param(
        fleet(WORKER + ", protocol: consumer, session_timeout: 60s}"),
        "fleet.yaml:4: fleets[0].worker.session_timeout: 'session_timeout' does not exist under "
        "protocol consumer, only under protocol classic (allowed: entrypoint, command, warm, "
        "python_path, env, membership, batch, reading, max_poll_interval, batch_timeout, "
        "entrypoint_failure_timeout, isolation, on_truncated, metadata_refresh, "
        "dead_letter_topic, start_from, spark, "
        "log_level, spark_ui, http, protocol)",
        id="classic-key-under-848",
    ),
    pytest.param(
        fleet("scaling: {policy: lags}"),
        "fleet.yaml:4: fleets[0].scaling.policy: 'lags' is not allowed; nearest: lag "
        "(allowed: fixed, partitions, lag, drain_time, packed, external)",
        id="unknown-policy",
    ),
    pytest.param(
        fleet('scaling: {floors: [{hours: "8:00-20:00", min: 2}]}'),
        "fleet.yaml:4: fleets[0].scaling.floors[0].hours: '8:00-20:00' is not HH:MM-HH:MM: write "
        "hours such as 08:00-20:00 or 00:00-24:00",
        id="no-hours",
    ),
    pytest.param(
        fleet('scaling: {floors: [{hours: "08:00-08:00", min: 2}]}'),
        "fleet.yaml:4: fleets[0].scaling.floors[0].hours: begins when it ends: for the "
        "whole day, write 00:00-24:00",
        id="hours-without-length",
    ),
    pytest.param(
        fleet('scaling: {floors: [{hours: "08:00-20:00", min: 13}]}'),
        "fleet.yaml:4: fleets[0]: scaling.floors wants 13 slots (08:00-20:00), but replicas.max "
        "is 12: raise it, or lower the floor",
        id="floor-above-max",
    ),
    pytest.param(
        fleet("rollout: {drain_timeout: 30x}"),
        "fleet.yaml:4: fleets[0].rollout.drain_timeout: '30x' is not a duration: write a number "
        "and ms, s, m, h or d, such as 30s",
        id="no-duration",
    ),
    pytest.param(
        fleet(WORKER + ", session_timeout: 1h}"),
        "fleet.yaml:4: fleets[0].worker.session_timeout: '1h' is out of range "
        "(allowed: 6s to 1800s)",
        id="out-of-range",
    ),
    pytest.param(
        fleet(WORKER + ", session_timeout: 12s}"),
        "fleet.yaml:4: fleets[0]: runtime.lease 10s + 5s must be below worker.session_timeout "
        "12s, else a worker's death costs a rebalance",
        id="lease-above-session",
    ),
    pytest.param(
        fleet(WORKER + ", protocol: consumer}", "runtime: {lease: 40s}"),
        "fleet.yaml:5: fleets[0]: runtime.lease 40s + 5s must be below the session timeout of "
        "KIP-848 groups, 45s by Kafka's default, else a worker's death costs a rebalance",
        id="lease-above-848-session",
    ),
    pytest.param(
        fleet(WORKER + ", dead_letter_topic: orders}"),
        "fleet.yaml:4: fleets[0]: worker.dead_letter_topic orders is a topic of this group "
        "itself (topics: orders), so a poison record would come back for ever: name another topic",
        id="dead-letters-to-itself",
    ),
    pytest.param(
        fleet(WORKER + ", batch_timeout: 5m}"),
        "fleet.yaml:4: fleets[0]: worker.batch_timeout 300s must be at most "
        "worker.max_poll_interval - rollout.drain_timeout = 270s, else a batch "
        "that hangs outlasts the group's rebalance timeout",
        id="batch-timeout",
    ),
    pytest.param(
        fleet("worker: {}"),
        "fleet.yaml:4: fleets[0].worker: needs either entrypoint (package.module:function) or "
        "command ([program, …])",
        id="missing-entrypoint",
    ),
    pytest.param(
        fleet("worker: {entrypoint: process}"),
        "fleet.yaml:4: fleets[0].worker.entrypoint: 'process' is not allowed; write "
        "package.module:function",
        id="bad-entrypoint",
    ),
    pytest.param(
        'fleets:\n  - group: a\n    topics: ["^a(", "b c"]\n',
        "fleet.yaml:3: fleets[0].topics[0]: '^a(' is not a regular expression: missing ), "
        "unterminated subpattern at position 2\n"
        "fleet.yaml:3: fleets[0].topics[1]: 'b c' is not a topic name (up to 249 letters, digits, "
        "'.', '_' and '-'); a regular expression starts with ^",
        id="bad-topics",
    ),
    pytest.param(
        "fleets:\n  - group: 12\n    topics: []\n",
        "fleet.yaml:2: fleets[0].group: 12 is not text; write it in quotes\n"
        "fleet.yaml:3: fleets[0].topics: is empty; name at least one",
        id="number-as-group-and-no-topics",
    ),
    pytest.param(
        "cluster: {bootstrap_servers: '${BOOT}'}\n",
        "fleet.yaml:1: cluster.bootstrap_servers: environment variable BOOT is not set; set "
        "it, or write a default: ${BOOT:-value}",
        id="variable-not-set",
    ),
    pytest.param(
        "cluster:\n  security: {protocol: SASL_SSL}\n",
        "fleet.yaml:2: cluster.security: protocol SASL_SSL needs sasl: {mechanism, username_env, "
        "…}",
        id="no-credentials",
    ),
    pytest.param(
        "cluster: {name: ${NAME}}\n",
        "fleet.yaml:1: is not YAML: expected ',' or '}', but got '{'; inside {…} put a reference "
        'in quotes: "${NAME}"',
        id="reference-in-braces",
    ),
    pytest.param(
        "cluster:\n\tname: x\n",
        "fleet.yaml:2: is not YAML: found character '\\t' that cannot start any token; indent with "
        "spaces, not tabs",
        id="tabs",
    ),
    pytest.param(
        "- fleets\n",
        "fleet.yaml:1: is not a mapping of cluster, mode, max_groups_in_change, storm, history, "
        "exporter, ui, alerts, dagster, defaults, fleets",
        id="no-mapping",
    ),
    pytest.param(
        "fleets: [3]\n",
        "fleet.yaml:1: fleets[0]: 3 is not a mapping of group, mode, owner, labels, topics, "
        "writes, create, worker, replicas, scaling, scale_at, rollout, storm, max_lag, runtime",
        id="fleet-no-mapping",
    ),
    pytest.param(
        "mode: on\n",
        "fleet.yaml:1: mode: 'on' is not allowed (allowed: observe, plan, act)",
        id="yaml-booleans-are-words",
    ),
]


@pytest.mark.parametrize(("text", "said"), GOLDEN)
def test_a_refusal_names_line_key_and_remedy(text: str, said: str) -> None:
    """The whole message, word for word."""
    assert refusal(text) == said.split("\n")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"], ids=["empty", "comment", "document"])
def test_an_empty_file_names_init(text: str) -> None:
    """An empty file is an error, not a fleet of none."""
    assert "`fleet init --bootstrap HOST:PORT --force`" in refusal(text)[0]


def test_a_missing_file_names_init() -> None:
    """No file: the error names it and how to get one."""
    with pytest.raises(
        ConfigError, match=r"nowhere\.yaml does not exist: run `fleet init --boot.*--config"
    ):
        load(Path("nowhere.yaml"), {})


def test_a_file_that_is_no_text_is_refused() -> None:
    """Bytes that are no UTF-8 are said, with where."""
    Path("fleet.yaml").write_bytes(b"cluster: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load(Path("fleet.yaml"), {})


def test_everything_wrong_is_said_at_once() -> None:
    """Independent mistakes are listed together, in the file's order."""
    lines = refusal("mode: yolo\ncluster: {nam: x}\n" + fleet("replicas: {min: 3, max: 1}", "x: 1"))
    assert [line.split(": ")[1] for line in lines] == [
        "mode",
        "cluster.nam",
        "fleets[0].replicas",
        "fleets[0].x",
    ]


def test_many_mistakes_are_counted() -> None:
    """At most 20 are listed, the rest is counted."""
    text = "fleets:\n" + "".join(f"  - {{group: g{i}, topics: [t], x: 1}}\n" for i in range(30))
    lines = refusal(text)
    assert (len(lines), lines[-1]) == (MAX_PROBLEMS + 1, "and 10 more")


def test_a_mistake_in_defaults_is_said_once_and_there() -> None:
    """What a hundred fleets inherit is one mistake, on the line of the defaults."""
    text = "defaults:\n  storm: {rebalances: 0}\nfleets:\n" + "".join(
        f"  - {{group: g{i}, topics: [t]}}\n" for i in range(100)
    )
    assert refusal(text) == [
        "fleet.yaml:2: defaults.storm.rebalances: 0 is out of range (allowed: 1 to 100000)"
    ]


def test_defaults_lie_under_every_fleet() -> None:
    """Mappings merge key by key, lists are replaced, a fleet's own key wins."""
    spec = read(
        "defaults:\n  owner: us\n  labels: {team: a, tier: b}\n  replicas: {max: 9}\n"
        "  worker: {session_timeout: 60s}\n"
        "fleets:\n"
        '  - {group: a, topics: [t], labels: {tier: c}, worker: {entrypoint: "m:f"}}\n'
        "  - {group: b, topics: [t], owner: them}\n"
    )
    one, two = spec.fleets
    assert (one.owner, one.labels, one.replicas.max) == ("us", {"team": "a", "tier": "c"}, 9)
    assert isinstance(one.worker, ClassicWorker)
    assert one.worker.session_timeout == 60
    assert two.owner == "them"
    assert two.worker is None, "settings of a worker are no worker"


def test_another_tag_replaces_the_whole_mapping() -> None:
    """A fleet with another protocol or policy inherits nothing of the defaults' one."""
    spec = read(
        "defaults:\n"
        "  worker: {assignor: range}\n"
        "  scaling: {policy: lag, records_per_worker: 7}\n"
        "fleets:\n"
        '  - {group: a, topics: [t], worker: {protocol: consumer, entrypoint: "m:f"}}\n'
        "  - {group: b, topics: [t], scaling: {policy: fixed, workers: 2}}\n"
        "  - {group: c, topics: [t], scaling: {max_step: 2}}\n"
    )
    assert isinstance(spec.fleets[0].worker, ConsumerWorker)
    assert spec.fleets[1].scaling.policy == "fixed"
    scaling = spec.fleets[2].scaling
    assert isinstance(scaling, LagScaling)
    assert (scaling.records_per_worker, scaling.max_step) == (7, 2)


@pytest.mark.parametrize(
    ("written", "environ", "value"),
    [
        pytest.param("${HOST}:9092", {"HOST": "k1"}, "k1:9092", id="set"),
        pytest.param("${HOST:-k2}:9092", {}, "k2:9092", id="default"),
        pytest.param("${HOST:-k2}", {"HOST": ""}, "k2", id="empty-is-default"),
        pytest.param("${HOST:-}x", {}, "x", id="empty-default"),
        pytest.param("$${HOST}", {"HOST": "k1"}, "${HOST}", id="escaped"),
        pytest.param("${A}${B}", {"A": "${B}", "B": "c"}, "${B}c", id="not-twice"),
        pytest.param("$HOST", {}, "$HOST", id="plain-dollar"),
    ],
)
def test_references_expand(written: str, environ: dict[str, str], value: str) -> None:
    """${NAME} and ${NAME:-default} expand once; $${ is the characters themselves."""
    spec = read(fleet(f"owner: '{written}'"), **environ)
    assert spec.fleets[0].owner == value


def test_references_give_numbers_where_numbers_are_wanted() -> None:
    """A number from the environment is a number."""
    text = fleet("replicas:", "  max: ${MOST:-7}", "storm: {window: '${WINDOW}'}")
    group = read(text, WINDOW="60").fleets[0]
    assert (group.replicas.max, group.storm.window) == (7, 60.0)


def test_an_expanded_value_is_not_shown() -> None:
    """What came from the environment may be a secret that got into the wrong place."""
    text = "mode: ${MODE}\ncluster: {name: '${NAME}'}\n"
    lines = refusal(text, MODE="hunter2", NAME="s e c r e t")
    assert "hunter2" not in "".join(lines)
    assert "s e c r e t" not in "".join(lines)
    assert "the value of '${MODE}' is not allowed" in lines[0]


@pytest.mark.parametrize("key", ["password", "sasl_password", "secret", "token", "jaas_config"])
def test_inline_secrets_are_refused(key: str) -> None:
    """A secret in the file is refused with what to write instead, and is not repeated."""
    text = f"cluster:\n  security:\n    protocol: SASL_SSL\n    sasl: {{{key}: hunter2}}\n"
    lines = refusal(text)
    assert lines[0] == (
        f"fleet.yaml:4: cluster.security.sasl.{key}: is a secret, which fleet.yaml must not hold; "
        f"write {key}_env with the name of an environment variable, or {key}_file with a path"
    )
    assert "hunter2" not in "".join(lines)


def test_files_are_found_from_the_files_folder(tmp_path: Path) -> None:
    """Relative paths mean the same for a shell and for a Dagster run elsewhere."""
    spec = read(
        "cluster:\n  security: {protocol: SSL, tls: {ca_file: certs/ca.pem}}\n"
        + fleet(WORKER + ", python_path: [src, /opt/x]}")
    )
    assert spec.cluster.security.tls.ca_file == str(tmp_path / "certs" / "ca.pem")
    worker = spec.fleets[0].worker
    assert worker is not None
    assert worker.python_path == (str(tmp_path / "src"), "/opt/x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a: &a [*a]\n", "an alias contains itself", id="recursive-alias"),
        pytest.param("<<: {mode: act}\n", "merge keys (<<) are not supported", id="merge-key"),
        pytest.param("? [a]\n: 1\n", "a key must be text", id="list-as-key"),
        pytest.param("mode: !!python/name:os.system x\n", "cannot be read", id="external-tag"),
        pytest.param("a: 1\n---\nb: 2\n", "is not YAML", id="two-documents"),
        pytest.param("mode: 'a\x00b'\n", "is not YAML", id="control-characters"),
    ],
)
def test_yaml_that_is_too_clever_is_refused(text: str, said: str) -> None:
    """What YAML can and a specification need not is refused, never executed."""
    assert said in "\n".join(refusal(text))


@pytest.mark.parametrize("text", ["x: " + "[" * 3000 + "]" * 3000, "x: " + "{a: " * 1500])
def test_what_nests_without_an_end_is_refused(text: str) -> None:
    """Brackets that nobody closed; no traceback."""
    assert refusal(text) == [
        "fleet.yaml:1: is nested too deeply; check for a bracket that is not closed"
    ]


@pytest.mark.parametrize(("path", "why"), [('"a\\0b"', "null byte"), ("~nobody-here/x", "home")])
def test_what_is_no_path_is_refused(path: str, why: str) -> None:
    """With its line and key."""
    (said,) = refusal(fleet(f"worker: {{entrypoint: a.b:c, python_path: [{path}]}}"))
    assert "worker.python_path[0]" in said
    assert "cannot be a path" in said
    assert why in said


@pytest.mark.parametrize("password", ["hunter2", "p@hunter2", "p/hunter2", "p@/hunter2"])
def test_a_login_in_an_address_is_not_shown(password: str) -> None:
    """It is refused, and whoever reads the refusal does not see it."""
    oidc = f"{{endpoint: 'https://u:{password}@x', client_id: i, client_secret_env: S}}"
    login = f"{{protocol: SASL_SSL, sasl: {{mechanism: OAUTHBEARER, oidc: {oidc}}}}}"
    (said,) = refusal(f"cluster: {{name: m, bootstrap_servers: 'b:1', security: {login}}}\n")
    assert "https://…@x" in said
    assert "hunter2" not in said


def test_an_alias_bomb_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine aliases of nine aliases of … are refused by count, in bounded time."""
    monkeypatch.setattr(load_module, "MAX_NODES", 10_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for depth in range(1, 9):
        items = ", ".join([f"*a{depth - 1}"] * 9)
        lines.append(f"a{depth}: &a{depth} [{items}]")
    assert any("values; split the file" in line for line in refusal("\n".join(lines) + "\n"))


def test_modes_by_default() -> None:
    """The embedded cluster acts, others plan, groups without a worker are observed."""
    worker = 'worker: {entrypoint: "m:f"}'
    embedded, other = read(fleet(worker)), read("cluster: {bootstrap_servers: 'k:1'}\n" + FLEET)
    assert embedded.mode_of(embedded.fleets[0]) == "act"
    assert other.mode_of(other.fleets[0]) == "observe"
    planned = read("cluster: {bootstrap_servers: 'k:1'}\n" + fleet(worker))
    assert planned.mode_of(planned.fleets[0]) == "plan"
    own = read("mode: plan\n" + fleet(worker, "mode: act"))
    assert own.mode_of(own.fleets[0]) == "act"

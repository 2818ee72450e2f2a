"""A table of wrong inputs: each is one sentence and an exit code, and nothing is started.

Exit code 2: wrong usage or configuration; 1: failed. No row has a cluster: what asks
one meets a closed port of loopback. Each kind of source has a row; what else fleet.yaml is refused
for is in tests/spec/test_load.py, other usage in test_command_line.py.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet import cli

CLOSED = "127.0.0.1:1"
JOB = "def process(df, context):\n    pass\n"
WORKER = 'worker: {entrypoint: "job:process", python_path: [.]}'


def fleet(*lines: str, cluster: str = CLOSED, top: str = "") -> str:
    """A fleet.yaml with one group; its own keys begin in line 6."""
    head = f'{top}cluster:\n  bootstrap_servers: "{cluster}"\nfleets:\n  - group: orders\n'
    return head + "    topics: [orders]\n" + "".join(f"    {line}\n" for line in lines)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One wrong input."""

    name: str
    arguments: str
    code: int
    told: str
    """A part of the sentence, as a regular expression."""
    file: str | None = fleet(WORKER)
    others: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)


FILE = [
    Row(name="no file", file=None, arguments="status", code=2,
        told="there is no fleet.yaml.*fleet init"),
    Row(name="a folder", arguments="status -c .", code=2, told="is a directory|there is no"),
    Row(name="no YAML", file="fleets: [", arguments="status", code=2, told=r"fleet.yaml:\d.*"),
    Row(name="unknown key", file=fleet("replica: {min: 1}"), arguments="status", code=2,
        told=r"fleet.yaml:6: .*did you mean 'replicas'|fleet.yaml:6: .*replicas"),
    Row(name="unknown section", file="fleet: []\n", arguments="status", code=2, told="fleets"),
    Row(name="no place of Spark", code=2, arguments="status", told="fleet.yaml:6: .*spark",
        file=fleet('worker: {entrypoint: "job:process", spark: yarn}')),
    Row(name="no log level", code=2, arguments="status", told="'?debug'?.*'?error'?",
        file=fleet('worker: {entrypoint: "job:process", log_level: loud}')),
    Row(name="port of the exporter", file=fleet(top="exporter: {listen: here}\n"),
        arguments="status", code=2, told="fleet.yaml:1: .*listen"),
    Row(name="no namespace", file=fleet(WORKER, "runtime: {kind: kubernetes, namespace: My Space}"),
        arguments="status", code=2, told="fleet.yaml:7: .*namespace"),
    Row(name="login without a password", code=2, arguments="status", told="fleet.yaml.*password",
        file=fleet().replace("fleets:", "  security: {protocol: SASL_SSL, sasl: {mechanism: PLAIN, "
                             "username: a}}\nfleets:")),
]  # fmt: skip
USAGE = [
    Row(name="no time", arguments="logs orders --since yesterday", code=2, told="is no time"),
    Row(name="logs of nobody", arguments="logs payments", code=2, told="with a worker: orders"),
    Row(name="init over a file", arguments="init", code=2, told="--output-file"),
    Row(name="worker of nobody", arguments="test payments --from r", code=2, told="orders"),
    Row(name="two sources", arguments="test orders --sample 3 --from r", code=2, told="only one"),
    Row(name="home not writable", arguments="logs orders", code=1,
        told="cannot write to the state directory.*FLEET_HOME",
        environ={"FLEET_HOME": "/proc/fleet"}),
]  # fmt: skip
RECORDS = [
    Row(name="no file of records", arguments="test orders --from r", code=2,
        told="cannot read --from r"),
    Row(name="no JSON", arguments="test orders --from r", code=2, told=r"r:2 is not JSON",
        others={"r": "{}\n{,}\n"}),
    Row(name="no object", arguments="test orders --from r", code=2, told="r:1 is no object",
        others={"r": "3\n"}),
    Row(name="unknown field", arguments="test orders --from r", code=2, told="record 1 has vlaue",
        others={"r": '{"vlaue": 1}\n'}),
    Row(name="no record", arguments="test orders --from r", code=1, told="holds no record",
        others={"r": "\n"}),
]  # fmt: skip
JOBS = [
    Row(name="no module", arguments="test orders --from r", code=2,
        told="module jbo of worker.entrypoint is neither", others={"r": "{}\n"},
        file=fleet(WORKER.replace("job:", "jbo:"))),
    Row(name="no function", arguments="test orders --from r", code=2,
        told="job.py has no function process; it has proces", others={"r": "{}\n",
        "job.py": "def proces(a, b): ..."}),
    Row(name="one argument", arguments="test orders --from r", code=2,
        told=r"takes \(df\); write process\(df, context\)", others={"r": "{}\n",
        "job.py": "def process(df): ..."}),
    Row(name="no Python", arguments="test orders --from r", code=2,
        told="job.py:2 is not valid Python",
        others={"r": "{}\n", "job.py": "import os\ndef process(:\n"}),
    Row(name="no Java", arguments="test orders --from r", code=1, told="(?i)java",
        others={"r": "{}\n"}, environ={"JAVA_HOME": "/nowhere"}),
]  # fmt: skip
CLUSTER = [
    Row(name="closed port", arguments="status", code=1, told=r"127\.0\.0\.1:1"),
    Row(name="no such name", file=fleet(cluster="no-such-host.invalid:9092"), arguments="status",
        code=1, told="no-such-host.invalid"),
    Row(name="port out of range", file=fleet(cluster="127.0.0.1:99999"), arguments="status", code=2,
        told="99999"),
    Row(name="no port", file=fleet(cluster="kafka-1"), arguments="status", code=2, told="kafka-1"),
    Row(name="an address with a scheme", file=fleet(cluster="kafka://127.0.0.1:9092"),
        arguments="status", code=2, told="fleet.yaml:2: .*kafka://127.0.0.1:9092"),
]  # fmt: skip
ROWS = [*FILE, *USAGE, *RECORDS, *JOBS, *CLUSTER]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name.replace(" ", "-")) for row in ROWS])
def test_a_wrong_input_is_a_sentence(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, the right exit code, and no process of ours: not a broker, worker or Spark."""
    monkeypatch.chdir(tmp_path)
    for name in ("FLEET_HOME", "FLEET_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in row.environ.items():
        monkeypatch.setenv(name, value)
    given = {"job.py": JOB, **row.others, **({} if row.file is None else {"fleet.yaml": row.file})}
    for name, text in given.items():
        Path(name).write_text(text)
    code = cli.run(row.arguments.split())
    said = capsys.readouterr()
    assert re.search(row.told, said.err, re.DOTALL), said.err
    assert code == row.code
    assert "Traceback" not in said.err
    assert "defect" not in said.err
    started = {"broker", "supervisor", "workers", "spark"}
    assert not [each for each in Path(".fleet").glob("*") if each.name in started]

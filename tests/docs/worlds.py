"""What the commands of a page find: a folder, a cluster with groups, programs on PATH.

Problem: a page speaks of brokers, groups and images of its reader. Choice: its commands run as
they stand in bash, in a folder of the page's own; the names that pages use for what a reader has
(`broker-1:9092`, `GROUP`) become those of this session's broker, and programs that serve until
somebody stops them are interrupted once they have said something. Cost: one start of Python
for each command.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from k8s.cluster import programs
from tests.docs.pages import Block
from tests.support.brokers import RunningBroker
from tests.support.commits import commit
from tests.support.kube_api import KubeApi
from tests.support.needs import repository
from tests.support.waiting import until

GROUPS = ("orders", "payments")
"""Groups of other people, who have read some of their topic; the pages speak of these."""
TOPIC = "orders"
PARTITIONS = 3

_SERVES = {
    ("fleet", "exporter"), ("fleet", "ui"), ("fleet", "logs"),
    ("dagster", "dev"), ("fleet", "history", "sync", "--follow"),
}  # fmt: skip
"""They run until somebody stops them."""

_REMARK = re.compile(r"\s+# .*$")
"""Of a command, for who reads it."""

_SHIM = """\
#!{python}
import signal, subprocess, sys
words = [{name!r}, *sys.argv[1:]]
command = {command!r} + sys.argv[1:]
ends = any(word in words for word in ("--once", "--help", "-n"))
if ends or not any(words[: len(each)] == list(each) for each in {serves!r}):
    sys.exit(subprocess.call(command))
child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
said = child.stdout.readline()
child.send_signal(signal.SIGINT)
rest, _ = child.communicate(timeout=60)
sys.stdout.write(said + rest)
sys.exit(0 if said and child.returncode in (0, 130, -2) else child.returncode or 1)
"""


def fill(broker: RunningBroker) -> None:
    """Topic and groups that pages speak of; each group has committed half of its topic."""
    where = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(where)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(120)
    producer = Producer(where)
    for number in range(60):
        producer.produce(TOPIC, f'{{"id": {number}, "cents": 5}}', partition=number % PARTITIONS)
    producer.flush(120)
    for group in GROUPS:
        client = Consumer({**where, "group.id": group, "enable.auto.commit": False})
        commit(client, [TopicPartition(TOPIC, each, 10) for each in range(PARTITIONS)])
        client.subscribe([TOPIC])
        until(lambda client=client: client.poll(1.0), f"{group} reads {TOPIC}")
        client.close()


@dataclass
class World:
    """One page's folder. environ: beside the process's own; names: what a page's words become."""

    folder: Path
    names: dict[str, str]
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._done: set[str] = set()
        self._programs = self.folder / ".programs"
        self._programs.mkdir(parents=True)
        self._place("fleet", [sys.executable, "-m", "fleet"])
        self._place("python", [sys.executable])
        bin_folder = Path(sys.executable).parent
        for name in ("dagster", "pytest"):
            self._place(name, [str(bin_folder / name)])
        self._place("kafka-configs.sh", [sys.executable, "-m", "tests.docs.kafka_configs"])

    def _place(self, name: str, command: list[str]) -> None:
        serves = sorted(each for each in _SERVES if each[0] == name)
        path = self._programs / name
        path.write_text(
            _SHIM.format(python=sys.executable, name=name, command=command, serves=serves)
        )
        path.chmod(0o755)

    def with_kubernetes(self, server: KubeApi) -> "World":
        """`kubectl`, `helm` and Fleet speak to this API server."""
        self.environ["KUBECONFIG"] = str(server.kubeconfig())
        for name in ("kubectl", "helm"):
            (self._programs / name).symlink_to(programs.path(name))
        return self

    def declare(self, text: str) -> None:
        """The fleet.yaml that a page's reader has; names become this session's."""
        (self.folder / "fleet.yaml").write_text(self._named(text))

    def _named(self, text: str) -> str:
        for name, becomes in self.names.items():
            text = text.replace(name, becomes)
        return text

    @contextmanager
    def serving(self, *words: str) -> Iterator[str]:
        """The first line that `fleet WORDS` says; it runs meanwhile."""
        child = subprocess.Popen(
            [sys.executable, "-m", "fleet", *words],
            cwd=self.folder,
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert child.stdout is not None
        try:
            yield child.stdout.readline()
        finally:
            child.terminate()
            child.wait(120)

    def fleet(self, *words: str) -> None:
        """`fleet WORDS`, whatever comes of it."""
        subprocess.run(
            [sys.executable, "-m", "fleet", *words],
            cwd=self.folder,
            env=self._environ(),
            capture_output=True,
            check=False,
            timeout=120,
        )

    def _environ(self) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("FLEET_")},
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(repository()),
            "COLUMNS": "100",
            **self.environ,
        }

    def run(self, block: Block) -> None:
        """Its commands, in order; all have to end well. What was run once is not run again."""
        lines = block.commands.splitlines()
        whole = any(line.endswith("\\") for line in lines)
        said = {line: _REMARK.sub("", line) for line in lines}
        text = "\n".join(line for line in lines if whole or said[line] not in self._done)
        self._done.update(said.values())
        text = self._named(text)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environ(),
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,  # ends what hangs: the commands themselves wait for progress
        )
        assert done.returncode == 0, (
            f"{block}: exit {done.returncode}\n{textwrap.indent(text, '  ')}"
            f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )

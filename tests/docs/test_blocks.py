"""Each block of README and docs does what its reader would expect of it.

`sh` and `console` are run, page by page and in order, in a folder of the page's own; `yaml` is a
valid fleet.yaml or a part of one, or at least YAML; `json` and `sql` are parsed; `python` is run
or, where it needs what only its page has, compiled. `text` is what was printed.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

from fleet.config.load import load
from fleet.config.spec import FleetSpec, GroupSpec
from tests.docs.pages import Block, blocks
from tests.docs.worlds import World, fill
from tests.support.brokers import RunningBroker
from tests.support.needs import repository

if TYPE_CHECKING:
    from tests.support.kube_api import KubeApi

WATCHED = """
cluster: {name: main, bootstrap_servers: "broker-1:9092"}
fleets:
  - group: orders
    topics: [orders]
    mode: plan
    worker: {entrypoint: "job:process", protocol: classic}
  - {group: payments, topics: [orders], mode: observe}
"""
FILE_NAME = re.compile(r"# (\S+\.yaml)\n")
"""The first line of a block that a reader keeps as a file."""
LANGUAGES = {"sh", "console", "yaml", "json", "toml", "python", "sql", "text"}


def of(*languages: str) -> list[Block]:
    return [each for each in blocks() if each.language in languages]


def commands(page: str = "", *, world: str | None = None) -> list[Block]:
    """Blocks of commands that are run here: of a page, a folder or any; in one world or any."""
    return [
        each
        for each in of("sh", "console")
        if each.page.startswith(page) and not each.run_by and world in {None, each.world}
    ]


def pages_in(world: str) -> list[str]:
    """Pages whose commands are run in that world."""
    return sorted({each.page for each in commands(world=world)})


def test_every_block_says_its_language() -> None:
    """Or nobody could tell a command from what it printed."""
    assert not [f"{each}: {each.language!r}" for each in blocks() if each.language not in LANGUAGES]


def test_what_runs_elsewhere_is_run_there() -> None:
    """The named test is there, and speaks of the page."""
    wrong = []
    for block in blocks():
        if block.run_by is None:
            continue
        path = repository() / block.run_by
        if not path.exists() or block.page not in path.read_text(encoding="utf-8"):
            wrong.append(f"{block}: {block.run_by} does not speak of {block.page}")
    assert not wrong


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json(block: Block) -> None:
    """An ellipsis stands for what is left out."""
    text = block.text.replace("…", "")
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        _, at = decoder.raw_decode(text, at)


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml(block: Block, tmp_path: Path) -> None:
    """A part of fleet.yaml is valid where it is put into the smallest file that has it."""
    (tmp_path / "kafka-ca.pem").touch()
    name = FILE_NAME.match(block.text)
    if name and name[1] != "fleet.yaml":
        return  # of another program, which `test_kubernetes_commands` runs
    for each in yaml.safe_load_all(block.text):
        if isinstance(each, list) and all("group" in one for one in each):
            each = {"fleets": each}  # noqa: PLW2901
        elif isinstance(each, dict) and set(each) <= set(GroupSpec.model_fields):
            each = {"defaults": each}  # noqa: PLW2901
        if not isinstance(each, dict) or not set(each) <= {*FleetSpec.model_fields, "defaults"}:
            continue  # of another program
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump(_completed(each)))
        load(path, {"KAFKA_USER": "u", "KAFKA_PASSWORD": "p"})


def _completed(part: dict[str, Any]) -> dict[str, Any]:
    """With what every group has to say, where the page leaves it out."""
    fleets = []
    for each in part.get("fleets", ()):
        worker = {"entrypoint": "jobs.orders:process", "protocol": "classic"}
        if each.get("runtime", {}).get("deployment") or each.get("mode") == "observe":
            worker = {}
        if "command" in each.get("worker", {}):
            worker = {}
        filled = {"topics": ["orders"], **each}
        if worker or "worker" in each:
            filled["worker"] = {**worker, **each.get("worker", {})}
        fleets.append(filled)
    return {**part, "fleets": fleets} if fleets else part


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python(block: Block) -> None:
    """It compiles, and what it imports of Fleet is there."""
    compile(block.text, str(block), "exec")
    wanted = [
        line for line in block.text.splitlines() if line.startswith(("import fleet", "from fleet"))
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(wanted)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def filled(broker: RunningBroker) -> RunningBroker:
    """The session's broker with the groups that pages speak of."""
    fill(broker)
    return broker


@pytest.fixture
def world(filled: RunningBroker, tmp_path: Path) -> World:
    """A reader's folder beside that broker."""
    return World(
        tmp_path / "reader",
        {
            "broker-1:9092": filled.bootstrap_servers,
            "GROUP": "orders",
            "TOPIC": "orders",
        },
    )


@pytest.fixture
def watched(world: World) -> World:
    """The folder of somebody who looks at two groups, one of them declared with its job."""
    world.declare(WATCHED)
    (world.folder / "job.py").write_text("def process(df, context): ...\n")
    return world


README = "README.md"
FIRST_JOB = "docs/start/first-job.md"
OBSERVE = "docs/start/observe.md"


@pytest.mark.spark
def test_commands_of_the_readme(world: World) -> None:
    """In an empty folder: from the first view to a job that runs, is rolled, scaled and stopped.

    The page of the first job goes the same way with more steps; what both say is run once.
    """
    observe, *job = commands(README)
    try:
        for block in (observe, *commands(FIRST_JOB), *job):
            world.run(block)
        assert list((world.folder / "out").rglob("*.parquet")), "the job wrote its rows"
    finally:
        world.fleet("down", "--purge", "--yes")


def test_commands_of_the_first_page(world: World) -> None:
    """In an empty folder, too: it writes fleet.yaml."""
    for block in commands(OBSERVE):
        world.run(block)


IN_AN_EMPTY_FOLDER = {README, FIRST_JOB, OBSERVE}
OTHERS = [p for p in pages_in("broker") if "/runbooks/" not in p and p not in IN_AN_EMPTY_FOLDER]


@pytest.mark.parametrize("page", OTHERS)
def test_commands(page: str, watched: World) -> None:
    """Of a page, in order, in one folder."""
    for block in commands(page, world="broker"):
        watched.run(block)


def test_commands_of_runbooks(watched: World) -> None:
    """All of them; what several say is run once."""
    with watched.serving("exporter", "--listen", "127.0.0.1:0") as said:
        watched.names["HOST:9308"] = urlsplit(said.split()[-1]).netloc
        for block in commands("docs/troubleshoot/runbooks/"):
            watched.run(block)


@pytest.mark.kubernetes
@pytest.mark.parametrize("page", pages_in("kubernetes"))
def test_kubernetes_commands(page: str, world: World, kube_api: "KubeApi") -> None:
    """The same against a real API server without nodes, with the page's files."""
    world.with_kubernetes(kube_api)
    (world.folder / "kafka.env").write_text("KAFKA_USER=u\nKAFKA_PASSWORD=p\n")
    (world.folder / "k8s").symlink_to(repository() / "k8s")
    for block in (each for each in of("yaml") if each.page == page):
        if name := FILE_NAME.match(block.text):
            (world.folder / name[1]).write_text(block.text)
    for block in commands(page, world="kubernetes"):
        world.run(block)

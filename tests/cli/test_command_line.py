"""Usage, failures and speed of the `fleet` command, with no cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fleet import cli
from fleet.errors import ConfigError, FleetError, LostLease, Refused

HEAVY = ("confluent_kafka", "pydantic", "pyspark", "pyarrow", "dagster", "yaml", "kafka", "rich")
NEEDS_FILE = {
    "up": [],
    "down": [],
    "status": [],
    "rebalances": [],
    "logs": ["orders"],
    "test": ["orders"],
    "ui": [],
    "plan": [],
    "apply": ["--all"],
    "scale": ["orders", "3"],
    "roll": ["orders"],
    "drain": ["orders", "1"],
    "pause": ["--all", "--reason", "incident"],
    "resume": ["--all"],
    "slot": ["reopen", "orders", "1"],
    "manage": ["orders"],
    "unmanage": ["orders"],
    "new": ["orders"],
    "history": ["sync"],
    "worker": ["--group", "orders"],
    "exec": ["--group", "orders", "--", "true"],
    "exporter": [],
    "render": ["alert-rules"],
    "config": ["check"],
    "supervise": [],
}


def python(*arguments):
    """A fresh interpreter that finds the package as this one does."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    monkeypatch.delenv("FLEET_HOME", raising=False)


@pytest.mark.parametrize("command", NEEDS_FILE)
def test_without_a_file_a_command_names_init(command, capsys, tmp_path):
    """Every command that reads fleet.yaml exits 2 and names `fleet init`."""
    assert cli.run([command, *NEEDS_FILE[command]]) == 2
    said = capsys.readouterr().err
    assert "there is no fleet.yaml" in said
    assert "fleet init" in said
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_every_command_is_covered():
    """A new command is either tried without a file or named here."""
    without = {"demo", "dev", "init", "doctor", "completion", "operator", "simulate"}
    assert set(cli.COMMANDS) - set(NEEDS_FILE) == without


@pytest.mark.parametrize(
    "place", [["-c", "other.yaml", "status"], ["status", "--config", "other.yaml"]]
)
def test_config_is_taken_before_and_after_the_command(place, capsys):
    """The option and not the default is named."""
    assert cli.run(place) == 2
    assert "there is no other.yaml" in capsys.readouterr().err


def test_config_comes_from_the_environment(capsys, monkeypatch):
    """$FLEET_CONFIG is the default."""
    monkeypatch.setenv("FLEET_CONFIG", "named.yaml")
    assert cli.run(["plan"]) == 2
    assert "there is no named.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["pauze"], "Did you mean 'pause'?", id="unknown command"),
        pytest.param(["status", "--jsn"], "No such option", id="unknown option"),
        pytest.param(["scale", "orders"], "Missing argument 'N'", id="missing argument"),
        pytest.param(["scale", "orders", "-1"], "No such option", id="negative count"),
        pytest.param(["scale", "orders", "many"], "not a valid integer", id="no number"),
        pytest.param(["drain", "orders"], "Missing argument 'SLOT...'", id="no slot"),
        pytest.param(["apply"], "--all", id="apply nothing"),
        pytest.param(["apply", "orders", "--all"], "--all", id="apply both"),
        pytest.param(["apply", "a", "--abort", "--plan", "x"], "--plan", id="aborted plan"),
        pytest.param(["history", "sync", "--follow", "-o", "json"], "--follow", id="followed JSON"),
        pytest.param(["pause", "--reason", "x"], "--all", id="pause nothing"),
        pytest.param(["pause", "orders"], "--reason", id="pause without a reason"),
        pytest.param(["pause", "orders", "--reason", " "], "--reason", id="empty reason"),
        pytest.param(["resume", "orders", "--all"], "--all", id="resume both"),
        pytest.param(["status", "-o", "yaml"], "'table', 'json'", id="unknown output"),
        pytest.param(["status", "--watch", "2", "-o", "json"], "--watch", id="watched JSON"),
    ],
)
def test_wrong_usage_exits_2(arguments, said, capsys):
    """A wrong command line is told as click tells it, on stderr."""
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def _commands(command=cli.cli, words=()):
    """Every command with its words, groups too."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), (*words, name))


COMMANDS = {" ".join(words): command for words, command in _commands()}
CHANGING = {
    *("up", "down", "apply", "scale", "roll", "drain", "pause", "resume", "unmanage", "manage"),
    *("slot reopen", "history compact"),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_help_reads_well(words, capsys):
    """It fits 100 columns; what takes a value names it; one command looks like another."""
    assert cli.run([*words.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: fleet")
    assert max(map(len, text.splitlines())) <= 100
    assert "RANGE" not in text
    assert " TEXT" not in text
    options = [each for each in COMMANDS[words].params if isinstance(each, click.Option)]
    for option in options:
        assert option.help, option.opts
        assert option.help[0].isupper(), option.help
        assert option.help.endswith("."), option.help
        assert "-o" not in option.opts or option.metavar == "FORMAT"
        assert "--dry-run" not in option.opts or option.is_flag
    flags = {name for option in options for name in option.opts}
    assert (words in CHANGING) is ({"--dry-run", "--yes"} <= flags)


def test_first_lines_of_help_are_imperative():
    """No article, no noun, no pronoun begins one."""
    for words, command in COMMANDS.items():
        first = (command.help or "").splitlines()[0]
        assert first.endswith("."), words
        assert first.split()[0].rstrip(",").lower() not in {"a", "the", "what", "one", "of"}, words
        assert not first.split()[0].endswith(("s", "ed", "ing")), (words, first)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_table_of_commands_agrees_with_the_commands(name):
    """The line of help in the table is the first line of the command's own help."""
    context = click.Context(cli.cli)
    command = cli.cli.get_command(context, name)
    assert command is not None
    assert (command.help or "").strip().splitlines()[0] == cli.COMMANDS[name].help


def test_help_loads_nothing_heavy():
    """`fleet --help` imports no client, no Spark and no pydantic."""
    program = (
        "import sys, json\n"
        "from fleet.cli import run\n"
        "code = run(['--help'])\n"
        f"print(json.dumps([code, [m for m in {HEAVY!r} if m in sys.modules]]), file=sys.stderr)\n"
    )
    done = python("-c", program)
    assert json.loads(done.stderr) == [0, []]
    assert "roll" in done.stdout


def test_version_is_one_line(capsys):
    """`fleet --version` names program and version."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"fleet {cli.__version__}\n"


def test_python_m_fleet_is_the_same_command():
    """The module runs where the program is not on the path, and its exit code is the process's."""
    done = python("-m", "fleet", "nonsense")
    assert done.returncode == 2
    assert "No such command" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FleetError("the broker is away"), 1, "fleet: the broker is away\n"),
        (Refused("a storm"), 3, "fleet: a storm\n"),
        (LostLease("ann changes it"), 3, "fleet: ann changes it\n"),
        (ConfigError("bad key"), 2, "fleet: bad key\n"),
        (KeyError("x"), 1, "fleet: KeyError: 'x'; this is a defect, run with --verbose\n"),
        (RuntimeError(), 1, "fleet: RuntimeError; this is a defect, run with --verbose\n"),
        (ValueError("a\nb"), 1, "fleet: ValueError: a; this is a defect, run with --verbose\n"),
        (KeyboardInterrupt(), 130, "fleet: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_failure_is_one_sentence(error, code, said, capsys, failing):
    """FleetError is the whole story; anything else is called a defect; no traceback."""
    assert failing(error) == code
    captured = capsys.readouterr()
    assert captured.err.lstrip("\n") == said
    assert captured.out == ""


def test_verbose_shows_the_traceback_with_its_cause(capsys, failing):
    """--verbose tells where it came from, chained."""
    error = FleetError("the broker is away")
    error.__cause__ = OSError("refused by the kernel")
    assert failing(error, "--verbose") == 1
    said = capsys.readouterr().err
    assert "refused by the kernel" in said
    assert said.endswith("fleet: the broker is away\n")


def test_an_interrupted_change_says_how_to_go_on(capsys, failing):
    """Ctrl-C in a change names --resume and --abort."""
    assert failing(KeyboardInterrupt(), changing="orders") == 130
    said = capsys.readouterr().err
    assert "fleet apply orders --continue" in said
    assert "--abort" in said


@pytest.fixture
def failing(monkeypatch):
    """Run a command that raises."""
    from fleet.commands.invocation import Invocation, common

    def attempt(error, *options, changing=None):
        @click.command("status")
        @common
        def broken(invocation: Invocation) -> None:
            invocation.changing = changing
            raise error

        monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: broken)
        return cli.run([*options, "status"])

    return attempt


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["init"], 1, "the embedded broker"),
        (["init", "--bootstrap", "127.0.0.1:1", "--cluster", "a b"], 2, "no cluster name"),
        (["worker"], 2, "--group"),
    ],
    ids=["no embedded broker", "bad cluster name", "worker of nothing"],
)
def test_init_and_worker_say_what_is_missing(command, code, said, capsys, tmp_path):
    """Nothing is written where the cluster cannot be looked at."""
    assert cli.run(command) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "fleet.yaml").exists()


def test_init_and_up_do_not_send_each_other(capsys, tmp_path):
    """Without a file and a broker, and over an empty file: what is named is another thing to do."""
    assert cli.run(["init"]) == 1
    said = capsys.readouterr().err
    assert "fleet up" not in said
    assert "--bootstrap HOST:PORT" in said
    assert "fleet dev broker start" in said
    (tmp_path / "fleet.yaml").touch()
    for command in (["up"], ["init", "--force"], ["new", "sums"]):
        assert cli.run(command) == 2
        assert "`fleet init --bootstrap HOST:PORT --force`" in capsys.readouterr().err
    assert cli.run(["init", "--bootstrap", "127.0.0.1:1", "--force"]) == 1
    assert "nothing listens at 127.0.0.1:1" in capsys.readouterr().err


def test_doctor_works_without_a_file(capsys):
    """The machine is looked at, and the missing file is a warning."""
    assert cli.run(["doctor", "-o", "json"]) in {0, 1}
    found = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["python"]["level"] == "OK"
    assert found["config"]["level"] == "WARN"
    assert "fleet init" in found["config"]["remedy"]


def test_doctor_calls_a_wrong_file_a_failure(capsys, tmp_path):
    """A typo in fleet.yaml is one FAIL with the file's own message; exit 1."""
    (tmp_path / "fleet.yaml").write_text("fleetz: []\n")
    assert cli.run(["doctor", "-o", "json"]) == 1
    found = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["config"]["level"] == "FAIL"
    assert "fleetz" in found["config"]["found"]


@pytest.mark.parametrize("purge", [[], ["--purge", "--yes"]], ids=["down", "purge"])
def test_down_twice_is_no_failure(purge, capsys, tmp_path):
    """Where nothing runs, not even the embedded broker, there is nothing to be refused."""
    (tmp_path / "fleet.yaml").write_text("cluster: {name: idle}\n")
    for _ in range(2):
        assert cli.run(["down", *purge]) == 0
    assert capsys.readouterr().out.startswith("workers of cluster idle are stopped")

"""Which groups a command is for, and what a shell offers at Tab; no cluster is asked.

Faults: a name that nobody declared, labels that none has, two ways at once, a file that is broken.
"""

import socket
import struct
import threading
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from fleet import cli
from fleet.commands.invocation import Invocation
from fleet.kafka_source.connections import diagnose_listener

FILE = """
cluster: {bootstrap_servers: "127.0.0.1:1"}
mode: act
defaults: {replicas: {max: 3}}
fleets:
- {group: orders, topics: [orders, "^late.*"], labels: {team: pay}, owner: ann}
- {group: refunds, topics: [refunds], labels: {team: pay}, replicas: {max: 2}}
- {group: clicks, topics: [clicks], labels: {team: web}}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    Path("fleet.yaml").write_text(FILE)


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str]:
    """Exit code, and what was said on both streams."""
    code = cli.run(line.split())
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.mark.parametrize("command", ["up", "plan", "apply", "roll", "pause --reason x", "resume",
                                     "manage", "unmanage"])  # fmt: skip
def test_a_group_is_named_alike(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An undeclared name, unknown labels, no KEY=VALUE and two ways: exit 2 and a sentence."""
    for arguments, told in (
        ("ordres", "did you mean 'orders'?"),
        ("--select team=none", "declares no group with team=none; its keys are: owner, team"),
        ("--select team", "'team' is not KEY=VALUE"),
        ("orders --select team=pay", "only one of GROUP"),
    ):
        code, said = run(capsys, f"{command} {arguments}")
        assert code == 2, said
        assert told in said


def test_select_takes_groups_that_have_all_labels(capsys: pytest.CaptureFixture[str]) -> None:
    """Label, owner, both; GROUP twice is once; what is lifted is what was paused."""
    for arguments, held in (
        ("--select team=pay", ["orders", "refunds"]),
        ("--select team=pay --select owner=ann", ["orders"]),
        ("clicks orders clicks", ["clicks", "orders"]),
    ):
        code, said = run(capsys, f"pause {arguments} --reason freeze")
        assert code == 0
        assert [line.split()[1] for line in said.splitlines()] == held
        code, said = run(capsys, f"resume {arguments}")
        assert (code, said.count("is lifted")) == (0, len(held))
    code, said = run(capsys, "resume orders")
    assert (code, said) == (0, "group orders: there was no pause\n")


def offered(*words: str) -> list[str]:
    """What is offered for the last of the words."""
    *before, incomplete = words
    completing = ShellComplete(cli.cli, {"obj": Invocation()}, "fleet", "_FLEET_COMPLETE")
    return [each.value for each in completing.get_completions(before, incomplete)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ro"], ["roll"]),
        (["superv"], []),
        (["roll", ""], ["orders", "refunds", "clicks"]),
        (["roll", "orders", ""], ["refunds", "clicks"]),
        (["pause", "--reason", "x", "c"], ["clicks"]),
        (["logs", "re"], ["refunds"]),
        (["rebalances", "--group", "o"], ["orders"]),
        (["worker", "--group", "o"], ["orders"]),
        (["logs", "refunds", "--slot", ""], ["0", "1"]),
        (["slot", "reopen", "orders", ""], ["0", "1", "2"]),
        (["drain", "orders", "1", ""], ["0", "2"]),
        (["drain", "nobody", ""], []),
        (["test", "orders", "--offsets", ""], ["orders:"]),
        (["-c", "other.yaml", "roll", ""], ["payments"]),
    ],
)
def test_a_shell_completes(words: list[str], found: list[str]) -> None:
    """From fleet.yaml, or the file that --config names."""
    Path("other.yaml").write_text("fleets: [{group: payments}, {group: '${NAME}'}]")
    assert offered(*words) == found


@pytest.mark.parametrize("text", [None, "fleets: [", "- a", "fleets: {a: b}", "fleets: [a, 3]"])
def test_a_shell_is_told_nothing_of_a_broken_file(
    text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """No groups, and no word on either stream."""
    Path("fleet.yaml").unlink()
    if text is not None:
        Path("fleet.yaml").write_text(text)
    assert offered("roll", "") == []
    assert "roll" in offered("rol", ""), "no word of a command that there is not"
    assert offered("drain", "orders", "") == []
    said = capsys.readouterr()
    assert said.out + said.err == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That asks `fleet` itself."""
    code, said = run(capsys, f"completion {shell}")
    assert code == 0
    assert f"_FLEET_COMPLETE={shell}_complete" in said


def test_one_good_address_is_enough() -> None:
    """Where the first three refuse and the fourth is Kafka's, it is not the addresses."""
    away = ["127.0.0.1:1"] * 3
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=_say_hello, args=(listening,), daemon=True)
        answering.start()
        good = f"127.0.0.1:{listening.getsockname()[1]}"
        assert diagnose_listener([*away, good], tls=False) is None
        answering.join()
    assert "nothing listens" in (diagnose_listener(away, tls=False) or "")


def _say_hello(listening: socket.socket) -> None:
    """The look whether anybody listens, then ApiVersions: correlation 1 in a frame of ten bytes."""
    listening.accept()[0].close()
    with listening.accept()[0] as asked:
        asked.recv(64)
        asked.sendall(struct.pack(">iihi", 10, 1, 0, 0))

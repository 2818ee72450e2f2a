"""What the kernel shows of a process, changed by itself."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from fleet.system.processes import show_arguments, show_variable
what, name, value = sys.argv[1:4]
try:
    show_arguments(["x"] * 9000 if what == "many" else what.split())
    show_variable(name, value)
except ValueError as error:
    sys.exit(str(error))
place = f"/proc/{os.getpid()}/"
for kind in ("cmdline", "environ"):
    print([each for each in open(place + kind, "rb").read().split(b"\\0") if each])
print(os.environ["PART"], os.environ["PARTS"])
"""
ENVIRONMENT = {"XPART": "x", "PART": "fork-server", "PARTS": "1", "PATH": os.environ["PATH"]}


def shown(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What a process of this environment shows after it."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments, " " * 100],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_arguments_and_a_variable_are_shown() -> None:
    """Only these; the program's own `os.environ` is left alone."""
    arguments, environment, own = shown("python -m é", "PART", "worker").stdout.splitlines()
    assert arguments == str([b"python", b"-m", "é".encode()])
    found = environment[1:-1].split(", ")
    assert {"b'PART=worker'", "b'XPART=x'", "b'PARTS=1'"} <= set(found)
    assert own == "fork-server 1"


def test_what_has_no_room_is_cut() -> None:
    """Arguments are for people; the environment behind them stays whole."""
    arguments, environment, _ = shown("many", "PART", "w").stdout.splitlines()
    assert 300 < arguments.count("x") < 9000
    assert "b'XPART=x'" in environment


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PART", "fork-servers", "PART has room for 11 bytes, and its value has 12"),
        ("ART", "w", "ART was not in the environment"),
    ],
)
def test_a_variable_that_cannot_be_shown(name: str, value: str, told: str) -> None:
    """A mark that is wrong or cut would be another's."""
    done = shown("python", name, value)
    assert done.returncode == 1
    assert told in done.stderr

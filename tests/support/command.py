"""The `fleet` command: in this process, and in one of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet import cli
from tests.support.needs import repository


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """(stdout, stderr) of a command; its exit code is as expected."""
    capsys.readouterr()
    got = cli.run(list(arguments))
    captured = capsys.readouterr()
    assert got == code, captured
    return captured.out, captured.err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON that a command prints."""
    found = json.loads(said(capsys, *arguments, "-o", "json", code=code)[0])
    assert found["schema_version"] == 1
    return dict(found)


def process(
    *words: str, home: Path | None = None, program: str = "fleet", **environ: str
) -> "subprocess.CompletedProcess[str]":
    """`python -m fleet WORDS`, or another program's, to its end."""
    known = {"PYTHONPATH": str(repository()), **environ}
    if home is not None:
        known["FLEET_HOME"] = str(home)
    return subprocess.run(
        [sys.executable, "-m", program, *words],
        env={**os.environ, **known},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

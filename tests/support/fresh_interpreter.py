"""Code run by a fresh interpreter: what is loaded there, nothing of this process had loaded."""

import subprocess
import sys


def ran(code: str, *arguments: str) -> list[str]:
    """The words that it prints; AssertionError with its stderr where it fails."""
    told = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.split()

"""Code run by a fresh interpreter: what is loaded there, nothing of this process had loaded."""

import subprocess
import sys


def ran(code: str, *arguments: str) -> list[str]:
    """The words that it prints; AssertionError with its stderr where it fails."""
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def ran_without_fleet(made: bytes, code: str) -> str:
    """What the code prints of `made`, an object pickled by value, where there is no Fleet to import
    from, as on an executor; AssertionError with its stderr where it fails.
    """
    program = (
        "import pickle, sys; sys.modules['fleet'] = None\n"
        f"made = pickle.load(sys.stdin.buffer)\n{code}"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], input=made, capture_output=True, check=False
    )
    assert process.returncode == 0, process.stderr.decode()
    return process.stdout.decode().strip()

"""What an examination finds: one fact, how bad it is, what to do."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is; only FAIL changes the exit code."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's answer."""

    check: str
    level: Severity
    found: str
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    """Something works less well, or not yet."""
    return Finding(check, Severity.WARN, found, remedy)


def fail(check: str, found: str, remedy: str = "") -> Finding:
    """Something does not work."""
    return Finding(check, Severity.FAIL, found, remedy)

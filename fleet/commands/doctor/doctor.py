"""`fleet doctor`: everything that has to be right, one line each, with what to do."""

import json
import os
from pathlib import Path
from typing import Final

import click

from fleet.commands.doctor.checks import disk, guarded, home, jars, java, packages, python
from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, output_option
from fleet.errors import ConfigError
from fleet.model.findings import Finding, Severity
from fleet.text import visible

_COLOURS: Final = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "red"}


@click.command(epilog="Example:  fleet doctor -o json | jq '.checks[] | select(.level != \"OK\")'")
@output_option
@common
def doctor(invocation: Invocation, *, output: str) -> None:
    """Check what Fleet needs, and say what to do.

    Looks at this machine, at fleet.yaml where there is one, at the cluster it names, and at
    workers, slots and changes that need a person. Changes nothing. Exit code 1 if anything
    FAILs.
    """
    findings = examine(invocation)
    if output == "json":
        click.echo(json.dumps(as_json(findings), indent=2))
    else:
        for finding in findings:
            _print(finding)
    if any(finding.level is Severity.FAIL for finding in findings):
        click.get_current_context().exit(1)


def examine(invocation: Invocation) -> list[Finding]:
    """All findings, machine first; the cluster only where the file loads."""
    from fleet.system.home import fleet_home

    path = invocation.path()
    needed = _runs_here(path)
    found = guarded("python", python) + guarded("java", lambda: java(needed=needed))
    found += guarded("home", home) + guarded("disk", lambda: disk(fleet_home()))
    found += guarded("packages", lambda: packages(needed=needed))
    if not path.is_file():
        found += guarded("jars", lambda: jars(embedded=True))
        remedy = "write one with `fleet init --bootstrap HOST:PORT`, or name yours with --config"
        return [*found, Finding("config", Severity.WARN, f"there is no {path}", remedy)]
    from fleet.commands.doctor.checks_fleet import examine_fleet

    try:
        return found + examine_fleet(invocation)
    except ConfigError as error:
        return [*found, Finding("config", Severity.FAIL, str(error), f"mend {path}")]


def _runs_here(path: Path) -> bool:
    """Whether a broker or workers are to run on this machine, as far as the file can be read."""
    from fleet.config.load import load

    try:
        spec = load(path, os.environ)
    except ConfigError:
        return False
    workers = [each for each in spec.fleets if each.worker is not None]
    embedded = spec.cluster.bootstrap_servers == "embedded"
    return embedded or any(each.runtime.kind == "local" for each in workers)


def as_json(findings: list[Finding]) -> dict[str, object]:
    """The contract of `fleet doctor -o json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": all(finding.level is not Severity.FAIL for finding in findings),
        "checks": [
            {
                "check": finding.check,
                "level": finding.level.value,
                "found": finding.found,
                "remedy": finding.remedy or None,
            }
            for finding in findings
        ],
    }


def _print(finding: Finding) -> None:
    level = click.style(f"{finding.level.value:4}", fg=_COLOURS[finding.level])
    click.echo(f"{level}  {finding.check:<14} {visible(finding.found)}")
    if finding.remedy:
        click.echo(f"      {'':<14} → {visible(finding.remedy)}")

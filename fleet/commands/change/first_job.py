"""What `fleet init --job` writes beside a fleet.yaml, and into it.

Problem: a file that is there must not be broken by what is added to it. Choice: the whole text is
judged as the file that it will be, and only then written. Cost: it is read twice.
"""

import os
from pathlib import Path

import click

from fleet.errors import ConfigError


def write_first_job(path: Path, group: str, topic: str) -> None:
    """Declare the group in the fleet.yaml that is there, and write what it needs beside it.

    Raises ConfigError where the group is declared already, or its lines do not fit the file.
    """
    from fleet.config import first_job as texts
    from fleet.config.load import load
    from fleet.system.home import write_whole

    before = load(path, os.environ)
    if any(each.group == group for each in before.fleets):
        raise ConfigError(
            f"{path} declares group {group} already: give it a `worker:`, or name another group"
        )
    text = texts.declared(path.read_text(encoding="utf-8"), group, topic)
    try:
        load(path, os.environ, text=text)
    except ConfigError as error:
        raise ConfigError(
            f"{path} is left as it is: with a job for group {group} as its first fleet it would "
            f"not be valid:\n{error}"
        ) from error
    write_whole(path, text)
    click.echo(f"{path}: group {group} with a worker, mode: act")
    for name, content in texts.files(group, path.parent.absolute()).items():
        target = path.parent / name
        if target.exists():
            click.echo(f"{target}: is there already, left as it is")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
        click.echo(f"{target}: written")
    click.echo("Next:")
    click.echo(f"  pytest {path.parent / texts.test_of(group)}  the job's own test")
    click.echo(f"  fleet test {group:<16} the job once, on records of its topic")
    click.echo("  fleet up                    workers start")
    click.echo(f"  fleet logs {group:<16} what they write")

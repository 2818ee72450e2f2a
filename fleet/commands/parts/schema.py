"""`fleet schema`: the JSON schema of fleet.yaml, for editors."""

from importlib.resources import files

import click

from fleet.commands.invocation import verbose_option


def schema_text() -> str:
    """As it was written from fleet/config/spec*.py (python -m tests.reference.pages)."""
    return files("fleet.config").joinpath("fleet.schema.json").read_text(encoding="utf-8")


@click.command(epilog="Example:  fleet schema > fleet.schema.json")
@verbose_option
def schema() -> None:
    """Print the JSON schema of fleet.yaml.

    Editors with yaml-language-server complete and check the file where its first line is
    `# yaml-language-server: $schema=fleet.schema.json`.
    """
    click.echo(schema_text(), nl=False)
